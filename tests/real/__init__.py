"""Real weights, beside llama.cpp. Slow: these models are packages of 100 and 500 MB."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parent / "data"
MODELS = ("smollm2-demo", "qwen2.5-coder-0.5b-instruct")
CONTINUED = 40  # tokens
PROMPTS = {
    "prose": "The lighthouse stood at the end of a long stone pier. Every evening, when the fishing boats came home,",
    "code": "def median(values: list[float]) -> float:\n    ordered = sorted(values)\n",
    "chat": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "list": "Three reasons to keep a diary:\n1.",
    "french": "La pluie tombait depuis trois jours sur la vallée, et les habitants du village",
}
