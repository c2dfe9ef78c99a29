"""Rewrites what the documents and `onnx2nn ops` say of operators, from the rows, the case lists and stored results.

    python scripts/tables.py          # after a row, a case list or a stored result has changed; takes seconds
    python scripts/tables.py --check  # changes nothing, fails where something would change
    python scripts/tables.py --all    # asks torch.export of every case again, which takes minutes

Written are `measured.json` and `families.json` of onnx2nn/optable, onnx2nn/rewrite/rule_sets.json,
onnx2nn/fx/shape_rules/functions.json, docs/conformance.md, `scripts/conformance_results/edges.json` and
tests/reviewed_revisions.txt. tests/test_tables.py does the work, as the
tests compare the same texts. What `--check` and the fast tests leave alone is torch.export of operators that are in the
table with as many cases as they have; the slow tests ask it again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Command line; returns pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where something is out of date")
    parser.add_argument("--all", action="store_true", help="ask torch.export of every case again")
    options = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/test_tables.py",
        "-rs",
        "--disable-warnings",
    ]
    command += ["-m", "not held" if options.all else "not slow and not held"]
    return subprocess.run([*command, *(() if options.check else ("--write",))], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
