"""Loops and branches written in PyTorch: ONNX Loop and If whose trip count and condition come from the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from realmodels import (
    check_against_onnxruntime,
    check_same,
    check_travels,
    export_dynamo,
    run,
    run_onnxruntime,
    seeded,
)
from scripted_models import SCRIPTED, VoiceDetector, export_voice, script, sound
from torch import nn

import onnx2nn
from onnx2nn import functional
from onnx2nn.control_flow import If
from onnx2nn.errors import OperatorError, UnsupportedModelError, VerificationError


class Condition(nn.Module):
    """The same as `Branch`, in the form that the dynamo exporter takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


class ConditionalLayers(nn.Module):
    """The author's layers in branches of `torch.cond`, in one inside the other too; `shared` is used around them."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.cold, self.warm, self.hot = (nn.Linear(4, 4) for _ in range(4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def warmer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 10, lambda x, y: self.hot(y) + x, lambda x, y: self.norm(self.warm(y)), (x, y))

        y = self.shared(x)
        return torch.cond(x.sum() > 0, warmer, lambda x, y: self.shared(self.cold(y)) - x, (x, y))


def _operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(str(path)).graph.node}


@pytest.mark.parametrize("name", SCRIPTED)
def test_agrees_however_often_it_loops(name: str, tmp_path: Path) -> None:
    original, path = script(name, tmp_path)
    assert _operators(path) & {"Loop", "If"}
    module = onnx2nn.load(path)
    for inputs in SCRIPTED[name][1]:
        outputs = check_against_onnxruntime(path, module, inputs)
        values = tuple(int(x) if x.ndim == 0 else x for x in inputs)  # an int argument is a scalar tensor in ONNX
        with torch.no_grad():
            expected = original(*values)
        check_same(outputs, expected if isinstance(expected, tuple) else (expected,), "against the original")


@pytest.mark.parametrize("name", SCRIPTED)
def test_copies(name: str, tmp_path: Path) -> None:
    _, path = script(name, tmp_path)
    check_travels(onnx2nn.load(path), SCRIPTED[name][1][0], travels=("pickle", "deepcopy"))


def test_a_recurrent_layer_in_a_branch_can_be_exported(tmp_path: Path) -> None:
    _, path = script("rates", tmp_path)
    module = onnx2nn.load(path)
    for inputs in SCRIPTED["rates"][1]:
        program = torch.export.export(module, inputs, strict=False)
        check_same(run(program.module(), inputs), run(module, inputs), "torch.export")


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_voice(tmp_path_factory.mktemp("voice"))


# each rate at its shortest and its longest, two batches
SOUNDS = [(2, 32, 16), (3, 47, 16), (2, 12, 8), (5, 17, 8)]


@pytest.mark.slow
def test_branches_that_take_different_sizes_are_layers(voice: Path) -> None:
    original, module = seeded(VoiceDetector), onnx2nn.load(voice)
    kinds = [type(layer).__name__ for layer in module.modules()]
    assert (kinds.count("If"), kinds.count("Conv1d")) == (1, 2)
    for size in SOUNDS:
        wave, state, rate = sound(*size)
        outputs = check_against_onnxruntime(voice, module, (wave, state, rate))
        with torch.no_grad():
            check_same(outputs, original(wave, state, int(rate)), "against the original")
    check_travels(module, sound(2, 40, 16), sound(3, 40, 16))
    check_travels(module, sound(2, 15, 8), sound(3, 15, 8))


@pytest.mark.parametrize(("length", "rate", "taken"), [(31, 16, "32 to 47"), (48, 16, "32 to 47"), (18, 8, "12 to 17")])
def test_a_branch_refuses_sizes_that_the_other_takes(voice: Path, length: int, rate: int, taken: str) -> None:
    inputs = sound(2, length, rate)
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT|FAIL"):
        run_onnxruntime(voice, inputs)
    least, most = taken.split(" to ")
    with pytest.raises(ValueError, match=f"length >= {least} and length <= {most} is needed by node"):
        onnx2nn.load(voice)(*inputs)


def test_a_program_of_one_branch_refuses_the_other_rate(voice: Path) -> None:
    """Exported at a length that one branch takes, it has that branch alone."""
    module, inputs = onnx2nn.load(voice), sound(2, 40, 16)
    program = torch.export.export(module, inputs).module()
    check_same(run(program, inputs), run(module, inputs), "torch.export")
    with pytest.raises(RuntimeError, match="The branch that is chosen does not take these sizes"):
        program(*inputs[:2], torch.tensor(8))


def test_sizes_that_fit_one_branch_leave_that_one(voice: Path) -> None:
    """With sizes that the caller fixes there is no other branch to go to."""
    inputs = sound(2, 40, 16)
    module = onnx2nn.load(voice, input_shapes={"x": [2, 40], "state": [2, 2, 3]})
    assert not any(type(layer).__name__ == "If" for layer in module.modules())
    check_against_onnxruntime(voice, module, inputs)
    check_travels(module, inputs)
    with pytest.raises(RuntimeError, match=r"The other branch does not take inputs of these sizes: .* lstm"):
        module(*inputs[:2], torch.tensor(8))


def test_sizes_that_fit_no_branch_are_refused(voice: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"LSTM.*its inputs' shapes .* do not fit"):
        onnx2nn.load(voice, input_shapes={"x": [2, 80], "state": [2, 2, 3]})


def test_a_lone_integer_is_made_up_as_the_model_asks_for_it(voice: Path) -> None:
    """Of any other sampling rate the file would take the branch that does not take these sizes."""
    result = onnx2nn.verify(voice, input_shapes={"x": [2, 40], "state": [2, 2, 3]})
    assert result.ok


def test_states_of_another_batch_are_refused(voice: Path) -> None:
    """torch.lstm looks at no batch but the sequence's, and reads beyond a smaller state."""
    module = onnx2nn.load(voice)
    wave, _, rate = sound(2, 40, 16)
    for batch in (1, 7):
        state = torch.zeros(2, batch, 3)
        with pytest.raises(Exception, match="initial_h must have shape"):
            run_onnxruntime(voice, (wave, state, rate))
        with pytest.raises(ValueError, match=r"batch == states .*: the initial state of a recurrent layer"):
            module(wave, state, rate)


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("layout", [0, 1])
def test_states_of_another_batch_are_refused_by_the_function(operator: str, gates: int, layout: int) -> None:
    """Both by torch's own functions and by the loop over time of activations that those do not have."""
    weight, recurrence = torch.ones(1, gates * 3, 4), torch.ones(1, gates * 3, 3)

    def call(batch: int, states: int, clip: float | None) -> torch.Tensor:
        sequence = torch.ones(batch, 6, 4) if layout else torch.ones(6, batch, 4)
        state = torch.ones(states, 1, 3) if layout else torch.ones(1, states, 3)
        function = getattr(functional, operator)
        return function(sequence, weight, recurrence, None, None, state, layout=layout, clip=clip)[0]

    for clip in (None, 9.0):
        assert call(5, 5, clip).isfinite().all()
        for batch, states in ((5, 1), (1, 5), (5, 7)):
            with pytest.raises(OperatorError, match=r"an initial state has . sequences instead of ."):
                call(batch, states, clip)


def test_a_parameter_that_a_body_uses_has_the_authors_key(tmp_path: Path) -> None:
    """The older exporter writes it into the outermost graph; what a layer in a body holds has the body's path."""
    author, path = script("repeated_product", tmp_path)
    module = onnx2nn.load(path)
    other = {"mix": torch.linspace(0, 1, 16).reshape(4, 4)}
    for given in (author, module):
        given.load_state_dict(other)
    inputs = SCRIPTED["repeated_product"][1][0]
    with torch.no_grad():
        check_same(run(module, inputs), run(author, inputs), "with other weights")


def test_weights_in_branches_keep_their_keys_when_exported_again(tmp_path: Path) -> None:
    _, path = script("experts", tmp_path)
    module = onnx2nn.load(path)
    assert any(".then_branch." in key for key in module.state_dict())
    for repeat in range(2):
        path = tmp_path / f"again{repeat}.onnx"
        onnx2nn.export_onnx(module, path)
        again = onnx2nn.load(path)
        assert {*again.state_dict()} == {*module.state_dict()}
        for inputs in SCRIPTED["experts"][1]:
            check_same(run(again, inputs), run(module, inputs), "exported again")
        module = again


def test_branches_may_lay_their_results_out_differently() -> None:
    """Merged decoders, with and without a cache, have such branches; torch.cond asks for the same strides."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        choosing (float[rows, 3, 4] x, float[rows, 4, 3] z, bool[1] turned) => (float[rows, 4, 3] y) {
            y = If (turned) <
                then_branch = turn () => (float[rows, 4, 3] a) { a = Transpose <perm = [0, 2, 1]> (x) },
                else_branch = keep () => (float[rows, 4, 3] b) { b = Neg (z) }
            >
        }
    """)
    module = onnx2nn.load(model)
    for turned in (True, False):
        tensors = [torch.linspace(-1, 1, 12 * rows).reshape(rows, 3, 4) for rows in (2, 5)]
        calls = [(x, x.reshape(-1, 4, 3) * 3, torch.tensor([turned])) for x in tensors]
        for inputs in calls:
            check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
        check_travels(module, *calls, travels=("torch.export", "torch.compile", "torch.onnx.export"))


@pytest.mark.slow
def test_recurrent_layers_in_branches_are_written_as_operators(tmp_path: Path) -> None:
    """torch would write a loop of its own, within which its trace of the branch fails at the next layer."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        choosing (float[steps, batch, 4] x, bool slow) => (float[steps, batch, 3] y)
        <float[1, 12, 4] W, float[1, 12, 3] R, float[1, 9, 4] V, float[1, 9, 3] S, float[3, 3] P, float[3, 3] Q> {
            y = If (slow) <
                then_branch = lstm () => (float[steps, batch, 3] a) {
                    h = LSTM <hidden_size = 3> (x, W, R)
                    axes = Constant <value_ints = [1]> ()
                    s = Squeeze (h, axes)
                    a = MatMul (s, P)
                },
                else_branch = gru () => (float[steps, batch, 3] b) {
                    g = GRU <hidden_size = 3, linear_before_reset = 1> (x, V, S)
                    axes2 = Constant <value_ints = [1]> ()
                    t = Squeeze (g, axes2)
                    b = MatMul (t, Q)
                }
            >
        }
    """)
    generator = np.random.default_rng(0)
    for weight in model.graph.value_info:
        values = generator.standard_normal([size.dim_value for size in weight.type.tensor_type.shape.dim])
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), weight.name))
    module, path = onnx2nn.load(model), tmp_path / "written.onnx"
    line = onnx2nn.export_onnx(module, path)
    assert "holds" not in line  # both branches are there
    (choice,) = (node for node in onnx.load(path).graph.node if node.op_type == "If")
    branches = [[node.op_type for node in attribute.g.node] for attribute in choice.attribute]
    assert [{"LSTM", "GRU", "Loop"}.intersection(branch) for branch in branches] == [{"LSTM"}, {"GRU"}]
    for steps, batch in ((1, 1), (6, 2), (2, 5)):
        for slow in (True, False):
            inputs = torch.linspace(-1, 1, steps * batch * 4).reshape(steps, batch, 4), torch.tensor(slow)
            check_same(run_onnxruntime(path, inputs), run(module, inputs), "exported")


_UNTIL = """
        <ir_version: 8, opset_import: ["": 17]>
        doubling (float[n, 3] x, int64 most) => (float[n, 3] y, {outputs})
        <float[3, 3] w = {{2, 0, 0, 0, 2, 0, 0, 1, 1}}> {{
            begin = Constant <value = bool {{1}}> ()
            ["until"] y, {results} = Loop ({trips}, begin, x{starts}) <
                body = step (int64 i, bool before, float[n, 3] a{taken}) => (bool goes, float[n, 3] b, {given}) {{
                    b = MatMul (a, w)
                    total = ReduceMax <keepdims = 0> (b)
                    most_of_all = Constant <value = float {{100}}> ()
                    goes = Less (total, most_of_all)
                    {line}
                }}
            >
        }}"""


@pytest.mark.parametrize("trips", ["most", '""'])
def test_a_loop_that_data_end_is_one_in_what_is_exported(trips: str, tmp_path: Path) -> None:
    """By torch.while_loop: as often as the values of a call say, and no more often than a number that is given."""
    count = dict(outputs="int64 n2", results="n2", starts=", most", taken=", int64 c", given="int64 d")
    model = onnx.parser.parse_model(_UNTIL.format(trips=trips, line="d = Add (c, i)", **count))
    module = onnx2nn.load(model)
    example = [torch.ones(2, 3), torch.tensor(3)]
    onnx2nn.export_onnx(module, tmp_path / "loop.onnx", example_inputs=example)
    onnx2nn.save(module, tmp_path / "loop.pt2", example_inputs=example)
    program = torch.export.load(tmp_path / "loop.pt2").module()
    for rows, value, most in ((2, 1.0, 3), (5, 30.0, 20), (1, 0.01, 9), (3, 99.0, 0), (4, 1.0, 20)):
        inputs = torch.full((rows, 3), value), torch.tensor(most)
        expected = run_onnxruntime(model.SerializeToString(), inputs)
        check_same(expected, run(module, inputs), "against ONNX Runtime")
        check_same(run_onnxruntime(tmp_path / "loop.onnx", inputs), expected, "exported again")
        check_same(run(program, inputs), expected, "torch.export")


def test_a_loop_that_data_end_is_named_where_it_cannot_be_exported(tmp_path: Path) -> None:
    """It stacks what each iteration gives, which torch.while_loop does not."""
    stack = dict(outputs="float[m] s", results="s", starts="", taken="", given="float total2")
    model = onnx.parser.parse_model(_UNTIL.format(trips='""', line="total2 = Identity (total)", **stack))
    module, inputs = onnx2nn.load(model), (torch.ones(2, 3), torch.tensor(3))
    check_same(run_onnxruntime(model.SerializeToString(), inputs), run(module, inputs), "against ONNX Runtime")
    message = r"data decide how often node 'until' \(Loop\) repeats"
    with pytest.raises(VerificationError, match=message):
        onnx2nn.export_onnx(module, tmp_path / "loop.onnx", example_inputs=list(inputs))
    with pytest.raises(VerificationError, match=message):
        onnx2nn.save(module, tmp_path / "loop.pt2", example_inputs=list(inputs))
    assert not list(tmp_path.iterdir())


def test_a_loop_that_data_count_is_named_where_it_cannot_be_exported(tmp_path: Path) -> None:
    """As detectors have one, over the boxes that are left."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n] x) => (float[m] y) <bool begin = {1}, int64 zero = {0}, int64 one = {1}> {
            found = NonZero (x)
            shape = Shape (found)
            count = Gather (shape, one)
            ["each"] last, y = Loop (count, begin, zero) <
                body = step (int64 i, bool before, int64 a) => (bool goes, int64 b, float z) {
                    goes = Identity (before)
                    b = Add (a, i)
                    z = Cast <to = 1> (b)
                }
            >
        }
    """)
    module, x = onnx2nn.load(model), torch.tensor([1.0, 0.0, 2.0, 3.0])
    check_same(run_onnxruntime(model.SerializeToString(), (x,)), run(module, (x,)), "against ONNX Runtime")
    with pytest.raises(VerificationError, match=r"data decide how often node 'each' \(Loop\) repeats"):
        onnx2nn.export_onnx(module, tmp_path / "loop.onnx", example_inputs=[x])


def test_a_loop_of_known_length_in_which_data_decide_sizes_says_that(tmp_path: Path) -> None:
    """As tf2onnx writes crops of known boxes: numbers of a table say where each iteration slices."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[m, 4] y)
        <bool begin = {1}, int64 three = {3}, int64[3] table = {1, 0, 0}, int64[1] one = {1}, int64[1] zero = {0}> {
            ["crop"] y = Loop (three, begin) <
                body = step (int64 i, bool before) => (bool goes, float[a, 4] z) {
                    goes = Identity (before)
                    row = Unsqueeze (i, zero)
                    next = Add (row, one)
                    first = Slice (table, row, next)
                    after = Add (first, one)
                    part = Slice (x, first, after, zero)
                    z = Relu (part)
                }
            >
        }
    """)
    module, x = onnx2nn.load(model), torch.linspace(-1, 1, 12).reshape(3, 4)
    check_same(run_onnxruntime(model.SerializeToString(), (x,)), run(module, (x,)), "against ONNX Runtime")
    message = r"at node 'crop' \(Loop\), data decide a size in its iterations: Could not guard"
    with pytest.raises(VerificationError, match=message):
        onnx2nn.export_onnx(module, tmp_path / "loop.onnx", example_inputs=[x])


def test_branches_of_sizes_that_torch_does_not_join_are_named(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[b, 2, n] x) => (float[b, 2, m] y)
        <int64 last = {2}, int64 four = {4}, int64[6] pads = {0, 0, 3, 0, 0, 3}> {
            shape = Shape (x)
            size = Gather (shape, last)
            few = Less (size, four)
            ["pool"] y = If (few) <
                then_branch = t () => (float[b, 2, a] v) { p = Pad (x, pads) v = MaxPool <kernel_shape = [3]> (p) },
                else_branch = e () => (float[b, 2, c] w) { w = MaxPool <kernel_shape = [2]> (x) }
            >
        }
    """)
    module = onnx2nn.load(model)
    for size in (1, 3, 4, 7):
        inputs = (torch.linspace(-1, 1, 4 * size).reshape(2, 2, size),)
        check_same(run_onnxruntime(model.SerializeToString(), inputs), run(module, inputs), "against ONNX Runtime")
    with pytest.raises(VerificationError, match=r"at node 'pool' \(If\), torch.cond finds no common sizes"):
        onnx2nn.export_onnx(module, tmp_path / "pool.onnx")


def test_condition_from_the_dynamo_exporter() -> None:
    original = Condition().eval()
    calls = SCRIPTED["branch"][1]
    path = export_dynamo("condition", original, calls[0], calls[2])
    assert "If" in _operators(path)
    module = onnx2nn.load(path)
    for inputs in calls:
        check_same(check_against_onnxruntime(path, module, inputs), run(original, inputs), "against the original")


@pytest.mark.slow
def test_layers_in_branches_of_the_dynamo_exporter_keep_the_authors_keys() -> None:
    original = seeded(ConditionalLayers)
    calls = SCRIPTED["experts"][1]
    path = export_dynamo("conditional_layers", original, calls[0], calls[2])
    module = onnx2nn.load(path)
    report = onnx2nn.naming_report(module)
    assert (report.missing, report.extra) == ({}, {})
    module.load_state_dict({key: value + 1 for key, value in original.state_dict().items()})
    module.load_state_dict(original.state_dict())
    for inputs in calls:
        check_same(check_against_onnxruntime(path, module, inputs), run(original, inputs), "against the original")
        check_travels(module, inputs, travels=("torch.export", "torch.compile", "torch.onnx.export", "pickle"))
    module(calls[0][0]).sum().backward()
    original(calls[0][0]).sum().backward()
    own = dict(module.named_parameters())
    used = {key: parameter.grad for key, parameter in original.named_parameters() if parameter.grad.any()}
    assert {key.partition(".")[0] for key in used} == {"shared", "warm", "norm"}
    for key, gradient in used.items():
        torch.testing.assert_close(own[key].grad, gradient)


class Routed(nn.Module):
    """A layer, and a choice by data of what becomes of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.relu(torch.cond(y.sum() > 0, lambda y: torch.tanh(y) * 2, lambda y: y - 1, (y,))) + x


class Routes(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Routed(), Routed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_a_choice_stands_in_the_module_that_makes_it(tmp_path: Path) -> None:
    """Also in the file that the import is written to; equal modules have one class."""
    model = seeded(Routes)
    path, again = export_dynamo("routes", model, (torch.randn(3, 4),)), tmp_path / "again.onnx"
    module = onnx2nn.load(path)
    onnx2nn.export_onnx(module, again)
    for imported in (module, onnx2nn.load(again)):
        assert imported.meta["onnx2nn"]["tree"]["blocks"] == {"first": "Routed", "second": "Routed"}
        assert type(imported.first) is type(imported.second)
        assert type(imported.first.cond) is type(imported.second.cond) is If
        for sign in (1, -1):
            x = sign * torch.ones(3, 4)
            torch.testing.assert_close(imported.first(x), model.first(x))
            torch.testing.assert_close(imported(x), model(x))


def test_branches_take_a_tensor_and_views_of_it(tmp_path: Path) -> None:
    """torch.cond takes no aliases: views get copies where it runs. Two views of one tensor are aliases too."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3] x, bool c) => (float[n, 3] y) <int64[1] axis = {0}> {
            turned = Transpose <perm = [1, 0]> (x)
            small = Unsqueeze (turned, axis)
            y = If (c) <
                then_branch = a () => (float[n, 3] p) { square = MatMul (turned, x) p = MatMul (x, square) },
                else_branch = b () => (float[n, 3] q) { f = Squeeze (small, axis) q = Transpose <perm = [1, 0]> (f) }
            >
        }""")
    module = onnx2nn.load(model)
    choice = next(part for part in module.modules() if isinstance(part, If))
    assert len(choice.views) == 2  # the transposed tensor, and with a dimension more
    x = torch.randn(5, 3)
    exported = torch.export.export(
        module, (x, torch.tensor(True)), dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, None), strict=False
    ).module()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    onnx2nn.export_onnx(module, tmp_path / "m.onnx")
    for rows in (5, 2):
        x = torch.randn(rows, 3)
        for truth in (True, False):
            inputs = (x, torch.tensor(truth))
            expected = run_onnxruntime(model.SerializeToString(), inputs)
            for form in (module, exported, compiled):
                check_same((form(*inputs),), expected, "against ONNX Runtime")
            check_against_onnxruntime(tmp_path / "m.onnx", module, inputs)
