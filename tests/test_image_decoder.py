"""ImageDecoder opens the formats that the standard lists and no others, and no image above its limit of pixels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import OperatorError, UnsupportedModelError
from onnx2nn.functional import ImageDecoder

Image = pytest.importorskip("PIL.Image", reason="the extra `image` is not installed")

FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(text) print\nshowpage\n%%EOF\n"


def model_of(stream: bytes) -> onnx.ModelProto:
    """Returns a model that decodes a constant."""
    graph = helper.make_graph(
        [helper.make_node("ImageDecoder", ["stream"], ["y"], name="decoder")],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.frombuffer(stream, np.uint8), "stream")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def encoded(format: str, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, format=format)
    return stream.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_formats_of_the_standard(format: str) -> None:
    assert ImageDecoder(torch.frombuffer(bytearray(encoded(format)), dtype=torch.uint8)).shape == (4, 6, 3)


@pytest.mark.parametrize("format", ["GIF", "ICO", "PCX", "TGA", "SGI", "DDS"])
def test_other_formats_of_pillow(format: str) -> None:
    with pytest.raises(UnsupportedModelError, match="no image in one of the formats"):
        onnx2nn.load(model_of(encoded(format)))


def test_postscript_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow renders EPS with the program `gs`, which runs what the file says."""
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'called'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    Image.init()  # the plug-in is loaded
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None, raising=False)  # it looks for the program once
    with pytest.raises(UnsupportedModelError, match="no image in one of the formats"):
        onnx2nn.load(model_of(EPS))
    assert not (tmp_path / "called").exists()


def test_an_image_of_many_pixels_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of an 11 kB file promises 81 million pixels; the limit that Pillow's users set holds too."""
    bomb, small = encoded("PNG", (9000, 9000), "1"), encoded("PNG")
    assert len(bomb) < 20_000
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("decoded"))
    with pytest.raises(UnsupportedModelError, match="9000 x 9000 pixels, above the limit"):
        onnx2nn.load(model_of(bomb))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(OperatorError, match="above the limit of 20"):
        ImageDecoder(torch.frombuffer(bytearray(small), dtype=torch.uint8))


def test_the_limit_of_pixels_is_one_of_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """At import, and in a call of the module, which holds it where it is not the default."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    stream = encoded("PNG")
    with pytest.raises(UnsupportedModelError, match=r"6 x 4 pixels, above the limit of 23.*Limits\.image_pixels"):
        onnx2nn.load(model_of(stream), limits=onnx2nn.Limits(image_pixels=23))
    assert onnx2nn.load(model_of(stream), limits=onnx2nn.Limits(image_pixels=24))().shape == (4, 6, 3)
    asked = model_of(stream)
    del asked.graph.initializer[:]
    asked.graph.input.append(helper.make_tensor_value_info("stream", TensorProto.UINT8, ["bytes"]))
    data = torch.frombuffer(bytearray(stream), dtype=torch.uint8)
    assert onnx2nn.load(asked)(data).shape == (4, 6, 3)
    module = onnx2nn.load(asked, limits=onnx2nn.Limits(image_pixels=23))
    with pytest.raises(OperatorError, match="above the limit of 23"):
        module(data)
    large = onnx2nn.load(asked, limits=onnx2nn.Limits(image_pixels=1 << 27))
    assert "image_pixels=134217728" in large.code and large(data).shape == (4, 6, 3)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL", "ignore:Image size")  # of Pillow, about the damage
def test_damaged_images_are_our_errors(format: str) -> None:
    """Each truncation, and each byte of the first 64 replaced: an image or a refusal."""
    whole = encoded(format)
    damaged = [whole[: len(whole) * part // 8] for part in range(8)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(min(64, len(whole)))]
    for stream in damaged:
        try:
            ImageDecoder(torch.tensor(list(stream), dtype=torch.uint8))
        except OperatorError as error:
            assert "\n" not in str(error)
