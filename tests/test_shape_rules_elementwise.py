"""The rules of elementwise functions give torch's shapes and dtypes for all sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from onnx2nn.fx.shape_rules import elementwise
from onnx2nn.fx.shape_rules.rule import RULES
from tests.symbolic_sizes import (
    Call,
    Free,
    any_axis,
    any_shape,
    check_rule,
    is_covered,
    meta,
    name_of,
    rules_of,
    stored,
)

_DTYPES = (
    torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8,
    torch.bool, torch.complex64,
)  # fmt: skip
_NUMBERS = (2.0, -1.5, 1, -3, True, Free(2), Free(0), 2j)


def _tensor(random: Random, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor that can be broadcast with one of `shape`, most of the time."""
    own = [random.choice((size, size, 1)) for size in shape[random.randrange(len(shape) + 1) :]]
    if random.random() < 0.3:
        own = list(shape)
    if random.random() < 0.05:
        own = any_shape(random)
    return meta(*own, dtype=dtype if random.random() < 0.7 else random.choice(_DTYPES))


def _operands(random: Random) -> Call:
    """Returns up to three tensors or numbers."""
    shape, dtype = any_shape(random), random.choice(_DTYPES)
    args: list[Any] = [_tensor(random, shape, dtype)]
    for _ in range(random.choice((0, 1, 1, 2))):
        args.append(_tensor(random, shape, dtype) if random.random() < 0.6 else random.choice(_NUMBERS))
    return tuple(args), {}


def _where(random: Random) -> Call:
    (x, *others), _ = _operands(random)
    condition = x if isinstance(x, torch.Tensor) else meta()
    return (condition.bool() if random.random() < 0.8 else condition, *others), {}


def _where_method(random: Random) -> Call:
    (condition, *others), _ = _where(random)
    return (*others[:1], condition, *others[1:]), {}


def _masked_fill(random: Random) -> Call:
    shape = any_shape(random)
    mask = _tensor(random, shape, torch.bool)
    return (_tensor(random, shape, torch.float32), mask, random.choice((1.0, 2, meta()))), {}


def _bounds(random: Random) -> Call:
    args, _ = _operands(random)
    return args[:1], dict(zip(random.sample(("min", "max"), 2), args[1:], strict=False))


def _rounding(random: Random) -> Call:
    args, _ = _operands(random)
    return args[:2], {"rounding_mode": random.choice((None, "floor", "trunc"))}


def _scaled(random: Random) -> Call:
    return _operands(random)[0], {"value": random.choice((0.5, 2))}


def _options(random: Random) -> Call:
    """Returns a tensor and an option that many functions have."""
    args, _ = _operands(random)
    return args[:1], {"dtype": random.choice(_DTYPES)}


def _shifted(random: Random) -> Call:
    return _operands(random)[0], {"alpha": random.choice((0.5, 2))}


def _slopes(random: Random) -> Call:
    shape = any_shape(random)
    weight = random.choice(([1], [], any_shape(random, 1), shape[1:2]))
    dtype = random.choice((torch.float32, torch.float64))
    return (meta(*shape), meta(*weight, dtype=torch.float32 if random.random() < 0.9 else dtype)), {}


def _along_axis(random: Random) -> Call:
    shape = any_shape(random)
    options = {"dtype": torch.float64} if random.random() < 0.2 else {}
    return (meta(*shape, dtype=random.choice((torch.float32, torch.float16))), any_axis(random, len(shape))), options


def _dropout(random: Random) -> Call:
    return (meta(*any_shape(random)), random.choice((0.0, 0.5, 2.0)), random.choice((True, False))), {}


def _to(random: Random) -> Call:
    x = meta(*any_shape(random), dtype=random.choice(_DTYPES))
    dtype = random.choice(_DTYPES)
    return random.choice(
        (((x, dtype), {}), ((x,), {"dtype": dtype}), ((x, meta(3, dtype=dtype)), {}), ((x, "meta"), {}))
    )


def _two(random: Random) -> Call:
    return (meta(*any_shape(random)), meta(*any_shape(random), dtype=random.choice(_DTYPES))), {}


def _of_dtype(random: Random) -> Call:
    return (meta(*any_shape(random)), random.choice(_DTYPES)), {}


def _one(random: Random) -> Call:
    return (meta(*any_shape(random), dtype=random.choice(_DTYPES)),), {}


def _stored(random: Random) -> Call:
    return (stored(*any_shape(random)),), {}  # a meta tensor can not be moved


def _pairs(random: Random) -> Call:
    dtype = random.choice((torch.float32, torch.float64, torch.float16, torch.complex64, torch.int64))
    return (meta(*any_shape(random), random.choice((2, 2, 3)), dtype=dtype),), {}


_SPECIAL: dict[Any, tuple[Callable[[Random], Call], ...]] = {
    torch.where: (_where,),
    "where": (_where_method,),
    **dict.fromkeys((torch.masked_fill, "masked_fill"), (_masked_fill,)),
    **dict.fromkeys((torch.clamp, torch.clip, "clamp", "clip"), (_bounds, _operands)),
    **dict.fromkeys((torch.div, torch.divide, "div", "divide"), (_rounding, _operands)),
    **dict.fromkeys((torch.addcmul, torch.addcdiv, "addcmul", "addcdiv"), (_scaled, _operands)),
    **dict.fromkeys((torch.add, torch.sub, "add", "sub"), (_shifted, _operands)),
    **dict.fromkeys((torch.zeros_like, torch.ones_like, torch.empty_like), (_options, _operands)),
    **dict.fromkeys((torch.prelu, torch.nn.functional.prelu, "prelu"), (_slopes,)),
    **dict.fromkeys((torch.softmax, torch.log_softmax, "softmax", "log_softmax"), (_along_axis,)),
    torch.nn.functional.softmax: (_along_axis,),
    torch.nn.functional.log_softmax: (_along_axis,),
    torch.nn.functional.softmin: (_along_axis,),
    torch.dropout: (_dropout,),
    "to": (_to,),
    "type": (_of_dtype,),
    "type_as": (_two,),
    "cpu": (_stored,),
    torch.view_as_real: (_one,),
    torch.view_as_complex: (_pairs,),
}
_TARGETS = rules_of(elementwise)


def _call(random: Random, target: Any) -> Call:
    args, kwargs = random.choice(_SPECIAL.get(target, (_operands,)))(random)
    turned = not isinstance(target, str) and random.random() < 0.1  # a method's first operand is a tensor
    return (args[1::-1] + args[2:] if turned else args), kwargs


def test_no_special_call_is_of_an_unknown_rule() -> None:
    assert set(_SPECIAL) <= set(_TARGETS)
    assert {operator.add, torch.add, "add", torch.nn.functional.gelu} < set(_TARGETS)


@pytest.mark.filterwarnings("ignore:This overload of:UserWarning", "ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("target", _TARGETS, ids=name_of)
def test_rule_gives_the_shapes_and_dtypes_of_torch(target: Any) -> None:
    check_rule(target, lambda random: _call(random, target))


def test_sizes_that_can_not_be_broadcast_are_refused() -> None:
    random = Random(0)
    covered = [
        is_covered(random, operator.add, (meta(2, size), meta(size + 1)), {}) for size in range(3) for _ in range(9)
    ]
    assert any(covered) and not all(covered)


def test_rules_have_no_unknown_name() -> None:
    assert all(hasattr(torch.Tensor, target) for target in RULES if isinstance(target, str))
