"""Converts real models, stores what is measured of each, and writes convert_models.md.

    python scripts/convert_models.py --list torchvision                       # the names of its files
    python scripts/convert_models.py --only torchvision/resnet18/dynamo/PyTorch   # one row, measured again and printed
    python scripts/convert_models.py --run timm --workers 2                   # the rows that the store lacks
    python scripts/convert_models.py --run timm --ray --results /shared/rows  # likewise, as tasks of Ray
    python scripts/convert_models.py --write                                  # the page, from the stored rows
    python scripts/convert_models.py --write --results /shared/rows           # likewise, after storing those of Ray

A row is measured in a process of its own, which is ended when it takes more than its time or memory. An interrupted run
keeps its rows; the same command continues it. Needs `onnx2nn[test]` and the packages of the source: timm; for the
peers' columns onnx2torch, onnx2pytorch and onnx2fx (`nox -s convert_models` has all of them). Models of TensorFlow,
PaddlePaddle and OneFlow, and single operators of PyTorch, are written in environments that `nox -s zoo_tensorflow --
--list` and likewise `zoo_paddle`, `zoo_oneflow` and `zoo_torch` make; files in the cache of these sessions are taken.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # not this folder, where onnx2pytorch.py is not the importer of this name

from scripts.conversions import measuring, page, sources  # noqa: E402, from the checkout
from scripts.conversions.directions import DIRECTIONS, PEERS  # noqa: E402
from scripts.conversions.limits import Limits  # noqa: E402
from scripts.conversions.rows import EXPORT, File, Row  # noqa: E402
from scripts.conversions.store import Lines, Parquet, Store  # noqa: E402


def main() -> int:
    """Command line; status 1 where a row of `--only` has no result."""
    options = _options()
    if options.write:
        for row in Parquet(options.results).rows().values() if options.results else ():
            Lines().add(row)
        Lines().sort()
        page.DOCUMENT.write_text(page.document(Lines().rows().values()), encoding="utf-8")
        return 0
    if options.list:
        print("\n".join(map(str, sources.SOURCES[options.list]().files())))
        return 0
    limits = Limits(options.seconds, options.gigabytes * 1e9)
    if options.only:
        return _again(options.only, limits)
    _run(options, limits)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    help_ = "measure the rows that are missing, of several sources in turns"
    what.add_argument("--run", metavar="SOURCE", nargs="+", choices=sources.SOURCES, help=help_)
    what.add_argument("--only", metavar="ROW", help="measure one row again and print it")
    what.add_argument("--list", metavar="SOURCE", choices=sources.SOURCES, help="print the names of a source's files")
    what.add_argument("--write", action="store_true", help="write convert_models.md from the stored rows")
    parser.add_argument("--files", default="*", help="with --run: a pattern of names of files, such as '*/dynamo'")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=["PyTorch", *PEERS])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ray", action="store_true", help="run as tasks of Ray; its address is RAY_ADDRESS")
    parser.add_argument("--results", type=Path, help="folder of Parquet files for the rows, not the repository's store")
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="that one process may take")
    parser.add_argument("--gigabytes", type=float, default=Limits.memory / 1e9, help="of memory that it may take")
    options = parser.parse_args()
    if options.ray and not options.results:
        parser.error("--ray needs --results: its tasks may be on several machines, and write files of their own.")
    return options


def _again(name: str, limits: Limits) -> int:
    *names, direction = name.split("/")
    if len(names) != 3 or names[0] not in sources.SOURCES or direction not in (*DIRECTIONS, EXPORT):
        print(f"{name} is no row: its form is SOURCE/MODEL/EXPORTER/DIRECTION.", file=sys.stderr)
        return 2
    directions = [] if direction == EXPORT else [direction]
    *_, row = measuring.rows_of(File(*names), directions, limits)
    print(_line(row))
    return int(bool(row.problem))


def _run(options: argparse.Namespace, limits: Limits) -> None:
    store: Store = Parquet(options.results) if options.results else Lines()
    lists = [fnmatch.filter(map(str, sources.SOURCES[name]().files()), f"*{options.files}*") for name in options.run]
    files = [File(*name.split("/")) for turn in itertools.zip_longest(*lists) for name in turn if name is not None]
    wanted = measuring.missing(files, options.directions, store.rows())
    print(f"{len(wanted)} of {len(files)} files have rows to measure", flush=True)
    measure = measuring.measure_with_ray if options.ray else measuring.measure
    measure(wanted, store, limits, options.workers, lambda row: print(_line(row), flush=True))


def _line(row: Row) -> str:
    return f"{row.name}: {row.problem or row.facts}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # rows run beside each other
    os.environ["PYTHONPATH"] = str(ROOT)  # of the processes that rows are measured in
    sys.exit(main())
