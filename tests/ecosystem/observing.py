"""What tools share: how a module is run and differentiated, and which data two runs are compared by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:  # torchvision is not installed wherever these functions are tested
    from tests.ecosystem.subjects.subject import Subject

Make = Callable[[], nn.Module]

MAX_RELATIVE = 1e-4
"""How far an element may be off, relative to the largest one of its tensor: what the imports' outputs are held to."""

ROUNDING = 1e-7
"""How far it may be off in a tensor of tiny values, such as gradients that cancel out; the others are about 1."""


@dataclasses.dataclass(frozen=True)
class Named:
    """What was seen of modules, in order.

    Of two of these the modules are compared that both have with the same weights (an exporter folds batch norms into
    convolutions, and their results are others then), and of which anything was seen in the first.

    Attributes:
        weights: the own parameters and buffers of all modules, seen or not.
        seen: a name and what was seen, any number of times a name.
    """

    weights: Mapping[str, list[torch.Tensor]]
    seen: list[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class Results:
    """Results of a module, of which a file keeps those that the rest of the model uses.

    Attributes:
        tensors: in order. Another module's have to be among them, in the same order.
    """

    tensors: list[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A tensor that was computed in steps coarser than float32's.

    Attributes:
        tensor: the values, in any type.
        within: how far another's elements may be off, relative to the largest one.
    """

    tensor: torch.Tensor
    within: float

    @classmethod
    def beside(cls, tensor: torch.Tensor, exact: torch.Tensor) -> Rounded:
        """Returns a quantised result; another, rounded too, may be off by twice what this is off the exact one."""
        return cls(tensor, (2 * (tensor - exact).abs().max() / tensor.abs().max()).item())


def emptied(module: nn.Module) -> nn.Module:
    """Returns the module after its state has become zeros, for other weights to be loaded."""
    with torch.no_grad():
        for x in module.state_dict(keep_vars=True).values():
            x.zero_()
    return module


def weights_of(module: nn.Module) -> dict[str, list[torch.Tensor]]:
    """Returns the own parameters and statistics of all modules inside of one, the module's own, `""`, too."""
    found = {}
    for name, inner in module.named_modules(remove_duplicate=False):
        own = [getattr(inner, key, None) for key in ("weight", "bias", "running_mean", "running_var")]
        found[name] = [x.detach() for x in own if isinstance(x, torch.Tensor)]
    return found


def tensors(value: Any) -> list[torch.Tensor]:
    """Returns copies of the tensors in nested tuples, lists and dictionaries, without their gradients."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, (list, tuple)) else []


def results(value: Any) -> list[Any]:
    """Returns the tensors and numbers in the result of a module."""
    if isinstance(value, (bool, int, float)):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [item for one in value for item in results(one)] if isinstance(value, (list, tuple)) else tensors(value)


def by_name(calls: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the order of calls, and what was seen of each module."""
    found: dict[str, Any] = {"order": [name for name, _ in calls]}
    for name, seen in calls:
        found.setdefault(name, []).append(seen)
    return found


def number_of(outputs: torch.Tensor) -> torch.Tensor:
    """Returns a number to differentiate, in which every element of the outputs has a weight of its own."""
    return (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum()


def block_of(module: nn.Module, path: str) -> nn.Module:
    """Returns a block as users reach it: `model.layer1[0]`, with an index where the name is a number."""
    for name in path.split("."):
        module = module[int(name)] if name.isdigit() else getattr(module, name)  # type: ignore[index]  # a list
    return module


def outputs_and_gradient(module: nn.Module, subject: Subject) -> dict[str, torch.Tensor]:
    """Runs a module and differentiates it by its image, or by the vectors of its tokens.

    Returns:
        `outputs` and `gradient`.
    """
    inputs = subject.inputs(2)
    if not subject.embedding:
        inputs = tuple(x.clone().requires_grad_() for x in inputs)
        looked_up = list(inputs)
    else:
        looked_up = []
        layer = module.get_submodule(subject.embedding)
        handle = layer.register_forward_hook(lambda _, __, vectors: looked_up.append(vectors))
    outputs = module(*inputs)
    if subject.embedding:
        handle.remove()
    (gradient,) = torch.autograd.grad(number_of(outputs), looked_up)
    return {"outputs": outputs.detach(), "gradient": gradient}


def outputs_of(module: Callable[..., Any], subject: Subject, batch: int = 2) -> list[torch.Tensor]:
    """Returns the outputs of a module or function without gradients."""
    with torch.no_grad():
        return tensors(module(*subject.inputs(batch)))


def difference(expected: Any, found: Any, where: str = "") -> str:
    """Returns the first difference of two observations in words, `""` where there is none."""
    if type(expected) is not type(found):
        return f"{where}: {type(found).__name__} instead of {type(expected).__name__}"
    if isinstance(expected, torch.Tensor):
        return _of_tensors(expected, found, where)
    if isinstance(expected, Rounded):
        return _of_tensors(expected.tensor, found.tensor, where, expected.within)
    if isinstance(expected, Named):
        return _of_named(expected, found, where)
    if isinstance(expected, Results):
        return _of_results(expected.tensors, found.tensors, where)
    if isinstance(expected, Mapping):
        if expected.keys() != found.keys():
            added, lacking = sorted(found.keys() - expected.keys()), sorted(expected.keys() - found.keys())
            return f"{where}: {added} added, {lacking} lacking"
        return next(filter(None, (difference(expected[k], found[k], f"{where} {k}".strip()) for k in expected)), "")
    if isinstance(expected, (list, tuple)):
        if len(expected) != len(found):
            return f"{where}: {len(found)} values instead of {len(expected)}"
        pairs = zip(expected, found, strict=True)
        return next(filter(None, (difference(one, two, where) for one, two in pairs)), "")
    return "" if expected == found else f"{where}: {found} instead of {expected}"


def _of_tensors(expected: torch.Tensor, found: torch.Tensor, where: str, max_relative: float = MAX_RELATIVE) -> str:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        described = [f"{x.dtype} {tuple(x.shape)}".removeprefix("torch.") for x in (found, expected)]
        return f"{where}: {described[0]} instead of {described[1]}"
    if not expected.is_floating_point():
        return "" if torch.equal(expected, found) else f"{where}: other values"
    if not expected.numel():
        return ""
    off = (expected.double() - found.double()).abs().max().item()
    scale = expected.double().abs().max().item()
    return "" if off <= max_relative * scale + ROUNDING else f"{where}: off by {off:.1e} at scale {scale:.1e}"


def _of_results(expected: list[torch.Tensor], found: list[torch.Tensor], where: str) -> str:
    if not found:
        return f"{where}: no tensors"
    reason, left = "", iter(expected)
    for tensor in found:
        reasons = []
        for other in left:
            reasons.append(difference(other, tensor, where))
            if not reasons[-1]:
                break
        else:
            reason = reasons[0] if reasons else f"{where}: {len(found)} tensors instead of {len(expected)}"
            break
    return reason


def _of_named(expected: Named, found: Named, where: str) -> str:
    shared = comparable(expected, found)
    one, two = ([entry for entry in named.seen if entry[0] in shared] for named in (expected, found))
    order = [name for name, _ in one], [name for name, _ in two]
    for name in dict.fromkeys(order[0] + order[1]):
        counts = order[1].count(name), order[0].count(name)
        if counts[0] != counts[1]:
            return f"{where} {name or 'the model'}: seen {counts[0]} times instead of {counts[1]}".strip()
    if order[0] != order[1]:
        first, second = next(pair for pair in zip(*order, strict=True) if pair[0] != pair[1])
        return f"{where} {second or 'the model'} comes before {first or 'the model'}".strip()
    pairs = zip(one, two, strict=True)
    return next(filter(None, (difference(a[1], b[1], f"{where} {a[0] or 'the model'}".strip()) for a, b in pairs)), "")


def comparable(expected: Named, found: Named) -> set[str]:
    """Returns the names of the modules that are compared."""
    seen = {name for name, _ in expected.seen}
    return {name for name in seen & found.weights.keys() if not difference(expected.weights[name], found.weights[name])}
