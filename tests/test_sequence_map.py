"""SequenceMap, which torch's exporter writes for torch.atleast_1d and what stacks by it, as torch.hstack does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
import torch
from realmodels import check_against_onnxruntime, check_travels

import onnx2nn

Stack = Callable[[Sequence[torch.Tensor]], torch.Tensor]

STACKS: dict[str, Stack] = {
    "hstack": torch.hstack,
    "vstack": torch.vstack,
    "dstack": torch.dstack,
    "column_stack": torch.column_stack,
    "atleast_1d": lambda tensors: torch.atleast_1d(*tensors)[1],
    "atleast_2d": lambda tensors: torch.atleast_2d(*tensors)[1],
    "atleast_3d": lambda tensors: torch.atleast_3d(*tensors)[1],
}


class Stacked(torch.nn.Module):
    """Stacks its input with what is computed from it."""

    def __init__(self, stack: Stack):
        super().__init__()
        self.stack = stack

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the stack."""
        return self.stack([x, -x])


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("name", STACKS)
def test_what_torch_stacks_becomes_plain_calls(name: str, rank: int, tmp_path: Path) -> None:
    path, shapes = tmp_path / "stacked.onnx", ((2, 3, 4)[:rank], (5, 3, 4)[:rank])
    inputs = [(torch.randn(shape),) for shape in shapes]
    dynamic = ({0: torch.export.Dim.DYNAMIC},) if rank else None
    torch.onnx.export(Stacked(STACKS[name]).eval(), inputs[0], path, dynamo=True, verbose=False, dynamic_shapes=dynamic)
    assert "SequenceMap" in {node.op_type for node in onnx.load(path).graph.node}
    module = onnx2nn.load(path)
    assert not [*module.children()]
    assert "functional" not in module.code
    for values in inputs:
        check_against_onnxruntime(path, module, values)
    check_travels(module, *inputs)


BODIES = {
    "an initializer": "y = Mul (item, two)",
    "a computed value": "y = Add (item, total)",
    "what a body inside reads too": """
        short = Less (number, bound)
        y = If (short) <then_branch = t () => (float[M] a) { a = Mul (item, total) },
                        else_branch = e () => (float[M] b) { b = Sub (item, two) }>
    """,
    "a sequence": """
        first = SequenceAt (items, zero)
        least = ReduceMin <keepdims = 1> (first)
        y = Sub (item, least)
    """,
}
SEQUENCES = {
    "known": "items = SequenceConstruct (x, n) numbers = SequenceConstruct (one, two)",
    "of a length that data decide": """
        items = SplitToSequence (x, lengths)
        numbers = SplitToSequence (x, lengths)
    """,
}


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("body", BODIES)
def test_the_body_reads_values_around_it(body: str, sequence: str, opset: int, tmp_path: Path) -> None:
    path = tmp_path / "mapped.onnx"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        maps (float[N] x, int64[K] lengths) => (float[A] y, float[B] kept)
        <float[1] one = {{1.0}}, float[1] two = {{2.0}}, float[1] bound = {{1.5}}, int64 zero = {{0}}> {{
            n = Neg (x)
            total = Add (x, n)
            whole = ReduceSum (total)
            {SEQUENCES[sequence]}
            results, others = SequenceMap (items, numbers, two) <body =
                    each (float[M] item, float[L] many, float[1] all) => (float[M] y, float[M] other) {{
                number = ReduceMax <keepdims = 1> (many)
                {BODIES[body].replace("total", "whole")}
                other = Mul (item, all)
            }}>
            y = ConcatFromSequence <axis = 0> (results)
            kept = ConcatFromSequence <axis = 0> (others)
        }}
    """)
    onnx.save(model, path)
    module = onnx2nn.load(path)
    for lengths in ([1, 3], [2, 2], [1, 1, 1]):
        x = torch.linspace(-1, 3, sum(lengths))
        check_against_onnxruntime(path, module, (x, torch.tensor(lengths)))


def test_a_sequence_may_pass_through_an_identity_in_a_function() -> None:
    """The file declares no types of values in functions."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        maps (seq(float[N]) x) => (seq(float[N]) y) { y = own.Twice (x) }
        <domain: "own", opset_import: ["": 17]> Twice (a) => (c) {
            b = Identity (a)
            c = SequenceMap (b) <body = each (float[M] item) => (float[M] sum) { sum = Add (item, item) }>
        }""")
    )
    assert [item.tolist() for item in module([torch.tensor([1.0]), torch.tensor([2.0, 3.0])])] == [[2.0], [4.0, 6.0]]
