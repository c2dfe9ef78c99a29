"""Solves what each weight of a module must be, from the weights of the paired calls of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from onnx2nn.errors import InputError, listed
from onnx2nn.transferring import constant_layers
from onnx2nn.transferring.alignment import Alignment
from onnx2nn.transferring.programs import LINEAR, Call, Program, Weight

_Values = dict[str, torch.Tensor]

_NEUTRAL = {"bias": 0.0, "running_mean": 0.0, "weight": 1.0, "running_var": 1.0}
"""What a role does nothing with; a file leaves such weights out."""

FOLDED = "the file folded the batch normalisation into its layer; it is neutral but for the bias"
SCALED = "the file folded the scale into its layer; it is 1"
COMPUTED = "the file has the constant that the layer gives; these are the smallest weights with which it does"

_Piece = tuple[Weight, torch.Tensor, tuple[str, ...], str]
"""A weight, its value, the file's tensors that it is of, and how it was solved."""


@dataclass
class Placed:
    """Weights under the module's keys.

    Attributes:
        state: key → value, in float64.
        sources: key → the file's tensors.
        notes: key → how it was solved, where it is not simply the file's tensor.
    """

    state: dict[str, torch.Tensor] = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def place(alignment: Alignment, module: Program, factors: Mapping[Call, float] | None = None) -> Placed:
    """Solves the weights of all paired calls.

    Args:
        alignment: the pairs.
        module: the module's program.
        factors: layer of the module → the factor that its weight has beside that of the file's layer.

    Raises:
        InputError: weights that the module cannot hold, or that two calls want to differ; all are listed.
    """
    size = max((module.offsets[key] + value.numel() for key, value in module.state().items()), default=0)
    target = torch.full((size,), torch.nan, dtype=torch.float64)
    placed, problems = Placed(), list[str]()
    for ours, theirs in alignment.pairs.items():
        try:
            solved, notes = _solve(ours, theirs)
            if factors and ours in factors:
                solved[0]["weight"] = solved[0]["weight"] * factors[ours]
                notes["weight"] = f"the file's, times {factors[ours]:g}, which is folded into one of the two"
            pieces = list(_pieces(ours, theirs, solved, notes, module))
        except InputError as error:
            problems.append(f"{ours} from {theirs}: {error}")
            continue
        for weight, value, source, note in pieces:
            problem = _write(target, weight, value)
            if problem:
                problems.append(f"{ours} from {theirs}: {problem}")
            for key in weight.names:
                placed.sources[key] = tuple(dict.fromkeys((*placed.sources.get(key, ()), *source)))
                if note:
                    placed.notes[key] = note
    if problems:
        raise InputError("\n".join(["The module cannot hold the file's weights:", *listed(problems, "problems")]))
    for key, start in module.offsets.items():
        value = module.state()[key]
        found = target[start : start + value.numel()].reshape(value.shape)
        if key in placed.sources and value.is_floating_point() and not found.isnan().any():
            placed.state[key] = found
    return placed


def _pieces(
    ours: Call, theirs: Call, solved: tuple[_Values, _Values], notes: Mapping[str, str], module: Program
) -> Iterator[_Piece]:
    """Yields the weights of a call, each with its value, the file's tensors, and how it was solved.

    Raises:
        InputError: the weights of a layer on a constant cannot be solved.
    """
    own = tuple(dict.fromkeys(name for weight in theirs.pieces for name in weight.names))
    for group, values, others in ((ours.weights, solved[0], theirs.weights), (ours.norm, solved[1], theirs.norm)):
        for role, weight in group.items():
            if weight.layer is not None:
                yield from _of_constant_layer(weight, weight.layer, values[role], others.get(role), module)
                continue
            name = f"norm.{role}" if group is ours.norm else role
            source = others[role].names if role in others and name not in notes else own
            yield weight, values[role], source, notes.get(name, "" if role in others else "the file leaves it out")


def _of_constant_layer(
    weight: Weight, layer: Call, value: torch.Tensor, other: Weight | None, module: Program
) -> Iterator[_Piece]:
    """Yields the weights of the layer that computes a weight: the file's where it has such a layer, else solved."""
    if other is not None and other.layer is not None and other.layer.label == layer.label:
        for role, piece in layer.weights.items():
            if role in other.layer.weights:
                theirs = other.layer.weights[role]
                yield piece, theirs.value, theirs.names, ""
        return
    assert weight.elements is not None  # the numbers of the layer's results
    results = torch.full_like(module.constant(layer.node), torch.nan)
    results.view(-1)[weight.elements.reshape(-1).long()] = value.reshape(-1).double()
    for role, found in constant_layers.solved(layer, module, results).items():
        yield layer.weights[role], found, () if other is None else other.names, COMPUTED


def _write(target: torch.Tensor, weight: Weight, value: torch.Tensor) -> str:
    """Writes the elements of a weight; returns what is wrong with them."""
    if weight.elements is None:
        return ""  # computed from weights, or a constant of the program: the comparison of the values decides
    if value.numel() != weight.elements.numel():
        return f"{list(weight.value.shape)} elements are needed, {list(value.shape)} are there"
    places = weight.elements.reshape(-1).long()
    value = value.reshape(-1).double()
    old = target[places]
    if not ((old == value) | old.isnan()).all():
        return f"{', '.join(weight.names)} would need two values"
    target[places] = value
    # Elements that are read several times, by an expansion or a lookup, must be the same each time.
    return "" if torch.equal(target[places], value) else f"{', '.join(weight.names)} would need two values"


def _solve(ours: Call, theirs: Call) -> tuple[tuple[_Values, _Values], dict[str, str]]:
    """Returns the values of the roles of a call and of its normalisation, and how they were solved."""
    own = {role: weight.value for role, weight in theirs.weights.items()}
    norm = {role: weight.value for role, weight in theirs.norm.items()}
    notes: dict[str, str] = {}
    if ours.norm and norm and ("running_var" in ours.norm) != ("running_var" in norm):
        raise InputError("one has a batch normalisation behind it, the other a scale.")
    if ours.norm and norm:
        norm = _with_epsilon(norm, theirs.epsilon - ours.epsilon)
    elif ours.norm:
        own, norm = _unfolded(ours, own)
        notes = {f"norm.{role}": FOLDED if "running_var" in ours.norm else SCALED for role in ours.norm}
    elif norm:
        own, norm = _folded(theirs), {}
        notes = dict.fromkeys(ours.weights, "what stands behind the file's layer is folded into it")
    elif ours.kind == "batch_norm" and "running_var" in own:
        own = _with_epsilon(own, theirs.epsilon - ours.epsilon)
    return (_fitted(ours.weights, own, ours.kind), _fitted(ours.norm, norm, "batch_norm")), notes


def _with_epsilon(norm: Mapping[str, torch.Tensor], change: float) -> _Values:
    return {role: value + change if role == "running_var" and change else value for role, value in norm.items()}


def _fitted(weights: Mapping[str, Weight], values: Mapping[str, torch.Tensor], kind: str) -> _Values:
    """Returns a value for each role: neutral ones where the file leaves them out.

    Raises:
        InputError: the file has a weight with an effect for which the module has none, or the other way round.
    """
    for role, value in values.items():
        if role not in weights and (role not in _NEUTRAL or not bool((value == _NEUTRAL[role]).all())):
            raise InputError(f"the module's layer has no {role}.")
    found = {}
    for role, weight in weights.items():
        if role not in values and (role not in _NEUTRAL or (kind in LINEAR and role == "weight")):
            raise InputError(f"the file's layer has no {role}.")
        found[role] = values[role] if role in values else torch.full_like(weight.value, _NEUTRAL[role])
    return found


def _unfolded(ours: Call, own: Mapping[str, torch.Tensor]) -> tuple[_Values, _Values]:
    """Returns a folded layer and what was behind it: a scale of 1, or a normalisation that only adds the bias."""
    if "running_var" not in ours.norm:
        return dict(own), {"weight": torch.ones_like(ours.norm["weight"].value)}
    weight = own["weight"]
    like = ours.norm["running_mean"].value
    bias = own.get("bias", torch.zeros_like(like)).reshape(-1).double()
    norm = {"running_mean": torch.zeros_like(bias), "running_var": torch.full_like(bias, 1 - ours.epsilon)}
    if "bias" in ours.norm:
        norm |= {"weight": torch.ones_like(bias), "bias": bias}
    else:
        norm["running_mean"] = -bias
    return {"weight": weight}, norm


def _folded(theirs: Call) -> _Values:
    """Returns the weight and bias of a layer with the normalisation behind it folded into them.

    Raises:
        InputError: of a transposed convolution with groups, whose channels are not in one dimension.
    """
    weight, norm = theirs.weights["weight"].value, {role: w.value for role, w in theirs.norm.items()}
    normed = "running_var" in norm
    scale = norm["weight"].reshape(-1) if "weight" in norm else torch.ones_like(norm["running_var"])
    scale = scale * (norm["running_var"] + theirs.epsilon).rsqrt() if normed else scale
    axis = 1 if theirs.kind == "transposed" else 0
    if weight.shape[axis] != scale.numel():
        raise InputError("what stands behind a transposed convolution with groups is not folded.")
    shape = [-1 if index == axis else 1 for index in range(weight.dim())]
    old = theirs.weights["bias"].value.reshape(-1) if "bias" in theirs.weights else torch.zeros_like(scale)
    bias = (old - norm["running_mean"] if normed else old) * scale
    return {"weight": weight * scale.reshape(shape), "bias": bias + norm["bias"] if "bias" in norm else bias}
