"""What llama.cpp calls the families, and which of them it treats alike."""

from __future__ import annotations

from gguf import MODEL_ARCH, MODEL_ARCH_NAMES

from tests.goldens.cases import Case
from tests.goldens.gguf_hybrids import hybrid_architecture

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma": MODEL_ARCH.GEMMA,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "gemma4_text": MODEL_ARCH.GEMMA4,
    "phi": MODEL_ARCH.PHI2,
    "phi3": MODEL_ARCH.PHI3,
    "starcoder2": MODEL_ARCH.STARCODER2,
    "stablelm": MODEL_ARCH.STABLELM,
    "cohere": MODEL_ARCH.COMMAND_R,
    "cohere2": MODEL_ARCH.COHERE2,
    "lfm2": MODEL_ARCH.LFM2,
    "deepseek_v2": MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": MODEL_ARCH.DEEPSEEK2,
    "glm4_moe_lite": MODEL_ARCH.DEEPSEEK2,
    "internlm2": MODEL_ARCH.INTERNLM2,
    "mixtral": MODEL_ARCH.LLAMA,
    "qwen2_moe": MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "gpt_oss": MODEL_ARCH.GPT_OSS,
    "glm4_moe": MODEL_ARCH.GLM4_MOE,
    "minimax_m2": MODEL_ARCH.MINIMAXM2,
    "granitemoe": MODEL_ARCH.GRANITE_MOE,
    "granitemoeshared": MODEL_ARCH.GRANITE_MOE,
    "ernie4_5_moe": MODEL_ARCH.ERNIE4_5_MOE,
    "olmoe": MODEL_ARCH.OLMOE,
    "granite": MODEL_ARCH.GRANITE,
    "arcee": MODEL_ARCH.ARCEE,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "minicpm": MODEL_ARCH.MINICPM,
    "seed_oss": MODEL_ARCH.SEED_OSS,
    "ernie4_5": MODEL_ARCH.ERNIE4_5,
    "glm4": MODEL_ARCH.GLM4,
    "olmo2": MODEL_ARCH.OLMO2,
    "olmo3": MODEL_ARCH.OLMO2,
    "exaone4": MODEL_ARCH.EXAONE4,
    "hunyuan_v1_dense": MODEL_ARCH.HUNYUAN_DENSE,
    "lfm2_moe": MODEL_ARCH.LFM2MOE,
    "bert": MODEL_ARCH.BERT,
    "roberta": MODEL_ARCH.BERT,
    "xlm-roberta": MODEL_ARCH.BERT,
    "modernbert": MODEL_ARCH.MODERN_BERT,
    "gpt2": MODEL_ARCH.GPT2,
    "minicpm3": MODEL_ARCH.MINICPM3,
    "glm": MODEL_ARCH.CHATGLM,
    "internlm3": MODEL_ARCH.LLAMA,
    "glm_moe_dsa": MODEL_ARCH.GLM_DSA,
}
GEMMAS = ("gemma", "gemma2", "gemma3_text")
LFM2S = ("lfm2", "lfm2_moe")
GRANITES = ("granite", "granitemoe", "granitemoeshared")
# Those whose rope turns neighbours there, and halves of a head here; Nemotron-H's rows go the same way without a rope.
PAIRED = ("llama", "mixtral", "internlm2", "internlm3", "arcee", "smollm3", "minicpm", "bamba", "nemotron_h", *GRANITES)


def architecture(case: Case) -> MODEL_ARCH:
    return hybrid_architecture(case) or ARCHITECTURES[case.family]


def architecture_name(case: Case) -> str:
    return MODEL_ARCH_NAMES[architecture(case)]
