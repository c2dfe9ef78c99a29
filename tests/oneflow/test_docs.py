"""The Python blocks of the documents on OneFlow run; they speak of a `model` and an `image`."""

import re
from pathlib import Path

import pytest

from oneflow_bridge.runtime import import_oneflow

flow = import_oneflow()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    path
    for path in sorted((Path(__file__).parents[2] / "docs").glob("oneflow*.md"))
    if BLOCK.search(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = flow.nn.Sequential(flow.nn.Conv2d(3, 4, 3), flow.nn.BatchNorm2d(4), flow.nn.ReLU())
    names = {"model": model, "image": flow.randn(2, 3, 8, 8)}
    for match in BLOCK.finditer(document.read_text(encoding="utf-8")):
        exec(compile(match[1], str(document), "exec"), names)


def test_there_are_examples() -> None:
    assert DOCUMENTS
