"""torch-pruning: a layer loses an output channel, and whatever depends on it the same one."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "channel pruning (torch-pruning)"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs without the channel, and how many parameters went."""
    import torch_pruning

    module = make()
    layer = module.get_submodule(subject.pruned)
    graph = torch_pruning.DependencyGraph().build_dependency(module, subject.inputs(2))
    by_kind = {nn.Conv2d: torch_pruning.prune_conv_out_channels, nn.Linear: torch_pruning.prune_linear_out_channels}
    prune = by_kind[type(layer)]
    graph.get_pruning_group(layer, prune, idxs=[1]).prune()
    return outputs_of(module, subject) + outputs_of(module, subject, 3)
