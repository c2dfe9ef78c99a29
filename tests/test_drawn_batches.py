"""A batch of 1 that is made dynamic: each sample has the results that ONNX Runtime gives for it alone."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import pytest
import torch

import onnx2nn
from tests import installed
from tests.drawn.batches import INPUT, Batch
from tests.drawn.oracle import NO_CALL, session

FAST, HELD, PARTS = 40, 4000, 4
"""Graphs of each tier; a part of the held one is a test, for processes and shards."""

BATCHES = (3, 1, 2, 5)


def _is_batch_of(found: np.ndarray, samples: Sequence[np.ndarray]) -> bool:
    """Returns whether a result holds those of all samples: side by side along an axis, new or not, or one of them all.

    Where the result of each sample is the same, it may be given once.
    """
    one = samples[0]
    forms = [np.stack(samples), *(np.concatenate(samples, axis) for axis in range(one.ndim))]
    forms += [one] if all(np.allclose(one, other, 1e-4, 1e-5) for other in samples) else []
    bound = 1e-4 * max(1.0, float(np.abs(one).max(initial=0)))
    return any(found.shape == form.shape and np.allclose(found, form, 1e-3, bound) for form in forms)


def _outcome(seed: int) -> tuple[str, str]:
    """Returns how the batch is dynamic, or "none" for no graph, or "wrong", and what there is to say."""
    batch = Batch(seed)
    model = batch.model()
    try:
        runs = session(model)
    except NO_CALL as error:
        return "none", str(error)
    about = f"seed {seed}: {onnx.printer.to_text(model)}\n"
    try:
        module = onnx2nn.load(model, dynamic={INPUT: {0: "batch"}})
    except Exception as error:  # of any class: a batch of 1 can always be made dynamic
        return "wrong", f"{about}{error!r}"
    way = module.meta["onnx2nn"]["thawed"]["way"]
    rng = np.random.default_rng(seed + 1)
    for count in BATCHES:
        x = rng.normal(size=(count, *batch.shape[1:])).astype(np.float32)
        alone = [runs.run(None, {INPUT: x[i : i + 1]}) for i in range(count)]
        try:
            with torch.no_grad():
                found = module(torch.from_numpy(x))
        except Exception as error:  # of any class: it counts as wrong, as a freed batch takes any number of samples
            return "wrong", f"{about}{way}, a batch of {count}: {error!r}"
        results = [found] if isinstance(found, torch.Tensor) else list(found)
        for info, ours, *samples in zip(model.graph.output, results, *alone, strict=True):
            if not _is_batch_of(ours.detach().numpy(), samples):
                return "wrong", f"{about}{way}, a batch of {count}: output {info.name} is {ours}, not {samples}"
    return way, ""


def _check(seeds: Iterable[int]) -> None:
    ways: Counter[str] = Counter()
    wrong = []
    logging.getLogger("onnx2nn").setLevel(logging.ERROR)  # a warning says that samples run alone
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # torch.func.vmap's
            for seed in seeds:
                way, said = _outcome(seed)
                ways[way] += 1
                wrong += [said] if way == "wrong" else []
    finally:
        logging.getLogger("onnx2nn").setLevel(logging.NOTSET)
    assert not wrong, "\n".join([f"{len(wrong)} of {ways.total()} are wrong", *wrong[:3]])
    assert ways["constants"] > ways.total() // 4, ways


@pytest.mark.skipif(
    installed.version("onnxruntime") < (1, 27),
    reason="LayerNormalization of ONNX Runtime before 1.27 takes no single element, and of two is a thousandth away",
)
def test_some_batches() -> None:
    _check(range(FAST))


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
def test_many_batches(part: int, request: pytest.FixtureRequest) -> None:
    first = FAST + HELD * request.config.getoption("--seed")
    _check(range(first + part, first + HELD, PARTS))
