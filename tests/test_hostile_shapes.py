"""Constants of huge, empty and unfit shapes in the cases of ONNX's suite: an import takes little, and never crashes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.suitecases import SuiteCase, node_cases

ROOT = Path(__file__).resolve().parent.parent

SECONDS = 4.0
"""Of the processor, that an import may take: `Limits.folding_seconds` for constants, the rest, and slow processors."""

_HUGE = (3_000_000_000, 100_000_000, 1_000_003, 70_000)
_STORED = 100_000
"""The most elements of a tensor that a file stores; a larger one is expanded from one number."""

_CHILD = """
import json, logging, resource, sys, time, warnings
import onnx, torch, onnx2nn
warnings.simplefilter("ignore"); logging.disable(50)
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
small = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
onnx2nn.load(onnx.parser.parse_model(small))
for path in sys.stdin.read().splitlines():
    start, message = time.process_time(), ""
    try:
        onnx2nn.load(path)
    except onnx2nn.errors.Onnx2nnError as error:
        message = str(error)
    print(json.dumps([time.process_time() - start, message]), flush=True)
"""


def _constant(case: SuiteCase, draw: random.Random) -> onnx.ModelProto | None:
    """Returns a case whose inputs are constants, two of whose sizes are 0 and huge wherever they stand or anywhere."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    infos = list(model.graph.input)
    sizes = sorted({size for value in case.inputs if isinstance(value, np.ndarray) for size in value.shape})
    if len(infos) != len(case.inputs) or not sizes or not all(isinstance(v, np.ndarray) for v in case.inputs):
        return None
    del model.graph.input[:]
    model.ir_version = max(model.ir_version, 8)
    if not any(not opset.domain for opset in model.opset_import):  # Expand needs one
        model.opset_import.append(helper.make_opsetid("", 18))
    replaced = dict(zip(draw.sample(sizes, min(2, len(sizes))), (0, draw.choice(_HUGE)), strict=False))
    often = draw.random() < 0.5
    for info, value in zip(infos, case.inputs, strict=True):
        numbers = value.ndim < 2 and value.size <= 8 and value.dtype.kind in "iu"  # axes, shapes, counts
        texts = value.dtype.kind in "OSU"
        if texts or draw.random() < (0.7 if numbers else 0.0 if often else 0.5):
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
            continue
        shape = [replaced.get(size, size) for size in value.shape]
        if value.ndim > 1 and draw.random() < 0.3:
            shape, axes = list(value.shape), draw.sample(range(value.ndim), 2)
            shape[axes[0]], shape[axes[1]] = 0, draw.choice(_HUGE)
        _add(model, info, value, shape)
    for output in model.graph.output:
        output.type.Clear()
    return model


def _add(
    model: onnx.ModelProto,
    info: onnx.ValueInfoProto,
    value: np.ndarray[tuple[int, ...], np.dtype],
    shape: Sequence[int],
) -> None:
    """Adds a constant: stored, or expanded where it is large."""
    if 0 in shape:
        kind = info.type.tensor_type.elem_type
        model.graph.initializer.append(onnx.TensorProto(name=info.name, data_type=kind, dims=shape, raw_data=b""))
        return
    total = 1
    for size in shape:
        total *= size
    if total <= _STORED:
        stored = np.resize(value, shape).astype(value.dtype)
        model.graph.initializer.append(numpy_helper.from_array(stored, info.name))
        return
    number = value.reshape(-1)[0] if value.size else np.zeros((), value.dtype)
    model.graph.initializer.append(numpy_helper.from_array(np.array(number, value.dtype), f"{info.name}_number"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{info.name}_shape"))
    node = helper.make_node("Expand", [f"{info.name}_number", f"{info.name}_shape"], [info.name])
    model.graph.node.insert(0, node)


def _drawn(folder: Path, seed: int) -> Iterator[Path]:
    draw = random.Random(seed)
    cases = {case.name: case for cases in node_cases().values() for case in cases}
    for name, case in sorted(cases.items()):
        model = _constant(case, draw)
        if model is not None:
            path = folder / f"{name}.onnx"
            onnx.save(model, path)
            yield path


@pytest.mark.slow  # all cases of the suite
@pytest.mark.parametrize("seed", [0, 1])
def test_constants_of_any_shape_take_little(seed: int, tmp_path: Path) -> None:
    """Each is imported or refused by this project's errors, in little time and memory, by a process that goes on."""
    pytest.importorskip("resource", reason="the system does not limit the memory of a process")
    paths = list(_drawn(tmp_path, seed))
    assert len(paths) > 1000
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input="\n".join(map(str, paths)),
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths), (paths[len(lines)].name, done.stderr[-2000:])
    found = dict(zip((path.stem for path in paths), map(json.loads, lines), strict=True))
    slow = {name: seconds for name, (seconds, _) in found.items() if seconds > SECONDS}
    large = {name: message for name, (_, message) in found.items() if "allocate" in message or "Memory" in message}
    assert not slow and not large, (slow, large)
