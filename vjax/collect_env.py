"""`vjax collect-env`: what a bug report needs to say about a machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-triton", "triton", "numpy", "ml_dtypes",
            "safetensors", "gguf", "tokenizers", "jinja2", "msgspec", "fastapi", "uvicorn", "starlette", "pydantic",
            "prometheus-client", "openai", "httpx", "transformers", "torch")  # fmt: skip
PREFIXES = ("VJAX_", "JAX_", "XLA_", "CUDA_", "NVIDIA_", "NCCL_", "TF_", "OMP_", "OTEL_", "LD_LIBRARY_PATH")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|HEADERS", re.IGNORECASE)
TIMEOUT = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    found = collect()
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    for title, values in found.items():
        print(f"== {title}")
        for name, value in values.items():
            print(f"{name:22} {value}")
        print()
    return 0


def collect() -> dict[str, dict[str, Any]]:
    """By section. Values of variables that may be secrets are hidden."""
    return {
        "vjax": _vjax(),
        "system": _system(),
        "devices": _devices(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "environment": environment(),
    }


def environment() -> dict[str, str]:
    names = sorted(name for name in os.environ if name.startswith(PREFIXES))
    return {name: "(hidden)" if SECRET.search(name) else os.environ[name] for name in names}


def _vjax() -> dict[str, Any]:
    from vjax.bench import commit
    from vjax.paths import cache_dir
    from vjax.version import __version__

    return {"version": __version__, "commit": commit() or "(no checkout)", "cache folder": str(cache_dir())}


def _system() -> dict[str, Any]:
    found = {
        "platform": platform.platform(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "cores": os.cpu_count(),
        "usable cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "memory": _first_match("/proc/meminfo", r"MemTotal:\s*(.+)") or "unknown",
        "memory available": _first_match("/proc/meminfo", r"MemAvailable:\s*(.+)") or "unknown",
        "libc": " ".join(platform.libc_ver()),
        "C++ compiler": _output([os.environ.get("CXX") or shutil.which("g++") or "clang++", "--version"], lines=1),
    }
    return found


def _devices() -> dict[str, Any]:
    """What JAX sees, asked in a process of its own: a broken driver must not end the report."""
    script = (
        "import jax\n"
        "for d in jax.devices():\n"
        "    s = d.memory_stats() or {}\n"
        "    print(d, d.device_kind, d.platform, s.get('bytes_limit', ''))"
    )
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    found = {"jax": _output([sys.executable, "-c", script], env=environment)}
    if shutil.which("nvidia-smi"):
        query = "name,memory.total,memory.used,driver_version,compute_cap"
        found["nvidia-smi"] = _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return None
    return found[1].strip() if found else None


def _output(command: list[str], lines: int = 32, env: dict[str, str] | None = None) -> str:
    """What a command prints, or why it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=env, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({type(error).__name__}: {error})"
    text = done.stdout.strip() if done.returncode == 0 else done.stderr.strip()[-500:]
    return "\n".join(text.splitlines()[:lines]) or f"(exit code {done.returncode})"
