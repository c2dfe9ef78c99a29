"""Runs ONNX's conformance suite through `onnx2nn.backend` and writes the score to docs/conformance.md."""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import re
import sys
import time
import unittest
from pathlib import Path
from typing import Any

import numpy as np

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "conformance.md"


def cases() -> dict[str, unittest.TestCase]:
    """Returns every case of the suite by name."""
    import onnx.backend.test

    from onnx2nn import backend

    suite = onnx.backend.test.BackendTest(backend, __name__)
    found = {}
    for group in suite.test_cases.values():
        for name in dir(group):
            if name.startswith("test_") and name.endswith("_cpu"):
                found[name.removesuffix("_cpu")] = group(name)
    return found


RANDOM = re.compile(r"test_(bernoulli|training_dropout)(?!.*zero_ratio)")
"""Cases whose outputs are random. The suite stores the draw of one generator for them, "for informational purpose: the
operator may not produce the same values in different implementations even if a seed is specified" (its own comment), so
that they are judged on dtype, shape and distribution."""

DRAWS = 400


def judge_random(name: str) -> None:
    """Runs a case of `RANDOM` often enough to judge it: each element is 0, or with probability `p` a known value.

    Raises:
        AssertionError: dtype or shape are not those of the stored draw, an element has another value, or the share of
            the draws in which it has that value is further than five standard deviations from `p`.
    """
    from onnx.backend.test.loader import load_model_tests

    from onnx2nn import backend

    test = next(test for test in load_model_tests(kind="node") if test.name == name)
    inputs, stored = test.data_sets[0]
    data = np.asarray(inputs[0])
    if "dropout" in name:
        keep = 1 - np.float64(inputs[1])
        value, p = data / keep, np.full(data.shape, keep)
    else:
        # The function body compares the wrong way round, Greater(random, input), so that it gives 1 with 1 - p.
        p = data.astype(np.float64)
        value, p = np.ones(data.shape), 1 - p if name.endswith("_expanded") else p
    module = backend.prepare(test.model)
    draws: list[Any] = [module.run(inputs) for _ in range(DRAWS)]
    for draw in [stored, *draws]:
        assert len(draw) == len(stored)
        for output, expected in zip(draw, stored, strict=True):
            assert output.dtype == expected.dtype and output.shape == expected.shape, (output.dtype, output.shape)
        kept = draw[0] != 0
        np.testing.assert_allclose(draw[0][kept], value[kept], rtol=1e-6)
        if len(draw) > 1:
            np.testing.assert_array_equal(draw[1][data != 0], kept[data != 0])
    share = np.mean([draw[0] != 0 for draw in draws], axis=0)
    deviation = np.abs(share - p)[data != 0]
    limit = 5 * np.sqrt(p * (1 - p) / DRAWS)[data != 0]
    assert (deviation <= limit).all(), f"shares {share}, expected {p}"


def outcome(name: str) -> tuple[str, str, str]:
    """Runs one case in this process; returns its name, `passed`, `refused`, `wrong` or `failed`, and the reason."""
    from onnx2nn.errors import Onnx2nnError

    global _CASES
    if not _CASES:
        _CASES = cases()
    try:
        judge_random(name) if RANDOM.match(name) else _CASES[name].debug()
    except Onnx2nnError as error:
        return name, "refused", str(error).strip()
    except AssertionError as error:
        return name, "wrong", str(error).strip()
    except unittest.SkipTest as error:
        return name, "skipped", str(error)
    except Exception as error:
        return name, "failed", f"{type(error).__name__}: {error}"
    return name, "passed", ""


_CASES: dict[str, unittest.TestCase] = {}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="print so many of the cases that did not pass")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    options = parser.parse_args()
    names = [name for name in cases() if options.only in name]
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        results = list(pool.imap_unordered(outcome, names, chunksize=16))
    score = collections.Counter(kind for _, kind, _ in results)
    shown = sorted(r for r in results if r[1] != "passed")
    for name, kind, reason in shown[: options.show]:
        print(f"{kind:8} {name}: {' '.join(reason.split())[:300]}")
    print(f"{score['passed']} of {len(names)}", dict(score), f"{time.perf_counter() - start:.0f} s")
    sys.exit(score["wrong"] > 0)


if __name__ == "__main__":
    main()
