"""Stand-ins for modules that another module imports and does not use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnx2nn.ground.deferred_import import import_without
from onnx2nn.optable.registry import TABLE


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`deferred_user` imports `deferred_large`, which has a part of its own."""
    (tmp_path / "deferred_user.py").write_text("import deferred_large\n\ndef use():\n    return deferred_large.VALUE\n")
    (tmp_path / "deferred_large").mkdir()
    (tmp_path / "deferred_large" / "__init__.py").write_text("from deferred_large.part import VALUE\n")
    (tmp_path / "deferred_large" / "part.py").write_text("VALUE = object()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("deferred_")]:
        del sys.modules[name]


def _user() -> Any:
    import_without("deferred_user", "deferred_large", "deferred_by_nobody")
    assert "deferred_by_nobody" not in sys.modules
    return importlib.import_module("deferred_user")


@pytest.mark.usefixtures("modules")
def test_the_module_is_imported_at_its_first_use() -> None:
    user = _user()
    assert "deferred_large" not in sys.modules
    value = user.use()
    assert value is importlib.import_module("deferred_large").VALUE
    assert value is importlib.import_module("deferred_large.part").VALUE


def test_a_use_inside_imports_it(modules: Path) -> None:
    with (modules / "deferred_user.py").open("a") as file:
        file.write("FOUND = use()\n")
    assert _user().FOUND is importlib.import_module("deferred_large").VALUE


def test_a_part_of_it_can_be_imported_inside(modules: Path) -> None:
    with (modules / "deferred_user.py").open("a") as file:
        file.write("from deferred_large.part import VALUE\n")
    user = _user()
    assert user.VALUE is user.use() is importlib.import_module("deferred_large").VALUE


@pytest.mark.usefixtures("modules")
def test_an_imported_module_stays() -> None:
    large = importlib.import_module("deferred_large")
    user = _user()
    assert sys.modules["deferred_large"] is large and user.deferred_large is large


@pytest.mark.usefixtures("modules")
def test_a_missing_attribute_is_said_by_the_module() -> None:
    user = _user()
    with pytest.raises(AttributeError, match="module 'deferred_large' has no attribute 'missing'"):
        user.deferred_large.missing  # noqa: B018, the look-up is the test


@pytest.mark.usefixtures("modules")
def test_threads_get_the_same_module() -> None:
    user = _user()
    with ThreadPoolExecutor(8) as pool:
        found = [future.result() for future in [pool.submit(user.use) for _ in range(8)]]
    assert len(set(map(id, found))) == 1


def test_commands_import_no_sympy() -> None:
    model = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
    code = (
        "import sys; from onnx2nn.commands import entry; sys.argv = ['onnx2nn', 'check', sys.argv[1]]; "
        "status = entry.onnx2nn(); assert 'onnx_ir' in sys.modules and 'sympy' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_symbolic_dimensions_compute() -> None:
    """What onnx_ir needs sympy for works after `load`, which has not imported it."""
    code = (
        "import sys, onnx2nn; onnx2nn.load; assert 'sympy' not in sys.modules; import onnx_ir; "
        "print(onnx_ir.SymbolicDim('max(n, 3)') + 2, 'sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["Max(3,", "n)", "+", "2", "True"], done.stderr


def test_operators_of_onnx_runtime_are_imported_where_they_are_asked_for() -> None:
    model = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
    code = (
        "import sys, onnx2nn; onnx2nn.load(sys.argv[1]); "
        "print([name for name in sys.modules if '.contrib.' in name]); "
        "from onnx2nn.optable.registry import TABLE; table = TABLE; "
        "print(table.newest('com.microsoft', 'BiasGelu'), 'com.microsoft.nchwc' in {row.domain for row in table})"
    )
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["[]", "com.microsoft::BiasGelu-1 True"], done.stdout + done.stderr


def test_families_of_onnx_runtime_have_its_operators_alone() -> None:
    rows = [row for row in TABLE if row.body.__module__.startswith("onnx2nn.ops.contrib.")]
    assert rows and all(row.domain.startswith("com.microsoft") for row in rows)
