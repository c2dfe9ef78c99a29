"""Models of other frameworks: a script of `scripts/zoo` writes them in the environment of a session of nox.

`nox -s zoo_tensorflow -- --list` makes `.nox/zoo_tensorflow`, and likewise `zoo_paddle` and `zoo_oneflow`. A file that
the cache of these scripts holds is taken from there, which spares the start of the framework.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scripts.conversions.exported import Exported, NotExported
from scripts.conversions.rows import File
from scripts.zoo import fingerprint

ROOT = Path(__file__).resolve().parents[3]


class Models:
    """The recipes of a script.

    Args:
        family: the name of the source, and of the script's folder of files.
        exporter: the name of the exporter.
        script: the name of a file in `scripts/zoo`, whose command line is runner.py's.
        session: the session of nox whose environment has the framework.
        packages: those that make the models and files.
    """

    def __init__(self, family: str, exporter: str, script: str, session: str, packages: Sequence[str]):
        self.family = family
        self.exporter = exporter
        self.script = script
        self.environment = ROOT / ".nox" / session
        self.packages = packages

    def files(self) -> list[File]:
        """Returns the recipes in the order of the script."""
        return [File(self.family, name, self.exporter) for name in self._run("--list").stdout.splitlines()]

    def export(self, file: File, path: Path) -> Exported:
        """Runs a recipe.

        Raises:
            NotExported: with the recipe's words.
        """
        written = fingerprint.CACHE / self.family / f"{file.model}.onnx"
        if not fingerprint.is_current(written, fingerprint.digest(self.family)):
            ran = self._run("--only", file.model, "--out", str(path.parent))
            written = path.parent / self.family / f"{file.model}.onnx"
            if not written.exists():
                failed = re.search(r"FAILED (.*) \(log: ", ran.stdout)
                raise NotExported(failed[1] if failed else f"{self.script} ended with status {ran.returncode}")
        path.symlink_to(written)
        return dataclasses.replace(Exported.read(written), path=path)

    def versions(self) -> dict[str, str]:
        """Returns the packages' versions in the environment."""
        folders = [str(folder) for folder in self.environment.glob("lib/python3*/site-packages")]
        known = importlib.metadata.distributions(path=folders)
        return {found.name: found.version for found in known if found.name in self.packages}

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        python = self.environment / "bin" / "python"
        if not python.exists():
            raise NotExported(f"{python} is missing: `nox -s {self.environment.name} -- --list` makes it")
        command = [str(python), str(ROOT / "scripts" / "zoo" / self.script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)
