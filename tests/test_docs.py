"""Every Python block of the README and the documents runs, from a folder where `examples` lies as in a clone."""

import re
import sys
from pathlib import Path
from types import CodeType

import pytest

from scripts import torchvision_schemas

torchvision_schemas.predefine()  # transformers, which documents import, imports torchvision

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if BLOCK.search(path.read_text()) and not path.name.startswith("oneflow")  # tests/oneflow/test_docs.py runs those
]

SLOW = {"lora.md", "quantising.md"}
"""PEFT and torchao take seconds to import."""


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=[pytest.mark.slow] if path.name in SLOW else []) for path in DOCUMENTS],
    ids=lambda path: path.name,
)
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one document run one after the other, each with the names of those before."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # puts sys.path back afterwards, to which a document may add
    monkeypatch.delitem(sys.modules, "model", raising=False)  # a document imports its own of this name
    names: dict[str, object] = {"__name__": "__main__"}
    text = document.read_text()
    for match in BLOCK.finditer(text):
        lines_before = text[: match.start(1)].count("\n")
        _run(compile("\n" * lines_before + match[1], str(document), "exec"), names)


def _run(code: CodeType, names: dict[str, object]) -> None:
    """Runs a block; tools of others that it imports are not installed beside the oldest versions of everything."""
    try:
        exec(code, names)
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith(("onnx2nn", "model")):
            raise
        pytest.skip(f"{error.name} is not installed")
