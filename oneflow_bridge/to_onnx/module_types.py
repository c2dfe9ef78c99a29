"""Types and hooks of modules in a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from oneflow_bridge.runtime import import_oneflow


@contextlib.contextmanager
def proxies_of_their_types() -> Iterator[None]:
    """Inside this context modules in a trace are instances of their own classes.

    `nn.Graph` calls `forward` with proxies of the modules. Code that asks `isinstance(layer, nn.Identity)` took the
    other branch for them, and `super(Own, self).forward(x)` was refused.
    """
    from oneflow.nn.graph.proxy import ProxyModule

    def looked_up(proxy: Any, name: str) -> Any:
        found = object.__getattribute__(proxy, name)
        if name == "__class__":  # what isinstance and super ask for behind the type; a property cannot be set later
            return type(object.__getattribute__(proxy, "_oneflow_internal_origin__"))
        return found

    ProxyModule.__getattribute__ = looked_up
    try:
        yield
    finally:
        del ProxyModule.__getattribute__


@contextlib.contextmanager
def proxies_with_hooks() -> Iterator[None]:
    """Inside this context modules in a trace call their forward hooks, as they do outside of `nn.Graph`.

    `nn.Graph` ignores them: a weight that `nn.utils.weight_norm` computes before each call would be the last one that
    was computed.
    """
    from oneflow.nn.graph.proxy import ProxyModule

    call, module_class = ProxyModule.__call__, import_oneflow().nn.Module

    def with_hooks(proxy: Any, *args: Any, **kwargs: Any) -> Any:
        module = proxy.to(module_class)
        for hook in list(module._forward_pre_hooks.values()):
            changed = hook(proxy, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = call(proxy, *args, **kwargs)
        for hook in list(module._forward_hooks.values()):
            changed = hook(proxy, args, result)
            result = result if changed is None else changed
        return result

    ProxyModule.__call__ = with_hooks
    try:
        yield
    finally:
        ProxyModule.__call__ = call
