"""What a user installs: dependencies, extras, files in the wheel, the README's commands."""

import ast
import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import onnx2nn
from onnx2nn.errors import MissingDependencyError
from onnx2nn.ground.extras import require

tomllib = pytest.importorskip("tomllib", reason="the standard library reads TOML since Python 3.11")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CORE = {"numpy", "onnx", "onnx_ir", "packaging"}
OPTIONAL = {"torch", "safetensors", "onnxruntime", "onnxsim", "rich", "oneflow", "ncnn", "pnnx", "scipy", "torchvision"}
OPTIONAL |= {"huggingface_hub", "fsspec", "aiohttp", "argcomplete"}


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "module", ["onnx2nn", "onnx2nn.commands.main", "onnx2nn.verification.outputs", "onnx2nn.reading.reader"]
)
def test_optional_packages_are_imported_late(module: str) -> None:
    done = _python(f"import sys, {module}; print(sorted(set(sys.modules) & {OPTIONAL!r}))")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_core_works_without_any_optional_package() -> None:
    """Reading and checking need no framework, nor anything else that an extra brings."""
    done = _python(
        "import sys\n"
        f"for name in {sorted(OPTIONAL)!r}: sys.modules[name] = None\n"
        "import onnx2nn\n"
        "assert not onnx2nn.check('examples/digits/digits.onnx').problems\n"
        "for name in ('load', 'OnnxReader'):\n"
        "    try: getattr(onnx2nn, name)('examples/digits/digits.onnx')\n"
        "    except onnx2nn.errors.MissingDependencyError as error: print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('pip install "onnx2nn[torch]"') == 2


def test_imports_at_module_level_are_declared() -> None:
    """A module that is imported with the library may only need what the library depends on."""
    allowed = CORE | {"onnx2nn", "oneflow_bridge", "google"} | set(sys.stdlib_module_names)  # google: protobuf, by onnx
    torch_only = _modules_reached_only_with_torch()
    for path in sorted((ROOT / "onnx2nn").rglob("*.py")):
        if path in torch_only:
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            unknown = {name.partition(".")[0] for name in names} - allowed
            assert not unknown, f"{path.relative_to(ROOT)} imports {unknown} at module level"


def _modules_reached_only_with_torch() -> set[Path]:
    """The files that `import onnx2nn` and reading a model do not load: they may import their framework at the top."""
    done = _python(
        "import sys, onnx2nn.commands.main; from onnx2nn.importing.model_report import report\n"
        "from onnx2nn.reading import reader; report(reader.read('examples/digits/digits.onnx'))\n"
        "print([m.__file__ for n, m in sys.modules.items() if n.startswith('onnx2nn')])"
    )
    assert done.returncode == 0, done.stderr
    return set((ROOT / "onnx2nn").rglob("*.py")) - {Path(name) for name in ast.literal_eval(done.stdout)}


MODULES = {"PIL": "pillow", "re2": "google_re2"}
"""Packages whose module is called otherwise."""


def test_every_extra_that_an_error_names_exists() -> None:
    calls = [
        match
        for folder in ("onnx2nn", "oneflow_bridge", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        for match in re.findall(r'require\(\s*"([\w.]+)",\s*extra="(\w+)"', path.read_text())
    ]
    assert calls
    for module, extra in calls:
        brought = {_module(requirement) for requirement in EXTRAS[extra]}
        package = module.partition(".")[0]
        assert MODULES.get(package, package) in brought, f"onnx2nn[{extra}] does not bring {module}"


def _module(requirement: str) -> str:
    return Requirement(requirement).name.replace("-", "_")


def test_missing_package_is_named_with_its_command() -> None:
    with pytest.raises(MissingDependencyError, match=r'Trying needs no_such_package.*pip install "onnx2nn\[verify\]"'):
        require("no_such_package", extra="verify", purpose="Trying")


def test_broken_package_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("import its_own_missing_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="its_own_missing_dependency"):
        require("broken_package", extra="verify", purpose="Trying")


def test_every_dependency_has_a_reason() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    start = lines.index("dependencies = [")
    end = lines.index("[project.scripts]")
    entries = [line for line in lines[start:end] if line.startswith('    "')]
    assert len(entries) > 20
    assert [line for line in entries if " # " not in line and "onnx2nn[" not in line] == []


def test_tests_run_with_pinned_versions() -> None:
    """Without a pin a newer release of anything here could change the outcome; torch would also bring gigabytes."""
    pinned = {
        Requirement(line.partition(" #")[0]).name
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    wanted = {
        Requirement(entry).name
        for name in ("torch", "simplify", "verify", "cli", "export", "ncnn", "test", "docs", "dev")
        for entry in EXTRAS[name]
    }
    wanted |= {Requirement(entry).name for entry in PROJECT["dependencies"]}
    assert wanted - pinned == {"onnx2nn"}


OTHER_EXTRAS = {"oneflow", "ray", "test", "ecosystem", "docs", "dev"}
"""OneFlow's are pinned, and no user installs the others."""


def test_the_lowest_versions_are_those_that_run() -> None:
    """`nox -s lowest` and `nox -s torch_oldest` install the lower bounds, to as many numbers as the bounds have."""
    noxfile = (ROOT / "noxfile.py").read_text()
    (every, *names) = re.search(r'LOWEST_EXTRAS = "(.+?)"', noxfile)[1].split(",")
    (all_of_them,) = EXTRAS[every]
    assert {every, *names} | Requirement(all_of_them).extras | OTHER_EXTRAS == set(EXTRAS)
    extras = [EXTRAS[name] for name in [*sorted(Requirement(all_of_them).extras), *names]]
    bounds = [Requirement(entry) for entry in itertools.chain(PROJECT["dependencies"], *extras)]
    text = (ROOT / "constraints-lowest.txt").read_text()
    installed = dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))
    (installed["torch"],) = re.findall(r'OLDEST_TORCH = \("torch==([\w.]+)"', noxfile)
    for bound in bounds:
        (lowest,) = bound.specifier
        assert lowest.operator == ">=", f"{bound} has no lower bound"
        assert installed[bound.name] in SpecifierSet(f"=={lowest.version}.*"), bound


def test_ci_runs_the_command_of_the_readme() -> None:
    commands = re.findall(r"^```sh\n(.*?)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(commands) == 2 and all("\n" not in command for command in commands)
    assert commands[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def test_python_versions_agree() -> None:
    names = (ROOT / ".python-version").read_text().split()
    assert names == ["3.11.7", "3.10.13"]
    minors = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert minors == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == ">=3.10"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packed, so that the tree stays clean."""
    source = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("onnx2nn", "oneflow_bridge"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path) -> list[str]:
    """The names in the wheel."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (path,) = (source / "out").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_wheel_holds_every_module(wheel: list[str]) -> None:
    modules = [
        str(path.relative_to(ROOT))
        for folder in ("onnx2nn", "oneflow_bridge")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert set(modules) <= set(wheel)


PAGE = ROOT / "onnx2nn" / "reporting" / "page"


def _data() -> set[str]:
    """The files of the package that are no modules: tables, and the sources of the page."""
    files = (path for path in (ROOT / "onnx2nn").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in files if path.suffix != ".py"}


def test_wheel_holds_the_tables_and_the_sources_of_the_page(wheel: list[str]) -> None:
    indexes = {"optable/families.json", "rewrite/rule_sets.json", "fx/shape_rules/functions.json"}
    known = {*indexes, "reporting/page/vendor/dagre.js"}
    assert {f"onnx2nn/{name}" for name in known} <= _data() <= set(wheel)
    assert "Permission is hereby granted" in (PAGE / "vendor" / "dagre.js").read_text()


def test_source_distribution_holds_every_module_and_the_data(source: Path) -> None:
    code = "from setuptools.build_meta import build_sdist; print(build_sdist('out'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with tarfile.open(source / "out" / done.stdout.splitlines()[-1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _data() | {str(path.relative_to(ROOT)) for path in (ROOT / "onnx2nn").rglob("*.py")} <= names


def test_wheel_is_typed_and_holds_nothing_else(wheel: list[str]) -> None:
    assert {"onnx2nn/py.typed", "oneflow_bridge/py.typed"} <= set(wheel)
    assert {name.partition("/")[0].partition("-")[0] for name in wheel} == {"onnx2nn", "oneflow_bridge"}
    assert any(name.endswith("entry_points.txt") for name in wheel)


def test_wheel_holds_the_licence(wheel: list[str]) -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
    assert "Copyright The onnx2nn authors" in (ROOT / "LICENSE").read_text()


def test_public_names_are_found_where_they_are_declared() -> None:
    """The list for type checkers, the names and the table of their modules are the same."""
    tree = ast.parse((ROOT / "onnx2nn" / "__init__.py").read_text())
    (listed,) = (node for node in tree.body if isinstance(node, ast.If))  # if TYPE_CHECKING
    declared = {
        alias.name: node.module for node in ast.walk(listed) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert declared == {name: f"onnx2nn.{home}" for name, home in onnx2nn._HOMES.items()}
    assert onnx2nn.__all__ == sorted(declared)
    for name, module in declared.items():
        assert getattr(onnx2nn, name) is getattr(sys.modules[str(module)], name)
    assert set(onnx2nn.__all__) <= set(dir(onnx2nn))
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        onnx2nn.no_such_name  # noqa: B018, the access is the test
    assert onnx2nn.errors.InputError is not None
