"""Memory before group normalisations: no file says how it is ordered, and torch's kernels are not equally exact."""

from __future__ import annotations

import copy

import pytest
import torch
from onnx import parser

import onnx2nn

HEADER = """<ir_version: 10, opset_import: ["" : 21]> agraph (float[n, 6, 5, 8] x) => (float[n, 8, h, w] y)
<float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] bias = {0, 0, 0, 0, 0, 0, 0, 0}, float seven = {7},
 int64[3] rows = {0, -1, 8}, int64[4] image = {0, 8, 6, 5}> """

PERMUTED = {
    "at once": "t = Transpose <perm = [0, 3, 1, 2]> (x) y = GroupNormalization <num_groups = 2> (t, scale, bias)",
    "behind others": """t = Transpose <perm = [0, 3, 1, 2]> (x) r = Abs(t) s = Add(r, seven)
        y = GroupNormalization <num_groups = 2> (s, scale, bias)""",
    "of rows": """r = Reshape(x, rows) t = Transpose <perm = [0, 2, 1]> (r) i = Reshape(t, image)
        y = GroupNormalization <num_groups = 2> (i, scale, bias)""",
}


@pytest.mark.parametrize("nodes", PERMUTED.values(), ids=PERMUTED)
def test_images_with_the_channels_behind_are_normalised_exactly(nodes: str) -> None:
    """`nn.GroupNorm` in `channels_last` is 0.03 off here."""
    module = onnx2nn.load(parser.parse_model(HEADER + "{" + nodes + "}"))
    exact = copy.deepcopy(module).double()
    for rows in (1, 3):
        x = 1 + 1e-3 * torch.randn(rows, 6, 5, 8, generator=torch.Generator().manual_seed(rows))
        found = module(x).detach()
        torch.testing.assert_close(found.double(), exact(x.double()), rtol=0, atol=1e-3)
        stacked = torch.func.vmap(module)(torch.stack([x, x + 1]))
        torch.testing.assert_close(stacked[0], found, rtol=0, atol=2e-3)
        torch.func.jvp(module, (x,), (torch.ones_like(x),))


def test_what_has_memory_of_its_own_is_not_copied() -> None:
    module = onnx2nn.load(
        parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21]> agraph (float[n, 8, 5, 6] x, float[6, 6] w) => (y, z)
            <float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] bias = {0, 0, 0, 0, 0, 0, 0, 0}> {
                t = Transpose <perm = [0, 1, 3, 2]> (x) u = Transpose <perm = [0, 1, 3, 2]> (t)
                p = MatMul(u, w) y = GroupNormalization <num_groups = 2> (p, scale, bias)
                z = Transpose <perm = [0, 2, 3, 1]> (y)
            }"""
        )
    )
    assert "contiguous" not in module.code
