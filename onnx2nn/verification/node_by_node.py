"""Compares an imported module with ONNX Runtime node by node, to find the first node whose result differs.

The module's fx graph is run twice side by side. One run goes on with its own values. The other gives every node the
oracle's inputs: its difference there is *introduced* by the node itself, the rest of the difference is *inherited*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from onnx2nn.errors import InputError
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.loading import load
from onnx2nn.reading import reader
from onnx2nn.verification.block_reports import compare_blocks
from onnx2nn.verification.example_runs import example_feeds, fixed_lists
from onnx2nn.verification.float_activations import compared_model
from onnx2nn.verification.judgement import Judge
from onnx2nn.verification.lockstep import Lockstep
from onnx2nn.verification.node_reports import NodeVerification
from onnx2nn.verification.oracle import Stored, stored
from onnx2nn.verification.probe import Probe, node_name
from onnx2nn.verification.value_comparison import compare

if TYPE_CHECKING:
    from torch import fx

MEMORY_LIMIT = 2 << 30
"""Default of the bytes of intermediate values that one session of the oracle gives at a time."""


def verify_nodes(
    source: Stored | BinaryIO,
    module: fx.GraphModule | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    memory_limit: int = MEMORY_LIMIT,
    follow_links: bool = False,
    limits: Limits | None = None,
) -> NodeVerification:
    """Compares an imported module with ONNX Runtime node by node, on one set of inputs.

    ONNX Runtime runs unoptimised, so that every value of the file exists.

    Args:
        source: the ONNX file: a path, bytes, a ModelProto or an open binary file.
        module: the module of `onnx2nn.load` for it, never pickled, which loses the nodes' names; loaded here if left
            out.
        input_shapes: input name → sizes, for inputs with dynamic dimensions.
        inputs: input name → array, used instead of generated ones.
        seed: of the generated inputs.
        tolerance: largest difference of an element that a node may introduce, relative to the largest magnitude of
            its output; if left out, the tolerance of `verify` for an output, and more where the node's own noise is
            larger.
        memory_limit: bytes of intermediate values that are held at a time; more come from several sessions.
        follow_links: as for `verify`.
        limits: as for `load`.

    Returns:
        The comparison of every node; `.ok` says whether all agree, `.first` is the first that does not, `.blocks` sums
        the differences for each block of the module. Where outputs differ though every node is within the threshold,
        each node is held to its own noise: how far ONNX Runtime's own result moves when the node's inputs move by units
        in the last place. Either a node exceeds it, then it is `.first`, or the outputs are compared with the model's
        own noise, `.outputs[i].noise`.

    Raises:
        InputError: shapes or inputs do not fit the model, or the module knows nothing of the file's nodes.
        MissingDependencyError: onnxruntime is not installed.
        ModelFileError: the source is not a readable model.
        UnsupportedModelError: `module` was left out and the model cannot be imported.
        VerificationError: no oracle can run the model.
    """
    source = stored(source)
    with reader.opened(source, follow_links=follow_links, account=Account(limits)) as model:
        specs = model_inputs.input_specs(model)
    feeds, _ = next(iter(example_feeds(specs, input_shapes, inputs, 1, seed)))
    if module is None:
        module = load(source, input_shapes=fixed_lists(input_shapes), follow_links=follow_links, limits=limits)
    file, folder = compared_model(source, module)
    return compare_nodes(file, module, feeds, folder=folder, tolerance=tolerance, memory_limit=memory_limit)[0]


def compare_nodes(
    source: Stored,
    module: fx.GraphModule,
    feeds: Mapping[str, np.ndarray],
    *,
    folder: str | None = None,
    tolerance: float | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> tuple[NodeVerification, Judge]:
    """Compares on given inputs, an array each, and returns the judge too, which can judge outputs of another run.

    `folder` has the external data that a ModelProto refers to.

    Raises:
        InputError: the module knows nothing of the file's nodes.
        VerificationError: no oracle can run the model.
    """
    program: Any = module
    if hasattr(type(program), "one_sample"):  # a vectorised module runs the nodes of the file for each sample
        program = program.one_sample
    if not hasattr(program, "graph"):
        raise InputError(
            f"A {type(program).__name__} knows nothing of the file's nodes. Give a module of onnx2nn.load."
        )
    from onnx2nn.fx.blocks.flattening import flattened

    program = flattened(program)
    probe = Probe(source, feeds, folder=folder)
    lockstep = Lockstep(program, probe, tolerance)
    result = NodeVerification(probe.oracle, _probe=probe, notes=lockstep.notes)
    result.nodes += lockstep.run(memory_limit)
    made = {name for node in program.graph.nodes for name in node.meta.get("onnx_outputs", ())}
    result.folded += [node_name(node) for node in probe.model.graph.node if not made.intersection(node.output)]
    names = [output.name for output in probe.model.graph.output]
    result.outputs += compare(names, lockstep.outputs, lockstep.expected) if lockstep.outputs is not None else []
    judge = Judge(result, program, lockstep, probe, tolerance)
    judge.judge()
    result.blocks += compare_blocks(program, result.nodes)
    return result, judge
