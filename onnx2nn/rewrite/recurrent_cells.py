"""The formulas of one step of LSTM, GRU and RNN layers, and which weights of a step written out are theirs.

A step may multiply by one matrix of all gates or by one of each, in any order of the gates, transposed or not. So each
block of a weight, the part of one gate, is found by what it alone does to the results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onnx2nn.rewrite.evaluation import TOLERANCE
from onnx2nn.rewrite.recurrent_layers import ACTIVATIONS

Array = np.ndarray[Any, Any]


class Weights(NamedTuple):
    """The weights of a layer, with ONNX's gates in their order: `k` gates of `n` hidden values, `m` features.

    Attributes:
        w: the matrix of the input, `(m, k n)`.
        r: the matrix of the hidden state, `(n, k n)`.
        b: the bias of the input's product, `(k n,)`.
        c: the bias of the state's product, `(k n,)`.
    """

    w: Array
    r: Array
    b: Array
    c: Array


Step = Callable[[Sequence[Array], Sequence[Array], Sequence[Array]], list[Array]]
"""Returns the next states, `(..., n)` each, from the input's part of each gate, that of the hidden state, and the
states, the hidden one first."""

Run = Callable[[Sequence[Array], Array, Sequence[Array]], "list[Array] | None"]
"""Returns what a step written out makes of arrays in the places of its weights, an input and states; None: nothing."""


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _lstm(x: Sequence[Array], h: Sequence[Array], states: Sequence[Array]) -> list[Array]:
    """Returns the next states, as ONNX LSTM-22 computes them."""
    i, o, f, g = (a + b for a, b in zip(x, h, strict=True))
    cell = _sigmoid(f) * states[1] + _sigmoid(i) * np.tanh(g)
    return [_sigmoid(o) * np.tanh(cell), cell]


def _gru(x: Sequence[Array], h: Sequence[Array], states: Sequence[Array]) -> list[Array]:
    """Returns the next state, as ONNX GRU-22 computes it with `linear_before_reset`."""
    z, reset = (_sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
    return [(1 - z) * np.tanh(x[2] + reset * h[2]) + z * states[0]]


def _rnn(x: Sequence[Array], h: Sequence[Array], states: Sequence[Array]) -> list[Array]:
    return [np.tanh(x[0] + h[0])]


def _relu_rnn(x: Sequence[Array], h: Sequence[Array], states: Sequence[Array]) -> list[Array]:
    return [np.maximum(x[0] + h[0], 0)]


@dataclass(frozen=True)
class Form:
    """A recurrent layer.

    Attributes:
        kind: its operator.
        gates, states: their numbers.
        activations: the operator's attribute.
        step: one step.
    """

    kind: str
    gates: int
    states: int
    activations: list[str]
    step: Step


_FORMS = (
    Form("LSTM", 4, 2, ACTIVATIONS["LSTM"], _lstm),
    Form("GRU", 3, 1, ACTIVATIONS["GRU"], _gru),
    Form("RNN", 1, 1, ACTIVATIONS["RNN"], _rnn),
    Form("RNN", 1, 1, ["Relu"], _relu_rnn),
)

_COMPARED = 16
"""The least numbers that are compared: half of a ReLU's are 0, whatever it computes."""

_MOST_RUNS = 4096
"""The most runs of a step; one of an LSTM with a matrix and a bias for each gate takes 64 for each sample."""


class Layer(NamedTuple):
    """The layer that a step is one of.

    Attributes:
        form: which.
        order: the positions of its states among the step's, the hidden state first.
        weights: in the layer's order.
    """

    form: Form
    order: tuple[int, ...]
    weights: Weights


class _Block(NamedTuple):
    """A part of a weight: of one gate, or as large as one.

    Attributes:
        weight: the position of the weight.
        slices: where it is in there, two-dimensional.
        transposed: whether the matrix is `(hidden, inputs)`; None for a bias.
    """

    weight: int
    slices: tuple[slice, slice]
    transposed: bool | None

    def view(self, arrays: Sequence[Array]) -> Array:
        """Returns the block of some arrays in the places of the weights."""
        return np.asarray(np.atleast_2d(arrays[self.weight])[self.slices])

    def of(self, arrays: Sequence[Array]) -> Array:
        """Returns the block of some arrays in the places of the weights, as the layer has it."""
        part = self.view(arrays)
        return part.reshape(-1) if self.transposed is None else part.T if self.transposed else part


_Place = tuple[int, int]
"""The place of a block in a layer: which of `Weights`, and of which gate."""

_Taken = dict[_Place, _Block]


def layer_of(constants: Sequence[Array], states: int, lead: tuple[int, ...], run: Run) -> Layer | None:
    """Returns the layer of which `run` is one step, None where it is of none.

    Law: a step that is equal to a formula for random numbers in all places is that formula, as both are analytic
    functions of these but for ReLU's corner.

    Args:
        constants: the weights in the file.
        states: the number of states.
        lead: the sizes of an input of a step, before its features.
        run: one step.
    """
    left = iter(range(_MOST_RUNS))

    def limited(arrays: Sequence[Array], step: Array, before: Sequence[Array]) -> list[Array] | None:
        return None if next(left, None) is None else run(arrays, step, before)

    for form in _FORMS:
        for features, hidden in _sizes(constants, form.gates):
            for order in itertools.permutations(range(states)) if form.states == states else ():
                found = _Fitting(form, (features, hidden), order, lead, limited).weights(constants)
                if found is not None:
                    return Layer(form, order, found)
    return None


def _sizes(constants: Sequence[Array], gates: int) -> Iterator[tuple[int, int]]:
    """Yields the numbers of features and hidden values for which the matrices have the elements of all gates."""
    sizes = {size for array in constants if array.ndim == 2 for size in array.shape}
    elements = sum(array.size for array in constants if array.ndim == 2)
    for features, hidden in itertools.product(sorted(sizes), repeat=2):
        width = gates * hidden
        if 0 <= elements - width * (features + hidden) <= 2 * width:  # biases may have two dimensions
            yield features, hidden


def samples(
    rng: np.random.Generator, lead: tuple[int, ...], features: int, states: Sequence[int]
) -> Iterator[list[Array]]:
    """Yields random inputs of a step with states, for which enough results are compared.

    Args:
        rng: draws them.
        lead: see `layer_of`.
        features: the size of an input.
        states: the sizes of the states.
    """
    for _ in range(math.ceil(_COMPARED / (math.prod(lead) * states[0]))):
        yield [rng.normal(size=(*lead, size)) for size in (features, *states)]


class _Fitting:
    """Finds the weights of one form in a step.

    Args:
        form: the layer.
        sizes: the numbers of features and hidden values.
        order: the positions of the form's states among the step's.
        lead: see `layer_of`.
        run: see `layer_of`.
    """

    def __init__(self, form: Form, sizes: tuple[int, int], order: Sequence[int], lead: tuple[int, ...], run: Run):
        self._form, self._order, self._run, self._rng = form, order, run, np.random.default_rng(0)
        self._features, self._hidden = sizes
        self._widths = {self._hidden * gates for gates in range(1, form.gates + 1)}
        self._samples = [*samples(self._rng, lead, self._features, [self._hidden] * len(order))]

    def weights(self, constants: Sequence[Array]) -> Weights | None:
        """Returns the weights of the layer that the step is, None where it is not this layer.

        A block may do nothing until others are placed, as an LSTM's input gate does while there is nothing to let in.
        """
        pending = {at: cuts for at, array in enumerate(constants) if (cuts := self._cuts(at, array))}
        self._given = [np.zeros(a.shape) if at in pending else a for at, a in enumerate(constants)]
        self._drawn = [self._random(array.shape) for array in constants]
        taken: _Taken = {}
        while pending:
            left = {at: self._left(cuts, taken) for at, cuts in pending.items()}
            if left == pending or not all(left.values()):
                return None
            pending = {at: cuts for at, cuts in left.items() if cuts != [[]]}
        if {(slot, gate) for slot in (0, 1) for gate in range(self._form.gates)} - taken.keys():
            return None
        self._drawn = [self._random(array.shape) for array in constants]
        for block in taken.values():
            block.view(self._given)[...] = block.view(self._drawn)
        return self._assembled(taken, constants) if _are_equal(self._results(), self._expected(taken)) else None

    def _cuts(self, at: int, array: Array) -> list[list[_Block]]:
        """Returns the ways in which a weight may consist of blocks."""
        rows, columns = np.atleast_2d(array).shape if array.ndim < 3 else (0, 0)
        inputs, whole = {self._features, self._hidden}, slice(None)
        across, down = (self._parts(size) for size in (columns, rows))
        cuts = [
            [_Block(at, (whole, part), False) for part in across if array.ndim == 2 and rows in inputs],
            [_Block(at, (part, whole), True) for part in down if array.ndim == 2 and columns in inputs],
            [_Block(at, (slice(r, r + 1), part), None) for r in range(rows) for part in across if rows <= 2],
        ]
        return [cut for cut in cuts if cut]

    def _parts(self, width: int) -> list[slice]:
        """Returns the parts of one gate each of a side of a weight; nothing where it has not as many gates."""
        size = self._hidden
        return [slice(at, at + size) for at in range(0, width, size)] if width in self._widths else []

    def _left(self, cuts: Sequence[Sequence[_Block]], taken: _Taken) -> list[list[_Block]]:
        """Places blocks of a weight; returns the ways left in which it may consist of blocks, without placed ones."""
        left = []
        for cut in cuts:
            placed = self._placed(cut, taken)
            if placed:
                taken |= placed
                return [[block for block in cut if block not in placed.values()]]
            if placed is not None:
                left.append([*cut])
        return left

    def _placed(self, cut: Sequence[_Block], taken: _Taken) -> _Taken | None:
        """Returns the places of the blocks that do something; None where one of these has none.

        The blocks that have places are random numbers then, and all others zeros.
        """
        placed: _Taken = {}
        before = self._results()
        for block in cut:
            block.view(self._given)[...] = block.view(self._drawn)
            results = self._results()
            if results and not _are_equal(results, before):
                known = taken | placed
                places = (place for place in self._places(block) if place not in known)
                place = next((p for p in places if _are_equal(results, self._expected(known | {p: block}))), None)
                if place is not None:
                    placed[place], before = block, results
                    continue
            block.view(self._given)[...] = 0
            if not results or not _are_equal(results, before):
                for other in placed.values():
                    other.view(self._given)[...] = 0
                return None
        return placed

    def _places(self, block: _Block) -> Iterator[_Place]:
        """Yields the places whose shape a block has."""
        shape = block.of(self._drawn).shape
        shapes = ((self._features, self._hidden), (self._hidden, self._hidden), (self._hidden,), (self._hidden,))
        for slot, wanted in enumerate(shapes):
            if shape == wanted:
                yield from ((slot, gate) for gate in range(self._form.gates))

    def _random(self, shape: Sequence[int]) -> Array:
        """Returns random numbers with which no gate is far from its middle."""
        return np.asarray(self._rng.normal(size=shape) / math.sqrt(max(shape)))

    def _results(self) -> list[list[Array]]:
        """Returns the next states of each sample, in the form's order; nothing where the step fails."""
        found = []
        for x, *states in self._samples:
            results = self._run(self._given, x, [states[self._order.index(at)] for at in range(len(states))])
            if results is None:
                return []
            found.append([results[at] for at in self._order])
        return found

    def _expected(self, taken: _Taken) -> list[list[Array]]:
        """Returns the next states of each sample that the layer makes of the random blocks in their places."""
        found = []
        for x, *states in self._samples:
            sums = [[np.zeros(states[0].shape)] * self._form.gates for _ in range(2)]  # of the input and of the state
            for (slot, gate), block in taken.items():
                part = block.of(self._drawn)
                sums[slot % 2][gate] = sums[slot % 2][gate] + (part if slot > 1 else (x, states[0])[slot] @ part)
            found.append(self._form.step(sums[0], sums[1], states))
        return found

    def _assembled(self, taken: _Taken, arrays: Sequence[Array]) -> Weights:
        """Returns the layer's weights, zeros in places without a block."""
        width, made = self._form.gates * self._hidden, list[Array]()
        dtype = np.result_type(*(arrays[block.weight] for block in taken.values()))
        for slot, shape in enumerate(((self._features, width), (self._hidden, width), (width,), (width,))):
            weight = np.zeros(shape, dtype)
            for gate, part in enumerate(self._parts(width)):
                if (slot, gate) in taken:
                    weight[..., part] = taken[slot, gate].of(arrays)
            made.append(weight)
        return Weights(*made)


def _are_equal(results: Sequence[Sequence[Array]], others: Sequence[Sequence[Array]]) -> bool:
    """Returns whether the next states are equal for all samples, of which there are some."""
    return bool(results and others) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=TOLERANCE)
        for result, other in zip(results, others, strict=True)
        for a, b in zip(result, other, strict=True)
    )
