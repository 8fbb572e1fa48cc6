"""vjax's own checkpoints: parameters as they lie on the device, written and read by orbax.

A folder holds `params/` (orbax's), `vjax.json` (version, config, every array's shape and dtype; written last) and the
tokenizer's files.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from vjax.errors import CheckpointError
from vjax.loading.checkpoint import Place, abstract_params
from vjax.loading.gguf import write_vocabulary
from vjax.loading.hf_config import read_json_object
from vjax.loading.source import MANIFEST, is_checkpoint
from vjax.models.spec import Tree

PARAMS = "params"
VERSION = 1
VOCABULARY = "tokenizer.gguf"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip


def save_checkpoint(
    directory: Path | str,
    params: Tree,
    hf_config: dict[str, Any],
    *,
    tokenizer: Path | str | None = None,
    force: bool = False,
) -> None:
    """Write `params` (any tree of arrays and weights), the config and the tokenizer's files to a new folder.

    `tokenizer`: a model folder, or a `.gguf` file, whose vocabulary is copied. The folder appears complete or not at
    all. Raises `CheckpointError` if it exists, unless `force` is given and it is a checkpoint of vjax.
    """
    directory = Path(directory).absolute()
    _check_target(directory, force)
    arrays = _named(params)
    manifest = {
        "format": "vjax",
        "version": VERSION,
        "hf_config": hf_config,
        "arrays": {name: {"shape": list(a.shape), "dtype": a.dtype.name} for name, a in arrays.items()},
    }
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be written: {error.strerror or error}.") from None
    try:
        _check_space(directory, sum(array.nbytes for array in arrays.values()))
        with _checkpointer(directory) as checkpointer:
            checkpointer.save(staging / PARAMS, arrays)
            checkpointer.wait_until_finished()
        if tokenizer is not None:
            _copy_tokenizer(Path(tokenizer), staging)
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1))
        staging.chmod(0o755)
        _move_into_place(staging, directory)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def read_checkpoint_config(directory: Path | str) -> dict[str, Any]:
    """The Hugging Face config that a checkpoint was saved with. Raises `CheckpointError`."""
    return _read_manifest(Path(directory))["hf_config"]


def load_checkpoint(
    directory: Path | str, spec_tree: Tree, *, dtype: Any = jnp.float32, sharding_for: Place | None = None
) -> Tree:
    """The parameters of a checkpoint, cast to `dtype` as `load_params` would and read straight to their shardings.

    Raises `CheckpointError` if the folder is incomplete or corrupt, or holds another model than `spec_tree`.
    """
    directory = Path(directory).absolute()
    stored = _read_manifest(directory)["arrays"]
    wanted = abstract_params(spec_tree, dtype=dtype, sharding_for=sharding_for or _first_device())
    named = _named(wanted)
    for name, leaf in named.items():
        if name not in stored or stored[name].get("shape") != list(leaf.shape):
            found = stored[name].get("shape") if name in stored else "absent"
            raise CheckpointError(f"{directory}: {name!r} is {found}, the configuration asks for {list(leaf.shape)}.")
    extra = sorted(stored.keys() - named.keys())
    if extra:
        raise CheckpointError(f"{directory}: holds {extra[0]!r}, which this model does not have.")
    with _checkpointer(directory) as checkpointer:
        arrays = checkpointer.restore(directory / PARAMS, named)
    return jax.tree.unflatten(jax.tree.structure(wanted), [arrays[name] for name in named])


def _check_space(directory: Path, need: int) -> None:
    """A disk that fills up while tensorstore writes makes its threads print tracebacks of their own."""
    free = shutil.disk_usage(directory.parent).free
    if free < need:
        raise CheckpointError(f"{directory}: needs {need >> 20} MiB, {free >> 20} MiB are free.")


@contextmanager
def _checkpointer(directory: Path) -> Iterator[Any]:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise CheckpointError(
            f"{directory}: needs orbax-checkpoint, which is not installed; run: pip install 'vjax[orbax]'."
        ) from None
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.CRITICAL)  # orbax logs a traceback beside what it raises
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            yield checkpointer
    except OSError as error:
        raise CheckpointError(f"{directory}: {error.strerror or _first_line(error)}.") from None
    except Exception as error:  # orbax and tensorstore raise many kinds for files that are missing or damaged
        raise CheckpointError(f"{directory}: orbax failed: {_first_line(error)}") from error
    finally:
        log.setLevel(level)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _first_device() -> Place:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return lambda param: device


def _named(tree: Tree) -> dict[str, Any]:
    """Every array by its path, such as `layers/3/attention/qkv/data`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    manifest = read_json_object(path)
    version = manifest.get("version")
    if manifest.get("format") != "vjax" or type(version) is not int:
        raise CheckpointError(f"{path}: is not the description of a vjax checkpoint.")
    if version > VERSION:
        raise CheckpointError(f"{path}: version {version}; this vjax reads up to {VERSION}. Upgrade vjax.")
    for key in ("hf_config", "arrays"):
        if not isinstance(manifest.get(key), dict):
            raise CheckpointError(f"{path}: {key!r} is missing or not an object.")
    if not all(isinstance(item, dict) for item in manifest["arrays"].values()):
        raise CheckpointError(f"{path}: 'arrays' must map names to a shape and a dtype.")
    if not (directory / PARAMS).is_dir():
        raise CheckpointError(f"{directory / PARAMS}: missing; the checkpoint is incomplete.")
    return manifest


def _check_target(directory: Path, force: bool) -> None:
    if not directory.exists():
        return
    if not force:
        raise CheckpointError(f"{directory}: exists already; choose another folder or force it to be replaced.")
    if not is_checkpoint(directory) and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointError(f"{directory}: is not a vjax checkpoint, so it is not replaced; remove it yourself.")


def _move_into_place(staging: Path, directory: Path) -> None:
    if not directory.exists():
        staging.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}-old-", dir=directory.parent))
    directory.rename(old / "replaced")
    try:
        staging.rename(directory)
    except OSError:
        (old / "replaced").rename(directory)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _copy_tokenizer(tokenizer: Path, directory: Path) -> None:
    if not tokenizer.exists():
        raise CheckpointError(f"{tokenizer}: no such file or folder; the tokenizer is copied from there.")
    if tokenizer.is_file():
        write_vocabulary(tokenizer, directory / VOCABULARY)
        return
    for name in (*TOKENIZER_FILES, VOCABULARY):
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, directory / name)
