"""Whether the cache holds a family's files as the scripts and pinned versions of today would make them.

    python scripts/zoo/fingerprint.py tensorflow keras_vgg16   # status 0: the file is current

The nox sessions ask before they install a framework. The cache is .cache/zoo, or what the environment variable
ONNX2NN_ZOO names; a run may start without it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("ONNX2NN_ZOO") or FOLDER.parents[1] / ".cache" / "zoo")
SHARED = ("runner.py", "fingerprint.py")
BASES = {"keras": "tensorflow", "paddle_vision": "paddle", "flowvision": "oneflow"}
"""Family → the family whose scripts its own is built on."""


def digest(family: str) -> str:
    """Changes with the scripts of a family, those that all families share, and the versions they are pinned to."""
    found = hashlib.sha256()
    parts = (*SHARED, family, BASES.get(family, family))
    for path in sorted([*FOLDER.rglob("*.py"), *FOLDER.glob("*.txt")]):
        if any(part in str(path.relative_to(FOLDER)) for part in parts):
            found.update(path.read_bytes())
    return found.hexdigest()


def is_current(path: Path, digest: str) -> bool:
    """Returns whether an ONNX file and the `.npz` beside it are there, made by these scripts."""
    arrays_path = path.with_suffix(".npz")
    if not path.exists() or not arrays_path.exists():
        return False
    with np.load(arrays_path) as arrays:
        return str(arrays["recipe"]) == digest


def main() -> int:
    """Command line; returns 0 where every file is current, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    today = digest(arguments.family)
    return int(not all(is_current(CACHE / arguments.family / f"{n}.onnx", today) for n in arguments.names))


if __name__ == "__main__":
    sys.exit(main())
