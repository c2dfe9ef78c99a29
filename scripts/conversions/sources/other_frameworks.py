"""Models of other frameworks: a script of `scripts/zoo` writes them in the environment of a session of nox.

`nox -s zoo_tensorflow -- --list` makes `.nox/zoo_tensorflow`, and likewise `zoo_paddle` and `zoo_oneflow`.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scripts.conversions.exported import Exported, NotExported
from scripts.conversions.rows import File

ROOT = Path(__file__).resolve().parents[3]


class Models:
    """The recipes of a script.

    Args:
        source: the name of the source.
        exporter: the name of the exporter.
        script: the name of a file in `scripts/zoo`, whose command line is runner.py's.
        session: the session of nox whose environment has the framework.
        packages: those that make the models and files.
    """

    def __init__(self, source: str, exporter: str, script: str, session: str, packages: Sequence[str]):
        self.source = source
        self.exporter = exporter
        self.script = script
        self.environment = ROOT / ".nox" / session
        self.packages = packages

    def files(self) -> list[File]:
        """Returns the recipes in the order of the script."""
        return [File(self.source, name, self.exporter) for name in self._run("--list").stdout.splitlines()]

    def export(self, file: File, path: Path) -> Exported:
        """Runs a recipe.

        Raises:
            NotExported: with the recipe's words.
        """
        ran = self._run("--only", file.model, "--out", str(path.parent))
        written = next(path.parent.glob(f"*/{file.model}.onnx"), None)
        if written is None:
            failed = re.search(r"FAILED (.*) \(log: ", ran.stdout)
            raise NotExported(failed[1] if failed else f"{self.script} ended with status {ran.returncode}")
        for suffix in (".onnx", ".npz"):
            written.with_suffix(suffix).rename(path.with_suffix(suffix))
        return Exported.read(path)

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
