"""Every case of every row, at every revision that its operator has had, against an oracle."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import onnx2nn
from onnx2nn.backend import OnnxModule
from tests import installed, old_oracles, onnxnode
from tests.cases import Case, all_cases


@functools.cache
def pairs() -> list[tuple[Case, int]]:
    """Returns the cases with each revision in which they have a form; the models are built when a test runs."""
    cases = [(case, onnxnode.revisions(case)) for case in all_cases()]
    return [(case, version) for case, versions in cases for version in versions if onnxnode.expressible(case, version)]


def runs() -> Iterator[Any]:
    """Yields the pairs with dynamic sizes, and with those of the case: in the fast tier at the newest revision only."""
    newest = {id(case): version for case, version in pairs()}
    seen: collections.Counter[str] = collections.Counter()
    for case, version in pairs():
        name = f"{case}-{version}"
        seen[name] += 1  # pytest takes seconds to tell equal names apart
        name += f"-{seen[name]}" if seen[name] > 1 else ""
        yield pytest.param(case, version, True, id=f"dynamic-{name}")
        older = () if version == newest[id(case)] else pytest.mark.slow
        yield pytest.param(case, version, False, id=f"static-{name}", marks=older)


@pytest.mark.parametrize(("case", "version", "dynamic"), list(runs()))
def test_case(case: Case, version: int, dynamic: bool, record_property: Callable[[str, object], None]) -> None:
    model, feeds = onnxnode.model_of(case, version, dynamic=dynamic)
    old_oracles.skip_fatal(case, version)
    answer = onnxnode.oracle(case, version)
    outputs = OnnxModule(model, onnx2nn.load(model)).run(feeds)
    if answer is None:
        record_property("unverified", f"{case.operator}-{version}")
        pytest.skip("neither ONNX Runtime nor the reference runs this revision")
    with old_oracles.agreement(case, version):
        for actual, expected in zip(outputs, answer[1], strict=True):
            onnxnode.assert_close(actual, expected, case.tolerance)


def test_flaws_of_old_oracles_are_past() -> None:
    """None is about the oracles that the tests were written with, and each is about cases that exist."""
    for flaw in old_oracles.FLAWS:
        assert flaw.right <= installed.pinned(flaw.oracle)
        assert any(old_oracles.concerns(flaw, case) for case in all_cases())


def test_there_are_cases() -> None:
    assert len(pairs()) > 5 and all(np.all(c.arrays()[0] == c.arrays()[0]) for c in all_cases()[:1])


@pytest.mark.parametrize("case", [c for c in all_cases() if c.operator == "DynamicQuantizeLSTM"], ids=str)
def test_no_value_is_read_while_torch_exports(case: Case) -> None:
    model, feeds = onnxnode.model_of(case, onnxnode.revisions(case)[-1])
    module = onnx2nn.load(model)
    inputs = tuple(torch.from_numpy(feed) for feed in feeds.values())
    exported = torch.export.export(module, inputs, strict=False).module()
    torch.testing.assert_close(exported(*inputs), module(*inputs))
