"""Operators at the edges of their numbers: NaN, infinities, -0, denormals, empty tensors.

The answers of this package, ONNX Runtime and onnx.reference stand in `scripts/conformance_results/edges.json`, and
where they differ in docs/conformance.md. A case's `why` says there which of them is the standard's.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from scripts.conformance import Recorder
from scripts.edges import Edge, text_of
from tests import onnxnode
from tests.cases import Case, case

NAN, INF = np.nan, np.inf

_PLACE = "the standard is silent, and ONNX Runtime's answer depends on the NaN's place and the rank; here NaN wins"
_ZERO = "-0 and 0 are equal"
_LOWEST = "onnx2nn: the largest number is -inf; ONNX Runtime starts from the lowest finite one"
_WINDOW = "onnx2nn: the formula over each window; ONNX Runtime's running sum keeps NaN in later windows"
_CANCELS = "onnx2nn: exp(x) - 1 of the formula cancels in ONNX Runtime"
_IGNORED = "onnx2nn: a mean or norm with NaN is NaN; onnx.reference leaves NaN out"
_AXIS = "an error everywhere: there is no index on an axis without elements"
_SPACE = "undefined: a pool over no elements"


def f(*values: float) -> np.ndarray:
    """Returns a float32 vector."""
    return np.array(values, np.float32)


def row(*values: float) -> np.ndarray:
    """Returns float32 of shape (1, n)."""
    return f(*values)[None]


def line(*values: float) -> np.ndarray:
    """Returns an image of one sample, one channel and one dimension, (1, 1, n)."""
    return f(*values).reshape(1, 1, -1)


def image(*values: float) -> np.ndarray:
    """Returns an image of one sample, one channel and one row, (1, 1, 1, n)."""
    return f(*values).reshape(1, 1, 1, -1)


def channels(*values: float) -> np.ndarray:
    """Returns an image of one sample and one place, (1, n, 1, 1)."""
    return f(*values).reshape(1, -1, 1, 1)


def none(*shape: int) -> np.ndarray:
    """Returns float32 of a shape without elements."""
    assert 0 in shape
    return np.zeros(shape, np.float32)


_ELEMENTWISE = (
    *(
        "Sign",
        "Relu",
        "ThresholdedRelu",
        "LeakyRelu",
        "HardSigmoid",
        "HardSwish",
        "Selu",
        "Elu",
        "Celu",
        "Gelu",
        "Mish",
    ),
    *("Softplus", "Softsign", "Shrink", "Sigmoid", "Tanh", "Swish", "Erf", "Floor", "Ceil", "Round", "Abs", "Neg"),
    *("Sqrt", "Exp", "Log", "Reciprocal", "IsNaN", "IsInf"),
)
_VALUES = {"NaN": f(NAN, 1), "infinities": f(INF, -INF), "-0": f(-0.0, 0), "denormals": f(1e-45, -1e-45, 1e-39, -1e-39)}
_UNSIGNED = "ONNX Runtime: -0.5 times a number near 0 is -0; one of PyTorch's float32 kernels gives 0"
_WHY_ELEMENTWISE = {
    ("Relu", "-0"): _ZERO,
    ("Selu", "-0"): _ZERO,
    ("Selu", "denormals"): _CANCELS,
    ("Elu", "denormals"): _CANCELS,
    ("Celu", "-0"): _ZERO,
    ("Celu", "denormals"): _CANCELS,
    ("Tanh", "denormals"): "onnx2nn: x itself to the last digit; ONNX Runtime gives 0",
    ("Gelu", "infinities"): (
        "ONNX Runtime: 0.5 * inf * 2 is inf; of PyTorch's float32 kernels oneDNN's gives NaN, in the author's model too"
    ),
    ("Gelu", "-0"): _UNSIGNED,
    ("Gelu", "denormals"): _UNSIGNED,
}
_BY_PROCESSOR = {
    ("Gelu", "infinities"): ("[inf, nan]", "[nan, nan]"),
    ("Gelu", "-0"): ("[-0, 0]", "[0, 0]"),
    ("Gelu", "denormals"): ("[0, -0, 5e-40, -5e-40]", "[0, 0, 5e-40, -5e-40]"),
}
"""Answers of PyTorch's kernels of which the processor's instructions choose one."""


def _elementwise() -> Iterable[Case]:
    for operator in _ELEMENTWISE:
        for note, value in _VALUES.items():
            yield case(operator, value, note=note, why=_WHY_ELEMENTWISE.get((operator, note), ""))
    yield case("Gelu", f(INF, -INF, NAN), approximate="tanh", note="infinities, tanh")
    yield case("PRelu", f(NAN, -INF, -0.0), f(0, 0, 0.5), note="NaN, -inf, -0")
    yield case("Cast", f(NAN, INF, -INF, -0.0), to=10, note="NaN, infinities, -0 as float16")
    for operator in ("Equal", "Less", "LessOrEqual"):
        yield case(operator, f(NAN, NAN, -0.0), f(NAN, 1, 0), note="NaN, -0")
    yield case("Mod", f(-0.0, 1, NAN, INF, 1), f(1, INF, 1, 1, 0), fmod=1, note="all edges")
    yield case("Pow", f(0, -0.0, -1, NAN, 1, -8), f(0, -1, INF, 0, NAN, 1 / 3), note="all edges")
    yield case("Div", f(0, 1, -1, -0.0), f(0, 0, 0, 5), note="by 0")


_BOUNDS = (
    "ONNX Runtime: the function of the standard compares, x < NaN is false, and x stays; onnx.reference and"
    " torch.clamp give NaN"
)


def _clips() -> Iterable[Case]:
    one, least = np.float32(1), np.float32(-1)
    yield case("Clip", f(NAN, -5, 5, INF, -INF), least, one, since=11, note="NaN, infinities")
    yield case("Clip", f(-5, 0, 5), np.float32(NAN), one, since=11, note="min NaN", why=_BOUNDS)
    yield case("Clip", f(-5, 0, 5), least, np.float32(NAN), since=11, note="max NaN", why=_BOUNDS)
    yield case("Clip", f(-5, 0, 5), np.float32(NAN), one, since=11, constant=(1, 2), note="constant NaN", why=_BOUNDS)
    yield case("Clip", f(NAN, -5, 5), one, least, since=11, note="min above max")
    yield case("Clip", f(-0.0, 0), np.float32(0), one, since=11, note="-0")
    why = "onnx2nn: the standard's function is Identity; its text has the extreme finite numbers as defaults"
    yield case("Clip", f(INF, -INF), since=11, note="infinities without bounds", why=why)


def _extremes() -> Iterable[Case]:
    for operator in ("Max", "Min"):
        yield case(operator, f(NAN, 1, NAN), f(1, NAN, NAN), note="NaN")
        yield case(operator, f(NAN, 1, 2), f(0, NAN, 2), f(0, 0, NAN), note="NaN of three")
        yield case(operator, f(-0.0, 0), f(0, -0.0), note="-0", why=_ZERO)
        yield case(operator, none(0), none(0), note="empty")
    for last in (0, 1):
        options: dict[str, Any] = {"axis": 1, "keepdims": 0, "select_last_index": last, "since": 12}
        for operator in ("ArgMax", "ArgMin"):
            note = "NaN, last index" if last else "NaN"
            yield case(operator, np.stack([f(1, NAN, 3, NAN), f(2, 1, 3, 2)]), note=note, why=_PLACE, **options)
    for operator in ("ArgMax", "ArgMin"):
        yield case(operator, f(-0.0, 0, -0.0), axis=0, keepdims=0, note="-0")
        yield case(operator, f(INF, -INF, INF), axis=0, keepdims=0, note="infinities")
        yield case(operator, none(2, 0), axis=1, keepdims=0, note="no elements on the axis", why=_AXIS)
        yield case(operator, none(0, 2), axis=1, keepdims=0, note="empty")
    six = np.array([6])
    for largest in (1, 0):
        note, options = ("largest", "smallest")[1 - largest], {"outputs": 2, "largest": largest, "since": 11}
        yield case("TopK", f(1, NAN, 3, NAN, INF, -INF), six, note=f"NaN, {note}", **options)
        yield case("TopK", f(-0.0, 0, -0.0), np.array([3]), note=f"-0, {note}", **options)
    yield case("TopK", none(2, 0), np.array([0]), outputs=2, note="empty")
    for sort in (0, 1):
        note, options = ("unsorted", "sorted")[sort], {"sorted": sort, "outputs": 4}
        why = "the standard is silent; here NaNs are unequal. ONNX Runtime loses numbers, onnx.reference makes NaN one"
        yield case("Unique", f(1, NAN, -1, NAN), note=f"NaN, {note}", why=why, **options)
        yield case("Unique", f(0, -0.0, 1), note=f"-0, {note}", **options)
        yield case("Unique", none(0), note=f"empty, {note}", **options)


def _reductions() -> Iterable[Case]:
    names = ("Max", "Min", "Sum", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    infinities = np.stack([f(1, INF, 3), f(-INF, 2, 3), f(INF, -INF, 0), f(-INF, -INF, -INF)])
    why_of = {
        ("Max", "NaN"): _PLACE,
        ("Min", "NaN"): _PLACE,
        ("Max", "-0"): _ZERO,
        ("Min", "-0"): _ZERO,
        ("Sum", "-0"): _ZERO,
        ("Mean", "-0"): _ZERO,
        ("LogSumExp", "infinities"): "onnx2nn: the log of a sum of zeros is -inf",
    }
    for name in names:
        since, last = (13 if name == "Sum" else 18), np.array([1])
        for note, value in {
            "NaN": np.stack([f(1, NAN, 3), f(1, 2, 3)]),
            "infinities": infinities,
            "-0": np.array([[-0.0, -0.0], [0.0, -0.0]], np.float32),
            "denormals": row(1e-45, 1e-45),
            "empty": none(0, 2),
        }.items():
            why = why_of.get((name, note), "")
            yield case(f"Reduce{name}", value, last, keepdims=0, since=since, note=note, why=why)
        if name != "Mean":
            least = {"Sum": 13, "Max": 20, "Min": 20}.get(name, 18)
            yield case(f"Reduce{name}", none(2, 0), last, keepdims=0, since=least, note="no elements on the axis")
    for name in ("Max", "Min"):
        yield case(f"Reduce{name}", np.zeros((2, 0), np.int32), np.array([1]), keepdims=0, since=20, note="no integers")


def _softmaxes() -> Iterable[Case]:
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        hard = operator == "Hardmax"
        yield case(operator, row(1, NAN, 3), axis=1, note="NaN", why=_PLACE if hard else "")
        yield case(operator, row(NAN, NAN), axis=1, note="NaN alone", why=_PLACE if hard else "")
        yield case(operator, row(1, INF, 3), axis=1, note="inf")
        yield case(operator, row(INF, INF, 3), axis=1, note="inf twice")
        yield case(operator, row(1, -INF, 3), axis=1, note="-inf")
        yield case(operator, row(-INF, -INF), axis=1, note="-inf alone")
        yield case(operator, row(1e-40, 2e-40, 0), axis=1, note="denormals")
        yield case(operator, none(0, 3), axis=1, note="empty")
        yield case(operator, none(3, 0), axis=1, note="no elements on the axis")


def _pools() -> Iterable[Case]:
    forms: list[tuple[str, Callable[..., np.ndarray], list[int]]] = [("1-D", line, [2]), ("2-D", image, [1, 2])]
    for form, make, kernel in forms:
        yield case("MaxPool", make(1, NAN, 3), kernel_shape=kernel, note=f"NaN, {form}", why=_PLACE)
        yield case("MaxPool", make(INF, -INF, -INF), kernel_shape=kernel, note=f"infinities, {form}",
                   why=_LOWEST if form == "1-D" else "")  # fmt: skip
        yield case("AveragePool", make(1, NAN, 3, 4), kernel_shape=kernel, note=f"NaN, {form}", why=_IGNORED)
        yield case("AveragePool", make(INF, -INF, 1, INF), kernel_shape=kernel, note=f"infinities, {form}")
        yield case(
            "LpPool", make(INF, -INF, 1, NAN), kernel_shape=kernel, note=f"NaN, infinities, {form}", why=_IGNORED
        )
        empty = (1,) * (len(kernel))
        for kind in ("Max", "Average", "Lp"):
            operator, lp = f"Global{kind}Pool", kind == "Lp"
            without = "onnx2nn and ONNX Runtime; onnx.reference has no GlobalLpPool" if lp else ""
            yield case(operator, make(1, NAN, 3), note=f"NaN, {form}", why=_PLACE if kind == "Max" else without)
            yield case(operator, make(1, INF, 3, -INF), note=f"infinities, {form}", why=without)
            yield case(operator, make(-INF, -INF), note=f"-inf, {form}", why=_LOWEST if kind == "Max" else without)
            wrong = "onnx2nn and ONNX Runtime: the batch stays a dimension; onnx.reference fails"
            agree = kind == "Max" and form == "2-D"
            yield case(operator, none(0, 2, *empty), note=f"empty batch, {form}", why="" if agree else without or wrong)
            yield case(operator, none(1, 2, *(0 for _ in empty)), note=f"no places, {form}", why=_SPACE)
    yield case("MaxPool", line(-INF, -INF, -INF), kernel_shape=[2], outputs=2, note="-inf, Indices")


def _norms() -> Iterable[Case]:
    yield case("LRN", channels(1, NAN, 3, 4), size=3, note="NaN", why=_WINDOW)
    yield case("LRN", channels(1, INF, 3, 4, 5), size=3, note="inf", why=_WINDOW)
    yield case("LRN", channels(1e20, 1, 1e20), size=3, note="squares that overflow", why=_WINDOW)
    yield case("LRN", none(0, 3, 2, 2), size=3, note="empty batch")
    of_two = f(1, 2), f(0, 1)
    yield case("InstanceNormalization", none(0, 2, 3), *of_two, note="empty batch")
    yield case("InstanceNormalization", none(1, 2, 0), *of_two, note="no places")
    yield case("InstanceNormalization", none(1, 0, 3), none(0), none(0), note="no channels")
    yield case("InstanceNormalization", np.stack([row(1, NAN), row(1, 2)], 1)[0][None], *of_two, note="NaN")
    yield case("InstanceNormalization", np.stack([row(1, INF), row(1, 2)], 1)[0][None], *of_two, note="inf")
    yield case("BatchNormalization", none(0, 2, 3), f(1, 1), f(0, 0), f(0, 0), f(1, 1), note="empty batch")
    yield case("LayerNormalization", row(1, INF), f(1, 1), note="inf")
    yield case("LayerNormalization", none(0, 2), f(1, 1), note="empty batch")
    yield case("LayerNormalization", none(2, 0), none(0), note="no elements on the axis",
               why="onnx2nn and onnx.reference: nothing is normalised; ONNX Runtime refuses the scale")  # fmt: skip
    yield case("LpNormalization", row(0, 0), note="zeros")
    yield case("LpNormalization", row(1, INF), note="inf")


def _quantisation() -> Iterable[Case]:
    left_out = (
        "ONNX Runtime: the standard is silent; NaN is left out of the range, and quantised to 0. With more elements"
        " ONNX Runtime loses some of the numbers before a NaN"
    )
    for note, x, why in (
        ("inf", f(1, INF), ""),
        ("-inf", f(-INF, 1), ""),
        ("NaN", f(1, NAN, -1), left_out),
        ("NaN alone", f(NAN, NAN), left_out),
        ("empty", none(0), "ONNX Runtime: the range includes 0 in any case"),
        ("zeros", f(0, 0), "ONNX Runtime: the formula divides by 0; onnx.reference has a scale of its own"),
        ("denormals", f(1e-45, 0), ""),
        ("range that overflows", f(3e38, -3e38), ""),
        ("-0", f(-0.0), "ONNX Runtime: the formula divides by 0; onnx.reference has a scale of its own"),
    ):
        yield case("DynamicQuantizeLinear", x, outputs=3, note=note, why=why)
    for dtype in (np.uint8, np.int8):
        saturated = "ONNX Runtime: inf saturates; onnx.reference converts it as the processor does"
        values = f(NAN, INF, -INF, -0.0), np.float32(0.5), np.array(3, dtype)
        yield case("QuantizeLinear", *values, note=f"NaN, infinities, -0, {dtype.__name__}", why=saturated, since=19)
        by_zero = f(1, 0, -1), np.float32(0), np.array(3, dtype)
        yield case("QuantizeLinear", *by_zero, note=f"scale 0, {dtype.__name__}", why=saturated, since=19)


def _attentions() -> Iterable[Case]:
    """Of one head of size 1, with two queries and two keys."""
    q, k, v = (f(*values).reshape(1, 1, 2, 1) for values in ((1, 2), (1, -1), (3, 5)))
    first, second = (f(*values).reshape(1, 1, 2, 1) for values in ((NAN, 1), (1, NAN)))
    lost = "ONNX Runtime: the formula; of a row of NaN torch's kernel makes 0, in the author's model too"
    yield case("Attention", q * first, k, v, note="NaN query", why=lost)
    yield case("Attention", q, k * first, v, note="NaN key")
    yield case("Attention", q, k, v * first, note="NaN value")
    yield case("Attention", f(INF, 1).reshape(1, 1, 2, 1), k, v, note="infinite query")
    yield case("Attention", q, k, v, np.array([[-INF, -INF], [0, -INF]], np.float32), note="mask of -inf")
    yield case("Attention", q, k, v, np.array([[NAN, 0], [0, 0]], np.float32), note="mask of NaN")
    behind = "ONNX Runtime: -inf is added to the scores of later keys, and NaN stays; torch's kernel reads no later key"
    yield case("Attention", q, k * second, v, is_causal=1, note="NaN key, later than the query", why=behind)
    yield case("Attention", q, k, v * second, np.array([[True, False]] * 2), note="NaN value that is masked")


def _others() -> Iterable[Case]:
    yield case("CumSum", f(1, INF, -INF, 1), np.array(0), note="infinities")
    yield case("Sum", f(-0.0), f(-0.0), note="-0", why=_ZERO)
    yield case("NonZero", f(NAN, -0.0, 0, 1e-45), note="NaN, -0, denormals")
    yield case("Where", np.array([True, False]), f(NAN, -0.0), f(1, -0.0), note="NaN, -0")
    yield case("MatMul", none(2, 0), none(0, 3), note="no elements to sum")
    yield case("MatMul", row(0, 1), np.array([[INF], [1]], np.float32), note="0 times inf")
    yield case("Gemm", none(2, 0), none(0, 3), f(1, 2, 3), note="no elements to sum")
    yield case("Conv", none(0, 1, 3), np.ones((1, 1, 2), np.float32), note="empty batch")
    yield case("Trilu", np.array([[1, INF], [NAN, 1]], np.float32), upper=0, note="NaN, inf")


@functools.cache
def edge_cases() -> tuple[Case, ...]:
    """Returns the cases; their notes are the edges, and tell those of an operator apart."""
    families = (
        _elementwise,
        _clips,
        _extremes,
        _reductions,
        _softmaxes,
        _pools,
        _norms,
        _quantisation,
        _attentions,
        _others,
    )
    return tuple(item for family in families for item in family())


def newest(item: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns a case's model at the newest revision that expresses it, and the feeds."""
    return next(_forms(item))


def _forms(item: Case) -> Iterable[tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    for version in reversed(onnxnode.revisions(item)):
        if onnxnode.expressible(item, version):
            yield onnxnode.model_of(item, version)


def _runtime(item: Case) -> Sequence[Any]:
    """Returns ONNX Runtime's outputs at the newest revision that it runs; raises its last error."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    error: Exception | None = None
    for model, feeds in _forms(item):
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        except Exception as refusal:  # its classes have no base of their own
            error = refusal
            continue
        return list(session.run(None, feeds))
    assert error is not None
    raise error


def _reference(item: Case) -> Sequence[Any]:
    from onnx.reference import ReferenceEvaluator

    model, feeds = newest(item)
    return list(ReferenceEvaluator(model).run(None, feeds))


def ours(item: Case, framework: str = "torch") -> Sequence[Any]:
    model, feeds = newest(item)
    return list(Recorder(framework).prepare(model).run(feeds))


def answer(run: Callable[[Case], Sequence[Any]], item: Case) -> list[str]:
    """Returns the texts of the outputs of a case, or of its error's class."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # numpy's, about the numbers that this is about
        try:
            return [text_of(np.asarray(output)) for output in run(item)]
        except Exception as error:  # whichever class it is, the answer is an error
            return [f"error: {type(error).__name__}"]


def edges() -> list[Edge]:
    """Returns what the three say of each case."""
    return [
        Edge(
            item.operator,
            item.note,
            [text_of(value) for value in item.arrays() if value is not None],
            of_any_processor(item, answer(ours, item)),
            *(answer(run, item) for run in (_runtime, _reference)),
            item.why,
        )
        for item in edge_cases()
    ]


def of_any_processor(item: Case, answers: list[str]) -> list[str]:
    """Returns the answers; all that processors give in place of one of these."""
    kernels = _BY_PROCESSOR.get((item.operator, item.note), ())
    return [" or ".join(kernels)] if len(answers) == 1 and answers[0] in kernels else answers
