"""Bounds the size of a model with its functions inlined, and refuses functions that call themselves."""

from __future__ import annotations

from collections import Counter

import onnx

from onnx2nn.errors import ModelFileError
from onnx2nn.reading.limits import Limits
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


def check_calls(main: Body, bodies: dict[FunctionId, Body], limits: Limits) -> None:
    """Refuses functions that call themselves and models that exceed the limits once inlined.

    Raises:
        ModelFileError: a function calls itself, or a limit is exceeded.
    """
    sizes: dict[FunctionId, tuple[int, int]] = {}

    def measure(body: Body, path: tuple[FunctionId, ...]) -> tuple[int, int]:
        nodes, height = body.nodes, 0
        for function, count in body.calls.items():
            if function in path:
                raise ModelFileError(f"Function {function[1]!r} calls itself, which ONNX does not allow.")
            if len(path) < limits.function_depth and function not in sizes:
                sizes[function] = measure(bodies[function], (*path, function))
            function_nodes, function_height = sizes.get(function, (0, 0))
            nodes += count * function_nodes
            height = max(height, 1 + function_height)
        if len(path) + height > limits.function_depth:
            raise ModelFileError(
                f"Functions call each other deeper than {limits.function_depth} levels (Limits.function_depth)."
            )
        return nodes, height

    for function, body in bodies.items():
        if function not in sizes:
            sizes[function] = measure(body, (function,))
    if measure(main, ())[0] > limits.nodes:
        raise ModelFileError(f"With its functions inlined the model has more than {limits.nodes} nodes (Limits.nodes).")
