"""Example inputs: their names, and the sizes at which a model is traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx.job import distinct
from onnx2nn.errors import InputError

Dynamic = bool | Mapping[str | int, Mapping[int, str]] | None
"""`True`: axis 0 of every input is `batch`; else input name or position → {axis: dimension name}."""


@dataclass
class Arguments:
    """Example inputs: positional and keyword arguments, and the tensors among them by name, in the job's order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: list[str]

    @classmethod
    def of(cls, model: Any, example_inputs: Any, names: Sequence[str] | None = None) -> Arguments:
        """Returns the arguments that the caller passed, with arrays as tensors.

        Raises:
            InputError: an argument is empty or not made of tensors, or the number of names does not fit.
        """
        inputs = _tensors(example_inputs)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
        if not isinstance(args, (tuple, list)):
            args = (args,)
        found = cls(tuple(args), kwargs, [])
        found.names = list(names) if names is not None else distinct(_argument_names(model, found))
        leaves = found.leaves()
        if len(found.names) != len(leaves) or len(set(found.names)) != len(leaves):
            raise InputError(
                f"{len(leaves)} input tensors were given, and {len(found.names)} names for them: {found.names}."
            )
        for name, leaf in zip(found.names, leaves, strict=True):
            if 0 in leaf.shape:
                raise InputError(
                    f"Input {name} has shape {list(leaf.shape)}: OneFlow cannot compile empty inputs. Pass an example "
                    "with at least one element."
                )
        return found

    def leaves(self) -> list[Any]:
        """The tensors, in the order in which OneFlow numbers them."""
        return list(leaves((self.args, self.kwargs)))

    def resized(self, sizes: Mapping[tuple[int, int], int]) -> Arguments:
        """The same arguments with dimensions of other sizes; contents are repeated or cut.

        Args:
            sizes: (position of the tensor, axis) → size.
        """
        count = iter(range(len(self.names)))

        def resize(leaf: Any) -> Any:
            position = next(count)
            for (of, axis), size in sizes.items():
                if of == position and size != leaf.shape[axis]:
                    leaf = _resize(leaf, axis, size)
            return leaf

        args, kwargs = _map((self.args, self.kwargs), resize)
        return Arguments(args, kwargs, self.names)

    def doubled(self) -> Arguments:
        """The same arguments with float64 in place of float32."""
        float32 = import_oneflow().float32
        args, kwargs = _map((self.args, self.kwargs), lambda leaf: leaf.double() if leaf.dtype == float32 else leaf)
        return Arguments(args, kwargs, self.names)


def dynamic_axes(arguments: Arguments, dynamic: Dynamic) -> dict[tuple[int, int], str]:
    """(position of the tensor, axis) → dimension name.

    Raises:
        InputError: `dynamic` names an input or an axis that does not exist, or one name has two sizes.
    """
    leaves = arguments.leaves()
    if dynamic is None or dynamic is False:
        return {}
    if dynamic is True:
        return {(i, 0): "batch" for i, leaf in enumerate(leaves) if leaf.ndim}
    axes = {}
    for key, named in dynamic.items():
        if key not in arguments.names and key not in range(len(leaves)):
            raise InputError(f"dynamic names the input {key!r}; the inputs are {arguments.names}.")
        position = key if isinstance(key, int) else arguments.names.index(key)
        for axis, name in named.items():
            rank = leaves[position].ndim
            if not -rank <= axis < rank:
                raise InputError(
                    f"dynamic names axis {axis} of {arguments.names[position]}, which has {rank} dimensions."
                )
            axes[position, axis % rank] = name
    return axes


Sizes = tuple[dict[str, int], Arguments]
"""The size of every dimension name, and arguments of these sizes."""


def trace_sizes(arguments: Arguments, dynamic: Dynamic) -> list[list[Sizes]]:
    """Returns the traces to make: for each, the sizes to try, the best first.

    The first trace has the example's sizes, at least 2 because a size of 1 would broadcast. Each further trace has one
    dimension of another size: `_far` instead of n, or n + 1 where the model does not take that.
    """
    axes = dynamic_axes(arguments, dynamic)
    leaves = arguments.leaves()
    base: dict[str, int] = {}
    for (position, axis), name in axes.items():
        size = max(leaves[position].shape[axis], 2)
        if base.setdefault(name, size) != size:
            raise InputError(f"The dimension {name!r} has size {base[name]} in one input and {size} in another.")
    others = [[{**base, name: _far(size)}, {**base, name: size + 1}] for name, size in base.items()]
    return [
        [(sizes, arguments.resized({key: sizes[name] for key, name in axes.items()})) for sizes in attempts]
        for attempts in ([base], *others)
    ]


def _far(size: int) -> int:
    """Returns a size at which numbers that Python computes from a size of n are told from constants and multiples.

    No quotient n // k is the same here, unless both are 0: from jk <= n follows 2n + 1 >= (j + 1)k for every j >= 1.
    The two have no common divisor, so that no fraction of both is whole, and are not both even or both odd.
    """
    return 2 * size + 1 + size % 2


def _argument_names(model: Any, arguments: Arguments) -> list[str]:
    """Parameter names of `forward` or `build`; the parts of a nested argument are numbered."""
    function = getattr(model, "forward", None) if not hasattr(model, "build") else model.build
    try:
        parameters = list(inspect.signature(function).parameters.values()) if function is not None else []
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = []
    for position, value in enumerate(arguments.args):
        name = positional[position] if position < len(positional) else f"input_{position}"
        names += leaf_names(value, name)
    for name, value in arguments.kwargs.items():
        names += leaf_names(value, name)
    return names


def leaf_names(value: Any, name: str) -> list[str]:
    """Names of the tensors in a nested value: `name`, numbered where there are several."""
    count = len(list(leaves(value)))
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


def leaves(value: Any) -> Iterator[Any]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return type(value)((k, _map(v, function)) for k, v in value.items())
    if isinstance(value, (tuple, list)):
        return type(value)(_map(v, function) for v in value)
    return value if value is None else function(value)


def _tensors(value: Any) -> Any:
    flow = import_oneflow()

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, flow.Tensor):
            return leaf
        if isinstance(leaf, (np.ndarray, np.generic)):
            return flow.tensor(np.asarray(leaf))
        raise InputError(
            f"An example input is a {type(leaf).__name__}: a OneFlow graph takes tensors (and None) only. Fix other "
            "values in the model, or in a wrapper around it."
        )

    return _map(value, tensor)


def _resize(tensor: Any, axis: int, size: int) -> Any:
    """The tensor with its slices along `axis` repeated in turn, or cut, to `size`."""
    flow = import_oneflow()
    array = np.take(tensor.numpy(), np.arange(size) % tensor.shape[axis], axis=axis)
    return flow.tensor(array)
