"""torch-pruning: a layer loses an output channel, and whatever depends on it the same one."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "channel pruning (torch-pruning)"
PACKAGES = ("torch-pruning",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs without the channel."""
    import torch_pruning

    module = make()
    layer = module.get_submodule(subject.pruned)
    graph = torch_pruning.DependencyGraph().build_dependency(module, subject.inputs(2))
    prune = graph.get_pruner_of_module(layer).prune_out_channels
    graph.get_pruning_group(layer, prune, idxs=[1]).prune()
    return outputs_of(module, subject) + outputs_of(module, subject, 3)
