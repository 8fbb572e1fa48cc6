"""`Sentence`: how Sentence Transformers' files pool with a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vjax.errors import ModelError
from vjax.models.config import Pooling
from vjax.models.spec import Tree, vector, weight

MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"
}  # fmt: skip
ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
LARGEST = 1 << 16
Read = Callable[[str], dict[str, Any]]  # a file's JSON object, by its path in the model's folder; {} without the file


@dataclass(frozen=True)
class DenseModule:
    """A layer over the pooled vector, whose weights lie in a folder of their own."""

    folder: str
    inputs: int
    outputs: int
    bias: bool
    act: str | None

    def spec(self) -> Tree:
        tree: Tree = {"weight": weight("linear.weight", (self.outputs, self.inputs), (None, None))}
        if self.bias:
            tree["bias"] = vector("linear.bias", (self.outputs,), fill=0.0)
        return tree


@dataclass(frozen=True)
class Sentence:
    """`max_length`: tokens of a text; None: the model's own."""

    pooling: Pooling | None
    normalize: bool
    dense: tuple[DenseModule, ...] = ()
    max_length: int | None = None
    lower_case: bool = False

    @classmethod
    def read(cls, modules: Any, read: Read) -> Sentence:
        """Of `modules.json`. Raises `ModelError` for a module or a pooling that is not supported."""
        pooling: Pooling | None = None
        normalize, dense = False, []
        length = read("sentence_bert_config.json")
        for place, module in enumerate(modules):
            if not isinstance(module, dict):
                raise ModelError(f"modules.json: a module must be an object, got {module!r}.")
            kind = str(module.get("type", "")).rsplit(".", 1)[-1]
            folder = str(module.get("path", "" if kind == "Transformer" else f"{place}_{kind}"))
            if ".." in folder or folder.startswith("/"):
                raise ModelError(f"modules.json: the path {folder!r} leaves the model's folder.")
            if kind == "Pooling":
                pooling = _pooling(read(f"{folder}/config.json"))
            elif kind == "Dense":
                dense.append(_dense(folder, read(f"{folder}/config.json")))
            elif kind == "Normalize":
                normalize = True
            elif kind == "Transformer":
                length = (read(f"{folder}/sentence_bert_config.json") if folder else {}) or length
            else:
                raise ModelError(f"modules.json: module {kind!r} is not supported.")
        most = length.get("max_seq_length")
        if most is not None and (type(most) is not int or most < 1):
            raise ModelError(f"sentence_bert_config.json: max_seq_length must be a positive integer, got {most!r}.")
        return cls(pooling, normalize, tuple(dense), most, length.get("do_lower_case") is True)


def _pooling(config: Mapping[str, Any]) -> Pooling | None:
    asked = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(asked) > 1 or any(name not in MODES for name in asked):
        raise ModelError(f"pooling by {' and '.join(asked)} is not supported; known: {', '.join(MODES)}.")
    return MODES[asked[0]] if asked else None


def _dense(folder: str, config: Mapping[str, Any]) -> DenseModule:
    sizes = [config.get(name) for name in ("in_features", "out_features")]
    if any(type(size) is not int or not 0 < size <= LARGEST for size in sizes):
        raise ModelError(f"{folder}/config.json: in_features and out_features must be positive integers.")
    act = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if act not in ACTIVATIONS:
        raise ModelError(f"{folder}/config.json: activation {act!r} is not supported; known: {', '.join(ACTIVATIONS)}.")
    return DenseModule(folder, sizes[0], sizes[1], config.get("bias", True) is not False, ACTIVATIONS[act])  # type: ignore[arg-type]
