"""What a model argument means: a folder, a file, or a registered name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vjax.errors import CheckpointError
from vjax.loading.gguf import SHARD
from vjax.loading.registered import REGISTERED, fetch
from vjax.loading.safetensors import INDEX

MANIFEST = "vjax.json"  # of a checkpoint of vjax; written last


@dataclass(frozen=True)
class ModelSource:
    """`path` is a folder for `hf` (safetensors) and `vjax` (orbax), a file for `gguf`."""

    kind: Literal["hf", "gguf", "vjax"]
    path: Path


def find_source(model: str | Path, *, progress: bool = True, weights: bool = True) -> ModelSource:
    """Where a model's files are; those of a registered name are fetched first, unless they are cached.
    With `weights=False` a folder with nothing but a config.json will do.

    Raises `CheckpointError` if there is nothing at `model`, or nothing that can be loaded.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not weights and (path / "config.json").is_file():
            return ModelSource("hf", path)
        return _in_folder(path)
    if path.is_file():
        return _file(path)
    if str(model) in REGISTERED:
        return ModelSource("gguf", fetch(str(model), progress=progress))
    match = SHARD.fullmatch(path.name)
    hint = " Models are not downloaded from hubs: fetch its files first." if str(model).count("/") == 1 else ""
    if match or path.suffix or path.is_absolute():
        raise CheckpointError(f"{path}: no such file or folder.{hint}")
    raise CheckpointError(
        f"{model}: no such file or folder, and not a registered name ({', '.join(sorted(REGISTERED))}).{hint}"
    )


def is_checkpoint(folder: Path) -> bool:
    """Whether `vjax convert` wrote it."""
    return (folder / MANIFEST).is_file()


def _file(path: Path) -> ModelSource:
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix == ".gguf" or magic == b"GGUF":
        return ModelSource("gguf", path)
    if path.name in ("config.json", INDEX) or path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: name the folder of the model instead, {path.parent}.")
    raise CheckpointError(f"{path}: not a GGUF file; give a .gguf file or a folder with config.json and safetensors.")


def _in_folder(path: Path) -> ModelSource:
    if is_checkpoint(path):
        return ModelSource("vjax", path)
    if any(path.glob("*.safetensors")) or (path / INDEX).is_file():
        return ModelSource("hf", path)
    models = sorted(path.glob("*.gguf"))
    firsts = [p for p in models if (match := SHARD.fullmatch(p.name)) is None or int(match["number"]) == 1]
    if len(firsts) == 1:
        return ModelSource("gguf", firsts[0])
    if len(firsts) > 1:
        raise CheckpointError(f"{path}: holds {len(firsts)} GGUF models; name one, such as {firsts[0]}.")
    if any(path.glob("*.bin")) or any(path.glob("*.pth")):
        raise CheckpointError(f"{path}: holds PyTorch pickles only; convert them to safetensors.")
    raise CheckpointError(f"{path}: holds no .safetensors or .gguf file and no vjax checkpoint.")
