"""Files that lie here: ONNX's light models, those of other frameworks' exporters in tests/data, the example."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx.backend.test

from scripts.conversions.exported import Exported
from scripts.conversions.rows import File, versions
from scripts.oneflow_import import inputs_of

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = {
    "onnx": Path(onnx.backend.test.__file__).parent / "data" / "light",
    **{family: ROOT / "tests" / "data" / family for family in ("tensorflow", "paddle", "oneflow")},
    "examples": ROOT / "examples" / "digits",
}
"""Who wrote the files → their folder."""


class Models:
    """Each file; where its framework's own answer lies beside it, it is compared with that too."""

    def versions(self) -> dict[str, str]:
        """Returns the packages' versions."""
        return versions("onnx")

    def files(self) -> list[File]:
        """Returns all files, the small ones of the frameworks last."""
        return [
            File("files", path.stem, writer)
            for writer, folder in FOLDERS.items()
            for path in sorted(folder.glob("*.onnx"))
        ]

    def export(self, file: File, path: Path) -> Exported:
        """Copies a file."""
        source = FOLDERS[file.exporter] / f"{file.model}.onnx"
        shutil.copyfile(source, path)
        outputs = None
        if source.with_suffix(".npz").exists():
            shutil.copyfile(source.with_suffix(".npz"), path.with_suffix(".npz"))
            outputs = Exported.read(path).outputs
        return Exported(path, inputs_of(path), outputs, {})
