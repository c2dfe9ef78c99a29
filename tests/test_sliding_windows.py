"""Scans that cut a signal into windows are views of it: exact at every length, exported with open lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

import onnx2nn
from onnx2nn.control_flow import Scan


def _model(
    rank: int, axis: int, over: int, out: int, kept: int, added: int, *, cut: int | None = None, body: str = ""
) -> onnx.ModelProto:
    """Returns a model of a Scan over items of `rank` dimensions whose `axis` has `added` elements.

    Args:
        rank: of an item.
        axis: of an item, along which it continues the window.
        over: the scanned axis.
        out: the axis along which the windows are stacked.
        kept: the elements of the state along `axis`.
        added: those of an item.
        cut: where the next state starts in a window, by default behind `added` elements.
        body: nodes that compute `after` and `window` of `before` and `new`, by default those of windows.
    """
    places = [f"d{place}" for place in range(rank)]
    state, item, window = ([*places] for _ in range(3))
    state[axis], item[axis], window[axis] = str(kept), str(added), str(kept + added)
    items, windows = [*item], [*window]
    items.insert(over, "n")
    windows.insert(out % (rank + 1), "m")
    dims = {name: ", ".join(sizes) for name, sizes in locals().items() if name in ("state", "item", "window")}
    nodes = body or "window = Concat<axis = axis_>(before, new) after = Slice(window, start, end, along)"
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> graph (float[{dims["state"]}] first, float[{", ".join(items)}] x)'
        f" => (float[{dims['state']}] last, float[{', '.join(windows)}] y) <int64[1] start = {{{cut or added}}}, "
        f"int64[1] end = {{{np.iinfo(np.int64).max}}}, int64[1] along = {{{axis}}}> "
        f"{{ last, y = Scan<num_scan_inputs = 1, scan_input_axes = [{over}], scan_output_axes = [{out}], "
        f"body = sliding (float[{dims['state']}] before, float[{dims['item']}] new) "
        f"=> (float[{dims['state']}] after, float[{dims['window']}] window) "
        f"{{ {nodes.replace('axis_', str(axis))} }}>(first, x) }}"
    )


def _inputs(model: onnx.ModelProto, count: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    random, sizes = np.random.default_rng(seed), {"n": count}
    feeds = {}
    for value in model.graph.input:
        dims = [
            dim.dim_value or sizes.setdefault(dim.dim_param, 2 + len(sizes)) for dim in value.type.tensor_type.shape.dim
        ]
        feeds[value.name] = random.standard_normal(dims).astype(np.float32)
    return feeds


def _has_loop(module: torch.nn.Module) -> bool:
    return any(isinstance(part, Scan) for part in module.modules())


@st.composite
def _forms(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    rank = draw(st.integers(1, 3))
    axis, over = draw(st.integers(0, rank - 1)), draw(st.integers(0, rank))
    return rank, axis, over, draw(st.integers(-rank - 1, rank)), draw(st.integers(1, 7)), draw(st.integers(1, 5))


@settings(max_examples=30)
@given(_forms(), st.booleans(), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_windows_are_views_of_the_signal(
    form: tuple[int, int, int, int, int, int], from_the_end: bool, counts: list[int]
) -> None:
    model = _model(*form, cut=-form[4] if from_the_end else None)
    module, session = onnx2nn.load(model), onnxruntime.InferenceSession(model.SerializeToString())
    assert not _has_loop(module)
    for count in counts:
        feeds = _inputs(model, count)
        found = module(*map(torch.from_numpy, feeds.values()))
        for ours, theirs in zip(found, session.run(None, feeds), strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize(
    "body",
    [
        "window = Concat<axis = axis_>(new, before) after = Slice(window, start, end, along)",
        "window = Concat<axis = axis_>(before, new) after = Identity(before)",
        "w = Concat<axis = axis_>(before, new) window = Neg(w) after = Slice(w, start, end, along)",
        "window = Concat<axis = axis_>(before, new) a = Slice(window, start, end, along) after = Neg(a)",
    ],
)
def test_other_scans_remain_loops(body: str) -> None:
    model = _model(2, 1, 1, 1, 3, 3, body=body)
    module, session = onnx2nn.load(model), onnxruntime.InferenceSession(model.SerializeToString())
    assert _has_loop(module)
    feeds = _inputs(model, 4)
    for ours, theirs in zip(module(*map(torch.from_numpy, feeds.values())), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


FRONT_END = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[b, N] wave) => (float[b, t, 400] frames)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] kept = {240}, int64[1] hop = {160}, int64[1] size = {400},
 int64[3] form = {0, -1, 160}, int64[1] end = {9223372036854775807}>
{
  samples = Shape <start = 1, end = 2> (wave)
  more = Sub (samples, size)
  rest = Mod (more, hop)
  whole = Sub (samples, rest)
  first = Slice (wave, zero, kept, one, one)
  others = Slice (wave, kept, whole, one, one)
  items = Reshape (others, form)
  ["framing"] last, frames = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
    body = sliding (float[b, 240] before, float[b, 160] new) => (float[b, 240] after, float[b, 400] frame)
    { frame = Concat <axis = -1> (before, new) after = Slice (frame, hop, end, one, one) }> (first, items)
}
"""
"""How WeSpeaker's front end in onnx-asr frames a signal."""


@pytest.mark.slow
def test_the_frames_of_a_front_end_are_exported_at_every_length(tmp_path: Path) -> None:
    module = onnx2nn.load(parser.parse_model(FRONT_END))
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    onnx2nn.save(module, tmp_path / "front.pt2", example_inputs=[torch.zeros(2, 1000)], dynamic_axes=[{0: "b", 1: "N"}])
    exported = torch.export.load(tmp_path / "front.pt2").module()
    session = onnxruntime.InferenceSession(tmp_path / "again.onnx")
    original = onnxruntime.InferenceSession(parser.parse_model(FRONT_END).SerializeToString())
    for batch, samples in ((1, 400), (1, 559), (2, 560), (3, 4001)):
        wave = np.random.default_rng(samples).standard_normal((batch, samples)).astype(np.float32)
        (expected,) = original.run(None, {"wave": wave})
        np.testing.assert_array_equal(module(torch.from_numpy(wave)).numpy(), expected)
        np.testing.assert_array_equal(session.run(None, {"wave": wave})[0], expected)
        if samples >= 560:  # torch.export takes the frames for several
            np.testing.assert_array_equal(exported(torch.from_numpy(wave)).numpy(), expected)


@pytest.mark.parametrize("samples", [0, 79, 239, 240, 399])
def test_a_signal_without_a_frame_is_refused_by_its_name(samples: int) -> None:
    module = onnx2nn.load(parser.parse_model(FRONT_END))
    with pytest.raises(ValueError, match=r"N >= 400 is needed by node 'framing' \(Scan\)"):
        module(torch.zeros(1, samples))
