"""The tiers and parts of the suite, and what the folders of the repository may import of each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tiers import in_shard, mostly_slow

ROOT = Path(__file__).parents[1]


def test_every_test_is_in_one_shard() -> None:
    names = [f"tests/test_cases.py::test_case[dynamic-Add-{number}]" for number in range(400)]
    shards = [[name for name in names if in_shard(name, index, 4)] for index in (1, 2, 3, 4)]
    assert sorted(name for shard in shards for name in shard) == sorted(names)
    assert min(map(len, shards)) > 60


def test_mostly_slow() -> None:
    fast, slow = mostly_slow([("a", 1), ("b", 2)], [("a", 1)])
    assert (fast.values, fast.marks) == (("a", 1), ()) and [mark.name for mark in slow.marks] == ["slow"]
    with pytest.raises(ValueError, match="no parameters"):
        mostly_slow(["a"], ["c"])


def test_a_run_without_options_is_the_fast_tier(request: pytest.FixtureRequest) -> None:
    assert request.config.getini("addopts") == ["--strict-markers", "-m", "not slow and not held"]


@pytest.mark.parametrize("folder", ["scripts", "onnx2nn", "oneflow_bridge"])
def test_tests_import_scripts_and_not_the_other_way_round(folder: str) -> None:
    """Also inside functions; `tests` is on the path, so that its modules have short names too."""
    own = {"tests", "conftest", *(path.stem for path in (ROOT / "tests").glob("*.py") if path.stem != "__init__")}
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            found += [f"{path.name}: {name}" for name in names if name.partition(".")[0] in own]
    assert not found
