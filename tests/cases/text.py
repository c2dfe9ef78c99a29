"""Cases of `onnx2nn/ops/text.py` that ONNX's own suite lacks."""

import numpy as np

from tests.cases import case

_TEXTS = np.array(["a  b c ", "", "  ", " a\tb\n c", "\u00a0a b"], dtype=object)

CASES = [
    case("StringSplit", _TEXTS, outputs=2),
    case("StringSplit", _TEXTS, outputs=2, delimiter="", maxsplit=1),
    case("StringSplit", _TEXTS, outputs=2, maxsplit=0),
    case("StringSplit", _TEXTS, outputs=2, maxsplit=-1),
    case("StringSplit", _TEXTS, outputs=2, delimiter=" "),
    case("StringSplit", _TEXTS, outputs=2, delimiter=" ", maxsplit=2),
    case("StringSplit", np.array(["", ""], dtype=object), outputs=2, delimiter=" ", note="no part at all"),
]
