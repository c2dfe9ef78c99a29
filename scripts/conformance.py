"""Runs ONNX's conformance suite through `onnx2nn.backend` and writes the score to docs/conformance.md."""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time
import unittest
from pathlib import Path

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


def outcome(name: str) -> tuple[str, str, str]:
    """Runs one case in this process; returns its name, `passed`, `refused`, `wrong` or `failed`, and the reason."""
    from onnx2nn.errors import Onnx2nnError

    global _CASES
    if not _CASES:
        _CASES = cases()
    try:
        _CASES[name].debug()
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
