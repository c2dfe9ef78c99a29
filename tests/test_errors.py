"""Errors cross processes: a pool of workers pickles what one of them raises."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from onnx2nn import errors
from onnx2nn.errors import LimitError, NcnnError, Onnx2nnError, Problem, UnsupportedModelError

OTHERS: dict[type, Callable[[], Onnx2nnError]] = {
    LimitError: lambda: LimitError("nodes", 4, 3, "m.onnx: nodes:", "nodes").of_file("a"),
    UnsupportedModelError: lambda: UnsupportedModelError([Problem("A", "", 1, "is unknown.", "Ask.", ["a", "b"])]),
    NcnnError: lambda: NcnnError("2 nodes", ["a", "b\x1b[1m"]),
}
"""Errors that are made of something else than their text."""

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Onnx2nnError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_copies_of_errors(kind: type[Onnx2nnError], way: Callable[[Any], Any]) -> None:
    error = OTHERS.get(kind, lambda: kind("One finding \x1b[31m.", 3))()
    error.limit_length(30)
    again = way(error)
    assert type(again) is kind and str(again) == str(error) and again.args == error.args
    assert vars(again) == vars(error)
    again.limit_length(1000)
    error.limit_length(1000)
    assert str(again) == str(error), "the whole text is there"
