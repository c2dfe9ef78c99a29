"""Recurrent layers: RNN, GRU, LSTM.

Nodes that a layer of `torch.nn` can compute become the layer. Other nodes (peepholes, clipping, other activations, a
GRU that resets before its linear map) run as a loop over time, vectorised over the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.loops import looped
from onnx2nn.ops.machine_code import machine_code
from onnx2nn.ops.shape import demand
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues, has_values

Activation = Callable[[Any], Any]


@dataclass(frozen=True)
class _Kind:
    """An activation function: how it is made, and its parameters with their defaults (None: required)."""

    make: Callable[..., Activation]
    alpha: float | None = None
    beta: float | None = None
    parameters: int = 0


_ACTIVATIONS = (
    "Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
    "HardSigmoid", "Elu",
)  # fmt: skip
_BY_SMALL_LETTERS = {name.lower(): name for name in _ACTIVATIONS}


def _standard_name(name: str) -> str:
    """Returns an activation's name as the standard spells it.

    PyTorch 0.4 writes `tanh` and `relu`; ONNX Runtime takes lower case in LSTM and GRU.
    """
    return _BY_SMALL_LETTERS.get(name.lower(), name)


def _activation_kinds(F: Any) -> dict[str, _Kind]:
    functional = F.nn.functional
    return {
        "Relu": _Kind(lambda: F.relu),
        "Tanh": _Kind(lambda: F.tanh),
        "Sigmoid": _Kind(lambda: F.sigmoid),
        "Softsign": _Kind(lambda: functional.softsign),
        "Softplus": _Kind(lambda: functional.softplus),
        "Affine": _Kind(lambda a, b: lambda x: a * x + b, 1.0, 0.0, parameters=2),
        "LeakyRelu": _Kind(lambda a: lambda x: functional.leaky_relu(x, a), 0.01, parameters=1),
        "ThresholdedRelu": _Kind(lambda a: lambda x: F.where(x >= a, x, F.zeros_like(x)), 1.0, parameters=1),
        "ScaledTanh": _Kind(lambda a, b: lambda x: a * F.tanh(b * x), parameters=2),
        "HardSigmoid": _Kind(lambda a, b: lambda x: (a * x + b).clamp(0.0, 1.0), 0.2, 0.5, parameters=2),
        "Elu": _Kind(lambda a: lambda x: functional.elu(x, a), 1.0, parameters=1),
    }


@dataclass(frozen=True)
class _Settings:
    """The attributes that the three operators share.

    Attributes:
        directions: whether each direction runs backwards in time.
        activations: names, the same number for each direction.
        alpha: first parameters of the activations that have parameters, in order; may be shorter.
        beta: second parameters, likewise.
        clip: bound of the magnitude of an activation's input.
        batch_first: `layout=1`.
    """

    directions: tuple[bool, ...]
    activations: tuple[str, ...]
    alpha: Sequence[float]
    beta: Sequence[float]
    clip: float | None
    batch_first: bool

    def is_plain(self, default: Sequence[str]) -> bool:
        """Returns whether the activations are the default ones, and nothing is clipped."""
        return self.activations == tuple(default) * len(self.directions) and self.clip is None

    def functions(self, F: Any) -> list[list[Activation]]:
        """Returns the activation functions of each direction; the gates clip their inputs.

        The standard clips "the input of activations"; ONNX Runtime does not clip the input of an LSTM's third one, the
        cell.
        """
        alpha, beta, kinds = list(self.alpha), list(self.beta), _activation_kinds(F)
        count = len(self.activations) // len(self.directions)
        functions: list[Activation] = []
        for name in self.activations:
            if name not in kinds:
                raise OperatorError(f"activation={name!r} is none of {', '.join(_ACTIVATIONS)}.")
            kind = kinds[name]
            values: list[float | None] = []
            if kind.parameters > 0:
                values.append(alpha.pop(0) if alpha else kind.alpha)
            if kind.parameters > 1:
                values.append(beta.pop(0) if beta else kind.beta)
            if None in values:
                raise OperatorError(f"activation_alpha or activation_beta is missing, which {name} needs.")
            function = kind.make(*values)
            functions.append(self._clipped(function) if len(functions) % count < 2 else function)
        return [functions[i * count : (i + 1) * count] for i in range(len(self.directions))]

    def _clipped(self, function: Activation) -> Activation:
        clip = self.clip
        return function if clip is None else lambda x: function(x.clamp(-clip, clip))


def settings(
    direction: str, activations: Any, default: Sequence[str], alpha: Any, beta: Any, clip: Any, layout: int
) -> _Settings:
    directions = {
        "forward": (False,), "foward": (False,), "reverse": (True,), "bidirectional": (False, True),
    }  # fmt: skip
    if direction not in directions:
        raise OperatorError(f"direction={direction!r} is none of forward, reverse, bidirectional.")
    if clip is not None and clip < 0:
        raise OperatorError(f"clip={clip} is below 0.")
    ways = directions[direction]
    # RNN's schema defaults to two activations, of which one direction uses the first.
    given = tuple(_standard_name(name) for name in activations or ())
    if len(given) == len(default):  # PyTorch up to 1.2 names them once for both directions
        given *= len(ways)
    names = given[: len(default) * len(ways)] or tuple(default) * len(ways)
    if len(names) != len(default) * len(ways):
        needed = len(default) * len(ways)
        raise OperatorError(f"it has {len(names)} activations for {len(ways)} directions, {needed} are needed.")
    return _Settings(ways, names, tuple(alpha or ()), tuple(beta or ()), clip or None, bool(layout))


def _is_full(F: Any, sequence_lens: Any, steps: Any) -> bool:
    """Returns whether every sequence is known to have all steps."""
    if sequence_lens is None:
        return True
    return has_values(F, sequence_lens) and isinstance(steps, int) and bool((sequence_lens == steps).all())


def reordered(F: Any, parameter: Any, order: Sequence[int]) -> Any:
    """Returns a parameter with its gates, blocks of rows, in the given order."""
    if list(order) == list(range(len(order))):
        return parameter
    blocks = parameter.chunk(len(order), 0)
    return F.cat([blocks[i] for i in order], 0)


def _layered(F: Any, X: Any, sequence_lens: Any, steps: Any) -> tuple[bool, Any]:
    """Returns whether torch's functions can compute the sequences, and the lengths for packing them, or None.

    They can where all sequences have all steps, or where the values are known and no sequence is empty.
    """
    if _is_full(F, sequence_lens, steps):
        return True, None
    seen = hasattr(F, "_VF") and has_values(F, X, sequence_lens)  # OneFlow has no packed sequences
    return seen and bool((sequence_lens > 0).all()), sequence_lens


def _packed(F: Any, function: Any, lengths: Any, backwards: bool) -> Callable[..., tuple[Any, ...]]:
    """Returns torch's recurrent function on padded sequences, which it packs, longest first, and pads again."""

    def run(X: Any, hx: Any, parameters: Any, *options: Any) -> tuple[Any, ...]:
        batch_first = options[-1]
        X = X.transpose(0, 1) if batch_first else X
        turn = _order(F, X.shape[0], lengths, backwards, X.device)
        X = X if turn is None else _reorder_time(F, X, turn)
        order = lengths.argsort(descending=True)
        inside = F.arange(X.shape[0], device=X.device).unsqueeze(1) < lengths[order]
        sizes = inside.sum(1)
        hx = hx[:, order] if isinstance(hx, F.Tensor) else [state[:, order] for state in hx]
        found, *last = function(X[:, order][inside], sizes[sizes > 0].cpu(), hx, parameters, *options[:-1])
        output = X.new_zeros([*X.shape[:2], found.shape[-1]])
        output[inside] = found
        back = order.argsort()
        output = output[:, back]
        output = output if turn is None else _reorder_time(F, output, turn)
        return (output.transpose(0, 1) if batch_first else output, *(state[:, back] for state in last))

    return run


def check_shapes(
    F: Any,
    s: _Settings,
    gates: int,
    X: Any,
    W: Sequence[Any],
    R: Sequence[Any],
    B: Any,
    states: Sequence[Any],
    P: Any = None,
    *,
    beside_x: Any = 0,
) -> None:
    """Requires the shapes that the standard gives: torch broadcasts others, or reads beyond them.

    Of a sequence and states without values an import compares the shapes: its error depends on whether they are those
    of a branch that never runs.

    Args:
        F: the framework's namespace of tensor functions.
        s: the attributes.
        gates: the number of gates.
        X: the sequence.
        W: the shape of the input's weights, `(directions, gates * hidden, features)`.
        R: the shape of the state's weights, `(directions, gates * hidden, hidden)`.
        B: the biases or None.
        states: the initial states or None.
        P: the peepholes or None.
        beside_x: the features of the input beside those of X.

    Raises:
        OperatorError: an input has another shape.
    """
    ways, hidden = len(s.directions), R[-1]
    directions, values, rows = ("directions", ways), ("hidden values", hidden), ("rows of gates", gates * hidden)
    _check_shape("W", W, [directions, rows, ("features", W[-1])])
    _check_shape("R", R, [directions, rows, values])
    _check_shape("B", getattr(B, "shape", None), [directions, ("values of gates", 2 * gates * hidden)])
    _check_shape("P", getattr(P, "shape", None), [directions, ("peepholes", 3 * hidden)])
    if not has_values(F, X, *states):
        return
    _check_shape("X", X.shape, [*(("", size) for size in X.shape[:2]), ("features", W[-1] - beside_x)])
    sequences = ("sequences", X.shape[0 if s.batch_first else 1])
    for state in states:
        shape = [sequences, directions, values] if s.batch_first else [directions, sequences, values]
        _check_shape("an initial state", getattr(state, "shape", None), shape)


def _check_shape(name: str, shape: Sequence[Any] | None, wanted: Sequence[tuple[str, Any]]) -> None:
    """Refuses a shape of other sizes than the wanted ones, each with its name in the plural."""
    if shape is None:
        return
    if len(shape) != len(wanted):
        raise OperatorError(f"{name} has {len(shape)} dimensions where the operator takes {len(wanted)}.")
    for size, (kind, right) in zip(shape, wanted, strict=True):
        demand(size == right, f"{name} has {size} {kind} instead of {right}")


def _layer(
    F: Any, function: Any, X: Any, W: Any, R: Any, B: Any, states: Sequence[Any], order: Sequence[int], s: _Settings,
    lengths: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Returns the outputs by torch's recurrent function, whose gates are ONNX's in `order`.

    `lengths`: lengths of the sequences, where they are to be packed.
    """
    parameters = []
    for i in range(len(s.directions)):
        parameters += [reordered(F, W[i], order), reordered(F, R[i], order)]
        if B is not None:
            parameters += [reordered(F, half, order) for half in B[i].chunk(2, 0)]
    time = 1 if s.batch_first else 0
    batch, hidden = X.shape[1 - time], R.shape[-1]
    backwards = s.directions == (True,)
    if lengths is not None:
        function, backwards = _packed(F, function, lengths.to(F.int64), backwards), False
    if backwards:
        X = X.flip([time])
    default = None
    initial = []
    for state in states:
        if state is None and default is None:
            default = F.zeros([len(s.directions), batch, hidden], dtype=X.dtype)
        initial.append(default if state is None else state.transpose(0, 1) if s.batch_first else state)
    hx = initial[0] if len(initial) == 1 else initial
    bidirectional = len(s.directions) == 2
    output, *last = function(X, hx, parameters, B is not None, 1, 0.0, False, bidirectional, s.batch_first)
    if backwards:
        output = output.flip([time])
    if s.batch_first:
        last = [state.transpose(0, 1) for state in last]
    if not bidirectional:
        return (output.unsqueeze(time + 1), *last)
    split = output.unflatten(-1, (2, hidden))
    return (split if s.batch_first else split.transpose(1, 2), *last)


Step = Callable[..., tuple[Any, ...]]
"""`step(direction, x_t, *states) -> states`: one time step; `x_t` are the gates' inputs."""

LinearMap = Callable[[Any], Any]
"""`of_input(x)`: the input's part of the gates' inputs, `(..., gates * hidden)`."""

StateMap = Callable[[Any, Any], Any]
"""`of_state(x, h)`: the gates' inputs `x` plus the part of the state `h`, `(batch, hidden)`."""


def linear_maps(F: Any, weights: Any, biases: Any = None) -> list[LinearMap]:
    """Returns each direction's linear map of the input.

    The weights are `(directions, gates * hidden, features)`, the biases `(directions, gates * hidden)`.
    """

    def of_direction(i: int) -> LinearMap:
        weight, bias = weights[i], None if biases is None else biases[i]
        return lambda x: F.nn.functional.linear(x, weight, bias)

    return [of_direction(i) for i in range(weights.shape[0])]


def state_maps(F: Any, weights: Any) -> list[StateMap]:
    """Returns each direction's linear map of the state; weights: `(directions, gates * hidden, hidden)`."""

    def of_direction(i: int) -> StateMap:
        weight = weights[i].t()
        return lambda x, h: F.addmm(x, h, weight)

    return [of_direction(i) for i in range(weights.shape[0])]


def summed(B: Any) -> Any:
    """Returns the sum of the biases of input and state, `(directions, gates * hidden)`."""
    if B is None:
        return None
    of_input, of_state = B.chunk(2, 1)
    return of_input + of_state


def recurrent_loop(
    F: Any, X: Any, maps: Sequence[LinearMap], sequence_lens: Any, states: Sequence[Any], hidden: int, step: Step,
    s: _Settings, *, stops: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Returns the outputs by a loop over time.

    Behind a sequence's end the output is 0; with `stops`, the hidden state of the next step is 0 too. The last states
    are the states at the sequence's own end; of a sequence of no steps they are 0, as in ONNX Runtime.
    """
    if not isinstance(X, F.Tensor):
        raise NeedsValues("a loop over time")
    if s.batch_first:
        X = X.transpose(0, 1)
        states = [None if state is None else state.transpose(0, 1) for state in states]
    steps, batch = X.shape[0], X.shape[1]
    lengths = None if _is_full(F, sequence_lens, steps) else sequence_lens.to(F.int64)
    loops = machine_code(F) is not None and lengths is None and (steps == 0) is not True
    outputs, finals = [], []
    for i, backwards in enumerate(s.directions):
        order = _order(F, steps, lengths, backwards, X.device)
        gates = maps[i](X)
        gates = gates if order is None else _reorder_time(F, gates, order)
        first = tuple(X.new_zeros([batch, hidden]) if state is None else state[i] for state in states)
        one = functools.partial(step, i)
        output, final = looped(F, gates, first, one) if loops else _steps(F, gates, first, one, lengths, stops)
        outputs.append(output if order is None else _reorder_time(F, output, order))
        finals.append(final)
    Y = F.stack(outputs, 1)
    last = [F.stack(items) for items in zip(*finals, strict=True)]
    if s.batch_first:
        return (Y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last))
    return (Y, *last)


def _steps(
    F: Any, gates: Any, current: tuple[Any, ...], step: Callable[..., tuple[Any, ...]], lengths: Any, stops: bool
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the output and the last states of one direction, see `recurrent_loop`."""
    steps, (batch, hidden) = gates.shape[0], current[0].shape
    if lengths is not None:
        inside = (lengths > F.arange(steps, device=gates.device).unsqueeze(-1)).unsqueeze(-1)
    sequences: list[list[Any]] = [[] for _ in current]
    for t, x in enumerate(gates.unbind(0)):
        current = step(x, *current)
        if lengths is not None and stops:
            current = (F.where(inside[t], current[0], 0.0), *current[1:])
        for sequence, state in zip(sequences, current, strict=True):
            sequence.append(state)
    output = F.stack(sequences[0]) if steps else gates.new_zeros([0, batch, hidden])
    if lengths is None:
        return output, current
    return F.where(inside, output, 0.0), tuple(_last(F, seq, lengths) for seq in sequences) if steps else current


def _last(F: Any, sequence: Sequence[Any], lengths: Any) -> Any:
    """Returns a state of each sequence at its own end; 0 for a sequence of no steps."""
    states = F.stack(sequence)
    place = (lengths - 1).clamp(min=0).reshape(1, -1, 1).expand(1, states.shape[1], states.shape[2])
    return F.where((lengths > 0).unsqueeze(-1), states.gather(0, place).squeeze(0), 0.0)


def _order(F: Any, steps: int, lengths: Any, backwards: bool, device: Any) -> Any:
    """Returns the order of time steps, `[steps, batch]`, each sequence reversed over its own length; None: forward."""
    if not backwards:
        return None
    forward = F.arange(steps, device=device).unsqueeze(-1)
    if lengths is None:
        return forward.flip([0])
    return F.where(forward < lengths, lengths - 1 - forward, forward)


def _reorder_time(F: Any, x: Any, order: Any) -> Any:
    return F.gather(x, 0, order.unsqueeze(-1).expand(x.shape[0], x.shape[1], x.shape[2]))


def outputs_asked(outputs: tuple[Any, ...], count: int) -> Any:
    return outputs[0] if count == 1 else outputs[:count]


def recurrent_results(X: Any, directions: int, features: int, hidden: int, layout: int) -> list[tuple[list[Any], Any]]:
    """Returns shape and dtype of Y, Y_h and Y_c; the batch comes first with `layout=1`.

    Raises:
        OperatorError: X and the weights differ in features.
    """
    demand(X.shape[-1] == features, f"X has {X.shape[-1]} features and its weights are for {features}")
    steps, batch = X.shape[layout], X.shape[1 - layout]
    sequence = [batch, steps, directions, hidden] if layout else [steps, directions, batch, hidden]
    state = [batch, directions, hidden] if layout else [directions, batch, hidden]
    return [(shape, X.dtype) for shape in (sequence, state, state)]


def _results(F: Any, X: Any, W: Any, R: Any, *others: Any, layout: int = 0, **attributes: Any) -> Any:
    return recurrent_results(X, W.shape[0], W.shape[-1], R.shape[-1], layout)


@op("RNN", 14, results=_results, custom_op=True, traits=["recurrent", "step_by_step"])
def rnn(
    F: Any,
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    _outputs: int = 2,
) -> Any:
    """Source: ONNX RNN-22."""
    s = settings(direction, activations, ("Tanh",), activation_alpha, activation_beta, clip, layout)
    check_shapes(F, s, 1, X, W.shape, R.shape, B, [initial_h])
    plain = {frozenset({"Tanh"}): F.rnn_tanh, frozenset({"Relu"}): F.rnn_relu}.get(frozenset(s.activations))
    layered, lengths = _layered(F, X, sequence_lens, X.shape[layout])
    if plain is not None and s.clip is None and layered:
        return outputs_asked(_layer(F, plain, X, W, R, B, [initial_h], [0], s, lengths), _outputs)
    functions, of_state = s.functions(F), state_maps(F, R)

    def step(i: int, x: Any, h: Any) -> tuple[Any]:
        return (functions[i][0](of_state[i](x, h)),)

    of_input = linear_maps(F, W, summed(B))
    return outputs_asked(recurrent_loop(F, X, of_input, sequence_lens, [initial_h], R.shape[-1], step, s), _outputs)


@op("GRU", 14, results=_results, custom_op=True, traits=["recurrent", "step_by_step"])
def gru(
    F: Any,
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    _outputs: int = 2,
) -> Any:
    """nn.GRU has `linear_before_reset=1`; its gates r, z, n are ONNX's z, r, h, reordered. Source: ONNX GRU-22."""
    s = settings(direction, activations, ("Sigmoid", "Tanh"), activation_alpha, activation_beta, clip, layout)
    check_shapes(F, s, 3, X, W.shape, R.shape, B, [initial_h])
    usual = s.is_plain(("Sigmoid", "Tanh"))
    layered, lengths = _layered(F, X, sequence_lens, X.shape[layout])
    if usual and linear_before_reset and layered:
        return outputs_asked(_layer(F, F.gru, X, W, R, B, [initial_h], [1, 0, 2], s, lengths), _outputs)
    functions, hidden = s.functions(F), R.shape[-1]
    kept = 2 * hidden  # the rows of update and reset, whose biases of input and state can be summed
    if not linear_before_reset:
        of_gates, of_output = state_maps(F, R[:, :kept]), state_maps(F, R[:, kept:])
        biases = summed(B)
    else:
        of_all = linear_maps(F, R, None if B is None else F.nn.functional.pad(B[:, 3 * hidden + kept :], (kept, 0)))
        biases = (
            None if B is None else B[:, : 3 * hidden] + F.nn.functional.pad(B[:, 3 * hidden : -hidden], (0, hidden))
        )

    def step(i: int, x: Any, h: Any) -> tuple[Any]:
        f, g = functions[i]
        if linear_before_reset:
            recurrent = of_all[i](h)
            z, r = f(x[:, :kept] + recurrent[:, :kept]).chunk(2, 1)
            output = g(F.addcmul(x[:, kept:], r, recurrent[:, kept:]))
        else:
            z, r = f(of_gates[i](x[:, :kept], h)).chunk(2, 1)
            output = g(of_output[i](x[:, kept:], r * h))
        return (F.lerp(output, h, z),)

    of_input = linear_maps(F, W, biases)
    return outputs_asked(recurrent_loop(F, X, of_input, sequence_lens, [initial_h], hidden, step, s), _outputs)


@op("LSTM", 14, results=_results, custom_op=True, traits=["recurrent", "step_by_step"])
def lstm(
    F: Any,
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    initial_c: Any = None,
    P: Any = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    _outputs: int = 3,
) -> Any:
    """nn.LSTM's gates i, f, g, o are ONNX's i, o, f, c, reordered. `input_forget`: f is 1 - i. Source: ONNX LSTM-22."""
    default = ("Sigmoid", "Tanh", "Tanh")
    s = settings(direction, activations, default, activation_alpha, activation_beta, clip, layout)
    check_shapes(F, s, 4, X, W.shape, R.shape, B, [initial_h, initial_c], P)
    usual = s.is_plain(default) and P is None and not input_forget
    states = [initial_h, initial_c]
    layered, lengths = _layered(F, X, sequence_lens, X.shape[layout])
    if usual and layered:
        return outputs_asked(_layer(F, F.lstm, X, W, R, B, states, [0, 2, 3, 1], s, lengths), _outputs)
    maps = (linear_maps(F, W, summed(B)), state_maps(F, R))
    cells = lstm_loop(F, X, *maps, sequence_lens, states, P, R.shape[-1], input_forget, s)
    return outputs_asked(cells, _outputs)


def lstm_loop(
    F: Any,
    X: Any,
    of_input: Sequence[LinearMap],
    of_state: Sequence[StateMap],
    sequence_lens: Any,
    states: Sequence[Any],
    P: Any,
    hidden: int,
    input_forget: int,
    s: _Settings,
    *,
    stops: bool = False,
) -> tuple[Any, ...]:
    """Returns Y, Y_h, Y_c by a loop over time, with a linear map per direction, the input's with all biases.

    `stops`: the hidden state of a sequence that has ended is 0 in the batch that `of_state` maps.
    """
    cells = lstm_cells(F, P, hidden, input_forget, s)

    def step(i: int, x: Any, h: Any, c: Any) -> tuple[Any, ...]:
        return cells[i](of_state[i](x, h), c)

    return recurrent_loop(F, X, of_input, sequence_lens, states, hidden, step, s, stops=stops)


Cell = Callable[[Any, Any], tuple[Any, Any]]
"""`cell(x, c) -> (h, c)`: the states of an LSTM from the gates' inputs `(batch, 4 * hidden)` and the cell's state."""


def lstm_cells(F: Any, P: Any, hidden: int, input_forget: int, s: _Settings) -> list[Cell]:
    """Returns the cell of each direction; P: peepholes `(directions, 3 * hidden)` or None."""

    def cell_of(i: int, f: Activation, g: Activation, last: Activation) -> Cell:
        weights = None if P is None else P[i].chunk(3, 0)

        def cell(x: Any, c: Any) -> tuple[Any, Any]:
            if weights is None:
                enter, leave, forget = f(x[:, : 3 * hidden]).chunk(3, 1)
                new = g(x[:, 3 * hidden :])
            else:
                of_enter, of_leave, of_forget, of_new = x.chunk(4, 1)
                enter, forget = f(F.addcmul(of_enter, weights[0], c)), f(F.addcmul(of_forget, weights[2], c))
                new = g(of_new)
            c = F.addcmul((1.0 - enter if input_forget else forget) * c, enter, new)
            if weights is not None:
                leave = f(F.addcmul(of_leave, weights[1], c))
            return leave * last(c), c

        return cell

    return [cell_of(i, *functions) for i, functions in enumerate(s.functions(F))]


rnn_7 = revision(rnn, 7, without=["layout"])
gru_7 = revision(gru, 7, without=["layout"])


lstm_7 = revision(lstm, 7, without=["layout"])
# `output_sequence=0` means that Y is not needed, which the node's outputs tell already.
revision(rnn_7, 1, unused={"output_sequence": 0})


gru_3 = revision(gru_7, 3, unused={"output_sequence": 0})
# The schema's default is misspelt.
revision(gru_3, 1, without=["linear_before_reset"], defaults={"direction": "foward"})


revision(lstm_7, 1, unused={"output_sequence": 0})


@op("GRUUnit", 1)
def gru_unit(F: Any, hidden_prev: Any, gates: Any, seq_lengths: Any, t: Any, *, drop_states: int | None = None) -> Any:
    """One step of a GRU, as in Caffe2; experimental in opset 1.

    hidden_prev: `(1, N, hidden)`; gates: `(1, N, 3 * hidden)` of reset (already applied to the output gate), update and
    output. Behind a sequence's end the state stays, or is 0 with `drop_states`.
    """
    _, update, output = gates.chunk(3, -1)
    update = F.sigmoid(update)
    hidden = update * hidden_prev + (1.0 - update) * F.tanh(output)
    ended = 0.0 if drop_states else hidden_prev
    return F.where((t < seq_lengths).reshape(-1, 1), hidden, ended)
