"""Builds the source distribution with the same bytes each time; all else is declared in pyproject.toml.

Wheels of setuptools follow `SOURCE_DATE_EPOCH`; its archives of sources have the times and the owner of the build.
"""

import gzip
import os
import tarfile
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.sdist import sdist


class ReproducibleSdist(sdist):
    """Writes the archive in the order of names, with the time in `SOURCE_DATE_EPOCH` where that is set."""

    def make_archive(self, base_name: str, format: str, root_dir: Any = None, base_dir: Any = None, **_: Any) -> str:
        """Returns the path of the archive of `base_dir`."""
        made = f"{base_name}.tar.gz"
        epoch = os.environ.get("SOURCE_DATE_EPOCH")

        def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.mtime = int(epoch) if epoch else int(entry.mtime)
            return entry

        with (
            open(made, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch or 0)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted([Path(base_dir), *Path(base_dir).rglob("*")]):
                archive.add(path, recursive=False, filter=normal)
        return made


setup(cmdclass={"sdist": ReproducibleSdist})
