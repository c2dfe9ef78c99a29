"""The rooms of docs/design.md: who may import whom. Imports inside functions count; those for type checkers do not."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from onnx2nn.optable.registry import TABLE

ROOT = Path(__file__).resolve().parents[1]

BASE = "onnx2nn.errors onnx2nn.ground"
ROWS = f"{BASE} onnx2nn.optable onnx2nn.ops"
SHARED = f"{ROWS} onnx2nn.reading onnx2nn.provenance onnx2nn.importing"
TORCH = f"{SHARED} onnx2nn.sizes onnx2nn.control_flow onnx2nn.searches onnx2nn.layers onnx2nn.functional onnx2nn.fx"
LOADING = f"{TORCH} onnx2nn.rewrite onnx2nn.dequantize onnx2nn.unfreeze"
MEASURES = " ".join(f"onnx2nn.verification.{name}" for name in ("noise", "oracle", "value_comparison"))
"""The part of the verification that knows arrays and ONNX Runtime only; no framework is imported there."""
RUNS = "onnx2nn.verification.module_runs"
AFTER = f"{LOADING} onnx2nn.optimization onnx2nn.loading onnx2nn.verification {MEASURES} {RUNS}"
BRIDGE = "onnx2nn.errors oneflow_bridge.runtime"

RULES = {
    "onnx2nn.errors": "",
    "onnx2nn.control_flow": "",
    "onnx2nn.searches": "",
    "onnx2nn.layers": "",
    "onnx2nn.ground": "onnx2nn.errors",
    "onnx2nn.reading": BASE,
    "onnx2nn.optable": BASE,
    "onnx2nn.ops": f"{BASE} onnx2nn.optable",
    "onnx2nn.provenance": BASE,
    "onnx2nn.sizes": "",
    "onnx2nn.importing": f"{ROWS} onnx2nn.provenance",
    "onnx2nn.rewrite": f"{ROWS} onnx2nn.provenance onnx2nn.importing",
    "onnx2nn.functional": ROWS,
    "onnx2nn.operators": f"{ROWS} onnx2nn.functional",
    "onnx2nn.fx": f"{ROWS} onnx2nn.provenance onnx2nn.sizes onnx2nn.importing onnx2nn.control_flow onnx2nn.searches "
    "onnx2nn.layers onnx2nn.functional",
    "onnx2nn.tracing": "",
    "onnx2nn.regions": "onnx2nn.fx",
    "onnx2nn.dequantize": f"{TORCH} onnx2nn.rewrite",
    "onnx2nn.unfreeze": f"{TORCH} onnx2nn.rewrite",
    "onnx2nn.optimization": f"{TORCH} {MEASURES} {RUNS}",
    "onnx2nn.targets": f"{LOADING} oneflow_bridge.from_onnx oneflow_bridge.namespace",
    "onnx2nn.loading": f"{LOADING} onnx2nn.optimization onnx2nn.targets",
    **dict.fromkeys(MEASURES.split(), f"{BASE} onnx2nn.reading {MEASURES}"),
    RUNS: f"{BASE} {MEASURES}",
    "onnx2nn.verification": f"{LOADING} onnx2nn.loading {MEASURES} {RUNS}",
    "onnx2nn.checkpoint": AFTER,
    "onnx2nn.output": AFTER,
    "onnx2nn.language": AFTER,
    "onnx2nn.reporting": AFTER,
    "onnx2nn.transferring": AFTER,
    "onnx2nn": f"{AFTER} onnx2nn.checkpoint onnx2nn.output onnx2nn.language onnx2nn.reporting onnx2nn.transferring",
    "onnx2nn.backend": f"{AFTER} onnx2nn.output onnx2nn",
    "onnx2nn.commands": f"{AFTER} onnx2nn.output onnx2nn.reporting onnx2nn",
    "onnx2nn.__main__": "onnx2nn.commands",
    "oneflow_bridge.runtime": "onnx2nn.errors",
    "oneflow_bridge.namespace": BRIDGE,
    "oneflow_bridge.from_onnx": f"{SHARED} {BRIDGE} onnx2nn.sizes oneflow_bridge.namespace",
    "oneflow_bridge.to_onnx": f"{SHARED} {BRIDGE} onnx2nn.rewrite {MEASURES}",
    "oneflow_bridge": f"{BRIDGE} oneflow_bridge.to_onnx",
    **dict.fromkeys(
        ("oneflow_bridge.module", "oneflow_bridge.attention", "oneflow_bridge.regions"), "oneflow_bridge.from_onnx"
    ),
    "oneflow_bridge.backend": f"{BRIDGE} oneflow_bridge.namespace oneflow_bridge.from_onnx onnx2nn onnx2nn.loading",
    "oneflow_bridge.cli": f"{BRIDGE} onnx2nn.ground oneflow_bridge oneflow_bridge.to_onnx onnx2nn.commands",
    "scripts": "onnx2nn oneflow_bridge",
}
"""What each room may import besides its own modules; `scripts` may import whatever the packages hold."""


def _modules(root: Path) -> dict[str, Path]:
    found = {}
    for package in ("onnx2nn", "oneflow_bridge", "scripts"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """Returns the modules that one imports, at its top or inside a function; of `onnx2nn`, those of its names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    typing_only = {inner for node in guarded for statement in node.body for inner in ast.walk(statement)}
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in typing_only and name != "onnx2nn":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            found |= {inner if (inner := f"{base}.{alias.name}") in known else base for alias in node.names}
    return (found & known.keys()) - {name}


def _imports(root: Path) -> dict[str, set[str]]:
    known = _modules(root)
    return {name: _imported(name, path, known) for name, path in known.items()}


def _room(module: str) -> str:
    """Returns the longest room of `RULES` that holds a module, the module where none does."""
    steps = module.split(".")
    rooms = (".".join(steps[:end]) for end in range(len(steps), 0, -1))
    return next(
        (room for room in rooms if room in RULES and (room == module or "." in room or room == "scripts")), module
    )


def _violations(root: Path) -> list[str]:
    """Returns what breaks a rule: imports that a room does not allow, modules without a room."""
    found = []
    for module, imported in _imports(root).items():
        room = _room(module)
        if room not in RULES:
            found.append(f"{module} stands in no room")
            continue
        allowed = set(RULES[room].split())
        for other in sorted(imported):
            target = _room(other)
            if target == room or target in allowed or (room == "scripts" and target.split(".")[0] in allowed):
                continue
            found.append(f"{module} imports {other}")
    return found


def _circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Returns modules of which each imports the next and the last is the first, none where there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_rooms_import_what_they_may() -> None:
    assert _violations(ROOT) == []


def test_no_module_imports_in_a_circle() -> None:
    assert _circle(_imports(ROOT)) == []


def _planted(tmp_path: Path, module: str, text: str) -> Path:
    """Returns a copy of the tree's modules in which `text` stands at the end of one."""
    for path in _modules(ROOT).values():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    with _modules(tmp_path)[module].open("a", encoding="utf-8") as file:
        file.write(text)
    return tmp_path


def test_an_import_inside_a_function_is_found(tmp_path: Path) -> None:
    root = _planted(tmp_path, "onnx2nn.reading.reader", "\ndef late():\n    import onnx2nn\n    return onnx2nn\n")
    assert "onnx2nn.reading.reader imports onnx2nn" in _violations(root)
    assert "onnx2nn.reading.reader" in _circle(_imports(root))


def test_a_room_that_looks_up_is_found(tmp_path: Path) -> None:
    root = _planted(tmp_path, "onnx2nn.ops.conv", "\nfrom onnx2nn.fx.tracing import layers\n")
    assert "onnx2nn.ops.conv imports onnx2nn.fx.tracing.layers" in _violations(root)


def test_scripts_do_not_import_tests() -> None:
    for path in (ROOT / "scripts").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"tests", "realmodels", "suitecases"}, path.name


def test_modules_and_classes_are_one_thing() -> None:
    """Not over 500 lines a module (`ops` aside: a family is one file), not over 250 a class."""
    long = []
    for name, path in _modules(ROOT).items():
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > 500 and not name.startswith("onnx2nn.ops."):
            long.append(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= 250:
                long.append(f"{name}.{node.name}")
    assert long == []


def test_rooms_say_what_they_are_for() -> None:
    for name, path in _modules(ROOT).items():
        if path.name == "__init__.py" and not name.startswith("scripts"):
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), name


NAMED = {
    "onnx2nn.importing.author_layers": "class names of layers whose weights the file orders in another way",
    "onnx2nn.importing.training": "class names of layers, by which a weight has a role",
    "onnx2nn.importing.trip_counts": "each comparison ends a loop in its own way",
    "onnx2nn.output.ncnn.obstacles": "class names of control_flow's modules",
    "onnx2nn.output.ncnn.model_files": "names of NCNN's layers, which are not ONNX's operators",
    "onnx2nn.provenance.fused_operators": "into which operators ONNX Runtime's optimiser takes a bias or an activation",
    "onnx2nn.provenance.layer_weights": "how PyTorch's exporter writes certain calls, operator by operator",
    "onnx2nn.provenance.restore": "operators whose weight PyTorch's exporter reshapes for broadcasting",
    "onnx2nn.rewrite.channels_first_forms": "a rule for each operator that names dimensions in a way of its own",
    "onnx2nn.rewrite.value_facts": "what exporters leave between a weight and its reader",
    "onnx2nn.rewrite.embeddings": "what Keras computes indices by",
    "onnx2nn.rewrite.raising": "what a value passes on the way to where only its shape is read",
    "onnx2nn.rewrite.recurrent_layers": "how ONNX's recurrent operators and torch's layers order gates and states",
    "onnx2nn.rewrite.recurrent_loops": "what a number of steps is picked by, so that it is one of the sizes",
    "onnx2nn.unfreeze.rules": "a rule for each operator whose constants follow from the shapes around it",
    "oneflow_bridge.regions": "class names of the modules that 0.1 saved",
    "oneflow_bridge.to_onnx.lowering.schemas": "inputs that the exporter never widens",
    "oneflow_bridge.to_onnx.optimize": "what onnx.reference evaluates as ONNX Runtime does",
}
"""Modules that name three or more operators in one place for a reason that is theirs, not the operators'."""


def _operator_names(path: Path, known: Set[str]) -> list[list[str]]:
    """Returns the collections of string literals, dicts by their keys, that hold three or more of the `known` names."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        items: list[ast.expr | None] = []
        if isinstance(node, (ast.Set, ast.List, ast.Tuple)):
            items = [*node.elts]
        elif isinstance(node, ast.Dict):
            items = [*node.keys]
        names = [item.value for item in items if isinstance(item, ast.Constant) and item.value in known]
        found += [names] if len(names) > 2 else []
    return found


def test_what_is_true_of_operators_stands_in_their_rows() -> None:
    """No module keeps a table of operator names beside the op table, see `optable/traits.py`."""
    known = {row.operator for row in TABLE}
    tables = {}
    for name, path in _modules(ROOT).items():
        found = [] if name.startswith(("scripts.", "onnx2nn.ops.")) else _operator_names(path, known)
        tables |= {name: found} if found else {}
    assert sorted(tables.keys() - NAMED.keys()) == [], tables
    assert sorted(NAMED.keys() - tables.keys()) == [], "no reason is needed for these any more"


def test_a_planted_table_of_operators_is_found(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text('NAMES = {*("Conv", "Gemm"), "Relu"}\nMORE = {"Add": 1, "Sub": 2, "Mul": 3}\n')
    known = {row.operator for row in TABLE}
    assert _operator_names(path, known) == [["Add", "Sub", "Mul"]]
    path.write_text('NAMES = frozenset({"Conv", "Gemm", "Relu"})\n')
    assert _operator_names(path, known) == [["Conv", "Gemm", "Relu"]]


def test_no_banner_comments() -> None:
    for path in _modules(ROOT).values():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not line.strip().startswith(("# --", "# ==", "#####")), f"{path.name}:{number}"
