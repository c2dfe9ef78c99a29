"""Every case of every row, at every revision that its operator has had, against an oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch

import onnx2nn
from onnx2nn.backend import OnnxModule
from tests import onnxnode
from tests.cases import Case, all_cases


@functools.cache
def pairs() -> list[tuple[Case, int]]:
    result = []
    for case in all_cases():
        for version in onnxnode.revisions(case):
            try:
                onnxnode.model_of(case, version)
            except onnxnode.NotExpressible:
                continue
            result.append((case, version))
    return result


def titles(pair: tuple[Case, int]) -> str:
    return f"{pair[0]}-{pair[1]}"


@pytest.mark.parametrize("pair", pairs(), ids=titles)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_case(pair: tuple[Case, int], dynamic: bool, record_property: Callable[[str, object], None]) -> None:
    case, version = pair
    model, feeds = onnxnode.model_of(case, version, dynamic=dynamic)
    answer = onnxnode.oracle(case, version)
    outputs = OnnxModule(model, onnx2nn.load(model)).run(feeds)
    if answer is None:
        record_property("unverified", f"{case.operator}-{version}")
        pytest.skip("neither ONNX Runtime nor the reference runs this revision")
    for actual, expected in zip(outputs, answer[1], strict=True):
        onnxnode.assert_close(actual, expected, case.tolerance)


def test_there_are_cases() -> None:
    assert len(pairs()) > 5 and all(np.all(c.arrays()[0] == c.arrays()[0]) for c in all_cases()[:1])


@pytest.mark.parametrize("case", [c for c in all_cases() if c.operator == "DynamicQuantizeLSTM"], ids=str)
def test_no_value_is_read_while_torch_exports(case: Case) -> None:
    model, feeds = onnxnode.model_of(case, onnxnode.revisions(case)[-1])
    module = onnx2nn.load(model)
    inputs = tuple(torch.from_numpy(feed) for feed in feeds.values())
    exported = torch.export.export(module, inputs, strict=False).module()
    torch.testing.assert_close(exported(*inputs), module(*inputs))
