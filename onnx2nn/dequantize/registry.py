"""Tables of float forms: what a module of this room fills with functions, one for each operator."""

from __future__ import annotations

from collections.abc import Callable

from onnx2nn.dequantize.dequantizer import Rewrite

MICROSOFT = "com.microsoft"


class Rewrites(dict[tuple[str, str], Rewrite]):
    """Domain and operator → the rewrite of its nodes."""

    def of(self, operator: str, *domains: str) -> Callable[[Rewrite], Rewrite]:
        """Returns a decorator of the rewrite of one operator."""

        def add(rewrite: Rewrite) -> Rewrite:
            self.update(dict.fromkeys([(domain, operator) for domain in domains], rewrite))
            return rewrite

        return add
