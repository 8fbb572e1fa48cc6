"""`load`: any supported checkpoint as `(model, params)`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from vjax.config import EngineConfig
from vjax.errors import CheckpointError, ModelError
from vjax.loading import orbax
from vjax.loading.checkpoint import load_params, param_dtype
from vjax.loading.dtypes import resolve_dtype
from vjax.loading.gguf import GGUFFile, open_gguf
from vjax.loading.gguf_config import hf_config_from_gguf
from vjax.loading.gguf_encoders import ENCODER_FIXES, sentence_from_gguf
from vjax.loading.gguf_names import to_gguf_name, to_hf_name
from vjax.loading.hf_config import read_hf_config, read_json_object
from vjax.loading.mxfp4 import unpacking
from vjax.loading.safetensors import open_safetensors
from vjax.loading.source import find_source
from vjax.models.encoder import Encoder, is_encoder
from vjax.models.model import Model
from vjax.models.pooler_config import PoolerConfig
from vjax.models.sentence import Sentence
from vjax.models.spec import Param, Tree, map_params
from vjax.native import library
from vjax.parallel.mesh import make_mesh, param_sharding
from vjax.quant import Dense

MODULES = "modules.json"


def load(
    path: str | Path,
    dtype: Any = None,
    *,
    tensor_parallel_size: int = 1,
    load_format: str = "auto",
    hf_overrides: dict[str, Any] | None = None,
    use_tqdm_on_load: bool = True,
    seed: int = 0,
    packed: bool | None = False,
) -> tuple[Model, Tree]:
    """A model and its parameters, on the device.

    `path`: a Hugging Face folder (safetensors), a `.gguf` file (or any of its shards), a folder that `vjax convert`
    wrote, or a registered name such as `smollm2-demo`. `dtype`: a name or dtype object; by default float32 on CPU and
    the checkpoint's own elsewhere. Tensors are read one at a time, straight to where they stay. `packed`: GGUF weights
    stay in their blocks, at a fraction of the memory, as an engine loads them (float32 on one CPU device, with the
    native library); None: where that works. Dense parameters, the default, can all be differentiated.

    Raises `CheckpointError` for files that are missing, broken or do not fit their config, `ModelError` for an
    architecture or option that is not supported.
    """
    config = EngineConfig(
        model=str(path),
        dtype="auto" if dtype is None else resolve_dtype(dtype).name,
        tensor_parallel_size=tensor_parallel_size,
        load_format=load_format,  # type: ignore[arg-type]
        hf_overrides=hf_overrides,
        use_tqdm_on_load=use_tqdm_on_load,
        seed=seed,
    )
    return load_with_config(config, make_mesh(tensor_parallel_size), packed)[:2]


def load_model(config: EngineConfig, mesh: Mesh, packed: bool | None = None) -> tuple[Model, Tree]:
    """The same for an engine's options, of a model that generates. Raises `ModelError` before an encoder is read."""
    model, params, _ = load_with_config(config, mesh, packed, encoder=False)
    return model, params


def load_encoder(config: EngineConfig, mesh: Mesh) -> tuple[Encoder, Tree]:
    """The same for a model that encodes."""
    model, params, _ = load_with_config(config, mesh, encoder=True)
    assert isinstance(model, Encoder)
    return model, params


def pools(config: EngineConfig) -> bool:
    """Whether the model encodes rather than generates: as `runner` and `convert` say, else a bare model or a classifier
    by its architecture (in GGUF, BERT and its kin), or with Sentence Transformers' files beside it."""
    if config.runner != "auto" or config.convert in ("embed", "classify"):
        return config.runner != "generate"
    source = find_source(config.model, progress=config.use_tqdm_on_load, weights=False)
    if source.kind == "gguf":
        with closing(open_gguf(source.path)) as gguf:
            return gguf.metadata.get("general.architecture") in ENCODER_FIXES
    if source.kind != "hf":
        return False
    hf = {**read_hf_config(source.path), **(config.hf_overrides or {})}
    return is_encoder(hf) or (source.path / MODULES).is_file()


def load_with_config(
    config: EngineConfig, mesh: Mesh, packed: bool | None = False, encoder: bool | None = None
) -> tuple[Model, Tree, dict[str, Any]]:
    """Also the Hugging Face config that the model was built from, overrides included; dense unless asked. `encoder`:
    whether an `Encoder` is wanted, None: whatever it is."""
    source = find_source(config.model, progress=config.use_tqdm_on_load, weights=config.load_format != "dummy")
    gguf = open_gguf(source.path) if source.kind == "gguf" else None
    if gguf is not None:
        hf = hf_config_from_gguf(gguf)
    elif source.kind == "vjax":
        hf = orbax.read_checkpoint_config(source.path)
    else:
        hf = read_hf_config(source.path)
    hf = {**hf, **(config.hf_overrides or {})}
    sentence = sentence_from_gguf(gguf) if gguf is not None else read_sentence(source.path)
    model = _model(config, hf, sentence)
    if encoder is not None and isinstance(model, Encoder) != encoder:
        does, use = ("generates", "generate") if encoder else ("encodes", "LLM.encode")
        raise ModelError(f"{config.model}: {model.config.architecture} {does} here; use {use}.")
    dtype = resolve_dtype(config.dtype, hf)
    if config.max_model_len:
        model = replace(model, config=model.config.for_length(config.max_model_len))
    options: dict[str, Any] = dict(dtype=dtype, sharding_for=partial(param_sharding, mesh))
    left_out = model.unused() if isinstance(model, Encoder) else set()
    if config.load_format == "dummy":
        params = random_params(model.spec(), dtype, mesh, config.seed)
    elif gguf is not None:
        blocks = gguf if _stays_packed(packed, dtype, mesh) else None
        params = _load_gguf(gguf, model, progress=config.use_tqdm_on_load, blocks=blocks, **options)
    elif source.kind == "vjax":
        params = orbax.load_checkpoint(source.path, model.spec(), **options)
    else:
        with closing(unpacking(open_safetensors(source.path))) as reader:
            rename = partial(_published_name, names=reader.names(), prefix=model.family.optional_prefix)
            unused = re.compile(model.family.unused)
            params = load_params(
                model.spec(), reader, rename=rename, progress=config.use_tqdm_on_load,
                ignore=lambda name: name in left_out or unused.fullmatch(name) is not None, **options,
            )  # fmt: skip
    if isinstance(model, Encoder) and model.dense:
        params = {**params, "dense": _load_dense(source.path, model, config, mesh, **options)}
    return model, params, hf


def _model(config: EngineConfig, hf: dict[str, Any], sentence: Sentence | None) -> Model:
    asked = config.runner == "pooling" or config.convert in ("embed", "classify")
    if config.runner == "generate" or not (asked or sentence or is_encoder(hf)):
        return Model.from_hf(hf)
    return Encoder.from_hf(hf, sentence, convert=config.convert, pooler=PoolerConfig.read(config.pooler_config))


def read_sentence(folder: Path) -> Sentence | None:
    """How Sentence Transformers pools with this model; None without its files."""
    modules = folder / MODULES
    if not modules.is_file():
        return None
    try:
        found = json.loads(modules.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{modules}: not valid JSON: {error}") from None
    if not isinstance(found, list):
        raise CheckpointError(f"{modules}: must hold a list, found {type(found).__name__}.")
    return Sentence.read(found, lambda name: read_json_object(folder / name) if (folder / name).is_file() else {})


def _load_dense(folder: Path, model: Encoder, config: EngineConfig, mesh: Mesh, **options: Any) -> tuple[Tree, ...]:
    if config.load_format == "dummy":
        return tuple(random_params(layer.spec(), options["dtype"], mesh, config.seed) for layer in model.dense)
    found = []
    for layer in model.dense:
        with closing(open_safetensors(folder / layer.folder)) as reader:
            found.append(load_params(layer.spec(), reader, **options))
    return tuple(found)


def _published_name(name: str, names: Collection[str], prefix: str) -> str:
    """The name as the file has it: with the family's optional prefix or without."""
    return name if name in names or not name.startswith(prefix) else name.removeprefix(prefix)


def _stays_packed(asked: bool | None, dtype: Any, mesh: Mesh) -> bool:
    """Whether GGUF weights stay in blocks. Raises `ModelError` when that was asked for and cannot be."""
    if asked is False:
        return False
    fits = jax.default_backend() == "cpu" and mesh.size == 1 and np.dtype(dtype) == np.float32
    if fits and library.available():
        return True
    if asked:
        raise ModelError("packed=True needs float32 on one CPU device, and a C++ compiler for the native library.")
    return False


def _load_gguf(gguf: GGUFFile, model: Model, **options: Any) -> Tree:
    architecture, undo = gguf.metadata["general.architecture"], model.family.gguf_tensor
    left_out = {to_gguf_name(name, architecture) for name in (model.unused() if isinstance(model, Encoder) else ())}

    def transform(name: str, values: np.ndarray) -> np.ndarray:
        return values if undo is None else undo(name, values, model.config)

    unused = re.compile(model.family.unused)

    def beyond(name: str) -> bool:
        """Layers that predict further tokens come last; an encoder leaves out the head."""
        block = re.match(r"blk\.(\d+)\.", name)
        further = block is not None and int(block[1]) >= model.config.num_layers
        return further or name in left_out or unused.fullmatch(to_hf_name(name, architecture) or name) is not None

    with closing(gguf):
        return load_params(
            model.spec(), gguf, rename=lambda name: to_gguf_name(name, architecture), transform=transform,
            ignore=beyond, **options,
        )  # fmt: skip


def random_params(spec: Tree, dtype: Any, mesh: Mesh, seed: int = 0) -> Tree:
    """Seeded random parameters, made on the device: weights keep the scale of their input."""
    counter = iter(range(1 << 30))

    def fill(param: Param) -> Any:
        where, kind = param_sharding(mesh, param), jnp.dtype(param_dtype(param, dtype))
        if param.fill is not None:
            return jax.device_put(np.full(param.shape, param.fill, kind), where)
        values = _normal(jax.random.fold_in(jax.random.key(seed), next(counter)), param.shape, kind, where)
        return Dense(values) if param.kind == "weight" else values

    return map_params(fill, spec)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype, where: jax.sharding.Sharding) -> jax.Array:
    values = jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-1] ** -0.5, dtype)
    return jax.lax.with_sharding_constraint(values, where)
