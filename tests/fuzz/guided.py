"""Targets for atheris, which keeps the models whose mutations reach new code: the driver's targets and mutators.

    python -m tests.fuzz.guided load build/corpus -max_total_time=600

The first argument is a target of the driver (`load`, `call`, `check`, `to_python`, `text`, `external`), the second a
folder that gets the seeds if it is empty, and then what reaches new code; libFuzzer's options follow. A model that
makes a foreign exception, takes 12 seconds or 4 GiB is written to the current folder, and the run ends.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import warnings
from pathlib import Path

import atheris

from tests.fuzz.corpus import seeds
from tests.fuzz.driver import TARGETS, run_case
from tests.fuzz.mutators import mutated

_LIMITS = ("-timeout=12", "-rss_limit_mb=4096", "-max_len=200000")
"""Given before the caller's options, of which a later one counts."""


def mutate(data: bytes, longest: int, seed: int) -> bytes:
    """Returns a mutated model, which is the mutators' or, for one case in four, libFuzzer's own change of bytes."""
    rng = random.Random(seed)
    changed = atheris.Mutate(data, longest) if rng.random() < 0.25 else mutated(rng, data)[0]
    return bytes(changed[:longest])


def main() -> None:
    """Runs a target until a failure, or as long as the options say; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(description="Coverage-guided fuzzing with atheris.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("corpus", type=Path, help="folder of models; gets the seeds if it is empty")
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, help="libFuzzer's options, -max_total_time=600 and its like"
    )
    arguments = parser.parse_args()
    arguments.corpus.mkdir(parents=True, exist_ok=True)
    if not any(arguments.corpus.iterdir()):
        for number, data in enumerate(seeds()):
            (arguments.corpus / f"seed-{number}").write_bytes(data)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["onnx2nn"]):  # the package imports many of its modules at their first use
        for data in itertools.islice(seeds(), 0, None, 100):
            run_case(arguments.target, data)

    def run(data: bytes) -> None:
        failure = run_case(arguments.target, data)
        if failure is not None:
            raise AssertionError(f"{arguments.target}: {' '.join(failure)}")

    command = [sys.argv[0], *_LIMITS, *arguments.options, str(arguments.corpus)]
    atheris.Setup(command, run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
