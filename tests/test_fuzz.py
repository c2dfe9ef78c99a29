"""A short run of the fuzzer: whatever the file, an import ends with a module or with an error of this package."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.corpus import seeds
from tests.fuzz.mutators import STRUCTURAL, mutated


def test_cases_follow_from_their_numbers() -> None:
    corpus = list(seeds())
    assert len(corpus) > 1000 and corpus == list(seeds())
    for number in range(50):
        one, other = (mutated(random.Random(number), corpus[number]) for _ in range(2))
        assert one == other
    changes = {name for number in range(400) for name in mutated(random.Random(number), corpus[number])[1]}
    assert changes == {mutator.__name__ for mutator in STRUCTURAL} | {"bytes"}


@pytest.mark.slow
def test_mutated_models() -> None:
    pytest.importorskip("resource", reason="the system does not tell the memory of a process")
    from tests.fuzz.driver import Run

    run = Run(seed=0)
    run.run(cases=1500)
    assert run.cases == 1500
    assert run.failures == {}, run.first
