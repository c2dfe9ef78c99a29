"""Every Python block of the README and the documents runs, from a folder where `examples` lies as in a clone."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if BLOCK.search(path.read_text()) and not path.name.startswith("oneflow")  # tests/oneflow/test_docs.py runs those
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
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
        exec(compile("\n" * lines_before + match[1], str(document), "exec"), names)
