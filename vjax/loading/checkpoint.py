"""Checkpoint tensors to placed parameters, one tensor at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from vjax.errors import CheckpointError
from vjax.loading.packed import BlockReader, as_bytes, packed_kind
from vjax.loading.reader import TensorReader, aligned_empty
from vjax.models.spec import Param, Source, Tree, is_param, iter_params, map_params
from vjax.quant import Dense, GGMLBlocks

Place = Callable[[Param], jax.sharding.Sharding]
Transform = Callable[[str, np.ndarray], np.ndarray]
Rename = Callable[[str], "str | tuple[str, int]"]
Read = Callable[[str, "slice | None"], np.ndarray]

# Tables that files carry along but that follow from the configuration (the last are GPT-2's causal masks), and the head
# of a model that ties it.
HARMLESS = re.compile(
    r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias|"
    r".*rotary_emb\.inv_freq|rope_(freqs|factors_long|factors_short)\.weight|(.*\.)?lm_head\.weight|output\.weight"
)
SHOWN = 5  # names in one message


class _Stored(NamedTuple):
    """Where a source lies: a tensor of the file, or one index of its first axis."""

    name: str
    expert: int | None
    shape: tuple[int, ...]


def load_params(
    spec_tree: Tree,
    reader: TensorReader,
    *,
    dtype: Any = jnp.float32,
    sharding_for: Place | None = None,
    transform: Transform | None = None,
    rename: Rename | None = None,
    progress: bool = False,
    ignore: Callable[[str], bool] | None = None,
    blocks: BlockReader | None = None,
) -> Tree:
    """Load every `Param` of `spec_tree`: a tree of weights (`Dense`, or `GGMLBlocks`) and arrays.

    `rename` maps a Hugging Face name to the file's (with the index of an expert where the file stacks them);
    `transform` gets the Hugging Face name and the stored values; `ignore` accepts further tensors of the file that the
    model does not use. With `blocks`, which is `reader` itself if it has packed tensors, weights of a type that
    `GGMLBlocks` knows stay packed; `transform` then gets rows of bytes. Other weights take `dtype`; vectors too, but
    float32 where `dtype` has 16 bits. Host memory stays at one parameter beyond the model.

    Raises `CheckpointError` before anything is read if tensors are missing, left over or of the wrong shape.
    """
    dtype, rename = np.dtype(dtype), rename or (lambda name: name)
    spec_tree = map_params(partial(_stored_form, names=reader.names(), rename=rename), spec_tree)
    places = _match(spec_tree, reader, rename, ignore or (lambda name: False))
    total = sum(reader.stored_bytes(name) for name in {stored.name for stored in places.values()})

    with tqdm(total=total, unit="B", unit_scale=True, desc="Loading weights", disable=not progress) as bar:

        def load(param: Param) -> Any:
            stored = [places[source.name] for source in param.sources]
            kind = packed_kind(param, [reader.names()[s.name] for s in stored if s.expert is None]) if blocks else None
            if blocks and kind:
                values = _assemble(as_bytes(param, kind), blocks.read_blocks, places, np.dtype(np.uint8), transform)
            else:
                values = _assemble(param, _numbers_of(reader, param), places, param_dtype(param, dtype), transform)
            bar.update(sum(_share(reader, s, places[s.name]) for s in param.sources))
            placed = jax.device_put(values, sharding_for(param) if sharding_for else None)
            placed.block_until_ready()  # so that the host copy is gone before the next one is read
            if kind:
                return GGMLBlocks(placed, kind, param.shape[-1])
            return Dense(placed) if param.kind == "weight" else placed

        return map_params(load, spec_tree)


def param_dtype(param: Param, dtype: Any) -> np.dtype:
    """The dtype that a parameter takes in a model of compute dtype `dtype`."""
    if param.kind == "ids":
        return np.dtype(np.int32)
    wide = param.kind == "vector" and np.dtype(dtype).itemsize < 4
    return np.dtype(np.float32) if wide else np.dtype(dtype)


def abstract_params(spec_tree: Tree, *, dtype: Any = jnp.float32, sharding_for: Place | None = None) -> Tree:
    """What `load_params` would return, as `jax.ShapeDtypeStruct`s."""

    def abstract(param: Param) -> Any:
        place = sharding_for(param) if sharding_for else None
        leaf: Any = jax.ShapeDtypeStruct(param.shape, param_dtype(param, dtype), sharding=place)
        return Dense(leaf) if param.kind == "weight" else leaf

    return jax.tree.map(abstract, spec_tree, is_leaf=is_param)


def _stored_form(param: Param, names: Container[str], rename: Rename) -> Param:
    """The form of a parameter that this checkpoint has; the first one if it has none."""
    form: Param | None = param
    while form is not None:
        if _split(rename(form.sources[0].name))[0] in names:
            return form
        form = form.or_else
    return param


def _match(
    spec_tree: Tree, reader: TensorReader, rename: Rename, ignore: Callable[[str], bool]
) -> dict[str, _Stored]:  # fmt: skip
    """Where each source lies, by its Hugging Face name. Everything that does not fit is found here."""
    names = reader.names()
    places: dict[str, _Stored] = {}
    missing: list[str] = []
    wrong: dict[str, str] = {}
    for _, param in iter_params(spec_tree):
        for source in param.sources:
            name, index = _split(rename(source.name))
            if name not in names:
                missing.append(name)
                continue
            stored = names[name].shape
            if index is not None:
                stored = stored[1:] if stored and index < stored[0] else (-1,)
            places[source.name] = _Stored(name, index, stored)
            if not _fits(source, stored):
                wrong[name] = f"{name!r} is {list(stored)}, the configuration asks for {list(source.stored)}"
    used = {stored.name for stored in places.values()}
    extra = [n for n in names if n not in used and not HARMLESS.fullmatch(n) and not ignore(n)]
    if missing:
        raise CheckpointError(f"{reader.path}: {_listed(missing, 'tensor', 'missing')}.")
    if wrong:
        where = reader.file_of(next(iter(wrong)))
        raise CheckpointError(f"{where}: {_listed(wrong.values(), 'tensor', 'of the wrong shape', quote=False)}.")
    if extra:
        raise CheckpointError(f"{reader.path}: {_listed(extra, 'tensor', 'unknown to this model')}.")
    return places


def _fits(source: Source, stored: tuple[int, ...]) -> bool:
    if stored == source.stored:
        return True
    # Vectors are sometimes stored with axes of one, and convolutions without theirs.
    if len(source.stored) == 1:
        return bool(np.prod(stored, dtype=np.int64) == source.stored[0])
    return [n for n in stored if n != 1] == [n for n in source.stored if n != 1]


def _assemble(
    param: Param, read: Read, places: dict[str, _Stored], dtype: np.dtype, transform: Transform | None
) -> np.ndarray:
    """A parameter's values on the host, in an array of their own."""
    if len(param.sources) == 1:
        values = _read(param.sources[0], read, places, transform)
        if values.dtype == dtype and values.flags.c_contiguous:
            return values.reshape(param.shape)
    out = aligned_empty(param.joined, dtype)
    start = 0
    for source in param.sources:
        end = start + source.shape[param.concat] if source.shape else 0
        where = (slice(None),) * param.concat + (slice(start, end),) if source.shape else ()
        with np.errstate(over="ignore"):
            out[where] = values if len(param.sources) == 1 else _read(source, read, places, transform)
        start = end
    return out.reshape(param.shape)


def _numbers_of(reader: TensorReader, param: Param) -> Read:
    kind, noun = (jnp.integer, "integers") if param.kind == "ids" else (jnp.floating, "floating-point numbers")

    def read(name: str, rows: slice | None) -> np.ndarray:
        values = reader.read(name, rows)
        if not jnp.issubdtype(values.dtype, kind):
            raise CheckpointError(f"{reader.file_of(name)}: tensor {name!r} holds {values.dtype}, {noun} expected.")
        return values

    return read


def _read(source: Source, read: Read, places: dict[str, _Stored], transform: Transform | None) -> np.ndarray:
    """A source in its merged layout, in the stored dtype."""
    stored, shape, rows = places[source.name], source.stored, None
    if stored.expert is not None:
        rows = slice(stored.expert, stored.expert + 1)
    elif source.rows is not None:
        rows = slice(*source.rows)
        shape = (source.rows[1] - source.rows[0], *shape[1:])
    values = read(stored.name, rows).reshape(shape)
    if transform is not None:
        values = transform(source.name, values)
    if source.convert is not None:
        values = source.convert(values)
    if values.size != int(np.prod(source.shape)):
        raise ValueError(f"{source.name!r} became {values.shape} from {shape}; it should be {source.shape}")
    return values.reshape(source.shape)


def _split(stored: str | tuple[str, int]) -> tuple[str, int | None]:
    return (stored, None) if isinstance(stored, str) else stored


def _share(reader: TensorReader, source: Source, stored: _Stored) -> int:
    """Bytes of the file that a source is."""
    nbytes, count = reader.stored_bytes(stored.name), 1
    if stored.expert is not None:
        return nbytes // reader.names()[stored.name].shape[0]
    if source.rows is not None:
        count, nbytes = source.stored[0], nbytes * (source.rows[1] - source.rows[0])
    return nbytes // max(count, 1)


def _listed(items: Iterable[str], noun: str, state: str, quote: bool = True) -> str:
    items = list(items)
    shown = ", ".join(repr(item) if quote else item for item in items[:SHOWN])
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"{len(items)} {noun}{'s' if len(items) > 1 else ''} {state}: {shown}{more}"
