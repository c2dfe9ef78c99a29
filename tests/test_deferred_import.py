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


def _printed(code: str, *arguments: str | Path) -> list[str]:
    """Returns the lines that a program prints in a process that has imported nothing yet."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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


def test_a_part_of_another_package_can_be_left_out(modules: Path) -> None:
    (modules / "deferred_user.py").write_text(
        "import deferred_large.part\n\ndef use():\n    return deferred_large.part.VALUE\n"
    )
    (modules / "deferred_large" / "__init__.py").write_text("")
    import_without("deferred_user", "deferred_large.part", "deferred_by_nobody.part")
    user = importlib.import_module("deferred_user")
    assert "deferred_large" in sys.modules and "deferred_large.part" not in sys.modules
    value = user.use()
    assert value is importlib.import_module("deferred_large.part").VALUE
    assert user.deferred_large.part is sys.modules["deferred_large.part"]


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
    _printed(code, model)


_BLOCKED = """
import logging, sys, warnings
warnings.simplefilter("ignore"); logging.disable(50)
import torch, onnx2nn
from onnx.backend.test.loader import load_model_tests
onnx2nn.load
class Blocker:
    def find_spec(self, name, path, target=None):
        if name in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch._inductor", "sympy"):
            print(case.name, name)
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
count = 0
for case in [*load_model_tests(kind="node"), *load_model_tests(kind="simple")]:
    try:
        onnx2nn.load(case.model if case.model is not None else f"{case.model_dir}/model.onnx")
        count += 1
    except Exception:  # the cases that no importer takes are counted by other tests
        pass
print(count)
"""


def test_no_operator_needs_torchs_compiler_to_load() -> None:
    """A call on meta tensors may be a Python program of torch's that imports its compiler, for a second or two."""
    (count,) = _printed(_BLOCKED)
    assert int(count) > 1800


def test_symbolic_dimensions_compute() -> None:
    """What onnx_ir needs sympy for works after `load`, which has not imported it."""
    code = (
        "import sys, onnx2nn; onnx2nn.load; assert 'sympy' not in sys.modules; import onnx_ir; "
        "print(onnx_ir.SymbolicDim('max(n, 3)') + 2, 'sympy' in sys.modules)"
    )
    assert _printed(code) == ["Max(3, n) + 2 True"]


def test_a_family_is_imported_at_the_first_question_about_its_operators() -> None:
    model = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
    code = (
        "import sys, onnx2nn; onnx2nn.load(sys.argv[1]); "
        "imported = lambda: {name for name in sys.modules if name.startswith('onnx2nn.ops.')}; "
        "print(imported() & {'onnx2nn.ops.contrib.fused', 'onnx2nn.ops.linalg', 'onnx2nn.ops.rnn'}); "
        "from onnx2nn.optable.registry import TABLE; "
        "print(TABLE.newest('com.microsoft', 'BiasGelu'), 'onnx2nn.ops.contrib.nchwc' in imported()); "
        "print('com.microsoft.nchwc' in {row.domain for row in TABLE})"
    )
    expected = ["{'onnx2nn.ops.linalg'}", "com.microsoft::BiasGelu-1 False", "True"]
    assert _printed(code, model) == expected


def test_the_index_of_families_may_lack_an_operator() -> None:
    code = (
        "from onnx2nn.optable import registry; known = registry._index(); "
        "registry._index = lambda: {key: known[key] for key in known if key[1] != 'Relu'}; "
        "print(registry.TABLE.newest('', 'Relu'), registry.TABLE.newest('', 'None'))"
    )
    assert _printed(code) == [f"{TABLE.newest('', 'Relu')} None"]


def test_families_of_onnx_runtime_have_its_operators_alone() -> None:
    rows = [row for row in TABLE if row.body.__module__.startswith("onnx2nn.ops.contrib.")]
    assert rows and all(row.domain.startswith("com.microsoft") for row in rows)


def test_a_module_of_shape_rules_is_imported_at_the_first_question_about_its_functions() -> None:
    model = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
    code = (
        "import sys, torch, onnx2nn; onnx2nn.load(sys.argv[1]); "
        "imported = lambda name: 'onnx2nn.fx.shape_rules.' + name in sys.modules; "
        "print(*map(imported, ('products', 'spectra', 'scans'))); "
        "from onnx2nn.fx.shape_rules import RULES; "
        "print(RULES.of(torch.fft.fft) is not None, *map(imported, ('spectra', 'scans'))); "
        "print(torch.cumsum in set(RULES))"
    )
    assert _printed(code, model) == ["True False False", "True True False", "True"]


def test_the_index_of_shape_rules_may_lack_a_function() -> None:
    code = (
        "import torch; from onnx2nn.fx.shape_rules import RULES, rule; known = rule._index(); "
        "rule._index = lambda: {name: known[name] for name in known if name != 'cumsum'}; "
        "print(RULES.of(torch.cumsum).__module__, RULES.of(torch.save))"
    )
    assert _printed(code) == ["onnx2nn.fx.shape_rules.scans None"]
