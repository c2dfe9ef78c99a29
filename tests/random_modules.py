"""Random nested modules.

A module is a list of steps on a growing list of values, all `(batch, time, 6)`: functions, calls of its submodules, its
own weights, and values that it leaves in a context for modules elsewhere. Submodules are layers, lists, or such modules
again; some are shared by several parents and called several times. Positions of values count modulo their number, so
that any step may be left out, which is how a faulty module is made small.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.random_layers import (
    ATTENDING,
    BRANCHING,
    EXTENDED,
    FEATURES,
    LAYERS,
    MODULATING,
    OF_TWO,
    TIME,
    WEIGHTED,
    linear,
)

Values = Sequence[torch.Tensor]


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: (x + y) * 0.5,
    "multiply": lambda x, y: x * torch.tanh(y),
    "relu": lambda x, y: F.relu(x),
    "gelu": lambda x, y: F.gelu(x),
    "choose": lambda x, y: torch.where(x > 0, x, y),
    "join": lambda x, y: torch.cat([x, y], -1)[..., 3 : 3 + FEATURES],
    "halves": lambda x, y: torch.stack(torch.cat([x, y], -1).chunk(2, -1)).mean(0),
    "flatten": lambda x, y: torch.tanh(x.reshape(x.size(0), -1)).reshape(x.size(0), x.size(1), FEATURES),
    "attend": lambda x, y: torch.softmax(x @ y.transpose(1, 2), -1) @ y,
    "positions": lambda x, y: x + torch.arange(x.size(1))[:, None] * 0.1,
    "normalise": lambda x, y: F.layer_norm(x, (FEATURES,)),
}


def _padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    size = x.size(0)
    return torch.tanh(F.pad(x, (0, 0, 0, 0, 0, -size % 4)))[:size]


def _averaged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Groups of four samples, of which the last may be filled up; each adds its mean to its samples."""
    size = x.size(0)
    groups = (size + 3) // 4
    full = F.pad(x, (0, 0, 0, 0, 0, groups * 4 - size)).reshape(groups, 4, TIME, FEATURES)
    return y + full.mean(1, keepdim=True).expand(full.shape).reshape(groups * 4, TIME, FEATURES)[:size]


def _moved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    half = x.size(0) // 2
    return torch.cat([x[half:], y[:half]])


def _looked_up(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.embedding(x.argmax(-1).clamp(max=TIME - 1), torch.tanh(y[0]))


def _chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The samples that data choose, whose number is in no shape."""
    rows = torch.nonzero(x[:, 0, 0] > 0)[:, 0]
    return y.index_add(0, rows, F.avg_pool1d(x[rows], 3, 1, 1))


SIZED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rest": lambda x, y: x * torch.sigmoid(y) + (1 - torch.sigmoid(y)) * y,
    "padded": _padded,
    "averaged": _averaged,
    "moved": _moved,
    "looked_up": _looked_up,
    "chosen": _chosen,
}
"""Functions that compute with the batch size, or with what data choose."""


@dataclass(frozen=True)
class Step:
    """One step: a function, `call` of a submodule, `own` weights, or `leave` and `take` of the context.

    Attributes:
        kind: a name in `FUNCTIONS` or `SIZED`, or one of those words.
        values: positions of its values.
        name: of the submodule, the weight or the value in the context.
    """

    kind: str
    values: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True)
class Plan:
    """A module: its steps and its submodules: a layer's name, a plan, a list of them, or the number of a shared one."""

    steps: tuple[Step, ...]
    children: Mapping[str, Any]
    results: int = 1


@dataclass(frozen=True)
class Model:
    """A plan, the plans and layers that several modules of it share, and the number of its inputs.

    Attributes:
        plan: of the body.
        shared: the plans and layers.
        inputs: their number.
        backwards: whether modules declare first what they use last.
    """

    plan: Plan
    shared: tuple[Any, ...]
    inputs: int
    backwards: bool = False


class Part(nn.Module):
    """A module of a plan; its submodules are those that its steps call."""

    def __init__(self, plan: Plan, build: Callable[[Any], nn.Module], backwards: bool):
        super().__init__()
        self.plan = plan
        for step in reversed(plan.steps) if backwards else plan.steps:
            if step.kind == "call" and not hasattr(self, step.name):
                self.add_module(step.name, build(plan.children[step.name]))
            elif step.kind == "own" and not hasattr(self, step.name):
                value = torch.rand(FEATURES) + 0.5
                if step.name.startswith("scale"):
                    self.register_parameter(step.name, nn.Parameter(value))
                else:
                    self.register_buffer(step.name, value, persistent=step.name.startswith("offset"))

    def forward(self, context: dict[str, torch.Tensor], *given: torch.Tensor) -> Any:
        values, used = list(given), set[int]()
        for step in self.plan.steps:
            first, second = (position % len(values) for position in step.values)
            x, y = values[first], values[second]
            if step.kind != "leave":
                used.add(first)
            if step.kind == "call":
                found = [x]
                module = getattr(self, step.name)
                for inner in module if isinstance(module, nn.ModuleList) else [module]:
                    found = _call(inner, context, [sum(found[1:], found[0]), y])
                values += found
            elif step.kind == "own":
                values.append(x * getattr(self, step.name))
            elif step.kind == "leave":
                context[step.name] = x
            elif step.kind == "take":
                values.append((x + context.get(step.name, x)) * 0.5)
            else:
                values.append((FUNCTIONS | SIZED)[step.kind](x, y))
        result = values[-1]
        for position, value in enumerate(values[:-1]):
            if position not in used:
                result = result + value * 0.5
        return result if self.plan.results == 1 else (result, values[len(values) // 2])


def _call(module: nn.Module, context: dict[str, torch.Tensor], given: Values) -> list[torch.Tensor]:
    if isinstance(module, Part):
        found = module(context, *given)
    else:
        found = module(*given) if isinstance(module, OF_TWO) else module(given[0])
    return list(found) if isinstance(found, tuple) else [found]


class Root(nn.Module):
    """The outermost module, whose inputs are tensors."""

    def __init__(self, model: Model):
        super().__init__()
        shared: dict[int, nn.Module] = {}

        def build(child: Any) -> nn.Module:
            if isinstance(child, Plan):
                kind = type(f"Part{letters_of(child)}", (Part,), {})
                return kind(child, build, model.backwards)
            if isinstance(child, list):
                return nn.ModuleList(build(inner) for inner in child)
            if isinstance(child, int):
                if child not in shared:
                    shared[child] = build(model.shared[child])
                return shared[child]
            return (LAYERS | BRANCHING | MODULATING | EXTENDED | ATTENDING | WEIGHTED)[child]()

        parts: dict[str, Callable[[], nn.Module]] = {"body": lambda: build(model.plan), "head": linear}
        for name in sorted(parts, reverse=model.backwards):
            self.add_module(name, parts[name]())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        found = self.body({}, x, y)
        return self.head(found) if isinstance(found, torch.Tensor) else (self.head(found[0]), found[1])


def letters_of(plan: Plan) -> str:
    """Returns letters that differ for different plans."""
    return "".join(chr(97 + int(digit, 16)) for digit in f"{zlib.crc32(repr(plan).encode()):x}"[:4])


def draw(seed: int, functions: Collection[str] = FUNCTIONS, layers: Collection[str] = LAYERS) -> Model:
    """Returns the random model of a seed.

    Args:
        seed: of it.
        functions: names in `FUNCTIONS` and `SIZED`, of which its steps take.
        layers: names in the dictionaries of tests/random_layers.py, of which its modules take.
    """
    return _Drawing(random.Random(seed), list(functions), list(layers)).model()


def draw_sized(seed: int) -> Model:
    """Returns the random model of a seed, with functions of sizes and choices by data."""
    return draw(seed, [*FUNCTIONS, *SIZED, *SIZED], [*LAYERS, *BRANCHING])


def draw_backwards(seed: int) -> Model:
    """Returns the random model of a seed whose modules declare first what they use last."""
    return replace(draw(seed), backwards=True)


def draw_modulated(seed: int) -> Model:
    """Returns the random model of a seed, many of whose layers take a second value and activate it each."""
    return draw(seed, layers=[*LAYERS, *MODULATING, *MODULATING, *MODULATING])


def draw_extended(seed: int) -> Model:
    """Returns the random model of a seed, many of whose layers do more than torch's plain ones."""
    return draw(seed, layers=[*LAYERS, *EXTENDED, *EXTENDED, *EXTENDED])


def draw_attending(seed: int) -> Model:
    """Returns the random model of a seed, many of whose layers attend by `nn.MultiheadAttention`."""
    return draw(seed, layers=[*LAYERS, *ATTENDING, *ATTENDING])


def draw_weighted(seed: int) -> Model:
    """Returns the random model of a seed, many of whose layers compute with their weights alone."""
    return draw(seed, layers=[*LAYERS, *WEIGHTED, *WEIGHTED, *WEIGHTED, *WEIGHTED])


@dataclass(frozen=True)
class _Drawing:
    rng: random.Random
    functions: Sequence[str]
    layers: Sequence[str]

    def model(self) -> Model:
        shared = [self.rng.choice([*self.layers, None]) or self._plan(1, 0) for _ in range(self.rng.randrange(3))]
        return Model(self._plan(3, len(shared)), tuple(shared), 2)

    def _plan(self, depth: int, shared: int) -> Plan:
        children: dict[str, Any] = {}
        for number in range(self.rng.randint(1, 3)):
            children[self.rng.choice(["block", "layer", "conv", "act", "mixer"]) + str(number)] = self._child(
                depth - 1, shared
            )
        steps = []
        for _ in range(self.rng.randint(2, 6)):
            values = (self.rng.randrange(8), self.rng.randrange(8))
            kind = self.rng.choices(["call", "function", "own", "leave", "take"], [5, 4, 1, 1, 1])[0]
            if kind == "call":
                steps.append(Step(kind, values, self.rng.choice(list(children))))
            elif kind == "function":
                steps.append(Step(self.rng.choice(self.functions), values))
            else:
                names = {"own": ["scale", "offset", "ramp"], "leave": ["a", "b"], "take": ["a", "b"]}[kind]
                steps.append(Step(kind, values, self.rng.choice(names)))
        return Plan(tuple(steps), children, self.rng.choice([1, 1, 2]))

    def _child(self, depth: int, shared: int) -> Any:
        if shared and self.rng.random() < 0.2:
            return self.rng.randrange(shared)
        if depth and self.rng.random() < 0.6:
            if self.rng.random() < 0.3:
                one = self._plan(depth, shared)
                return [
                    one if self.rng.random() < 0.7 else self.rng.choice(self.layers)
                    for _ in range(self.rng.randint(2, 3))
                ]
            return self._plan(depth, shared)
        return self.rng.choice(self.layers)


def smaller(model: Model) -> Iterator[Model]:
    """Yields models with one step less, or with one result less, somewhere."""
    for plan in _smaller_plans(model.plan):
        yield replace(model, plan=plan)
    for index, child in enumerate(model.shared):
        for plan in _smaller_plans(child) if isinstance(child, Plan) else ():
            yield replace(model, shared=(*model.shared[:index], plan, *model.shared[index + 1 :]))


def _smaller_plans(plan: Plan) -> Iterator[Plan]:
    for index in range(len(plan.steps)):
        yield replace(plan, steps=plan.steps[:index] + plan.steps[index + 1 :])
    if plan.results > 1:
        yield replace(plan, results=1)
    for name, child in plan.children.items():
        if isinstance(child, list) and len(child) > 1:
            yield replace(plan, children={**plan.children, name: child[1:]})
        if isinstance(child, (list, Plan)):
            yield replace(plan, children={**plan.children, name: "relu"})
        for inner in _smaller_plans(child) if isinstance(child, Plan) else ():
            yield replace(plan, children={**plan.children, name: inner})
        for position, item in enumerate(child) if isinstance(child, list) else ():
            for inner in _smaller_plans(item) if isinstance(item, Plan) else ():
                changed = [*child[:position], inner, *child[position + 1 :]]
                yield replace(plan, children={**plan.children, name: changed})


def shrunk(model: Model, fails: Callable[[Model], bool], attempts: int = 200) -> Model:
    """Returns a small model of which `fails` is true, as it is of `model`."""
    progress = True
    while progress and attempts > 0:
        progress = False
        for candidate in smaller(model):
            attempts -= 1
            if attempts <= 0:
                break
            if fails(candidate):
                model, progress = candidate, True
                break
    return model


def original_of(model: Model) -> nn.Module:
    """Returns the module of a model, with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Root(model).eval()
