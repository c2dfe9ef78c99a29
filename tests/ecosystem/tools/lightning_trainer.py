"""Lightning's `Trainer` fits a head, writes a checkpoint and reads it back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.ecosystem.observing import Make, number_of, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`Trainer` (Lightning)"
PACKAGES = ("lightning",)
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of what the checkpoint holds after two steps."""
    import lightning

    class Training(lightning.LightningModule):
        """What users write around a model."""

        def __init__(self) -> None:
            super().__init__()
            self.model = make()

        def training_step(self, batch: Any, _: int) -> Any:
            return number_of(self.model(*batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.model.get_submodule(subject.head).parameters(), 1e-2)

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Training(), DataLoader(TensorDataset(*subject.inputs(4)), batch_size=2))
        path = Path(folder, "last.ckpt")
        trainer.save_checkpoint(path)
        again = Training.load_from_checkpoint(path, map_location="cpu")
    return outputs_of(again.model, subject)
