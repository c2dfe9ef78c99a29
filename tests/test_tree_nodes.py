"""The nodes of a forest by their tree and their id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx2nn.errors import OperatorError
from onnx2nn.ops.trees import _find_nodes

IDS = st.one_of(st.integers(0, 3), st.integers(-(1 << 63), (1 << 63) - 1), st.just(1 << 61))
PAIRS = st.lists(st.tuples(IDS, IDS), max_size=9)


@settings(max_examples=500)
@given(PAIRS, PAIRS, st.lists(st.integers(0, 8), max_size=5))
def test_nodes_are_found_by_their_pairs(
    known: list[tuple[int, int]], others: list[tuple[int, int]], again: list[int]
) -> None:
    """The last of those with one tree and id, in any range of ids."""
    wanted = [*others, *(known[at] for at in again if at < len(known))]
    columns = [np.array(pairs, np.int64).reshape(-1, 2).T for pairs in (known, wanted)]
    found = _find_nodes((columns[0][0], columns[0][1]), *columns[1])
    last = {pair: at for at, pair in enumerate(known)}
    assert found.tolist() == [last.get(pair, -1) for pair in wanted]


def test_a_list_that_is_too_short_is_refused() -> None:
    with pytest.raises(OperatorError, match="differ in length"):
        _find_nodes((np.arange(3), np.arange(2)), np.arange(2), np.arange(2))
