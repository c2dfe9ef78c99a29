"""`compare`: two models side by side, their modules, weights, and where their values part."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from onnx2nn.errors import InputError
from onnx2nn.ground.limits import Limits
from onnx2nn.importing.inputs import specs_of
from onnx2nn.loading import load
from onnx2nn.reporting.model_comparison import ModelComparison, ModulePair, WeightChange
from onnx2nn.reporting.reports import Step
from onnx2nn.reporting.side_by_side import SideBySide
from onnx2nn.verification.example_runs import example_feeds
from onnx2nn.verification.oracle import Stored

if TYPE_CHECKING:
    import torch
    from torch import fx

MEMORY_LIMIT = 2 << 30
"""Default of the bytes of intermediate values of the first model that are kept for the second."""


def compare(
    first: Stored | BinaryIO | fx.GraphModule,
    second: Stored | BinaryIO | fx.GraphModule,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    blocks: str = "named",
    memory_limit: int = MEMORY_LIMIT,
    follow_links: bool = False,
    limits: Limits | None = None,
    step: Step = contextlib.nullcontext,
) -> ModelComparison:
    """Compares two models, module by module.

    Modules are aligned by their paths. Both models run on the same inputs, call by call; the results of modules in both
    are compared as `verify` compares outputs.

    Args:
        first: an ONNX file, as for `load`, or a module of `load`.
        second: likewise. Its inputs are the first one's by name, or by position where the names differ.
        input_shapes: input name → sizes, for inputs with dynamic dimensions.
        inputs: input name → array, used instead of generated ones.
        seed: of the generated inputs.
        blocks: as for `load`.
        memory_limit: bytes of intermediate values that are kept; the results of further modules are not compared.
        follow_links: as for `load`.
        limits: as for `load`.
        step: as for `report`.

    Raises:
        InputError: shapes or inputs do not fit the first model, or a module does not come from `load`.
        ModelFileError: a source is not a readable model.
        UnsupportedModelError: a model cannot be imported.
    """
    names = [_name_of(source) for source in (first, second)]
    modules: list[Any] = []
    for source, name in zip((first, second), names, strict=True):
        module: Any = source
        if not hasattr(source, "named_modules"):
            with step(f"importing {name}"):
                module = load(module, blocks=blocks, follow_links=follow_links, limits=limits)
        if not hasattr(module, "graph"):
            raise InputError(f"A {type(module).__name__} has no program of blocks. Give a module of onnx2nn.load.")
        modules.append(module)
    left, right = modules
    pairs = _aligned(left, right)
    result = ModelComparison(names[0], names[1], modules=list(pairs.values()))
    feeds, _ = next(iter(example_feeds(specs_of(left), input_shapes, inputs, 1, seed)))
    result.run = {name: list(np.shape(array)) for name, array in feeds.items()}
    with step("running both"):
        SideBySide(result, pairs, memory_limit).run(left, right, feeds)
    with step("comparing the weights"):
        _compare_weights(pairs, left, right)
    return result


def _name_of(source: Any) -> str:
    return Path(source).name if isinstance(source, (str, os.PathLike)) else type(source).__name__


def _aligned(left: fx.GraphModule, right: fx.GraphModule) -> dict[str, ModulePair]:
    """Returns the modules of both by their paths; what the right one alone has stands behind its neighbour there."""
    sides = [dict(side.named_modules(remove_duplicate=False)) for side in (left, right)]
    order = list(sides[0])
    place = {path: number for number, path in enumerate(order)}
    behind: dict[int, list[str]] = {}
    last = 0
    for path in sides[1]:
        if path in place:
            last = place[path]
        else:
            behind.setdefault(last, []).append(path)
    merged = [name for number, path in enumerate(order) for name in (path, *behind.get(number, ()))]
    return {path: _pair(path, *(side.get(path) for side in sides)) for path in merged}


def _pair(path: str, left: torch.nn.Module | None, right: torch.nn.Module | None) -> ModulePair:
    pair = ModulePair(path, _described(left), _described(right))
    if hasattr(left, "graph") and hasattr(right, "graph"):
        ours, theirs = _labels(left), _labels(right)
        pair.calls = {label: [ours[label], theirs[label]] for label in ours | theirs if ours[label] != theirs[label]}
    return pair


def _described(module: torch.nn.Module | None) -> str:
    if module is None:
        return ""
    detail = "" if hasattr(module, "graph") else module.extra_repr()
    return f"{type(module).__name__}({detail})" if detail else type(module).__name__


def _labels(module: Any) -> Counter[str]:
    """Returns the numbers of calls of functions and classes in a program."""
    from onnx2nn.reporting.module_tree import label_of

    return Counter(label_of(module, node) for node in module.graph.nodes if node.op not in ("placeholder", "output"))


def _compare_weights(pairs: Mapping[str, ModulePair], left: Any, right: Any) -> None:
    import torch

    from onnx2nn.reporting.module_runs import described

    sides = [
        {**dict(side.named_parameters(remove_duplicate=False)), **dict(side.named_buffers(remove_duplicate=False))}
        for side in (left, right)
    ]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        ours, theirs = (side.get(key) for side in sides)
        pair = pairs[key.rpartition(".")[0]]
        if ours is not None and theirs is not None and ours.shape == theirs.shape and ours.dtype == theirs.dtype:
            if ours.is_meta or theirs.is_meta or torch.equal(ours, theirs):
                continue
            exact = [tensor.detach().to("cpu", torch.float64) for tensor in (ours, theirs)]
            apart, size = float((exact[0] - exact[1]).abs().max()), float(exact[0].abs().max())
            pair.weights.append(WeightChange(key, described(ours), described(theirs), apart, size))
        elif pair.left and pair.right:
            one, other = ("" if tensor is None else described(tensor) for tensor in (ours, theirs))
            pair.weights.append(WeightChange(key, one, other))
