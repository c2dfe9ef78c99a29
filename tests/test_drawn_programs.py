"""Random programs equal ONNX Runtime: many operators, inner graphs, sequences, optionals, texts, local functions."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from tests.drawn.draw import Draw
from tests.drawn.graphs import NoCallError
from tests.drawn.oracle import NO_CALL, answer, difference
from tests.drawn.steps import Program

pytestmark = [
    pytest.mark.filterwarnings("ignore:The file declares dimensions as dynamic"),
    pytest.mark.pinned("onnxruntime"),  # older ones end the process at some graphs
]

FAST, HELD, PARTS = 30, 1200, 6
"""Programs of each tier; a part of the held one is a test, for processes and shards."""

OTHERS = 3
"""Sizes other than those that are drawn."""

VARIANTS: tuple[dict[str, Any], ...] = ({}, {"trainable": False}, {"raise_patterns": False}, {"optimize": "eager"})
"""Options of `load` with which a module gives the same."""

REFUSALS = (
    *("The sizes of the inputs do not fit", "The sizes that data decide do not fit", "The other branch does not take"),
    *("Output size is too small", "Invalid computed output size", "smaller than kernel size"),
)
"""Our own words, and torch's of pools that give nothing."""

_RAW = re.compile(r"it cannot be computed: (?!RuntimeError|ValueError)\w+: ")
"""Where a node is refused by an error of Python."""

Feeds = dict[str, np.ndarray]


def _run(module: Any, feeds: Feeds) -> list[Any]:
    values = [value if value.dtype.kind == "O" else torch.from_numpy(value.copy()) for value in feeds.values()]
    with torch.no_grad():
        found = module(*values)
    return list(found) if isinstance(found, tuple) else [found]


def _wanted(model: onnx.ModelProto, module: Any, points: Iterable[Feeds]) -> list[tuple[Feeds, list[Any]]]:
    """Returns what ONNX Runtime gives at sizes that the module takes.

    It is asked last, as it may end the process where sizes do not fit, and where the module ends by other words than
    its own.
    """
    found = []
    for feeds in points:
        try:
            _run(module, feeds)
        except Exception as error:  # of any class of torch's; what is no refusal stays, for `_outcome` to find wrong
            if isinstance(error, Onnx2nnError) or any(text in str(error) for text in REFUSALS):
                continue
        try:
            found.append((feeds, answer(model, feeds)))
        except NO_CALL:
            continue
    return found


def _outcome(seed: int) -> tuple[str, str]:
    """Returns "right", "refused", or "none" for no graph with an answer, or "wrong", and what there is to say."""
    try:
        program = Program(Draw(random.Random(f"program.{seed}")))
        model = program.model()
        runs = [(program.feeds(), answer(model, program.feeds()))]
    except (NoCallError, *NO_CALL) as error:
        return "none", str(error)
    about = f"seed {seed}: {onnx.printer.to_text(model)}\n"
    rng = random.Random(seed)
    for options in VARIANTS:
        try:
            module = onnx2nn.load(model, **options)
            runs += [] if options else _wanted(model, module, (program.other_feeds(rng) for _ in range(OTHERS)))
            for feeds, wanted in runs:
                for info, ours, theirs in zip(model.graph.output, _run(module, feeds), wanted, strict=True):
                    if said := difference(ours, theirs, program.rtol):
                        return "wrong", f"{about}{options} at {list(feeds.values())}, output {info.name}: {said}"
        except Exception as error:  # of any class: a raw error is a finding, unless REFUSALS names it
            text = str(error)
            named = isinstance(error, Onnx2nnError) and not _RAW.search(text)
            named = named or any(words in text for words in REFUSALS)
            return "refused" if named else "wrong", f"{about}{options}: {error!r}"
    return "right", ""


def _check(seeds: Iterable[int]) -> None:
    kinds: Counter[str] = Counter()
    wrong = []
    for seed in seeds:
        found, said = _outcome(seed)
        kinds[found] += 1
        wrong += [said] if found == "wrong" else []
    assert not wrong, "\n".join([f"{len(wrong)} of {kinds.total()} are wrong", *wrong[:3]])
    assert kinds["right"] > 3 * kinds["refused"], kinds


def test_some_programs() -> None:
    _check(range(FAST))


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
def test_many_programs(part: int, request: pytest.FixtureRequest) -> None:
    first = FAST + HELD * request.config.getoption("--seed")
    _check(range(first + part, first + HELD, PARTS))
