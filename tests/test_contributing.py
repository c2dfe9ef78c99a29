"""CONTRIBUTING.md's example is followed to the letter, in a copy of the repository."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLE = TEXT[TEXT.index("## An operator in one place") :]
SNIPPET = re.compile(
    r"^(?:At the end of `(?P<end>[\w/.]+)`|In `(?P<path>[\w/.]+)`, in place of the line `(?P<line>[^`]+)`):\n\n"
    r"```py\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^```sh\n(.*?)\n```$", re.MULTILINE)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, in which the snippets stand where the text says."""
    folder = tmp_path_factory.mktemp("contributed")
    ignored = shutil.ignore_patterns("__pycache__", "data")
    for name in ("onnx2nn", "oneflow_bridge", "tests", "scripts", "docs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    snippets = list(SNIPPET.finditer(EXAMPLE))
    assert len(snippets) == EXAMPLE.count("```py\n") == 2
    for snippet in snippets:
        text = (folder / (snippet["end"] or snippet["path"])).read_text()
        if snippet["end"]:
            assert text.endswith("\n\n" + snippet["code"])
        else:
            assert text.splitlines().count(snippet["line"]) == 1 and snippet["code"] in text
    return folder


def _run(command: str, folder: Path) -> str:
    """Runs a command of the text in the copy, with this Python, and returns what it prints."""
    arguments = [sys.executable, *(["-m"] if command.startswith("pytest") else []), *shlex.split(command)]
    if command.startswith("python "):
        arguments.pop(1)
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_operators_cases_run(copy: Path) -> None:
    """Each case with fixed and with dynamic dimensions, and the signature against ONNX Runtime's schema."""
    command, _ = COMMAND.findall(EXAMPLE)
    found = re.search(r"(\d+) passed", output := _run(command, copy))
    assert found is not None and int(found[1]) == 9, output


@pytest.mark.pinned("onnx", "onnxruntime")
def test_the_tables_list_the_operator(copy: Path) -> None:
    _, command = COMMAND.findall(EXAMPLE)
    _run(command, copy)
    assert "CDist" in (copy / "onnx2nn" / "optable" / "measured.json").read_text()
    _run(f"{command} --check", copy)


def test_the_snippets_are_formatted(copy: Path) -> None:
    _run("python -m ruff format --check onnx2nn/ops/contrib/fused.py", copy)
    _run("python -m ruff check onnx2nn/ops/contrib/fused.py tests/cases/contrib/fused.py", copy)
