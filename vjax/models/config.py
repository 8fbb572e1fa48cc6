"""`ModelConfig`: the shape of a decoder, read from a Hugging Face `config.json` (or its translation from GGUF)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec
from vjax.layers.mlp import Act
from vjax.layers.recurrent import Arrays
from vjax.layers.rope import Rope, rope_from_hf
from vjax.layers.routing import Routing

Pooling = Literal["cls", "mean", "last"]  # the vector of the first token, their mean, that of the last token


MAX_LAYERS = 10_000


@dataclass(frozen=True)
class CacheSpec:
    """A pool of key/value pages that `num_layers` layers share: every page holds `[page_size, heads, width]`.

    Without `values` it holds keys of one head alone, `[page_size, width]`, whose first channels are the values
    (multi-head latent attention). With `stride` a page holds an entry for every so many
    tokens, `[width]`, instead of one a token.
    """

    num_layers: int
    num_heads: int
    head_dim: int
    values: bool = True
    stride: int | None = None


@dataclass(frozen=True)
class StateSpec:
    """What each sequence carries from token to token through `num_layers` recurrent layers, in float32: arrays by name,
    each with its shape in one layer and an axis name for each dimension (for sharding)."""

    num_layers: int
    arrays: Arrays


@dataclass(frozen=True)
class ModelConfig:
    """The decoder shape that families share; a family adds fields by subclassing."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    hidden_act: Act
    max_position: int
    tie_embeddings: bool
    ropes: tuple[Rope, ...]
    attention: tuple[AttentionSpec, ...]  # one per layer; recurrent layers ignore theirs
    windows: tuple[int | None, ...] = (None,)  # of the groups of layers that share a page table (`models.page_groups`)
    group_layers: int | None = None  # room in a group, where there are several
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: Literal["head", "full", "heads"] | None = None  # norms of queries and keys: of each head, over all heads
    # at once, or of each head with weights of its own
    sinks: bool = False  # attention has them
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True  # of LayerNorm
    norm_after: bool = False  # norms after each half of a block, on the stream itself
    final_norm: bool = True
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    parallel_residual: bool = False  # attention and MLP side by side, on one norm
    residual_scale: float = 1.0  # of what each half of a block adds
    embed_width: int | None = None  # of the embedding and the head, where projections lead to hidden_size and back
    position_offset: int | None = None  # learned positions: row of the table for position 0
    logit_scale: float = 1.0
    head_bias: bool = False
    pooling: Pooling | None = None  # how an encoder makes a text's vector, where the family knows
    head_act: str = "tanh"  # of a classifier's hidden layer
    dense_bias: bool = True  # of that layer
    token_types: int = 0
    final_softcap: float | None = None
    routing: Routing | None = None  # of a mixture of experts, as are:
    num_experts: int = 0
    expert_size: int = 0  # inner width of one
    shared_size: int = 0  # of the expert that all tokens take; 0: none
    shared_gate: bool = False
    dense_layers: frozenset[int] = frozenset()  # with a plain MLP instead
    prefix: str = "model."  # of the tensors' names, where the decoder may be a part of a checkpoint
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = field(default=None, compare=False)  # the checkpoint's own, by name

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def cache_specs(self) -> dict[str, CacheSpec]:
        """The page pools this model needs, by kind. At least one, which may have no layers."""
        return {"full": CacheSpec(self.num_layers, self.num_kv_heads, self.head_dim)}

    @property
    def pools(self) -> dict[str, CacheSpec]:
        """The same as the engine makes them: groups of layers share a pool with room for the layers of one."""
        if self.group_layers is None:
            return self.cache_specs
        return {kind: replace(spec, num_layers=self.group_layers) for kind, spec in self.cache_specs.items()}

    @property
    def state_spec(self) -> StateSpec | None:
        """The state of recurrent layers. It belongs to a whole sequence, so its cache cannot be shared by prefix."""
        return None

    def for_length(self, length: int) -> ModelConfig:
        """For sequences no longer than `length`: ropes that stretch with the length go by it."""
        return replace(self, ropes=tuple(replace(rope, length=length) for rope in self.ropes))

    def with_window(self, window: int | None) -> Self:
        """With that window on every layer, or none."""
        return replace(self, attention=tuple(replace(spec, window=window) for spec in self.attention))

    def with_windows(self, kinds: Sequence[str], window: int) -> Self:
        """With that window on the layers whose kind is "sliding_attention"."""
        windows = (window if kind == "sliding_attention" else None for kind in kinds)
        pairs = zip(self.attention, windows, strict=True)
        return replace(self, attention=tuple(replace(spec, window=found) for spec, found in pairs))

    def with_changes(self, **changes: Any) -> Self:
        return replace(self, **changes)


def positive(hf: dict[str, Any], name: str, default: Any = None) -> int:
    """An integer > 0 from a config, or a `ModelError` that names the field."""
    value = hf.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(f"config field {name!r} must be a positive integer, got {value!r}.")
    return value


def number(hf: dict[str, Any], name: str, default: float | None = None) -> float:
    """A finite number > 0 from a config, or a `ModelError` that names the field."""
    value = hf.get(name)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelError(f"config field {name!r} must be a positive number, got {value!r}.")
    return float(value)


def layer_count(hf: dict[str, Any]) -> int:
    """Lists of layers are made from it: what no model has must not fill the memory."""
    layers = positive(hf, "num_hidden_layers")
    if layers > MAX_LAYERS:
        raise ModelError(f"config field 'num_hidden_layers' is {layers}; at most {MAX_LAYERS} are possible.")
    return layers


def head_width(hf: dict[str, Any]) -> int:
    """Channels of a head: `head_dim`, or the heads' share of the width."""
    return positive(hf, "head_dim", positive(hf, "hidden_size") // positive(hf, "num_attention_heads"))


def rotary_dim(hf: dict[str, Any], head_dim: int, default: float = 1.0) -> int:
    """How many channels of a head its rope turns: `partial_rotary_factor` of them."""
    nested = hf.get("rope_parameters")
    part = number(
        hf,
        "partial_rotary_factor",
        number(nested if isinstance(nested, dict) else {}, "partial_rotary_factor", default),
    )
    rotated = int(head_dim * min(part, 2.0) + 1e-6)
    if not 2 <= rotated <= head_dim or rotated % 2:
        raise ModelError(f"partial_rotary_factor={part!r} rotates {rotated} of {head_dim} channels; must be even.")
    return rotated


def token_ids(value: Any) -> tuple[int, ...]:
    """`eos_token_id` is an integer, a list or absent."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


C = TypeVar("C", bound=ModelConfig)


def of_text(hf: dict[str, Any], config: Callable[[dict[str, Any]], C]) -> C:
    """The config of the text model, which may be a part of the checkpoint's."""
    text = hf.get("text_config")
    if text is None:
        return config(hf)
    if not isinstance(text, dict):
        raise ModelError(f"config field 'text_config' must hold an object, got {text!r}.")
    tied = hf.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    own = {"architectures": hf.get("architectures")} | ({} if tied is None else {"tie_word_embeddings": bool(tied)})
    return config({**text, **own}).with_changes(prefix="model.language_model.")


def config_from_hf(hf: dict[str, Any], **changes: Any) -> ModelConfig:
    """The fields that nearly every decoder spells the same way; a family passes what it knows better as `changes`."""
    heads = positive(hf, "num_attention_heads")
    hidden = positive(hf, "hidden_size")
    kv_heads = positive(hf, "num_key_value_heads", heads)
    head_dim = positive(hf, "head_dim", hidden // heads)
    layers = layer_count(hf)
    if heads % kv_heads:
        raise ModelError(f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}.")
    if "ropes" not in changes:
        changes["ropes"] = (rope_from_hf(hf, rotary_dim(hf, head_dim)),)
    fields: dict[str, Any] = dict(
        architecture=(hf.get("architectures") or ["unknown"])[0],
        vocab_size=positive(hf, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=positive(hf, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=number(hf, "rms_norm_eps", 1e-6),
        hidden_act=hf.get("hidden_act") or "silu",
        max_position=positive(hf, "max_position_embeddings", 2048),
        tie_embeddings=bool(hf.get("tie_word_embeddings", False)),
        attention=tuple(AttentionSpec(head_dim**-0.5, pool_layer=i) for i in range(layers)),
        bos_token_id=next(iter(token_ids(hf.get("bos_token_id"))), None),
        eos_token_ids=token_ids(hf.get("eos_token_id")),
        dtype=hf.get("dtype") or hf.get("torch_dtype"),
    )
    return ModelConfig(**{**fields, **changes})
