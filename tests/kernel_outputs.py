"""Runs conformance cases with the kernels that the environment selects: `python tests/kernel_outputs.py PATTERN FILE`.

FILE is a pickle of `Outputs`.
"""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import conformance  # needs the path above


@dataclass
class Outputs:
    """What one process gave.

    Attributes:
        capability: the vector instructions that torch's kernels use: DEFAULT, AVX2, AVX512.
        threads: how many threads torch uses.
        verdicts: by case, as `scripts/conformance.py` has them.
        unlike: the cases that fail by the suite's own comparison, without the allowance for last places.
        arrays: by case, the outputs that are arrays.
    """

    capability: str
    threads: int
    verdicts: dict[str, str] = field(default_factory=dict)
    unlike: set[str] = field(default_factory=set)
    arrays: dict[str, list[np.ndarray[Any, Any]]] = field(default_factory=dict)


def run(pattern: str) -> Outputs:
    """Runs the cases whose names `pattern` matches, but those with random outputs and the large models."""
    suite = conformance.suite("torch")
    found = Outputs(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    for name, case in suite.cases.items():
        if not re.search(pattern, name) or conformance.RANDOM.match(name) or suite.kinds[name] == "light":
            continue
        suite.backend.module = None
        try:
            case.debug()
        except Exception:  # whatever it is, the verdict says it
            found.unlike.add(name)
        if suite.backend.module is not None:
            values = suite.backend.module.run(suite.backend.inputs)
            found.arrays[name] = [value for value in values if isinstance(value, np.ndarray)]
        found.verdicts[name] = suite.run(name, export=False).verdict if name in found.unlike else "passed"
    return found


if __name__ == "__main__":
    # A module of its own name, so that the pickle can be read elsewhere.
    from tests import kernel_outputs

    with conformance.quiet():
        outputs = kernel_outputs.run(sys.argv[1])
    Path(sys.argv[2]).write_bytes(pickle.dumps(outputs))
