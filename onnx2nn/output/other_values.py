"""Values by which a trace of a module fails: texts, empty optionals, and sequences without elements."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn

TEXTS = "texts"
NOTHING = "empty optionals"
NO_ELEMENTS = "sequences without elements"

_OTHERS: Mapping[str, Callable[[Any], bool]] = {
    TEXTS: lambda value: isinstance(value, np.ndarray),
    NOTHING: lambda value: value is None,
    NO_ELEMENTS: lambda value: isinstance(value, list) and not value,
}


def other_values(module: nn.Module, inputs: Sequence[Any], kinds: Sequence[str]) -> str:
    """Returns which values of a module are no tensors on some inputs, as the end of a sentence; `""` for none.

    Args:
        module: the module, of which each program runs node by node, also those of branches and loops.
        inputs: one value for each input.
        kinds: of `TEXTS`, `NOTHING`, `NO_ELEMENTS`; the first of them that there is is named.
    """
    found: dict[str, dict[str, None]] = {kind: {} for kind in kinds}

    def note(value: Any, place: str) -> None:
        items = value if isinstance(value, (list, tuple)) and value else [value]
        for kind in kinds:
            if any(map(_OTHERS[kind], items)):
                found[kind][place] = None

    known = getattr(module, "meta", {}).get("onnx2nn", {})
    names = known.get("inputs") or map(str, range(len(inputs)))
    for name, value in zip(names, inputs, strict=False):
        note(value, f"input {name!r}")
    with (
        contextlib.suppress(Exception),
        torch.no_grad(),
        _watched(module, note),
    ):  # what is found before an error counts
        results = module(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        for place, value in zip(known.get("outputs") or range(len(results)), results, strict=False):
            note(value, f"output {place!r}")
    kind, places = next(((kind, places) for kind, places in found.items() if places), ("", {}))
    return f"it holds no {kind}, as of {', '.join(places)}" if kind else ""


def may_have_texts(module: nn.Module) -> bool:
    """Returns whether a module holds texts, or calls functions on anything but tensors: torch's own have no texts."""
    return any(
        _may_give_texts(part, node)
        for part in module.modules()
        if isinstance(part, fx.GraphModule)
        for node in part.graph.nodes
    )


def _may_give_texts(program: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "get_attr":
        return isinstance(operator.attrgetter(str(node.target))(program), np.ndarray)
    return node.op == "call_function" and str(getattr(node.target, "__module__", "")).startswith("onnx2nn.")


@contextlib.contextmanager
def _watched(module: nn.Module, note: Callable[[Any, str], None]) -> Iterator[None]:
    """A context in which the nodes of all programs of a module give their values and places to `note`."""
    programs = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    for part in programs:
        part.__dict__["forward"] = _Watched(part, note).run  # hides that of the class, for all callers
    try:
        yield
    finally:
        for part in programs:
            del part.__dict__["forward"]


class _Watched(fx.Interpreter):
    """Runs a program node by node.

    Args:
        module: has the program.
        note: takes the value of each node of the file, and what to call it.
    """

    def __init__(self, module: fx.GraphModule, note: Callable[[Any, str], None]):
        super().__init__(module)
        self._note = note

    def run_node(self, n: fx.Node) -> Any:
        """Returns the value of a node."""
        value = super().run_node(n)
        if "onnx" in n.meta and n.op != "output":
            _, operator, name = n.meta["onnx"]
            self._note(value, f"node {name!r} ({operator})")
        return value
