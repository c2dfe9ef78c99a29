"""TensorBoard: `SummaryWriter.add_graph` and histograms of the weights."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject

TITLE = "graph (TensorBoard)"
PACKAGES = ("tensorboard",)
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns the blocks that are scopes of the graph in the log, and the histograms."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    module = make()
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            writer.add_graph(module, subject.inputs(2))
            for name, x in module.get_submodule(subject.head).named_parameters():
                writer.add_histogram(name, x)
        (path,) = Path(folder).iterdir()
        log = EventAccumulator(str(path)).Reload()
    scopes = {".".join(re.findall(r"\[([\w.]+)\]", node.name)) for node in log.Graph().node}
    shown = [path for path in subject.blocks if any(f"{scope}.".startswith(f"{path}.") for scope in scopes)]
    return {"blocks": shown, "histograms": sorted(log.Tags()["histograms"])}
