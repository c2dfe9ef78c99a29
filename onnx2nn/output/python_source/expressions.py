"""Python expressions as data, and their text in ruff's and black's format."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx2nn.ground.naming import is_attribute

WIDTH = 88
"""Longest line, the default of ruff and black."""


def is_writable(name: str) -> bool:
    """Returns whether a name can be written in a class; Python gives `__x` the name of the class there."""
    return is_attribute(name) and (not name.startswith("__") or name.endswith("__"))


@dataclass(frozen=True)
class Text:
    """An expression given as its text: a name, an attribute of torch, a literal."""

    text: str


@dataclass(frozen=True)
class Hole:
    """A number, or tuple of numbers, that may differ between instances of a class; the instances hold its values."""

    index: int


@dataclass(frozen=True)
class Value:
    """A value of a forward, by number: first its arguments, then the results of its calls."""

    index: int


@dataclass(frozen=True)
class Call:
    """A call."""

    function: Expression
    args: tuple[Expression, ...] = ()
    kwargs: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True)
class Attribute:
    """An attribute of a value."""

    value: Expression
    name: str


@dataclass(frozen=True)
class Subscript:
    """An item of a value."""

    value: Expression
    index: Expression


@dataclass(frozen=True)
class Infix:
    """An operator between two values; `precedence` as in `_PRECEDENCE`."""

    symbol: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Prefix:
    """An operator before a value."""

    symbol: str
    value: Expression


@dataclass(frozen=True)
class Pair:
    """A key and its value in a dict display."""

    key: str
    value: Expression


@dataclass(frozen=True)
class Collection:
    """A tuple, list or, of `Pair`s, a dict."""

    brackets: str
    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Slice:
    """A slice in a subscript; None where a bound is left out."""

    start: Expression | None
    stop: Expression | None
    step: Expression | None


@dataclass(frozen=True)
class Repeated:
    """The items of a generator that gives an expression `count` times; unpacked among other items, or alone."""

    item: Expression
    count: int
    unpacked: bool


@dataclass(frozen=True)
class Unless:
    """A keyword argument that is left out where it is the default."""

    value: Expression
    default: Any

    def is_default(self) -> bool:
        """Returns whether the value is the default."""
        return self.value == Text(literal(self.default))


@dataclass(frozen=True)
class New:
    """A new module of a class of the file: the class's number, and the range of this class's holes that are its own."""

    kind: int
    first: int
    count: int


@dataclass(frozen=True)
class Modules:
    """Modules in an `nn.Sequential`, `nn.ModuleList`, `nn.ModuleDict` or `nn.ParameterDict`, with their names."""

    kind: str
    items: tuple[tuple[str, Expression], ...]


Expression: TypeAlias = (
    "Text | Hole | Value | Call | Attribute | Subscript | Infix | Prefix | Pair | Collection | Slice | Repeated"
    " | Unless | New | Modules"
)

INFIX: dict[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>", operator.eq: "==", operator.ne: "!=",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    "__and__": "&", "__or__": "|", "__xor__": "^", "__lshift__": "<<", "__rshift__": ">>",
}  # fmt: skip
PREFIX: dict[Any, str] = {operator.neg: "-", operator.invert: "~", operator.pos: "+"}

_PRECEDENCE: dict[str, int] = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 1),
    "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6,
    **dict.fromkeys(("*", "/", "//", "%", "@"), 7),
    "**": 9,
}  # fmt: skip
_UNARY, _ATOM = 8, 10


def precedence(expression: Expression) -> int:
    """Returns how tightly an expression binds."""
    if isinstance(expression, Infix):
        return _PRECEDENCE[expression.symbol]
    if isinstance(expression, Prefix):
        return _UNARY
    if isinstance(expression, Text) and expression.text[:1] == "-":
        return _UNARY
    return _ATOM


def literal(value: Any) -> str:
    """Returns the text of a number, string, None or tuple of them."""
    if isinstance(value, float) and value != value:
        return 'float("nan")'
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'{"-" * (value < 0)}float("inf")'
    if isinstance(value, str):
        return '"' + value.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return repr(value)


def inline(expression: Expression) -> str:
    """Returns an expression in one line; it holds no `Hole`, `Value` or `New` any more."""
    match expression:
        case Text(text):
            return text
        case Unless(value, _):
            return inline(value)
        case Call(function, args, kwargs):
            return f"{_operand(function, _ATOM)}({', '.join(_arguments(args, kwargs, inline))})"
        case Attribute(value, name):
            return f"{_operand(value, _ATOM)}.{name}"
        case Subscript(value, index):
            if isinstance(index, Collection) and index.brackets == "()" and index.items:
                text = ", ".join(map(inline, index.items))
            else:
                text = inline(index)
            return f"{_operand(value, _ATOM)}[{text}]"
        case Infix(symbol, left, right):
            level = _PRECEDENCE[symbol]
            tight = symbol == "**" and _is_simple(left) and _is_simple(right)
            space = "" if tight else " "
            above = level + (symbol == "**" or level == 1)
            after = level + (symbol != "**")
            if symbol == "**" and precedence(right) == _UNARY:
                after = _UNARY
            return f"{_operand(left, above)}{space}{symbol}{space}{_operand(right, after)}"
        case Prefix(symbol, value):
            return f"{symbol}{_operand(value, _UNARY)}"
        case Pair(key, value):
            return f"{literal(key)}: {inline(value)}"
        case Collection(brackets, items):
            comma = "," if brackets == "()" and len(items) == 1 else ""
            return f"{brackets[0]}{', '.join(map(inline, items))}{comma}{brackets[1]}"
        case Repeated(item, count, unpacked):
            text = f"{inline(item)} for _ in range({count})"
            return f"*({text})" if unpacked else text
        case Slice(start, stop, step):
            bounds = [start, stop] if step is None else [start, stop, step]
            loose = any(isinstance(bound, (Attribute, Call, Infix, Subscript)) for bound in bounds)
            texts = ["" if bound is None else inline(bound) for bound in bounds]
            return (" : " if loose else ":").join(texts).strip(" ")
    raise AssertionError(expression)


def _is_simple(expression: Expression) -> bool:
    """Returns whether a power of this operand is written without spaces."""
    if isinstance(expression, (Attribute, Prefix)):
        return _is_simple(expression.value)
    return isinstance(expression, Text)


def _operand(expression: Expression, least: int) -> str:
    text = inline(expression)
    number = isinstance(expression, Text) and least == _ATOM and text[:1].isdigit()
    return f"({text})" if precedence(expression) < least or number else text


def _arguments(
    args: Sequence[Expression], kwargs: Sequence[tuple[str, Expression]], text: Callable[[Expression], str]
) -> list[str]:
    return [*map(text, args), *(f"{name}={text(value)}" for name, value in kwargs)]


def lines(prefix: str, expression: Expression, suffix: str, indent: int) -> list[str]:
    """Returns `prefix`, the expression and `suffix` as lines that fit, the first without its indentation."""
    whole = f"{prefix}{inline(expression)}{suffix}"
    if indent + len(whole) <= WIDTH:
        return [whole]
    inner = indent + 4
    chain = _chain(expression)
    if len(chain) > 2 and prefix.endswith(("= ", "return ")):
        text = "".join(chain)
        rows = [text] if inner + len(text) <= WIDTH else chain
        return [f"{prefix}(", *(f"    {row}" for row in rows), f"){suffix}"]
    if isinstance(expression, Call) and (expression.args or expression.kwargs):
        head, tail = f"{prefix}{_operand(expression.function, _ATOM)}(", f"){suffix}"
        if indent + len(head) > WIDTH and prefix.endswith("= "):
            return [f"{prefix}(", *(f"    {line}" for line in lines("", expression, "", inner)), f"){suffix}"]
        together = ", ".join(_arguments(expression.args, expression.kwargs, inline))
        if inner + len(together) <= WIDTH:
            return [head, f"    {together}", tail]
        items = [("", arg) for arg in expression.args] + [(f"{name}=", arg) for name, arg in expression.kwargs]
        alone = len(items) == 1 and isinstance(items[0][1], Repeated)
        return [head, *_each(items, inner, "" if alone else ","), tail]
    if isinstance(expression, Collection):
        head, tail = f"{prefix}{expression.brackets[0]}", f"{expression.brackets[1]}{suffix}"
        pairs = [(f"{literal(i.key)}: ", i.value) if isinstance(i, Pair) else ("", i) for i in expression.items]
        return [head, *_each(pairs, inner, ","), tail]
    if isinstance(expression, Subscript) and not prefix.endswith((" = ", "return ")):
        index = lines("", expression.index, "", inner)
        return [f"{prefix}{_operand(expression.value, _ATOM)}[", *(f"    {line}" for line in index), f"]{suffix}"]
    if isinstance(expression, Repeated):
        last = f"for _ in range({expression.count})"
        if not expression.unpacked:
            return [*lines(prefix, expression.item, "", indent), f"{last}{suffix}"]
        return [f"{prefix}*(", *_each([("", expression.item)], inner, ""), f"    {last}", f"){suffix}"]
    if isinstance(expression, Infix) and isinstance(expression.right, Call) and not isinstance(expression.left, Infix):
        left = f"{prefix}{_operand(expression.left, precedence(expression))} {expression.symbol} "
        split = lines(left, expression.right, suffix, indent)
        if expression.right.args and len(split) > 1 and indent + len(split[0]) <= WIDTH:
            return split
    if isinstance(expression, (Infix, Prefix)):
        text = inline(expression)
        rows = [text] if inner + len(text) <= WIDTH else _operands(expression)
        return [f"{prefix}(", *(f"    {row}" for row in rows), f"){suffix}"]
    return [whole]


def _chain(expression: Expression) -> list[str]:
    """Returns the rows of a chain of calls: its beginning up to the first call, then each call of a method."""
    rows: list[str] = []
    while isinstance(expression, Call) and isinstance(expression.function, Attribute):
        called = expression.function.value
        if not isinstance(called, (Call, Subscript)):
            break
        arguments = ", ".join(_arguments(expression.args, expression.kwargs, inline))
        rows.insert(0, f".{expression.function.name}({arguments})")
        expression = called
    return [_operand(expression, _ATOM), *rows]


def _operands(expression: Expression) -> list[str]:
    """Returns the operands of a chain of operators of one precedence, each but the first with its operator in front."""
    rows: list[str] = []
    level = precedence(expression)
    while isinstance(expression, Infix) and precedence(expression) == level:
        rows.insert(0, f"{expression.symbol} {_operand(expression.right, level + 1)}")
        expression = expression.left
    return [_operand(expression, level), *rows]


def _each(items: Sequence[tuple[str, Expression]], indent: int, comma: str) -> list[str]:
    return [f"    {line}" for prefix, item in items for line in lines(prefix, item, comma, indent)]


def substitute(expression: Expression, known: Callable[[Expression], Expression | None]) -> Expression:
    """Returns an expression in which each part for which `known` returns an expression is replaced by it."""
    found = known(expression)
    if found is not None:
        return found

    def again(part: Expression) -> Expression:
        return substitute(part, known)

    match expression:
        case Call(function, args, kwargs):
            named = ((name, again(arg)) for name, arg in kwargs)
            kept = ((name, arg) for name, arg in named if not (isinstance(arg, Unless) and arg.is_default()))
            return Call(again(function), tuple(map(again, args)), tuple(kept))
        case Unless(value, default):
            return Unless(again(value), default)
        case Attribute(value, name):
            return Attribute(again(value), name)
        case Subscript(value, index):
            return Subscript(again(value), again(index))
        case Infix(symbol, left, right):
            return Infix(symbol, again(left), again(right))
        case Prefix(symbol, value):
            return Prefix(symbol, again(value))
        case Pair(key, value):
            return Pair(key, again(value))
        case Collection(brackets, items):
            return Collection(brackets, tuple(map(again, items)))
        case Slice(start, stop, step):
            return Slice(*(part if part is None else again(part) for part in (start, stop, step)))
        case Modules(kind, items):
            return modules(kind, [(name, again(item)) for name, item in items])
    return expression


def values(expression: Expression) -> list[int]:
    """Returns the numbers of the values that an expression uses, with repetitions."""
    found: list[int] = []

    def note(part: Expression) -> None:
        if isinstance(part, Value):
            found.append(part.index)

    substitute(expression, note)
    return found


def modules(kind: str, items: Sequence[tuple[str, Expression]]) -> Expression:
    """Returns the call that makes a container of modules; a module repeated is written once."""
    if kind in ("ModuleDict", "ParameterDict"):
        return Call(Text(f"nn.{kind}"), (Collection("{}", tuple(Pair(name, item) for name, item in items)),))
    texts = [inline(item) for _, item in items]
    same = len(set(texts)) == 1 and len(texts) > 2
    numbered = [name for name, _ in items] == [str(number) for number in range(len(items))]
    if not numbered:
        stem = items[0][0].rstrip("0123456789")
        start = items[0][0][len(stem) :]
        series = start.isdecimal() and [n for n, _ in items] == [f"{stem}{int(start) + i}" for i in range(len(items))]
        if same and series and re.fullmatch(r"[\w-]*", stem):
            numbers = f"range({len(items)})" if start == "0" else f"range({start}, {int(start) + len(items)})"
            inner = Text(f'(f"{stem}{{i}}", {texts[0]}) for i in {numbers}')
            return Call(Text(f"nn.{kind}"), (Call(Text("OrderedDict"), (inner,)),))
        rows = tuple(Collection("()", (Text(literal(name)), item)) for name, item in items)
        return Call(Text(f"nn.{kind}"), (Call(Text("OrderedDict"), (Collection("[]", rows),)),))
    listed: list[Expression] = []
    position = 0
    while position < len(texts):
        end = position
        while end < len(texts) and texts[end] == texts[position]:
            end += 1
        if end - position > 2:
            listed.append(Repeated(items[position][1], end - position, unpacked=True))
        else:
            listed += [item for _, item in items[position:end]]
        position = end
    if kind == "Sequential":
        return Call(Text("nn.Sequential"), tuple(listed))
    if same:
        return Call(Text(f"nn.{kind}"), (Repeated(items[0][1], len(texts), unpacked=False),))
    return Call(Text(f"nn.{kind}"), (Collection("[]", tuple(listed)),))
