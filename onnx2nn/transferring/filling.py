"""`transfer`: the weights of a file in a module that exists."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from onnx2nn.errors import InputError, VerificationError, first_line, listed
from onnx2nn.ground.limits import Limits
from onnx2nn.importing.inputs import specs_of
from onnx2nn.loading import load
from onnx2nn.transferring.alignment import Alignment, align
from onnx2nn.transferring.lockstep import TOLERANCE, Parting, Recorded, factors, parting, relative
from onnx2nn.transferring.placing import Placed, place
from onnx2nn.transferring.programs import Program
from onnx2nn.transferring.transfer_report import PlacedWeight, TransferReport
from onnx2nn.transferring.twin import twin
from onnx2nn.verification.example_runs import example_feeds
from onnx2nn.verification.module_runs import to_tensor

RUNS = 2
MOST_TRIALS = 64
"""Ways to pair calls that are tried where structure leaves several."""


def transfer(
    source: str | os.PathLike[str] | bytes | BinaryIO | Any,
    model: nn.Module,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    follow_links: bool = False,
    limits: Limits | None = None,
) -> TransferReport:
    """Fills a module with the weights of an ONNX file.

    Where the file has the module's keys, they decide. Else the module is exported and imported again, so that both are
    programs of one kind, whose calls are paired by structure and by the sizes of their weights. What the file's
    exporter or a simplifier folded is solved: a folded batch normalisation becomes neutral but for its bias (weight 1,
    mean 0, variance `1 - eps`), transposed, packed and repeated weights are laid out as the module's. Nothing is
    accepted unless all paired calls and all outputs have the file's values, in float64, on generated inputs.

    Args:
        source: the file, as for `onnx2nn.load`.
        model: the module. It takes the file's inputs in the file's order, and gives its outputs. Its parameters and
            buffers are filled in place, in their dtype and on their device; on an error it stays as it is.
        inputs: input name → array, used instead of generated inputs.
        input_shapes: input name → sizes, for inputs with dynamic dimensions.
        seed: of the generated inputs.
        follow_links: as for `load`.
        limits: as for `load`.

    Returns:
        What became of each weight.

    Raises:
        InputError: the module cannot be exported, its structure differs from the file's, or structure and outputs leave
            several weights possible; the text lists the layers, or the candidates.
        MissingDependencyError: onnxscript is not installed, and names do not decide.
        ModelFileError: the source is not a readable model.
        UnsupportedModelError: the file or the exported module cannot be imported.
        VerificationError: no way to pair the layers gives the file's outputs.
    """
    imported = load(source, dtype=torch.float64, follow_links=follow_links, limits=limits)
    feeds = [
        [_wide(to_tensor(array)) for array in feed.values()]
        for feed, _ in itertools.islice(example_feeds(specs_of(imported), input_shapes, inputs, RUNS, seed), RUNS)
    ]
    placed, by = _by_names(imported, model), "names"
    if placed is not None and (gap := _difference(imported, model, placed, feeds)) <= TOLERANCE:
        return _filled(model, placed, TransferReport(by, difference=gap, runs=len(feeds)), imported)
    narrow = [value.float() if value.is_floating_point() else value for value in feeds[0]]
    file, module = Program(imported), Program(twin(_evaluated(model), narrow), model.state_dict().keys())
    placed, by = _by_structure(file, module, feeds), "structure"
    gap = _difference(imported, model, placed, feeds)
    if not gap <= TOLERANCE:
        raise VerificationError(
            f"The {type(model).__name__} with the file's weights differs from the file by {gap:.1e} of the largest "
            "output, though its exported program agrees. Give inputs= for which both take the same path."
        )
    return _filled(model, placed, TransferReport(by, difference=gap, runs=len(feeds)), imported)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _evaluated(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).cpu().eval()


def _by_names(imported: nn.Module, model: nn.Module) -> Placed | None:
    """Returns the file's weights where it has all keys of the module, with its shapes."""
    ours = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
    theirs = imported.state_dict()
    if any(key not in theirs or theirs[key].shape != value.shape for key, value in ours.items()):
        return None
    return Placed({key: theirs[key] for key in ours}, {key: (key,) for key in ours})


def _by_structure(file: Program, module: Program, feeds: Sequence[Sequence[Any]]) -> Placed:
    """Returns the weights of the only way to pair the calls that gives the file's values.

    Raises:
        InputError: there are several, with other weights.
        VerificationError: there is none.
    """
    expected = Recorded(file, feeds)
    first = align(module, file)
    problems: list[str] = []
    accepted: tuple[Alignment, Placed] | None = None
    trials = 0
    for alignment in _ways(first, module, file):
        trials += 1
        found = _tried(alignment, module, expected, feeds, problems)
        if found is not None:
            accepted = (alignment, found)
            break
        if trials == MOST_TRIALS:
            break
    if accepted is None:
        raise VerificationError(
            f"None of {trials} ways to pair the layers by structure gives the file's values. The first: {problems[0]}."
        )
    _refuse_ambiguous(*accepted, module, file, expected, feeds)
    return accepted[1]


def _ways(first: Alignment, module: Program, file: Program) -> Iterator[Alignment]:
    """Yields ways to pair the calls, the order of the programs first, then with one, two... other choices."""
    yield first
    seen = [first]
    for known in seen:
        for index, (call, candidates) in enumerate(known.choices):
            before = [(c, known.pairs[c]) for c, _ in known.choices[:index]]
            for other in candidates[1:]:
                found = align(module, file, [*before, (call, other)])
                seen.append(found)
                yield found


def _tried(
    alignment: Alignment, module: Program, expected: Recorded, feeds: Sequence[Sequence[Any]], problems: list[str]
) -> Placed | None:
    """Returns the weights of a way to pair the calls, None where it does not give the file's values."""
    try:
        placed = place(alignment, module)
    except InputError as error:
        problems.append(str(error))
        if not alignment.choices:
            raise
        return None
    found = _parting(placed, alignment, module, expected, feeds)
    if found is not None and (folded := factors(alignment.pairs, module, feeds, expected)):
        try:
            placed = place(alignment, module, folded)
        except InputError:  # two layers share a weight that one of them would need with a factor
            problems.append(str(found))
            return None
        found = _parting(placed, alignment, module, expected, feeds)
    if found is not None:
        problems.append(str(found))
        return None
    return placed


def _parting(
    placed: Placed, alignment: Alignment, module: Program, expected: Recorded, feeds: Sequence[Sequence[Any]]
) -> Parting | None:
    """Fills the module's program, and returns the first call whose value is not the file's."""
    state = module.state()
    with torch.no_grad():
        for key, value in placed.state.items():
            state[key].copy_(value)
    return parting(alignment.pairs, Recorded(module, feeds), expected)


def _refuse_ambiguous(
    alignment: Alignment,
    placed: Placed,
    module: Program,
    file: Program,
    expected: Recorded,
    feeds: Sequence[Sequence[Any]],
) -> None:
    """Tries the other choices: where one with other weights gives the file's values too, nothing decides.

    Raises:
        InputError: lists the candidates of each such call.
    """
    texts = []
    for index, (call, candidates) in enumerate(alignment.choices):
        before = [(c, alignment.pairs[c]) for c, _ in alignment.choices[:index]]
        possible = [alignment.pairs[call]]
        for other in candidates:
            if other is alignment.pairs[call]:
                continue
            again = align(module, file, [*before, (call, other)])
            found = _tried(again, module, expected, feeds, [])
            if found is not None and not _same(found, placed):
                possible.append(other)
        if len(possible) > 1:
            texts.append(f"{call}: {' or '.join(map(str, possible))}")
    if texts:
        raise InputError(
            "\n".join(
                [
                    "Structure and outputs leave several weights possible for layers of the module:",
                    *listed(texts, "layers"),
                    "Give the file the module's names for them, or fill them by hand.",
                ]
            )
        )


def _same(one: Placed, other: Placed) -> bool:
    return one.state.keys() == other.state.keys() and all(
        torch.equal(value, other.state[key]) for key, value in one.state.items()
    )


def _difference(imported: nn.Module, model: nn.Module, placed: Placed, feeds: Sequence[Sequence[Any]]) -> float:
    """Returns the largest difference of outputs, in float64, relative to the largest element.

    Raises:
        InputError: the module does not take the file's inputs.
    """
    wide = _evaluated(model).double()
    _fill(wide, placed)  # not rounded to the model's type yet, so that only errors remain
    worst = 0.0
    for tensors in feeds:
        with torch.no_grad():
            theirs = _tuple(imported(*(_copied(value) for value in tensors)))
            try:
                ours = _tuple(wide(*(_copied(value) for value in tensors)))
            except Exception as error:  # any error of the module's own run
                raise InputError(
                    f"The {type(model).__name__} does not take the file's inputs in float64: {first_line(error)}"
                ) from error
        if len(ours) != len(theirs):
            raise InputError(f"The {type(model).__name__} gives {len(ours)} outputs, the file {len(theirs)}.")
        worst = max([worst, *map(relative, ours, theirs)])
    return worst


def _fill(model: nn.Module, placed: Placed) -> None:
    """Copies weights to a module, in its dtype and on its device; load hooks of its class are for files of its own."""
    state = model.state_dict()  # its tensors share their elements with the module's
    with torch.no_grad():
        for key, value in placed.state.items():
            state[key].copy_(value)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _tuple(found: Any) -> tuple[Any, ...]:
    if isinstance(found, Mapping):
        found = tuple(found.values())
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _filled(model: nn.Module, placed: Placed, report: TransferReport, imported: nn.Module) -> TransferReport:
    _fill(model, placed)
    report.placed = [PlacedWeight(key, placed.sources.get(key, ()), placed.notes.get(key, "")) for key in placed.state]
    report.kept = [
        key for key, value in model.state_dict().items() if key not in placed.state and value.is_floating_point()
    ]
    used = {name for names in placed.sources.values() for name in names}
    held = [*dict(imported.named_parameters()), *dict(imported.named_buffers())]
    report.unused = [name for name in held if name not in used]
    return report
