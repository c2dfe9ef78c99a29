"""Runs mutated models through `load` and one call, `check`, `to_python`, text formats, external data.

    python -m tests.fuzz.driver --minutes 30 --seed 1
    python -m tests.fuzz.driver --cases 1000 --first 5000 --seed 1

A child process runs cases until one of them takes too long; then it is ended and another one goes on. Failures are
listed by the class of the exception and the place where it was raised; one model of each is kept.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import json
import logging
import math
import random
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SECONDS, _BYTES = 10, 1 << 30
"""The bounds of a case: seconds, and bytes beside four times the file's size."""

_OURS = ("onnx2nn", "oneflow_bridge")


def _example(module: Any) -> list[Any]:
    """Returns inputs for a module: ones, of size 2 in dynamic dimensions."""
    import numpy as np
    import torch

    found = []
    for spec in module.meta["onnx2nn"]["signature"]:
        shape = [dim if isinstance(dim, int) else 2 for dim in spec["shape"] or ()]
        kind = spec["dtype"]
        if int(np.prod([max(size, 1) for size in shape], dtype=object)) > 1 << 16 or kind in (None, "STRING"):
            raise _Skipped
        dtype = getattr(torch, {"DOUBLE": "float64", "FLOAT": "float32"}.get(kind, kind.lower()), None)
        if dtype is None or dtype.itemsize < 2:
            raise _Skipped  # torch makes no ones of the short types
        found.append(torch.ones(shape).to(dtype))
    return found


class _Skipped(Exception):
    """The module is not called: its inputs are too large, or no tensors."""


def _load(data: bytes) -> None:
    import onnx2nn

    onnx2nn.load(data)


def _call(data: bytes) -> None:
    """Calls a module. Its errors on data are allowed, and it may take the model's own time: both end the case."""
    import onnx2nn

    module = onnx2nn.load(data)
    try:
        inputs = _example(module)
    except _Skipped:
        return

    def stop(*_: Any) -> None:
        raise _Skipped

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(2)
    try:
        module(*inputs)
    except _Skipped:
        pass
    except Exception:  # torch's errors on data have no common class
        pass
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _check(data: bytes) -> None:
    import onnx2nn

    str(onnx2nn.check(data))


def _python(data: bytes) -> None:
    import onnx2nn

    with tempfile.TemporaryDirectory() as folder:
        onnx2nn.to_python(data, folder)


def _text(data: bytes) -> None:
    import onnx

    import onnx2nn

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnxtxt")
        with contextlib.suppress(Exception):  # onnx does not print every damaged model
            text = onnx.printer.to_text(onnx.ModelProto.FromString(data))
            if place := len(data) % 8:  # a piece of it many times, as deep as it makes brackets
                place = len(text) * place // 8
                text = text[:place] + text[place : place + 30] * 20_000 + text[place:]
            path.write_text(text, encoding="utf-8")
        if path.exists():
            onnx2nn.load(path)


def _external(data: bytes) -> None:
    import onnx

    import onnx2nn

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "w.bin").write_bytes(bytes(64))
        try:
            model = onnx.ModelProto.FromString(data)
        except Exception:  # protobuf's; the damaged bytes are cases of `load`
            return
        for index, tensor in enumerate(model.graph.initializer):
            name, kind, dims = tensor.name, tensor.data_type, list(tensor.dims)
            tensor.CopyFrom(onnx.TensorProto(name=name, data_type=kind, dims=dims, data_location=1))
            for key, value in {"location": "w.bin", "offset": str(index * 8)}.items():
                tensor.external_data.add(key=key, value=value)
        Path(folder, "m.onnx").write_bytes(model.SerializeToString())
        onnx2nn.load(Path(folder, "m.onnx"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    **{"load": _load, "call": _call, "check": _check, "to_python": _python, "text": _text, "external": _external}
}


def case(seed: int, number: int, corpus: list[bytes]) -> tuple[str, bytes, list[str]]:
    """Returns the target, the model and the changes of a case, which its numbers decide."""
    from tests.fuzz.mutators import mutated

    rng = random.Random(f"{seed}/{number}")
    target = rng.choices(list(TARGETS), (4, 3, 2, 1, 1, 1))[0]
    data, changes = mutated(rng, rng.choice(corpus))
    return target, data, changes


def run_case(target: str, data: bytes) -> list[str] | None:
    """Returns the class of a foreign exception and the places where it was raised, None where there is none."""
    from onnx2nn.errors import Onnx2nnError

    ran: list[bool] = []
    vars(builtins)["RAN"] = lambda: ran.append(True)  # what names of the mutators call
    try:
        TARGETS[target](data)
    except Onnx2nnError:
        pass
    except Exception as error:  # which class it is, is the question
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if any(f"/{name}/" in f.filename.replace("\\", "/") for name in _OURS)]
        places = [f"{Path(f.filename).name}:{f.name}" for f in (ours or frames)[-1:]]
        return [type(error).__name__, *places, str(error)[:150]]
    return ["code", target, "a name of the file ran"] if ran else None


def child(seed: int, first: int, step: int) -> None:
    """Runs the cases `first`, `first + step`, ... until the process is ended; prints a line before and after each."""
    from tests.fuzz.corpus import seeds

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    corpus, number = list(seeds()), first
    run_case("load", corpus[0])
    while True:
        target, data, changes = case(seed, number, corpus)
        print(json.dumps(["begin", number]), flush=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        failure = run_case(target, data)
        seconds = time.perf_counter() - start
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if failure is None and target != "call" and grown > _BYTES + 4 * len(data):
            failure = ["memory", target, f"{grown >> 20} MiB"]
        print(json.dumps(["end", number, target, changes, failure, seconds]), flush=True)
        number += step


class Run:
    """One run of the fuzzer.

    Args:
        seed: decides all cases, together with their numbers.
        folder: gets one model of each class of failure.
        begin: the number of the first case.

    Attributes:
        cases: the number of cases.
        failures: how often each class of failure occurred.
        first: the number of the first case of each class.
    """

    def __init__(self, seed: int, folder: Path | None = None, begin: int = 0):
        self.seed, self.folder, self.begin = seed, folder, begin
        self.cases = 0
        self.failures: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def run(self, cases: int | None = None, seconds: float = math.inf) -> None:
        """Runs a number of cases, the same ones on every machine, or cases for a time, whichever ends first."""
        end, number = time.monotonic() + seconds, self.begin
        last = math.inf if cases is None else self.begin + cases
        while number < last and time.monotonic() < end:
            number = self._child(number, last, end)

    def _child(self, number: int, last: float, end: float) -> int:
        """Runs cases from `number` on in one process; returns the number after the last one."""
        command = [sys.executable, "-m", "tests.fuzz.driver", "--child", str(self.seed), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            selector = selectors.DefaultSelector()
            selector.register(process.stdout, selectors.EVENT_READ)
            begun = False
            while number < last and time.monotonic() < end:
                ready = selector.select(_SECONDS + 4 if begun else 120)
                line = process.stdout.readline() if ready else b""
                if not line:
                    process.kill()
                    self.cases += begun
                    self._note("killed" if not ready else f"died {process.wait()}", number)
                    return number + 1
                kind, number, *rest = json.loads(line)
                begun = kind == "begin"
                if kind == "end":
                    self.cases += 1
                    _, _, failure, taken = rest
                    if failure is not None:
                        self._note(" ".join(failure[:2]), number, failure)
                    elif taken > _SECONDS + 2:
                        self._note("slow", number)
                    number += 1
            process.kill()
        return number

    def _note(self, failure: str, number: int, detail: Any = None) -> None:
        self.failures[failure] += 1
        if failure in self.first:
            return
        self.first[failure] = number
        print(f"case {self.seed}/{number}: {failure} {detail or ''}", flush=True)
        if self.folder is not None:
            from tests.fuzz.corpus import seeds

            target, data, changes = case(self.seed, number, list(seeds()))
            name = f"{self.seed}-{number}"
            (self.folder / f"{name}.onnx").write_bytes(data)
            (self.folder / f"{name}.json").write_text(json.dumps([failure, target, changes, detail]))


def main() -> int:
    """Runs the fuzzer; returns 1 where there are failures."""
    parser = argparse.ArgumentParser(description="Runs mutated models through the library.")
    parser.add_argument("--minutes", type=float, help="ends after so many minutes; 1 without --cases")
    parser.add_argument("--cases", type=int, help="ends after so many cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="gets one model of each class of failure")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child, 1)
        return 0
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    run, start = Run(arguments.seed, arguments.folder, arguments.first), time.monotonic()
    minutes = 1.0 if arguments.minutes is None and arguments.cases is None else arguments.minutes
    run.run(arguments.cases, math.inf if minutes is None else 60 * minutes)
    taken, failures = (time.monotonic() - start) / 60, sum(run.failures.values())
    print(f"seed {run.seed}, from case {run.begin}: {run.cases} cases in {taken:.1f} minutes, {failures} failures")
    for failure, count in run.failures.most_common():
        print(f"{count:6} {failure} (first: {run.first[failure]})")
    return 1 if run.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
