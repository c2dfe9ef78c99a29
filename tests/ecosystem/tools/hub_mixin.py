"""huggingface_hub's `PyTorchModelHubMixin`: a class that holds the model is saved to a folder and read back."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from tests.ecosystem.cells import Maker
from tests.ecosystem.observing import Make, emptied, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`PyTorchModelHubMixin` (huggingface_hub)"
PACKAGES = ("huggingface_hub",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of what `from_pretrained` gives."""
    from huggingface_hub import PyTorchModelHubMixin

    class Held(nn.Module, PyTorchModelHubMixin):
        """What users write around a model.

        Args:
            subject: the model's name, which the folder's config.json keeps.
            exporter: of its file, `""` for the original.
        """

        def __init__(self, subject: str, exporter: str) -> None:
            super().__init__()
            self.model = emptied(Maker(subject, exporter)())

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.model(*inputs)

    assert isinstance(make, Maker)
    module = Held(make.subject, make.exporter)
    module.model = make()
    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        return outputs_of(Held.from_pretrained(folder), subject)
