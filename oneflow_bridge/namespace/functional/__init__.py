"""torch.nn.functional on OneFlow, one file a family.

Every public function of a family is a name of `F.nn.functional`. Functions take and give the namespace's `Tensor`. Only
the namespace collects them; other rooms import a function from its family.
"""

from __future__ import annotations

from typing import Any

from oneflow_bridge.namespace.functional import (
    activation,
    attention,
    convolution,
    linear,
    loss,
    normalization,
    padding,
    pooling,
    resizing,
    vision,
)
from oneflow_bridge.namespace.names import functions

_FAMILIES = (
    *(activation, attention, convolution, linear, loss),
    *(normalization, padding, pooling, resizing, vision),
)

FUNCTIONS: dict[str, Any] = {name: value for family in _FAMILIES for name, value in functions(family).items()}
"""The functions of all families, by torch's names."""
