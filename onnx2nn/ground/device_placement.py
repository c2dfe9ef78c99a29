"""Where the tensors of a framework are: of a module, and of values that go to it or come from it."""

from __future__ import annotations

from itertools import chain
from typing import Any, TypeVar

T = TypeVar("T")


def device_of(module: Any, default: Any) -> Any:
    """Returns the device of a module's state, where its inputs belong; `default` where it has no state."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), default)


def placed(value: T, device: Any) -> T:
    """Returns a value whose tensors, also those in lists and tuples, are on a device; those that are there stay."""
    found: Any = value
    if isinstance(found, (list, tuple)):
        found = type(found)(placed(item, device) for item in found)
    elif hasattr(found, "to") and found.device != device:
        found = found.to(device)
    result: T = found
    return result
