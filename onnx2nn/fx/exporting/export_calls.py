"""What torch.export does for a module, but not for a GraphModule.

It notes the modules around each call; the graph of an outermost GraphModule it interprets, without its hooks and with
inputs by name taken for inputs by position, in the order in which they were given.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn


def is_traced(module: nn.Module) -> bool:
    """Returns whether torch.export traces what has `module` in it, noting the modules around each call."""
    return _tracer(module) is not None


def noted(module: nn.Module, called: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a module, with torch's own note of that where torch.export traces it.

    Args:
        module: the one to note.
        called: what calls it.
        args: arguments of the call.
        kwargs: likewise.
    """
    tracer = _tracer(module)
    return called(*args, **kwargs) if tracer is None else fx.Tracer.call_module(tracer, module, called, args, kwargs)


def _tracer(module: nn.Module) -> fx.Tracer | None:
    if not torch.compiler.is_exporting():
        return None
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer, get_proxy_mode  # torch.export has it

    mode = get_proxy_mode()
    tracer = None if mode is None else mode.tracer
    if not isinstance(tracer, fx.Tracer) or type(tracer) is PythonKeyTracer:  # which notes no modules
        return None
    try:
        tracer.path_of_module(module)
    except NameError:  # it is in none of the modules that are exported
        return None
    return tracer


def as_call(module: nn.Module, names: list[str]) -> fx.Graph:
    """Returns a graph that calls a module as torch.export was told to call it.

    Args:
        module: the one to call.
        names: its arguments, for a module whose class `ask_inputs` was not given.
    """
    forward: Any = module.forward
    by_position: tuple[int, tuple[str, ...]] = (len(names), ())
    is_asked = isinstance(inspect.signature(forward), _AskedSignature)
    count, given = getattr(_GIVEN, "inputs", by_position) if is_asked else by_position

    def call(*args: Any) -> Any:
        return module(*args[:count], **dict(zip(given, args[count:], strict=True)))

    graph = fx.Graph()
    arguments = [graph.placeholder(name) for name in (*names[:count], *given)]
    graph.output(graph.call_function(call, tuple(arguments)))
    return graph


def ask_inputs(kind: type[nn.Module]) -> None:
    """Makes the program of a class know how its inputs were last given to its signature: torch.export binds them."""
    forward: Any = kind.forward
    if not isinstance(found := inspect.signature(forward), _AskedSignature):
        parameters = list(found.parameters.values())
        forward.__signature__ = _AskedSignature(parameters, return_annotation=found.return_annotation)


_GIVEN = threading.local()
"""`inputs`: how many inputs were last given by position, and the names of the others, in their order."""


class _AskedSignature(inspect.Signature):
    def bind(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """Returns the inputs by name, see `inspect.Signature.bind`."""
        _GIVEN.inputs = len(args), tuple(kwargs)
        return super().bind(*args, **kwargs)
