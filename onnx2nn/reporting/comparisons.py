"""`compare`: two models side by side, their modules, weights, and where their values part."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from onnx2nn.errors import InputError, first_line
from onnx2nn.ground.limits import Limits
from onnx2nn.importing.inputs import InputSpec, specs_of
from onnx2nn.loading import load
from onnx2nn.reporting.model_comparison import ModelComparison, ModulePair, WeightChange
from onnx2nn.reporting.reports import Step
from onnx2nn.reporting.verified import output_error
from onnx2nn.verification.example_runs import example_feeds
from onnx2nn.verification.oracle import Stored
from onnx2nn.verification.value_comparison import compare as compare_values

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
    modules, names = [], []
    for source in (first, second):
        name = _name_of(source)
        names.append(name)
        if not hasattr(source, "named_modules"):
            with step(f"importing {name}"):
                source = load(source, blocks=blocks, follow_links=follow_links, limits=limits)
        if not hasattr(source, "graph"):
            raise InputError(f"A {type(source).__name__} has no program of blocks. Give a module of onnx2nn.load.")
        modules.append(source)
    left, right = modules
    pairs = _aligned(left, right)
    result = ModelComparison(*names, modules=list(pairs.values()))
    feeds, _ = next(iter(example_feeds(specs_of(left), input_shapes, inputs, 1, seed)))
    result.run = {name: list(np.shape(array)) for name, array in feeds.items()}
    with step("running both"):
        _compare_runs(result, pairs, (left, right), feeds, memory_limit)
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
            one, other = (tensor.detach().to("cpu", torch.float64) for tensor in (ours, theirs))
            apart, size = float((one - other).abs().max()), float(one.abs().max())
            pair.weights.append(WeightChange(key, described(ours), described(theirs), apart, size))
        elif pair.left and pair.right:
            values = ["" if tensor is None else described(tensor) for tensor in (ours, theirs)]
            pair.weights.append(WeightChange(key, *values))


def _compare_runs(
    result: ModelComparison,
    pairs: Mapping[str, ModulePair],
    sides: tuple[Any, Any],
    feeds: Mapping[str, np.ndarray],
    memory_limit: int,
) -> None:
    """Runs both models; notes the results of all modules, and where they part."""
    from onnx2nn.reporting.module_runs import ModuleRun, described, run_program, tensors

    kept: dict[str, list[Any]] = {}
    room, left_out = memory_limit, 0

    def keep(path: str, value: Any) -> None:
        nonlocal room, left_out
        pairs[path].left_value = pairs[path].left_value or described(value)
        size = sum(tensor.nbytes for tensor in tensors(value))
        if not path or size <= room:
            kept.setdefault(path, []).append(_detached(value))
            room -= size
        elif pairs[path].right:
            left_out += 1

    def meet(path: str, value: Any) -> None:
        pair = pairs[path]
        pair.right_value = pair.right_value or described(value)
        if not kept.get(path):
            return
        expected = kept[path].pop(0)
        compared = compare_values([path], [value], [expected])
        worst = max((part.max_difference for part in compared), default=0.0)
        agrees = all(part.agrees for part in compared)
        pair.difference = max(pair.difference or 0.0, worst)
        if not agrees and result.first is None and path:
            pair.parts = True
        pair.agrees = agrees and pair.agrees is not False

    others = _feeds_of(specs_of(sides[1]), specs_of(sides[0]), feeds)
    if isinstance(others, str):
        result.notes.append(others)
    try:
        expected = run_program(sides[0], list(feeds.values()), ModuleRun(), keep)
        found = None if isinstance(others, str) else run_program(sides[1], others, ModuleRun(), meet)
    except Exception as error:  # any error of a module's own run, which the comparison then shows
        result.notes.append(f"A model failed on the inputs: {type(error).__name__}: {first_line(error)}")
        return
    if left_out:
        result.notes.append(f"the results of {left_out} modules were not compared: raise memory_limit")
    if found is not None:
        names = sides[0].meta["onnx2nn"]["outputs"]
        ours, theirs = (value if isinstance(value, tuple) else (value,) for value in (found, expected))
        if len(ours) != len(theirs):
            result.notes.append(f"the models have {len(theirs)} and {len(ours)} outputs")
            return
        result.outputs += map(output_error, compare_values(names, list(ours), list(theirs)))
        if not result.ok and result.first is None:
            pairs[""].parts = True


def _detached(value: Any) -> Any:
    """Returns a value that later calls, which may work in place, do not change."""
    if isinstance(value, (tuple, list)):
        return type(value)(_detached(item) for item in value)
    return value.clone() if hasattr(value, "clone") else value


def _feeds_of(
    wanted: Sequence[InputSpec], known: Sequence[InputSpec], feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray] | str:
    """Returns the inputs in the order of the second model, or why it cannot take them."""
    if len(wanted) != len(known):
        return f"the models have {len(known)} and {len(wanted)} inputs, so that only one ran"
    by_name = {spec.name for spec in wanted} == {spec.name for spec in known}
    names = [spec.name for spec in (wanted if by_name else known)]
    types = {spec.name: spec.dtype for spec in known}
    for spec, name in zip(wanted, names, strict=True):
        shape = np.shape(feeds[name])
        fits = spec.shape is None or (
            len(spec.shape) == len(shape)
            and all(isinstance(size, str) or size == given for size, given in zip(spec.shape, shape, strict=True))
        )
        if spec.dtype != types[name] or not fits:
            return (
                f"input {spec.name!r} of the second model takes {spec}, the run has {list(shape)}, so that only one ran"
            )
    return [feeds[name] for name in names]
