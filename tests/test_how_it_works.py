"""The picture and the gallery of docs/how_it_works.md are current, and nothing in the picture leaves its box."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from scripts import how_it_works
from tests import installed


def test_the_picture_is_current() -> None:
    assert how_it_works.PICTURE.read_text(encoding="utf-8") == how_it_works.picture()


def test_texts_of_the_picture_fit() -> None:
    """A letter of this size is 7 units wide on the average; boxes do not overlap."""
    root = ElementTree.fromstring(how_it_works.picture())
    tag = "{http://www.w3.org/2000/svg}"
    boxes = [tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height")) for box in root.iter(f"{tag}rect")]
    for text in root.iter(f"{tag}text"):
        x, y, half = float(text.attrib["x"]), float(text.attrib["y"]), len(text.text or "") * 3.5
        assert any(bx <= x - half and x + half <= bx + w and by < y < by + h for bx, by, w, h in boxes), text.text
    for index, (x, y, w, h) in enumerate(boxes):
        for ox, oy, ow, oh in boxes[index + 1 :]:
            assert x + w <= ox or ox + ow <= x or y + h <= oy or oy + oh <= y
    width, height = map(float, re.findall(r"\d+", root.attrib["viewBox"])[2:])
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in boxes)


@pytest.mark.skipif(installed.version("torch") < (2, 13), reason="other releases write other nodes")
def test_the_gallery_is_current() -> None:
    text = how_it_works.PAGE.read_text(encoding="utf-8")
    assert text == how_it_works.page(text)
