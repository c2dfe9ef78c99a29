"""Measures operators without an equivalent in torch, beside ONNX's reference implementation and ONNX Runtime.

    python benchmarks/operators.py              # all of them, about three minutes
    python benchmarks/operators.py NonMax Tree  # operators whose names contain one of these words

All implementations run the same one-node model on the same inputs, in rounds of shuffled order. Their outputs are
compared. The goals: no operator is slower than in the reference, trees and NonMaxSuppression take at most ten times
ONNX Runtime's time.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from rich.console import Console
from rich.table import Table
from turns import turns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnx2nn
from onnx2nn.backend import OnnxModule

ROUNDS = 7
LONGEST = 10.0
"""Limit on the seconds of an implementation's calls. At least one call is made."""

LIMITED = ("NonMaxSuppression", "TreeEnsemble")
"""Operators that may take at most `TIMES` times ONNX Runtime's time."""
TIMES = 10.0

_RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        operator: the operator type.
        size: a description of the size, for the table.
        inputs: the inputs as arrays, None for an absent one.
        attributes: the attributes.
        outputs: the number of outputs.
        constant: positions of the inputs that are initializers of the model.
        domain: the operator's domain.
        opset: the opset version of ai.onnx.
        reference: whether ONNX's reference implementation takes less than a minute.
    """

    operator: str
    size: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    constant: tuple[int, ...] = ()
    domain: str = ""
    opset: int = 19
    reference: bool = True

    def model(self) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """Returns the model and its feeds."""
        names = ["" if value is None else f"in{i}" for i, value in enumerate(self.inputs)]
        named = {name: value for name, value in zip(names, self.inputs, strict=True) if name}
        feeds = {name: value for name, value in named.items() if int(name[2:]) not in self.constant}
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in feeds.items()
        ]
        initializers = [numpy_helper.from_array(value, name) for name, value in named.items() if name not in feeds]
        tensors = {
            k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in self.attributes.items()
        }
        outputs = [f"out{i}" for i in range(self.outputs)]
        node = helper.make_node(self.operator, names, outputs, domain=self.domain, **tensors)
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph([node], "operator", infos, results, initializers)
        opsets = [helper.make_opsetid(self.domain, 3 if self.domain else self.opset)]
        opsets += [helper.make_opsetid("", self.opset)] if self.domain else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


def _f32(*shape: int) -> Any:
    return _RNG.standard_normal(shape).astype(np.float32)


def _boxes(count: int) -> Any:
    corner, size = _RNG.uniform(0, 600, (1, count, 2)), _RNG.uniform(10, 120, (1, count, 2))
    return np.concatenate([corner, corner + size], 2).astype(np.float32)


def _suppression(boxes: int, classes: int, limit: int, threshold: float) -> Case:
    scores = _RNG.uniform(0, 1, (1, classes, boxes)).astype(np.float32) ** 4  # most scores of a detector are low
    parameters = [np.array([limit]), np.array([0.5], np.float32), np.array([threshold], np.float32)]
    size = f"{boxes} boxes, {classes} classes, score over {threshold}"
    inputs = (_boxes(boxes), scores, *parameters)
    return Case("NonMaxSuppression", size, inputs, constant=(2, 3, 4), reference=boxes * classes < 1e5)


def _regions(count: int, channels: int) -> Case:
    rois = _boxes(count)[0] / 16
    inputs = (_f32(1, channels, 50, 50), rois, np.zeros(count, np.int64))
    options = dict(output_height=7, output_width=7, sampling_ratio=2, coordinate_transformation_mode="half_pixel")
    return Case("RoiAlign", f"{count} regions of {channels} x 50 x 50", inputs, options)


def _deformable(channels: int, size: int) -> Case:
    masks = (1 / (1 + np.exp(-_f32(1, 9, size, size)))).astype(np.float32)
    weights = (_f32(channels, channels, 3, 3) / 24, _f32(1, 18, size, size), _f32(channels), masks)
    inputs = (_f32(1, channels, size, size), *weights)
    note = f"{channels} x {size} x {size}, 3 x 3"
    return Case("DeformConv", note, inputs, {"pads": [1, 1, 1, 1]}, constant=(1, 3), reference=channels < 10)


def _forest(operator: str, trees: int, depth: int, rows: int, features: int = 20) -> Case:
    """Returns full trees with random splits on normally distributed features; a classifier has ten classes."""
    vote = "class" if operator.endswith("Classifier") else "target"
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    tree = np.repeat(np.arange(trees), count)
    node = np.tile(np.arange(count), trees)
    leaf = node >= inner
    attributes: dict[str, Any] = {
        "nodes_treeids": tree,
        "nodes_nodeids": node,
        "nodes_featureids": np.where(leaf, 0, _RNG.integers(0, features, len(node))),
        "nodes_values": np.where(leaf, 0.0, _RNG.standard_normal(len(node))).astype(np.float32),
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LEQ"),
        "nodes_truenodeids": np.where(leaf, 0, 2 * node + 1),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * node + 2),
        f"{vote}_treeids": tree[leaf],
        f"{vote}_nodeids": node[leaf],
        f"{vote}_ids": tree[leaf] % 10 if vote == "class" else np.zeros(leaf.sum(), int),
        f"{vote}_weights": _RNG.standard_normal(leaf.sum()).astype(np.float32),
    }
    listed = {name: value.tolist() for name, value in attributes.items()}
    extra = {"classlabels_int64s": list(range(10))} if vote == "class" else {"n_targets": 1}
    size = f"{trees} trees, depth {depth}, {rows} rows"
    outputs = 2 if vote == "class" else 1
    inputs = (_f32(rows, features),)
    return Case(operator, size, inputs, {**listed, **extra}, outputs, domain="ai.onnx.ml", reference=rows <= 1000)


def _cells(operator: str, gates: int, note: str, *extra: Any, **attributes: Any) -> Case:
    steps, batch, width, hidden = 50, 8, 64, 128
    weights = (_f32(1, gates * hidden, width) / 8, _f32(1, gates * hidden, hidden) / 8, _f32(1, 2 * gates * hidden) / 8)
    inputs = (_f32(steps, batch, width), *weights, *extra)
    options = {"hidden_size": hidden, **attributes}
    outputs = 3 if operator == "LSTM" else 2
    return Case(operator, f"{note}, {steps} steps of {batch}", inputs, options, outputs, constant=(1, 2, 3, 7))


def cases() -> list[Case]:
    """Returns the cases to measure."""
    lengths = np.array([50, 50, 40, 30, 20, 10, 5, 1], np.int32)
    return [
        _suppression(1000, 1, 100, 0.05),
        _suppression(1000, 20, 100, 0.05),
        _suppression(8400, 80, 100, 0.25),
        _regions(100, 64),
        _deformable(8, 10),
        _deformable(64, 28),
        Case("TopK", "100 of 8 x 20000", (_f32(8, 20000), np.array([100])), outputs=2, constant=(1,)),
        Case("Unique", "100000 integers", (_RNG.integers(0, 5000, 100000),), {"sorted": 1}, outputs=4),
        Case("Unique", "rows of 2000 x 4", (_RNG.integers(0, 5, (2000, 4)),), {"axis": 0}, outputs=4),
        _forest("TreeEnsembleClassifier", 100, 8, 1),
        _forest("TreeEnsembleClassifier", 100, 8, 1000),
        _forest("TreeEnsembleRegressor", 100, 6, 1),
        _forest("TreeEnsembleRegressor", 100, 6, 10000),
        _cells("LSTM", 4, "peepholes", None, None, None, _f32(1, 3 * 128)),
        _cells("LSTM", 4, "lengths", lengths),
        _cells("GRU", 3, "reset first"),
        _cells("GRU", 3, "clipped", clip=3.0, linear_before_reset=1),
        _cells("RNN", 1, "clipped", clip=3.0),
    ]


def implementations(case: Case, threads: int) -> dict[str, Callable[[], Any]]:
    """Returns the implementations that can run a case: ours, ONNX Runtime's and the reference's."""
    model, feeds = case.model()
    module = OnnxModule(model, onnx2nn.load(model))
    found: dict[str, Callable[[], Any]] = {"onnx2nn": lambda: module.run(feeds)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found["ONNX Runtime"] = lambda: session.run(None, feeds)
    if case.reference:
        reference = ReferenceEvaluator(model)
        found["onnx.reference"] = lambda: reference.run(None, feeds)
    return found


def measure(found: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Returns the fastest seconds and the outputs of each implementation.

    The first call warms caches. It counts only if there is no time for another.
    """
    outputs: dict[str, list[Any]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    first: dict[str, float] = {}
    for name, counts in turns(found, rounds, warming=1):
        if first.get(name, 0.0) + sum(seconds[name]) > LONGEST:
            continue
        start = time.perf_counter()
        try:
            outputs[name] = found[name]()
        except Exception:  # the reference fails on some of its own operators
            first[name] = float("inf")
            continue
        if counts:
            seconds[name].append(time.perf_counter() - start)
        else:
            first[name] = time.perf_counter() - start
    return {name: min(seconds[name] or [first[name]]) for name in found}, outputs


def difference(ours: list[Any], theirs: list[Any] | None) -> float:
    """Returns the largest difference, relative to the output's scale; infinite where shapes differ."""
    worst = 0.0
    for a, b in zip(ours, theirs or [], strict=False):
        if a.shape != b.shape:
            return float("inf")
        scale = np.abs(b.astype(np.float64)).max(initial=1e-30)
        worst = max(worst, float(np.abs(a.astype(np.float64) - b).max(initial=0.0) / scale))
    return worst


def main() -> None:
    """Prints the table; the exit status is 1 if a goal is missed."""

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch and ONNX Runtime")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    table = Table(title=f"Milliseconds, fastest of {arguments.rounds} rounds, {arguments.threads} threads")
    columns = ("operator", "size", "onnx2nn", "reference", "ONNX Runtime", "to reference", "to ORT", "difference", "")
    for column in columns:
        table.add_column(column, justify="left" if column in ("operator", "size", "") else "right")
    missed = False
    for case in cases():
        if arguments.names and not any(name in case.operator for name in arguments.names):
            continue
        seconds, outputs = measure(implementations(case, arguments.threads), arguments.rounds)
        ours, runtime, reference = seconds["onnx2nn"], seconds["ONNX Runtime"], seconds.get("onnx.reference", math.nan)
        largest = difference(outputs["onnx2nn"], outputs.get("ONNX Runtime"))
        slow = ours > reference or (case.operator.startswith(LIMITED) and ours > TIMES * runtime)
        missed |= slow or largest > 1e-4
        print(case.operator, case.size, f"{ours:.4f} s", file=sys.stderr)
        table.add_row(
            *(case.operator, case.size, *(f"{1e3 * value:.2f}" for value in (ours, reference, runtime))),
            *(f"{ours / reference:.3f}", f"{ours / runtime:.2f}", f"{largest:.0e}", "missed" if slow else ""),
        )
    Console(width=150).print(table)
    sys.exit(missed)


if __name__ == "__main__":
    main()
