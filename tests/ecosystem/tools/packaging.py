"""`torch.package`: saved to an archive, with installed packages and the tests outside of it, and read back."""

from __future__ import annotations

import io
from typing import Any

from torch.package import PackageExporter, PackageImporter

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torch.package`"

_OUTSIDE = ("torch.**", "torchvision.**", "transformers.**", "numpy.**", "onnx2nn.**", "tests.**")


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of what is read back."""
    archive = io.BytesIO()
    with PackageExporter(archive) as exporter:
        exporter.extern(_OUTSIDE)
        exporter.save_pickle("models", "model.pkl", make())
    archive.seek(0)
    return outputs_of(PackageImporter(archive).load_pickle("models", "model.pkl"), subject)
