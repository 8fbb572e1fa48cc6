"""`vjax export`: the engine's own graphs as `jax.export` artifacts, with weights, tokenizer, a manifest and a runner.

One artifact per graph and platform: a graph that holds a GPU kernel cannot be lowered for CPU in the same file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tqdm import tqdm

import vjax.exported_runner
from vjax.config import EngineConfig
from vjax.engine.engine import compute_dtype
from vjax.engine.graphs import BucketPlan
from vjax.engine.layout import FLOATS, ROW_PARAMS, Layout
from vjax.engine.platform import prepare
from vjax.engine.state import State, StateShape, abstract_state
from vjax.engine.step import step
from vjax.errors import ModelError
from vjax.loading.load import load_model
from vjax.models.model import Model
from vjax.models.spec import Tree
from vjax.pallas_kernels import dispatch
from vjax.parallel.mesh import make_mesh
from vjax.version import __version__

FORMAT = 1
PLATFORMS = ("cpu", "cuda")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="folder, .gguf file, or a registered name")
    parser.add_argument("--out", required=True, type=Path, help="folder to write; must not exist or be empty")
    parser.add_argument("--batch", default="1", help="rows of the decode graphs, such as 1,8")
    parser.add_argument("--prefill", default="128", help="tokens of the prefill graphs, such as 128,512")
    parser.add_argument("--max-len", type=int, default=2048, help="longest prompt plus output")
    parser.add_argument("--platforms", default="cpu", help="cpu, cuda, or both: cpu,cuda")
    parser.add_argument("--dtype", default="auto", help="compute dtype: auto, float32, bfloat16 or float16")
    parser.add_argument("--block-size", type=int, default=16, help="tokens in a page of the cache")


def run(args: argparse.Namespace) -> int:
    config = EngineConfig(model=args.model, dtype=args.dtype, block_size=args.block_size)
    platforms = tuple(args.platforms.split(","))
    export(
        config, args.out, batch=_sizes(args.batch, "--batch"), prefill=_sizes(args.prefill, "--prefill"),
        max_len=args.max_len, platforms=platforms,
    )  # fmt: skip
    print(f"wrote {args.out}; try: python {args.out / 'run.py'} 'Once upon a time'")
    return 0


def export(
    config: EngineConfig, out: Path, *, batch: tuple[int, ...] = (1,), prefill: tuple[int, ...] = (128,),
    max_len: int = 2048, platforms: tuple[str, ...] = ("cpu",), show: bool = True,
) -> None:  # fmt: skip
    """Write the export of a model to the folder `out`. Raises `ModelError` for options that do not fit the model."""
    out = Path(out)
    for platform in platforms:
        if platform not in PLATFORMS:
            raise ModelError(f"--platforms holds {platform!r}; known: {', '.join(PLATFORMS)}.")
    _check_empty(out)
    if find_spec("flatbuffers") is None:
        raise ModelError("an export needs flatbuffers, which is not installed; run: pip install 'vjax[export]'.")
    prepare(config)
    # Portable implementations only: a kernel of our own would tie the artifact to a library or a GPU's generation.
    dispatch.choose(dispatch.REFERENCE)
    model, params = load_model(config, make_mesh(1), packed=False)
    if max_len > model.config.max_position:
        raise ModelError(f"--max-len {max_len} is more than the model's own {model.config.max_position}.")
    groups = len(model.config.windows)
    shape = _state_shape(max(batch), max_len, config.block_size, groups)
    plan = BucketPlan(tuple(sorted(batch)), tuple(sorted(prefill)), max(batch), groups)
    keys = [plan.key(False, t) for t in plan.prefill] + [plan.key(True, s) for s in plan.decode]
    weights, names, treedef = _flatten(params)
    state = abstract_state(model.config, shape, compute_dtype(params), make_mesh(1))
    graphs = [_describe(key) for key in keys]
    jobs = [(key, graph, platform) for key, graph in zip(keys, graphs, strict=True) for platform in platforms]
    with _new_folder(out):
        for key, graph, platform in tqdm(jobs, desc="Exporting", unit="graph", disable=not show):
            file = f"{graph['name']}.{platform}.jaxexp"
            (out / file).write_bytes(_artifact(model, key, weights, treedef, state, platform))
            graph["files"][platform] = file
        _write_weights(out, weights, names)
        manifest = _manifest(model, shape, graphs, weights, names, state, platforms)
        (out / "manifest.json").write_text(json.dumps(manifest, indent=1))
        shutil.copyfile(vjax.exported_runner.__file__, out / "run.py")
        _write_tokenizer(config, out)


def _check_empty(out: Path) -> None:
    try:
        if out.exists() and any(out.iterdir()):
            raise ModelError(f"{out} exists and is not empty; choose another --out.")
    except OSError as error:
        raise ModelError(f"--out {out}: {error.strerror}.") from None


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """Makes `out`, and empties it again if what follows fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"--out {out}: {error.strerror}.") from None
    try:
        yield
    except BaseException as error:
        for file in out.iterdir():
            file.unlink()
        if isinstance(error, OSError | SafetensorError):  # what safetensors raises when it cannot write
            raise ModelError(f"{out}: cannot be written: {getattr(error, 'strerror', None) or error}.") from None
        raise


def _artifact(
    model: Model, layout: Layout, weights: list[Any], treedef: Any, state: State, platform: str
) -> bytes:  # fmt: skip
    """The step over flat argument lists: weights in manifest order, the state's arrays, the packed buffer."""
    fn = partial(step, model=model, layout=layout, top=0)
    state_leaves, state_def = jax.tree.flatten(state)

    def flat(weights: list[Any], state: list[Any], buffer: Any) -> tuple[list[Any], Any]:
        params = jax.tree.unflatten(treedef, weights)
        new, result = fn(params, jax.tree.unflatten(state_def, state), buffer)
        return jax.tree.leaves(new), result["rows"]

    specs = [jax.ShapeDtypeStruct(w.shape, w.dtype) for w in weights]
    state_specs = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in state_leaves]
    buffer = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
    exported = jax.export.export(jax.jit(flat, donate_argnums=1), platforms=[platform])(specs, state_specs, buffer)
    return bytes(exported.serialize())


def _state_shape(rows: int, max_len: int, page_size: int, groups: int) -> StateShape:
    """Each row owns enough pages for `max_len` tokens; page 0 is the dummy."""
    return StateShape(rows * -(-max_len // page_size) * groups + 1, page_size, rows, max_len, groups)


def _flatten(params: Tree) -> tuple[list[Any], list[str], Any]:
    pairs, treedef = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in pairs]
    return [leaf for _, leaf in pairs], names, treedef


def _describe(layout: Layout) -> dict[str, Any]:
    kind = "decode" if layout.decode else "prefill"
    return {
        "name": f"{kind}_{layout.tokens}",
        "kind": kind,
        "tokens": layout.tokens,
        "rows": layout.rows,
        "buffer_size": layout.size,
        "fields": layout.fields,
        "files": {},
    }


def _manifest(
    model: Model, shape: StateShape, graphs: list[dict[str, Any]], weights: list[Any], names: list[str], state: State,
    platforms: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {
        "format": FORMAT,
        "vjax_version": __version__,
        "jax_version": jax.__version__,
        "architecture": model.config.architecture,
        "platforms": list(platforms),
        "vocab_size": model.config.vocab_size,
        "eos_token_ids": list(model.config.eos_token_ids),
        "bos_token_id": model.config.bos_token_id,
        "max_len": shape.max_model_len,
        "page_size": shape.page_size,
        "pages": shape.pages,
        "page_groups": shape.groups,
        "slots": shape.slots,
        "row_params": list(ROW_PARAMS),
        "float_params": list(FLOATS),
        "calling_convention": {
            "inputs": [
                "weights: the arrays of `weights`, in that order",
                "state: the arrays of `state`, in that order; zeros at first, donated, and replaced by output 0",
                "buffer: int32 [buffer_size]; see `fields`, each given as [offset, shape]; unused entries are -1",
            ],
            "outputs": [
                "state: as above",
                "rows: int32 [rows, 1]: the token sampled for each row",
            ],
            "fields": {
                "scored": "unused here: no logprobs",
                "slot": "which slot each row uses; `slots` (the dummy) for unused rows",
                "kv_len": "tokens of the row in the cache after this step; 0 for unused rows",
                "store": "position where the sampled token is kept for the next decode step; -1: not kept",
                "params": "one line for each of row_params; those in float_params are float32 bits",
                "pages": "page-table updates: slot, index in its table, page; slot -1 for unused entries. A table "
                "holds a page for each of page_groups for its first page_size tokens, then for the next",
                "edits": "logit edits: row (-1: unused), token, kind (0 bias, 1 ban, 2 allow), float32 bits, after",
                "ids": "prefill: token ids; -1 takes the token kept at that position",
                "position": "prefill: position of each token in its row's sequence; -1 for padding",
                "row": "prefill: row of each token",
                "query_start": "prefill: first token of each row, and the end",
            },
        },
        "graphs": graphs,
        "state": [
            {"name": jax.tree_util.keystr(p, simple=True, separator="/"), "shape": list(s.shape), "dtype": str(s.dtype)}
            for p, s in leaves
        ],
        "weights": [
            {"name": name, "shape": list(w.shape), "dtype": str(w.dtype)}
            for name, w in zip(names, weights, strict=True)
        ],
    }


def _write_weights(out: Path, weights: list[Any], names: list[str]) -> None:
    """bfloat16 is stored as its bits, since not every safetensors reader knows it; the manifest has the real dtype."""
    arrays = {}
    for name, weight in zip(names, weights, strict=True):
        host = np.asarray(weight)
        arrays[name] = np.ascontiguousarray(host if host.dtype.kind in "fiub" else host.view(np.uint16))
    save_file(arrays, out / "weights.safetensors")


def _write_tokenizer(config: EngineConfig, out: Path) -> None:
    from vjax.loading.source import find_source
    from vjax.tokenizing.load import load_tokenizer

    try:
        load_tokenizer(find_source(config.model).path).save(out / "tokenizer.json")
    except Exception as error:  # a model without a tokenizer can still be exported: its runner takes ids
        print(f"no tokenizer written ({error}); the runner takes --ids", file=sys.stderr)


def _sizes(text: str, flag: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ModelError(f"{flag} must be numbers separated by commas, got {text!r}.") from None
    if sizes[0] < 1:
        raise ModelError(f"{flag} must be positive, got {text!r}.")
    return sizes
