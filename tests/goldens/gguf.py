"""The cases as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

from tests.goldens import Golden, load_case
from tests.goldens.cases import CASES
from tests.goldens.gguf_families import architecture_name
from tests.goldens.gguf_gemma4 import add_gemma4
from tests.goldens.gguf_hybrids import HYBRIDS, add_hybrid, text_of
from tests.goldens.gguf_metadata import add_rope, add_shape, spelled_out
from tests.goldens.gguf_tensors import converted
from tests.goldens.gguf_vocab import add_vocabulary
from tests.goldens.weights import Tensors

QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def gguf_case_names(*families: str) -> list[str]:
    """The names of the cases that a GGUF file can express."""
    return [case.name for case in CASES if case.gguf and (not families or case.family in families)]


def gguf_checkpoint(name: str, directory: Path, quantise: str = "F32", splits: int = 1) -> Path:
    """Write the case as one GGUF file below `directory`, or as `splits` files; returns the first, reuses existing ones.

    `quantise`: the type of all matrices, one of `QUANTISATIONS`.
    """
    golden = text_of(load_case(name))
    if not golden.case.gguf:
        raise ValueError(f"case {name!r} has no GGUF form.")
    tensors = converted(golden)
    path = directory / f"{name}-{quantise}.gguf"
    first = path if splits == 1 else path.with_name(f"{path.stem}-00001-of-{splits:05d}.gguf")
    if not first.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_gguf(path, golden, tensors, quantise, splits)
    return first


def write_gguf(path: Path, golden: Golden, tensors: Tensors, quantise: str, splits: int) -> None:
    config, family = spelled_out(golden.config), golden.case.family
    per_file = math.ceil(len(tensors) / splits) if splits > 1 else 0
    writer = GGUFWriter(path, architecture_name(golden.case), split_max_tensors=per_file)
    writer.add_name(golden.name)
    writer.add_file_type(LlamaFileType.ALL_F32 if quantise == "F32" else LlamaFileType[f"MOSTLY_{quantise}"])
    if family == "gemma4_text":
        add_gemma4(writer, config)
    else:
        (add_hybrid if family in HYBRIDS else add_shape)(writer, config, family)
    add_rope(writer, config)
    add_vocabulary(writer, config, family)
    for name, array in tensors.items():
        data, kind = stored(array, quantise)
        writer.add_tensor(name, data, raw_dtype=kind)
    assert len(writer.tensors) == splits, f"{len(tensors)} tensors do not make {splits} files"
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def dequantised(golden: Golden, quantise: str) -> Tensors:
    """The weights by Hugging Face name and in its layout, float32, as a file of this quantisation holds them."""

    def through(array: np.ndarray) -> np.ndarray:
        data, kind = stored(array, quantise)
        return dequantize(data, kind).reshape(array.shape)

    # Quantisation works within rows, so the converter's order of rows makes no difference.
    return {name: through(array) for name, array in golden.tensors().items()}


def stored(array: np.ndarray, quantise: str) -> tuple[np.ndarray, GGMLQuantizationType]:
    """The bytes and the type a tensor gets: vectors stay float32; rows that do not divide into blocks become F16."""
    kind = GGMLQuantizationType.F32 if array.ndim == 1 else GGMLQuantizationType[quantise]
    try:
        quant_shape_to_byte_shape(array.shape, kind)
    except ValueError:
        kind = GGMLQuantizationType.F16
    return quantize(np.ascontiguousarray(array), kind), kind
