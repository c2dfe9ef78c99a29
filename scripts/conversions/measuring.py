"""Measures files: exports each, converts it in every direction that is asked for, here or on the workers of Ray."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.conversions import sources
from scripts.conversions.directions import DIRECTIONS
from scripts.conversions.exported import Exported, NotExported, reason
from scripts.conversions.limits import Limits, in_process
from scripts.conversions.rows import EXPORT, Facts, File, Row
from scripts.conversions.store import Store

Wanted = Mapping[File, Sequence[str]]
"""The directions that a file is converted in."""


def export(file: File, path: Path) -> Facts:
    """Writes a file and what stands beside it; returns the versions of the packages that made it."""
    source = sources.SOURCES[file.source]()
    try:
        source.export(file, path).write()
    except NotExported as error:
        return {"problem": str(error), **source.versions()}
    except Exception as error:  # a recipe that cannot even be made
        return {"problem": reason(error), **source.versions()}
    return source.versions()


def convert(direction: str, path: Path) -> Facts:
    """Measures a direction of a file that `export` wrote."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return DIRECTIONS[direction](Exported.read(path), Path(folder))


def rows_of(file: File, directions: Sequence[str], limits: Limits) -> Iterator[Row]:
    """Yields a file's rows: of its export, and of each direction where that succeeded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        found = in_process(limits, export, file, path)
        yield Row(file, EXPORT, found)
        if "problem" not in found:
            for direction in directions:
                yield Row(file, direction, in_process(limits, convert, direction, path))


def measure(wanted: Wanted, store: Store, limits: Limits, workers: int, report: Callable[[Row], None]) -> None:
    """Measures files with a pool of threads, each of which waits for the process of one measurement."""
    files: queue.SimpleQueue[File] = queue.SimpleQueue()
    for file in wanted:
        files.put(file)

    def work() -> None:
        while True:
            try:
                file = files.get_nowait()
            except queue.Empty:
                return
            for row in rows_of(file, wanted[file], limits):
                store.add(row)
                report(row)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_with_ray(wanted: Wanted, store: Store, limits: Limits, workers: int, report: Callable[[Row], None]) -> None:
    """Measures each file in a task of Ray, which writes its rows to the store itself.

    A task whose worker ends is started again, and leaves out the rows that it stored before.
    """
    import ray

    root = str(Path(__file__).resolve().parents[2])
    if not ray.is_initialized():
        ray.init(num_cpus=workers, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": root}})

    @ray.remote(num_cpus=1, max_retries=3)
    def task(file: File, directions: Sequence[str]) -> list[Row]:
        found = []
        known = store.rows()
        missing = [direction for direction in directions if f"{file}/{direction}" not in known]
        for row in rows_of(file, missing, limits) if missing else ():
            store.add(row)
            found.append(row)
        return found

    left = [task.remote(file, directions) for file, directions in wanted.items()]
    while left:
        done, left = ray.wait(left)
        for row in (row for rows in ray.get(done) for row in rows):
            report(row)


def missing(files: Collection[File], directions: Sequence[str], known: Mapping[str, Row]) -> dict[File, list[str]]:
    """Returns the directions that a store lacks for each file, those with most of them first.

    Of a file whose export is known to fail none are missing.
    """
    found: dict[File, list[str]] = {}
    for file in files:
        exported = known.get(f"{file}/{EXPORT}")
        lacking = [direction for direction in directions if f"{file}/{direction}" not in known]
        if lacking and not (exported and exported.problem):
            found[file] = lacking
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
