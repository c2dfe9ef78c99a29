"""Where the tensors of a framework are: of a module, and of values that go to it or come from it."""

from __future__ import annotations

from itertools import chain
from typing import Any


def device_of(module: Any, default: Any) -> Any:
    """Returns the device of a module's state, where its inputs belong; `default` where it has no state."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), default)


def placed(value: Any, device: Any) -> Any:
    """Returns a value whose tensors, also those in lists and tuples, are on a device; those that are there stay."""
    if isinstance(value, (list, tuple)):
        return type(value)(placed(item, device) for item in value)
    return value.to(device) if hasattr(value, "to") and value.device != device else value
