"""Writes the export's part of docs/oneflow.md, and one of measured.json, from a run of the exporter's tests.

    python scripts/oneflow_tables.py [JUNIT]    # JUNIT: a report of these tests that is read instead of running them

Needs the packages of `onnx2nn[oneflow]`, pytest and pytest-xdist (the nox session `oneflow` has them).
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = ("test_export_ops", "test_export_handmade", "test_export", "test_job", "test_export_global")
DEFAULT_OPSET = 17

OPERATORS = {
    **{"GatherND": "gather_nd", "Transpose": "transpose", "Add": "broadcast_add", "Sub": "broadcast_sub"},
    **{"Mul": "broadcast_mul", "Div": "broadcast_div", "Sum": "add_n", "LeakyRelu": "leaky_relu"},
    **{
        "Softplus": "softplus",
        "Abs": "abs",
        "Ceil": "ceil",
        "Elu": "elu",
        "Exp": "exp",
        "Floor": "floor",
        "Log": "log",
    },
    **{"Neg": "negative", "Sigmoid": "sigmoid", "Sqrt": "sqrt", "Tanh": "tanh", "Reciprocal": "reciprocal"},
    **{"Relu": "relu", "Acos": "acos", "Asin": "asin", "Atan": "atan", "Cos": "cos", "Sin": "sin", "Tan": "tan"},
    **{"Acosh": "acosh", "Asinh": "asinh", "Atanh": "atanh", "Cosh": "cosh", "Sinh": "sinh"},
    **{"Min": "broadcast_minimum", "Max": "broadcast_maximum", "Clip": "clip_by_scalar hardtanh"},
    **{"Softmax": "softmax", "Sign": "sign", "MatMul": "matmul batch_matmul broadcast_matmul", "Erf": "erf"},
    **{"FloorMod": "broadcast_floor_mod", "Round": "round rint", "Not": "logical_not"},
    **{"And": "broadcast_logical_and", "Or": "broadcast_logical_or", "Equal": "broadcast_equal"},
    **{"NotEqual": "broadcast_not_equal", "Greater": "broadcast_greater", "Less": "broadcast_less"},
    **{"GreaterEqual": "broadcast_greater_equal", "LessEqual": "broadcast_less_equal"},
    **{"Pad": "pad reflection_pad2d replication_pad2d", "AveragePool": "avg_pool_2d tf_avg_pool_2d"},
    **{"MaxPool": "max_pool_2d tf_max_pool_2d", "Conv": "conv1d conv2d conv3d"},
    "QuantizeLinear": "min_max_observer moving_average_min_max_observer fake_quantization quantization",
    **{"ReduceMin": "reduce_min", "ReduceSum": "reduce_sum", "ReduceProd": "reduce_prod"},
    **{"BatchNormalization": "normalization", "ArgMax": "argmax", "ArgMin": "argmax", "Reshape": "reshape"},
    **{"Squeeze": "squeeze", "Concat": "concat", "Cast": "cast", "Identity": "identity", "Square": "square"},
    **{"Rsqrt": "rsqrt", "SquaredDifference": "broadcast_sub square", "BiasAdd": "bias_add", "AddN": "add_n"},
    "scalar_add/mul/sub/div": "scalar_add scalar_mul scalar_div scalar_sub_by_tensor scalar_div_by_tensor",
}
"""Operator of the list that the exporter must cover → the OneFlow ops with its meaning."""

FEATURES = {
    "boxing: distribute_split, distribute_concat, distribute_clone, distribute_add": ("test_boxing_ops",),
    "global tensors: jobs of 1 and of 2 ranks give the same file": ("test_two_ranks",),
    "the job and its weights, saved and exported later": (
        "test_saved_job",
        "test_damaged_saved",
        "test_missing_weight",
    ),
    "weights under the names of the state dict; tied ones once": ("test_weights_keep_their_names",),
    "the output file: written beside and renamed, nothing half written": ("test_a_failed_check", "test_unwritable"),
    "opset by request, 9 to the newest": ("test_case", "test_the_default_opset"),
    "extra opsets: custom operators under a domain of their own (`continue_on_error`)": ("test_unmapped_ops",),
    "unmapped ops reported by name, all at once": ("test_unmapped_ops",),
    "shape overrides: dynamic dimensions, by name (`dynamic`)": ("test_dynamic",),
    "external data, and by itself above 2 GB": ("test_external_data", "test_above_the_limit"),
    "convert and check: ONNX Runtime against OneFlow": ("test_a_failed_check", "test_dynamic"),
    "layers that a CPU job decomposes come out whole": ("test_raised", "test_lstm", "test_what_looks_like"),
    "transposes and reshapes merged, constants folded, dead nodes removed": ("test_raised",),
    "clear errors, and the process goes on": ("test_errors",),
    "command line": ("test_command_line",),
}
"""Feature of the exporter → the tests that show it, by the beginnings of their names."""


MODELS = {"AlexNet": "alexnet", "MobileNetV2": "mobilenet_v2", "ResNet50": "resnet50"}
"""Model that the exporter must write → its row in docs/oneflow_zoo.md."""


@dataclass
class Op:
    """The test results of one OneFlow op.

    Attributes:
        cases: number of cases.
        failed: number of cases that failed.
        first: the lowest opset at which all cases can be written.
        operators: the ONNX operators that it becomes at the default opset, or the lowest above it.
        judges: names of the oracles.
    """

    cases: int = 0
    failed: int = 0
    first: int = 0
    operators: set[str] = field(default_factory=set)
    judges: set[str] = field(default_factory=set)

    def add(self, passed: bool, properties: dict[str, str]) -> None:
        """Counts one case with its recorded properties."""
        self.cases += 1
        self.failed += not passed
        self.judges.add(properties["judge"])
        written = {int(key.split()[1]): value for key, value in properties.items() if key.startswith("operators")}
        if written:
            self.first = max(self.first, min(written))
            shown = min((opset for opset in written if opset >= DEFAULT_OPSET), default=max(written))
            self.operators.update(written[shown].split())


def run(report: Path) -> None:
    """Runs the exporter's tests; failures are part of the result."""
    files = [str(ROOT / "tests" / "oneflow" / f"{suite}.py") for suite in SUITES]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *files], cwd=ROOT, check=False
    )


def read(report: Path) -> tuple[dict[str, Op], dict[str, list[bool]]]:
    """OneFlow op → its cases, and test function → whether each of its runs passed."""
    ops: dict[str, Op] = collections.defaultdict(Op)
    tests: dict[str, list[bool]] = collections.defaultdict(list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        passed = case.find("failure") is None and case.find("error") is None and case.find("skipped") is None
        tests[re.sub(r"\[.*", "", case.get("name", ""), flags=re.S)].append(passed)
        properties = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        if "op" in properties:
            ops[properties["op"]].add(passed, properties)
    return dict(ops), dict(tests)


def section(ops: dict[str, Op], tests: dict[str, list[bool]]) -> list[str]:
    """The section's lines."""
    from scripts import oneflow_zoo

    good = sum(not op.failed for op in ops.values())
    models = oneflow_zoo.written()
    right = sum(row["equal"] == "Yes" for row in models.values())
    return [
        "`scripts/oneflow_tables.py` writes this section from a run of the exporter's tests. Of flowvision's models",
        f"{len(models)} were exported too: {right} are right; OneFlow has no CPU kernel for an op of the others",
        "([oneflow_zoo.md](oneflow_zoo.md)).",
        "",
        "### What it must do",
        "",
        "| requirement | tests | |",
        "|---|---|---|",
        *(_feature(text, names, tests) for text, names in FEATURES.items()),
        "",
        "| model | difference to OneFlow at a batch that was not traced | |",
        "|---|---|---|",
        *(f"| {title} | {models[name]['difference']} | {models[name]['equal']} |" for title, name in MODELS.items()),
        "",
        "### The operators it must cover",
        "",
        "| operator | OneFlow ops | |",
        "|---|---|---|",
        *(_required(name, wanted.split(), ops) for name, wanted in OPERATORS.items()),
        "",
        "### All OneFlow ops that have a test",
        "",
        f"{good} of {len(ops)} are right in every case. *From*: the lowest opset at which all cases can be written.",
        f"*Becomes*: the ONNX operators in the files, at opset {DEFAULT_OPSET} where it can be. Numbers are compared",
        "with OneFlow itself, or with a formula where OneFlow has no CPU kernel for the op; random ones are judged by",
        "their distribution at the default opset; *nobody*: the file passes the checker and no more.",
        "",
        "| OneFlow op | becomes | from | cases | compared with | |",
        "|---|---|---|---|---|---|",
        *(_row(name, ops[name]) for name in sorted(ops)),
    ]


def _feature(text: str, beginnings: tuple[str, ...], tests: dict[str, list[bool]]) -> str:
    runs = [passed for name, results in tests.items() if name.startswith(beginnings) for passed in results]
    return f"| {text} | {len(runs)} | {'Yes' if runs and all(runs) else 'No'} |"


def _required(name: str, wanted: list[str], ops: dict[str, Op]) -> str:
    right = all(op in ops and not ops[op].failed for op in wanted)
    return f"| {name} | {', '.join(wanted)} | {'Yes' if right else 'No'} |"


def _row(name: str, op: Op) -> str:
    verdict = "Yes" if not op.failed else f"No: {op.failed} of {op.cases}"
    becomes, judges = " ".join(sorted(op.operators)), ", ".join(sorted(op.judges))
    return f"| {name} | {becomes} | {op.first} | {op.cases} | {judges} | {verdict} |"


def main() -> None:
    """See the module."""
    sys.path.insert(0, str(ROOT))
    from scripts import measured, oneflow_document

    with tempfile.TemporaryDirectory() as folder:
        report = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "report.xml"
        if len(sys.argv) == 1:
            run(report)
        ops, tests = read(report)
        oneflow_document.write("export", section(ops, tests))
        measured.update(
            "oneflow_export", measured.oneflow_export({n: op.operators for n, op in ops.items() if not op.failed})
        )


if __name__ == "__main__":
    main()
