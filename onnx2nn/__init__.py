"""ONNX files as live modules: `onnx2nn.load("model.onnx")`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from onnx2nn.importing.plan import Report
from onnx2nn.optable.registry import register
from onnx2nn.output.export import export_onnx
from onnx2nn.output.ncnn import NcnnModel, to_ncnn
from onnx2nn.output.python_source import to_python
from onnx2nn.output.save import save
from onnx2nn.output.simplify import simplify
from onnx2nn.provenance.naming_reports import NamingReport, naming_report
from onnx2nn.verification.node_by_node import NodeVerification, verify_nodes
from onnx2nn.verification.outputs import verify

if TYPE_CHECKING:
    import onnx

__all__ = [
    "NamingReport",
    "NcnnModel",
    "NodeVerification",
    "Report",
    "check",
    "export_onnx",
    "load",
    "naming_report",
    "register",
    "save",
    "simplify",
    "to_ncnn",
    "to_python",
    "verify",
    "verify_nodes",
]

Source = "str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto"


def load(
    source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
    *,
    framework: str = "torch",
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    raise_patterns: bool = True,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    trainable: bool | Collection[str] = True,
    quantized: str = "keep",
) -> Any:
    """Imports an ONNX model as a module with its weights, in eval mode.

    Args:
        source: a path, the bytes of a file, an open binary file or a `ModelProto`.
        framework: `"torch"`, which gives a `torch.fx.GraphModule`, or `"oneflow"`, which gives a `oneflow.nn.Module`.
        input_shapes: dimensions by input name that replace those of the file, as many as there; an int is fixed, a str
            names a dynamic dimension (equal names are equal dimensions), None is a dynamic dimension of its own.
        base_dir: folder of the external data where `source` is no path, or file opened from one.
        raise_patterns: whether what an exporter decomposed (a layer normalisation, attention, GELU) becomes one call
            again. Each replacement is compared at import with the nodes that it replaces and dropped where they differ;
            `module.meta["onnx2nn"]["raising"]` says how many there are of each and what was dropped. Attention gives 0
            where a mask leaves nothing to see, also where the file's softmax of -inf alone is NaN. False gives one
            call or more for every node of the file.
        dynamic: input name → axis → name, dimensions to free that the exporter fixed (PyTorch only). Constants that
            hold the file's size are found and follow the dimension; the module is run at the file's size and at
            another one before it is returned. `module.meta["onnx2nn"]["thawed"]` says what was replaced.
        trainable: which weights get gradients (PyTorch only): all float ones, none, or what roles (`"weight"`,
            `"bias"`, `"norm"`, `"embedding"`, `"other"`) and patterns of keys (`"classifier.*"`) name. Others are
            frozen.
        quantized: `"keep"` computes with the file's integers; `"dequantize"` makes QDQ, QLinear and dynamically
            quantised models float ones, whose weights train and whose activations are no longer rounded (PyTorch
            only). `module.meta["onnx2nn"]["dequantized"]` says what was done and which nodes stay quantised.

    Returns:
        A module that takes the graph's inputs by position or by name and gives one tensor for one output, a tuple in
        the file's order for several. It is on the CPU, whatever torch's default device is, with contiguous weights.

    Raises:
        ModelFileError: the source is not a readable model.
        UnsupportedModelError: nodes that cannot be imported, all of them.
        MissingDependencyError: the framework is not installed.
        InputError: `framework`, `input_shapes`, `dynamic`, `trainable` or `quantized` do not fit.
        FrozenDimensionError: a dimension in `dynamic` cannot be freed; names the node that stands in the way.
    """
    from onnx2nn.ground import gc_pause
    from onnx2nn.loading import Options, load_model
    from onnx2nn.reading import reader

    options = Options(framework, input_shapes or {}, raise_patterns, dynamic, trainable, quantized)
    with gc_pause.paused():
        model = reader.read(source, base_dir=base_dir)
        return load_model(model, options)


def check(
    source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
) -> Report:
    """Returns which operators a model has and all those that `load` could not import; imports nothing.

    Args:
        source: as for `load`.
        base_dir: folder of the external data where `source` is no path.

    Raises:
        ModelFileError: the source is not a readable model.
    """
    from onnx2nn.importing.plan import report
    from onnx2nn.reading import reader

    return report(reader.read(source, base_dir=base_dir))
