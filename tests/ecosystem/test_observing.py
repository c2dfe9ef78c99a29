"""What counts as a difference between an original and an import."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.ecosystem.observing import (
    Named,
    Results,
    Rounded,
    difference,
    emptied,
    results,
    tensors,
    weights_of,
)

ONE, TWO = torch.ones(2), torch.full((2,), 2.0)


def test_tensors_are_equal_within_rounding() -> None:
    assert difference(ONE, ONE + 5e-5) == ""
    assert difference(ONE, ONE + 5e-4, "here").startswith("here: off by 5.0e-04")
    assert difference(ONE, ONE.double()) and difference(ONE, ONE[:1])
    assert difference(torch.tensor([1]), torch.tensor([2])) == ": other values"


def test_rounded_results_may_be_off_by_their_rounding() -> None:
    assert Rounded.beside(TWO, TWO + 0.1).within == pytest.approx(0.1)
    assert difference(Rounded(TWO, 0.1), Rounded(TWO + 0.19, 0.0)) == ""
    assert difference(Rounded(TWO, 0.1), Rounded(TWO + 0.21, 9.0), "here").startswith("here: off by 2.1e-01")
    assert difference(Rounded(TWO, 0.1), TWO)


def test_an_emptied_module_keeps_what_no_state_dict_holds() -> None:
    module = nn.BatchNorm1d(3)
    module.register_buffer("table", torch.ones(2), persistent=False)
    emptied(module)
    assert not any(x.any() for x in module.state_dict().values()) and torch.equal(module.table, torch.ones(2))


def test_other_data_is_equal_exactly() -> None:
    assert difference({"calls": 2}, {"calls": 2}) == ""
    assert difference({"calls": 2}, {"calls": 1}) == "calls: 1 instead of 2"
    assert difference({"calls": 2}, {}) == ": [] added, ['calls'] lacking"
    assert difference([ONE], [ONE, ONE], "block") == "block: 2 values instead of 1"
    assert difference(1, True)


def test_results_of_modules_may_lack_but_not_differ() -> None:
    assert difference(Results([ONE, TWO]), Results([TWO])) == ""
    assert difference(Results([ONE, TWO]), Results([TWO, ONE]))
    assert difference(Results([ONE]), Results([ONE, ONE]))
    assert difference(Results([ONE]), Results([]))


def test_calls_of_modules() -> None:
    weights = {"a": [ONE], "b": [ONE]}
    both = Named(weights, [("a", 1), ("b", 2)])
    assert difference(both, Named(weights, [("a", 1), ("b", 2), ("c", 3)])) == ""
    assert difference(both, Named(weights, [("b", 2), ("a", 1)])) == "b comes before a"
    assert difference(both, Named(weights, [("a", 1)])) == "b: seen 0 times instead of 1"
    assert difference(both, Named(weights, [("a", 1), ("b", 3)])) == "b: 3 instead of 2"
    assert difference(both, Named({**weights, "b": [TWO]}, [("a", 1), ("b", 3)])) == ""
    assert difference(both, Named({"a": [ONE]}, [("a", 1)])) == ""


def test_numbers_are_results_and_no_tensors() -> None:
    value = (ONE, None, {"size": 3, "more": [True]})
    assert [len(tensors(value)), len(results(value))] == [1, 3]


def test_weights_are_those_of_the_module_itself() -> None:
    found = weights_of(nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    assert {name: len(own) for name, own in found.items()} == {"": 0, "0": 4, "1": 0}
