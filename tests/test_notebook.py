"""The notebook in examples/ is that of the tutorial, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.notebook import NOTEBOOK, SOURCE, notebook

ROOT = Path(__file__).resolve().parents[1]


def test_the_notebook_is_that_of_the_tutorial() -> None:
    assert NOTEBOOK.read_text(encoding="utf-8") == notebook(SOURCE.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["", "examples"])
def test_the_notebook_runs(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the repository's root, and from the folder in which Jupyter opens it."""
    nbformat = pytest.importorskip("nbformat", reason="onnx2nn[test] brings nbclient")
    nbclient = pytest.importorskip("nbclient", reason="onnx2nn[test] brings it")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "digits").symlink_to(ROOT / "examples" / "digits")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    ran = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(ran, timeout=300, resources={"metadata": {"path": str(tmp_path / start)}}).execute()
    printed = [
        output.text for cell in ran.cells for output in cell.get("outputs", []) if output.output_type == "stream"
    ]
    assert any("accuracy on noisy digits" in text for text in printed)
