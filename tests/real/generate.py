"""Writes what llama.cpp says to the prompts: `python -m tests.real.generate` (needs xllamacpp, from the oracle extra).

Each prompt goes on greedily; for each new token, its log-probability. llama.cpp rounds activations to 8 bits where
weights have few, so it gets the same file with all weights in float32: 0.5 and 2.5 GB, for as long as this runs.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize

from tests.real import CONTINUED, DATA, MODELS, PROMPTS
from vjax.loading.registered import fetch
from vjax.tokenizing import load_tokenizer

CONTEXT = 512


def in_float32(source: Path, target: Path) -> None:
    """The GGUF file with every tensor dequantised by the `gguf` package."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, item = field.types[0], field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), kind, sub_type=item)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def server(path: Path) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.cache_ram_mib, params.n_gpu_layers = CONTEXT, 1, 0, 0
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.verbosity = -1
    return xllamacpp.Server(params)


def greedy(llama: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Tokens that follow, and their log-probabilities."""
    request = dict(prompt=prompt, n_predict=CONTINUED, temperature=0.0, n_probs=1, ignore_eos=True, stream=False)
    answers: list[Any] = []
    answer = llama.handle_completions(request, answers.append)
    answer = answers[-1] if answers else answer
    answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
    content = answer["choices"][0]["logprobs"]["content"]
    return [item["id"] for item in content], [round(item["logprob"], 4) for item in content]


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for name in MODELS:
        path = fetch(name)
        with tempfile.TemporaryDirectory() as folder:
            in_float32(path, Path(folder, "float32.gguf"))
            llama = server(Path(folder, "float32.gguf"))
        tokenizer, texts = load_tokenizer(path), {}
        for title, text in PROMPTS.items():
            prompt = tokenizer.encode(text)
            tokens, logprobs = greedy(llama, prompt)
            texts[title] = {"prompt": prompt, "tokens": tokens, "logprobs": logprobs}
            print(f"{name}: {title}, {len(tokens)} tokens: {tokenizer.decode(tokens)!r}", flush=True)
        data = {"model": name, "xllamacpp": version("xllamacpp"), "texts": texts}
        (DATA / f"{name}.json").write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
