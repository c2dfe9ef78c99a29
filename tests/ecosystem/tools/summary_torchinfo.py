"""torchinfo's table: the modules that run, their results' shapes and their parameters."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, Named, weights_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "table of modules (torchinfo)"
PACKAGES = ("torchinfo",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the rows of layers, and of the model the parameters where no exporter folds any."""
    import torchinfo

    module = make()
    weights = weights_of(module)
    names = {id(inner): name for name, inner in module.named_modules()}
    summary = torchinfo.summary(module, input_data=subject.inputs(2), depth=10, verbose=0)
    rows = [(names[row.layer_id], row) for row in summary.summary_list if row.layer_id in names]
    seen = [(name, (row.output_size, row.num_params)) for name, row in rows if weights[name]]
    return Named(weights, seen)
