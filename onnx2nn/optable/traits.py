"""Properties of operators that hold in every framework, for rooms that query many operators.

A row states its traits (`@op("Relu", 1, traits=UNARY)`). A room queries a row (`"layout_only" in row.traits`) or the
table (`"layout_only" in TABLE.traits_of("Reshape")`). All revisions of an operator have the same traits.
"""

from __future__ import annotations

from typing import Literal

Trait = Literal[
    "along_axis",
    "broadcasting",
    "channels_first",
    "column_by_column",
    "commutative",
    "dequantises",
    "elementwise",
    "keeps_rank",
    "layout_only",
    "leading_ones",
    "logical",
    "loops_over_time",
    "magnitude",
    "matrix_product",
    "number_by_number",
    "passes_on",
    "quantises",
    "recurrent",
    "reduction",
    "runs_packed",
    "step_by_step",
    "takes_apart",
    "thread_dependent",
    "value_preserving",
]
"""The traits.

- `along_axis`: its results depend on all elements along `axis`, an attribute or an input, and keep the axis.
- `broadcasting`: its inputs are broadcast against each other.
- `channels_first`: its tensors are `(N, C, *spatial)`.
- `column_by_column`: with an `axis`, its body is a loop over what is not along it, of which a trace holds the steps.
- `commutative`: its inputs may be swapped.
- `dequantises`: it gives `(x - x_zero_point) * x_scale` of integers `x`, its first three inputs.
- `elementwise`: an element of the output depends on the elements at the same position of the inputs.
- `keeps_rank`: the output has as many dimensions as the first input; where it is value-preserving, each output has.
- `layout_only`: the output has the elements of the first input in their order, in another shape.
- `leading_ones`: dimensions of size 1 in front of its first input are in front of its output, or it drops or broadcasts
  them, and change nothing else, where its `axis`, if it has one, is negative.
- `logical`: its inputs are truth values.
- `loops_over_time`: its body is a loop over a sequence, of which a program of machine code has one of its own.
- `magnitude`: its result depends on the magnitudes of integers, not on their values modulo 2**64 alone.
- `matrix_product`: it multiplies by a matrix of weights.
- `number_by_number`: its body reads its inputs outside of the framework's kernels.
- `passes_on`: its result is its input, which may also be a sequence or an optional, with or without an element.
- `quantises`: it gives integers for `x / y_scale + y_zero_point` of floats `x`, its first three inputs.
- `recurrent`: it runs over a sequence from initial states (`initial_h`, `initial_c`).
- `reduction`: it reduces the axes in `axes` to one element each, kept as 1 or dropped by `keepdims`.
- `runs_packed`: it computes on quantised numbers as they are stored, in ONNX Runtime too, on every processor; files
  that torch.onnx.export writes have it, and not its arithmetic.
- `step_by_step`: it multiplies each element of the first input by elements of the others, by each of them once at most.
- `takes_apart`: it gives a sequence of as many parts as the first input's size says.
- `thread_dependent`: ONNX Runtime's results depend on its number of threads; the row has those of one thread.
- `value_preserving`: each element of the output is an element of the first input.
"""

UNARY: frozenset[Trait] = frozenset({"elementwise", "keeps_rank"})
BINARY: frozenset[Trait] = frozenset({"elementwise", "broadcasting"})
LAYOUT: frozenset[Trait] = frozenset({"layout_only", "value_preserving"})
