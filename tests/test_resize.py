"""Resize by nearest elements takes the elements that ONNX Runtime takes, where coordinates fall near their borders.

Images that are empty, before or after, are refused by name where torch refuses them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from tests import installed

TRANSFORMATIONS = [
    "asymmetric",
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
ROI = (0.1, 0.9)

pytestmark = pytest.mark.skipif(
    installed.version("onnxruntime") < (1, 27), reason="ONNX Runtime before 1.27 takes no coordinate for a middle"
)


class Target(NamedTuple):
    """How the last dimension is resized: by a scale, to a size, or to a share of its size that the graph computes."""

    scale: float | None = None
    size: int | None = None
    share: tuple[int, int] | None = None

    def output(self, size: int) -> int:
        """Returns the size that ONNX Runtime gives."""
        if self.scale is not None:
            return int(np.float32(size) * np.float32(self.scale))
        return self.size or size * self.share[0] // self.share[1] if self.share else self.size or 0


def near_middles(draw: random.Random) -> float:
    """Returns a scale by which an output index falls on the middle of two elements, or a unit in the last place off."""
    scale = np.float32(draw.randrange(1, 200) / (draw.randrange(100) + 0.5))
    return float(np.nextafter(scale, np.float32(draw.choice((0, 9)))) if draw.random() < 0.6 else scale)


def targets(draw: random.Random) -> Iterator[Target]:
    """Yields one of each kind, without end."""
    while True:
        yield Target(scale=near_middles(draw))
        yield Target(scale=float(np.float32(draw.randrange(1, 60) / draw.randrange(1, 60))))
        yield Target(scale=float(np.float32(round(draw.uniform(0.05, 5), draw.choice((1, 2, 3))))))
        yield Target(size=draw.randrange(1, 400))
        yield Target(share=(draw.randrange(1, 60), draw.randrange(1, 60)))


def resize(target: Target, size: int | str, transformation: str, rounding: str) -> onnx.ModelProto:
    """Returns a model that resizes the last dimension of `(1, 1, 2, size)`."""
    constants = {"roi": np.array([0, 0, 0, ROI[0], 1, 1, 1, ROI[1]], np.float32)}
    nodes = []
    if target.scale is not None:
        constants["scales"] = np.array([1, 1, 1, target.scale], np.float32)
    elif target.size is not None:
        constants["sizes"] = np.array([1, 1, 2, target.size])
    elif target.share is not None:
        constants |= {"times": np.array([1, 1, 1, target.share[0]]), "by": np.array([1, 1, 1, target.share[1]])}
        nodes += [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Mul", ["shape", "times"], ["product"]),
            helper.make_node("Div", ["product", "by"], ["sizes"]),
        ]
    inputs = ["x", "roi", "scales"] if target.scale is not None else ["x", "roi", "", "sizes"]
    modes = dict(mode="nearest", coordinate_transformation_mode=transformation, nearest_mode=rounding)
    graph = helper.make_graph(
        [*nodes, helper.make_node("Resize", inputs, ["y"], **modes)],
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, None])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def is_compared(target: Target, size: int, transformation: str) -> bool:
    """Returns whether a size is one to compare: not too long, and not where the standard is followed instead.

    These are what the docstring of the row names: align_corners with a scale that gives no whole size, and
    tf_crop_and_resize where no size changes, for which ONNX Runtime does not crop.
    """
    output = target.output(size)
    if not 1 <= output <= 3000 or (transformation == "tf_crop_and_resize" and output == size):
        return False
    whole = target.scale is None or float(np.float32(size) * np.float32(target.scale)) == output
    return transformation != "align_corners" or whole


def check(module: Any, session: onnxruntime.InferenceSession, size: int, what: object) -> None:
    x = np.arange(2 * size, dtype=np.float32).reshape(1, 1, 2, size)
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), expected, err_msg=f"{what} of {size}")


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_fixed_sizes(transformation: str, rounding: str, count: int) -> None:
    draw, compared = random.Random(f"{transformation} {rounding} fixed"), 0
    for target in targets(draw):
        size = draw.randrange(1, 300)
        if compared == count:
            break
        if is_compared(target, size, transformation):
            model = resize(target, size, transformation, rounding)
            check(onnx2nn.load(model), session_of(model), size, target)
            compared += 1


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_dynamic_sizes(transformation: str, rounding: str, count: int) -> None:
    draw, compared = random.Random(f"{transformation} {rounding} dynamic"), 0
    for target in targets(draw):
        if compared == count:
            break
        candidates = [draw.randrange(1, limit) for limit in (12, 40, 300, 300, 300)]
        sizes = [size for size in candidates if is_compared(target, size, transformation)]
        if len(sizes) < 3:
            continue
        model = resize(target, "w", transformation, rounding)
        module, session = onnx2nn.load(model), session_of(model)
        for size in sizes:
            check(module, session, size, target)
        compared += 1


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(1.1, 1.3), (1.2, 1.0), (1.1, 1.7), (1.3, 2.0)], ids=str)
def test_scales_that_change_no_size(scales: tuple[float, float], mode: str) -> None:
    """ONNX Runtime copies an image of which no size changes, and follows the coordinates if one does."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 19]>
        resize (float[1,1,h,w] x) => (float[1,1,a,b] y) <float[4] scales = {{1, 1, {scales[0]}, {scales[1]}}}> {{
            y = Resize <mode = "{mode}", coordinate_transformation_mode = "asymmetric"> (x, , scales)
        }}""")
    module, session = onnx2nn.load(model), session_of(model)
    for height, width in [(1, 1), (2, 2), (3, 1), (4, 3), (9, 2), (9, 9), (10, 3), (3, 10), (20, 30)]:
        x = np.random.default_rng(0).random((1, 1, height, width), np.float32)
        (expected,) = session.run(None, {"x": x})
        fixed = onnx2nn.load(model, input_shapes={"x": x.shape})
        for resized in (module, fixed):
            actual = resized(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=f"{height} x {width}")


@pytest.mark.parametrize("tool", ["export", pytest.param("compile", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", [Target(scale=2.4), Target(size=50), Target(share=(7, 5))], ids=str)
@pytest.mark.parametrize("transformation", ["asymmetric", "half_pixel_symmetric", "tf_crop_and_resize"])
def test_torch_tools(transformation: str, target: Target, tool: str) -> None:
    """An exported and a compiled module of dynamic sizes take the same elements."""
    model = resize(target, "w", transformation, "round_prefer_floor")
    module, session = onnx2nn.load(model), session_of(model)
    if tool == "export":
        width = torch.export.Dim("w", min=2, max=500)
        x = torch.zeros(1, 1, 2, 30)
        program: Any = torch.export.export(module, (x,), dynamic_shapes=({3: width},)).module()
    else:
        torch.compiler.reset()  # the programs of the other cases count towards its limit
        program = torch.compile(module, fullgraph=True, dynamic=True)
    for size in (30, 45, 100, 299):
        check(program, session, size, target)


@pytest.mark.parametrize(
    ("scale", "layer"), [(2.0, True), (3.0, True), (0.5, True), (1.1, False), (2.2, False), (2.4, False)]
)
def test_a_layer_where_torch_takes_the_same_elements(scale: float, layer: bool) -> None:
    """A dynamic size stays torch's own function where that holds for all sizes, and is gathered elsewhere."""
    module = onnx2nn.load(resize(Target(scale=scale), "w", "asymmetric", "floor"))
    assert (
        any(isinstance(part, torch.nn.Upsample) or "interpolate" in module.code for part in module.modules()) == layer
    )


EMPTY_OR_NOT = {
    "by a scale, torch's interpolate": ("half_pixel", Target(scale=0.5), "n >= 2", [1, 0]),
    "to a size, torch's interpolate": ("half_pixel", Target(size=3), "n >= 1", [0]),
    "to a share, torch's interpolate": ("half_pixel", Target(share=(1, 2)), "n >= 2", [1, 0]),
    "to a size, by gathering": ("asymmetric", Target(size=3), "n >= 1", [0]),
}


@pytest.mark.parametrize("case", EMPTY_OR_NOT)
def test_an_image_that_is_empty_is_refused_by_name(case: str) -> None:
    """torch's interpolate takes none, and a scale is a quotient by the input's size."""
    transformation, target, condition, empty = EMPTY_OR_NOT[case]
    model = resize(target, "n", transformation, "round_prefer_floor")
    (mode,) = (attribute for attribute in model.graph.node[-1].attribute if attribute.name == "mode")
    mode.s = b"linear"
    module, session = onnx2nn.load(model), session_of(model)
    assert condition in [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]]
    for size in range(1 + max(empty), 5):
        x = np.arange(2 * size, dtype=np.float32).reshape(1, 1, 2, size)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), expected, rtol=1e-6)
    for size in empty:
        with pytest.raises(ValueError, match=rf"is needed by node 'y' \(Resize\): .* Here n, dimension 3 .* is {size}"):
            module(torch.zeros(1, 1, 2, size))


def test_an_image_of_fixed_size_may_become_empty() -> None:
    """A scale of 0.5 leaves nothing of one element, in ONNX Runtime too."""
    model = resize(Target(scale=0.5), 1, "half_pixel", "round_prefer_floor")
    check(onnx2nn.load(model), session_of(model), 1, "0.5")


def test_a_scale_that_the_graph_computes_refuses_no_size() -> None:
    """`20 / n` is rounded, so that the size of the result is not known; at a size of 1 neither."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[1,1,2,n] x) => (float[1,1,2,m] y) <float[3] ones = {1, 1, 1}, float twenty = {20}> {
            size = Shape <start = 3> (x)  float_size = Cast <to = 1> (size)
            scale = Div(twenty, float_size)  scales = Concat <axis = 0> (ones, scale)
            y = Resize <mode = "nearest"> (x, "", scales)
        }""")
    module, session = onnx2nn.load(model), session_of(model)
    for size in (1, 2, 3, 7, 20, 41):
        check(module, session, size, "20 / n")


def test_antialias_to_open_sizes_refuses_none() -> None:
    """Larger and smaller images, as of a table of positions; its sizes are the given ones, as a sum needs."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[1,1,h,w] x, float[1,1,2,3] table) => (float[1,1,a,b] y)
        <int64[2] three = {3, 3}, int64[2] ones = {1, 1}> {
            image = Shape <start = 2> (x)  patches = Div(image, three)  sizes = Concat <axis = 0> (ones, patches)
            positions = Resize <mode = "cubic", antialias = 1, exclude_outside = 1> (table, "", "", sizes)
            pooled = AveragePool <kernel_shape = [3, 3], strides = [3, 3]> (x)
            y = Add(pooled, positions)
        }""")
    module, session = onnx2nn.load(model), session_of(model)
    assert all(guard["condition"].endswith("<= 16777215") for guard in module.meta["onnx2nn"]["guards"])
    for sizes in ((6, 9), (3, 3), (13, 8), (4, 20)):
        x, table = torch.randn(1, 1, *sizes), torch.randn(1, 1, 2, 3)
        (expected,) = session.run(None, {"x": x.numpy(), "table": table.numpy()})
        np.testing.assert_allclose(module(x, table).numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("transformation", ["align_corners", "half_pixel", "asymmetric", "pytorch_half_pixel"])
def test_images_of_integers_have_onnx_runtimes_last_bit(transformation: str, dtype: Any, dynamic: bool) -> None:
    """Results are truncated, so that a last bit of a sum decides about a whole number: 209 or 210."""
    draw = np.random.default_rng(0)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attributes = {"mode": "linear", "coordinate_transformation_mode": transformation}
    for before, after in {(4, 4): (8, 8), (5, 7): (13, 9), (9, 6): (4, 5), (5, 5): (5, 9), (6, 5): (1, 1)}.items():
        x = draw.integers(np.iinfo(np.int8).min if dtype == np.int8 else 0, 128, (2, 3, *before)).astype(dtype)
        graph = helper.make_graph(
            [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)],
            "integers",
            [helper.make_tensor_value_info("x", element, [2, 3, "h", "w"] if dynamic else x.shape)],
            [helper.make_tensor_value_info("y", element, None)],
            [numpy_helper.from_array(np.array([2, 3, *after]), "sizes")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(onnx2nn.load(model)(torch.from_numpy(x)).numpy(), expected)
