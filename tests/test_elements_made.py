"""What calls of torch's kernels make is estimated before they run, without imports that take long."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch.utils._python_dispatch import TorchDispatchMode

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.importing.elements_made import elements_made, tensors_in
from tests.drawn import draw, operators
from tests.suitecases import SuiteCase, node_cases

ROOT = Path(__file__).resolve().parent.parent


class Compared(TorchDispatchMode):
    """Runs calls and compares what they make with the estimates."""

    def __init__(self) -> None:
        super().__init__()
        self.compared = 0
        self.wrong: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        estimate = elements_made(function, args, kwargs)
        result = function(*args, **kwargs)
        given = {id(tensor) for tensor in tensors_in((*args, *kwargs.values()))}
        views = not any(argument.alias_info is None for argument in function._schema.returns)
        found = result if isinstance(result, (list, tuple)) else (result,)
        made = 0 if views else sum(tensor.numel() for tensor in tensors_in(found) if id(tensor) not in given)
        self.compared += 1
        if torch.Tag.nondeterministic_seeded in function.tags:
            return result  # a random call stays in the program, whatever it would make
        if made > estimate or estimate == math.inf:
            self.wrong.append(f"{function}: {made} elements, estimated {estimate}")
        return result


def _is_of_type(value: np.ndarray[Any, Any], info: onnx.ValueInfoProto) -> bool:
    """Returns whether an array has the type of its input, which an optional or a sequence does not tell here."""
    declared = info.type.tensor_type.elem_type
    return not declared or value.dtype == helper.tensor_dtype_to_np_dtype(declared)


@pytest.mark.parametrize("operator", sorted(node_cases()), ids=lambda pair: f"{pair[0] or 'onnx'}-{pair[1]}")
def test_no_call_makes_more_than_is_estimated(operator: tuple[str, str]) -> None:
    """The kernels that the cases of ONNX's suite call."""
    for case in node_cases()[operator]:
        if not all(isinstance(value, np.ndarray) and value.dtype.kind not in "OSU" for value in case.inputs):
            continue
        if not all(map(_is_of_type, case.inputs, case.model.graph.input)):
            continue  # onnx before 1.18 gives bfloat16 and float8 as the whole numbers of their bits
        try:
            module = onnx2nn.load(case.model)
            inputs = [torch.from_numpy(value.copy()) for value in case.inputs]
        except (Onnx2nnError, TypeError):  # one that is refused, or of numbers that torch has not
            continue
        with torch.no_grad(), Compared() as compared:
            module(*inputs)
        assert not compared.wrong, (case.name, compared.wrong)


@pytest.mark.parametrize(("domain", "op"), operators.parameters())
def test_no_drawn_call_makes_more_than_is_estimated(domain: str, op: str) -> None:
    for seed in range(6):
        d = draw.Draw(random.Random(f"{op} {seed}"))
        model, feeds = draw.model_of(operators.CALLS[domain, op](d), d)
        try:
            module = onnx2nn.load(model)
            with torch.no_grad(), Compared() as compared:
                module(*(torch.from_numpy(x.copy()) for x in feeds.values()))
        except (
            Onnx2nnError,
            RuntimeError,
            TypeError,
            ValueError,
            IndexError,
        ):  # tests/test_drawn_operators.py judges it
            continue
        assert not compared.wrong, (seed, compared.wrong)


def _constant(case: SuiteCase) -> onnx.ModelProto | None:
    """Returns a case with its inputs as initializers, None where they are not tensors."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = [value.name for value in model.graph.input]
    if len(names) != len(case.inputs) or not all(isinstance(value, np.ndarray) for value in case.inputs):
        return None
    del model.graph.input[:]
    model.graph.initializer.extend(map(numpy_helper.from_array, case.inputs, names))
    model.ir_version = max(model.ir_version, 4)
    return model


_LOADING = """
import json, sys, onnx2nn
onnx2nn.load  # imports onnx_ir without sympy
from onnx2nn.errors import Onnx2nnError
from onnx2nn.importing import watched_calls
watched_calls.SMALL = -1
found = {}
for path in sys.argv[1:]:
    try:
        onnx2nn.load(path)
    except Onnx2nnError:
        pass
    for name in [name for name in ("sympy", "torch._dynamo") if name in sys.modules and name not in found]:
        found[name] = path
print(json.dumps(found))
"""


@pytest.mark.slow  # all cases of the suite
def test_estimates_import_nothing_of_torch(tmp_path: Path) -> None:
    """Every operator on constants, each of whose calls is estimated."""
    cases = {case.name: case for cases in node_cases().values() for case in cases}
    paths = []
    for name, case in cases.items():
        model = _constant(case)
        if model is not None:
            paths.append(tmp_path / f"{name}.onnx")
            onnx.save(model, paths[-1])
    assert len(paths) > 1000
    done = subprocess.run(
        [sys.executable, "-c", _LOADING, *paths],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {}
