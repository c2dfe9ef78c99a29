"""Bounds the size of a model with its functions inlined, and refuses functions that call themselves."""

from __future__ import annotations

from collections import Counter

import onnx

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.limits import Account
from onnx2nn.reading.protobuf_texts import checked_text, domain_of

FunctionId = tuple[str, str, str]
"""Domain, name and overload of a function."""


class Body:
    """Counts of one body, the model's graph or a function: nodes and calls; and whether its nodes are unsorted."""

    def __init__(self) -> None:
        self.nodes = 0
        self.calls: Counter[FunctionId] = Counter()
        self.unsorted = False


def function_id(proto: onnx.FunctionProto) -> FunctionId:
    """Returns by which domain, name and overload nodes call a function."""
    return domain_of(proto.domain), checked_text(proto.name), checked_text(getattr(proto, "overload", ""))


def check_calls(main: Body, bodies: dict[FunctionId, Body], account: Account) -> None:
    """Refuses functions that call themselves and models that exceed the limits once inlined.

    Raises:
        LimitError: a limit is exceeded.
        ModelFileError: a function calls itself.
    """
    sizes: dict[FunctionId, tuple[int, int]] = {}
    deepest = account.limits.function_depth

    def measure(body: Body, path: tuple[FunctionId, ...]) -> tuple[int, int]:
        nodes, height = body.nodes, 0
        for function, count in body.calls.items():
            if function in path:
                raise ModelFileError(f"Function {function[1]!r} calls itself, which ONNX does not allow.")
            if len(path) < deepest and function not in sizes:
                sizes[function] = measure(bodies[function], (*path, function))
            function_nodes, function_height = sizes.get(function, (0, 0))
            nodes += count * function_nodes
            height = max(height, 1 + function_height)
        account.check("function_depth", len(path) + height, "The depth of functions that call each other is")
        return nodes, height

    for function, body in bodies.items():
        if function not in sizes:
            sizes[function] = measure(body, (function,))
    account.renewed().visit(measure(main, ())[0], "With its functions inlined the model has")
