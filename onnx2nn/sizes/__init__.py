"""Sizes: integers computed from dynamic dimensions, with ONNX's integer semantics; what is proven of them.

In come symbols for the dimensions that a file leaves open; out go expressions in a normal form (`expression`,
`conditions`, `reals`), proofs (`facts`) and the sizes that fulfil a condition (`solving`). The room knows neither a
framework nor a model. The importers and the unfreezing may call it.
"""

from onnx2nn.sizes import printing  # noqa: F401  # gives sizes and conditions their representation
