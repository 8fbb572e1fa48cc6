"""Where vjax keeps files of its own: `$VJAX_CACHE_DIR`, or `~/.cache/vjax`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """A folder for cached files (not created)."""
    root = os.environ.get("VJAX_CACHE_DIR") or Path.home() / ".cache" / "vjax"
    return Path(root).expanduser().joinpath(*parts)
