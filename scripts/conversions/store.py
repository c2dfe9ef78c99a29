"""Stores of rows that an interrupted run keeps: JSON lines in the repository, and Parquet files of one row each."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from onnx2nn.ground.atomic_files import replacing
from scripts.conversions.rows import File, Row

FOLDER = Path(__file__).resolve().parents[1] / "conversion_results"


def _text(row: Row) -> str:
    return json.dumps([*row.file, row.direction, row.facts], ensure_ascii=False)


def _row(text: str) -> Row:
    source, model, exporter, direction, facts = json.loads(text)
    return Row(File(source, model, exporter), direction, facts)


class Lines:
    """A file a source, a line a row; of two lines of one row the later one counts."""

    def __init__(self, folder: Path = FOLDER):
        self.folder = folder

    def rows(self) -> dict[str, Row]:
        """Returns the rows by name."""
        lines = (line for path in sorted(self.folder.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines())
        return {row.name: row for row in map(_row, lines)}

    def add(self, row: Row) -> None:
        """Appends a row."""
        with self._alone(), (self.folder / f"{row.file.source}.jsonl").open("a", encoding="utf-8") as file:
            file.write(_text(row) + "\n")

    def sort(self) -> None:
        """Leaves one line a row, in the order of the names."""
        with self._alone():
            rows = self.rows()
            for source in {row.file.source for row in rows.values()}:
                lines = [_text(rows[name]) + "\n" for name in sorted(rows) if rows[name].file.source == source]
                with replacing(self.folder / f"{source}.jsonl") as path:
                    path.write_text("".join(lines), encoding="utf-8")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other threads and processes from writing, by a lock of the folder that ends with the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class Parquet:
    """A file a row, written by the process that finds it: several machines may share the folder.

    Columns: `source`, `model`, `exporter`, `direction`, and `facts` as JSON, since directions have facts of their own.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def rows(self) -> dict[str, Row]:
        """Returns the rows by name."""
        from pyarrow import parquet

        found: Iterable[Mapping[str, str]] = (
            row for path in sorted(self.folder.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()
        )
        rows = (
            Row(File(row["source"], row["model"], row["exporter"]), row["direction"], json.loads(row["facts"]))
            for row in found
        )
        return {row.name: row for row in rows}

    def add(self, row: Row) -> None:
        """Writes a row's file."""
        import pyarrow
        from pyarrow import parquet

        self.folder.mkdir(parents=True, exist_ok=True)
        cells = {**row.file._asdict(), "direction": row.direction, "facts": json.dumps(row.facts, ensure_ascii=False)}
        plain = "".join(letter if letter.isalnum() else "-" for letter in row.name)
        with replacing(self.folder / f"{plain}-{zlib.crc32(row.name.encode()):08x}.parquet") as path:
            parquet.write_table(pyarrow.Table.from_pylist([cells]), path)


Store = Lines | Parquet
