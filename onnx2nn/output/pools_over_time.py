"""Max pools of one dimension for torch.export, which fixes the length of what `torch.max_pool1d` is given."""

from __future__ import annotations

from typing import Any

from torch import fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class PoolsOverTime(TorchFunctionMode):
    """Computes max pools of one dimension by the function that gives their indices too, which torch.export follows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is not F.max_pool1d or given.pop("return_indices", False):
            return func(*args, **(kwargs or {}))
        return F.max_pool1d_with_indices(*args, **given)[0]


def has_pools_over_time(module: nn.Module) -> bool:
    """Returns whether a module calls max pools of one dimension."""
    inner = list(module.modules())
    graphs = (part.graph for part in inner if isinstance(part, fx.GraphModule))
    return any(isinstance(part, nn.MaxPool1d) for part in inner) or any(
        node.target is F.max_pool1d for graph in graphs for node in graph.nodes
    )
