"""The import of GreedySearch, Sampling and BeamSearch: their decoders become programs that a loop calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch
from torch import nn

from onnx2nn.errors import OperatorError
from onnx2nn.fx.builder import TorchBuilder, TorchWalk
from onnx2nn.fx.constants import torch_dtype
from onnx2nn.fx.values.spec import Spec
from onnx2nn.searches import BeamSearch, Decoder, GreedySearch, Nucleus, Rules
from onnx2nn.sizes.expression import Number


class _Graph(NamedTuple):
    """An imported graph of a search.

    Attributes:
        module: the program.
        captured: the values of the enclosing graphs that it takes.
    """

    module: nn.Module
    captured: list[Any]


class _Sizes:
    """The sizes of a search, each a symbol of the graph that is imported."""

    def __init__(self, child: TorchBuilder):
        names = (("rows", 1), ("length", 1), ("past", 0), ("source", 1))
        fresh = child.tracer.symbols.fresh
        self.rows, self.length, self.past, self.source = (fresh(name, least) for name, least in names)


def import_greedy_search(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports GreedySearch; returns its output."""
    return _greedy(walk, node, [*_filled(inputs, 7), None], None)[:1]


def import_sampling(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports Sampling, whose tokens torch draws; the seed is not read."""
    nucleus = Nucleus(
        _float(node, "top_p", 0.0),
        _float(node, "temperature", 1.0),
        _float(node, "filter_value", -1e20),
        _int(node, "min_tokens_to_keep", 0),
        bool(_int(node, "custom", 0)),
        _float(node, "presence_penalty", 0.0),
    )
    return _greedy(walk, node, _filled(inputs, 9)[:8], nucleus)[: len(node.outputs)]


def _greedy(walk: TorchWalk, node: ir.Node, inputs: list[Any], nucleus: Nucleus | None) -> Sequence[Any]:
    if _int(node, "model_type", 0):
        raise OperatorError("model_type is not 0, the only one of which ONNX Runtime has this search.")
    values = [walk.builder.tensor(value) for value in inputs]
    decoder, captured = _decoder(walk, node, _of_decoder)
    layers, heads, size = _pasts(node.attributes["decoder"].as_graph())
    module = GreedySearch(
        decoder, _rules(node), nucleus, layers, heads, size, _int(node, "pad_token_id", None), _name(node)
    )
    specs = (_unknown(walk, 2, torch.int32), _unknown(walk, 2, torch.float32))
    outcome: Sequence[Any] = walk.builder.tracer.call_module(
        walk.builder.placement.of_graphs(node), module, (*values, *captured), specs
    )
    return outcome


def import_beam_search(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports BeamSearch over a decoder alone, or over an encoder and a decoder; returns its outputs."""
    kind = _int(node, "model_type", 0)
    if kind not in (0, 1):
        raise OperatorError(f"model_type={kind} is none of 0, 1.")
    given = _filled(inputs, 12)
    if given[10] is not None or given[11] is not None:
        raise OperatorError("decoder_input_ids and logits_processor are not supported.")
    values = [walk.builder.tensor(value) for value in given[:10]]
    graph = node.attributes["decoder"].as_graph()
    specs = (_unknown(walk, 3, torch.int32), _unknown(walk, 2, torch.float32), _unknown(walk, 4, torch.float32))
    encoder, options = None, {"early_stopping": bool(_int(node, "early_stopping", 0))}
    own: list[Any] = []
    if kind == 0:
        decoder, captured = _decoder(walk, node, _of_decoder)
        layers, heads, size = _pasts(graph)
    else:
        first = _graph_of(node, "encoder")
        encoder, own = _imported(walk, first, _of_encoder)
        decoder, captured = _decoder(walk, node, _behind_encoder)
        layers, heads, size = (len(graph.outputs) - 1) // 2, *_static(graph.outputs[1], (1, 3))
        options["hidden"] = (graph.inputs[2].name or "").startswith("encoder_hidden")
        options["whole"] = _whole(graph)
        options["begins"] = len(first.inputs) == 3
    module = BeamSearch(
        decoder, _rules(node), encoder, layers, heads, size, _int(node, "pad_token_id", None),
        _int(node, "decoder_start_token_id", -1), captured_by_encoder=len(own), node=_name(node), **options,
    )  # fmt: skip
    arguments = (*values, *own, *captured)
    outcome: Sequence[Any] = walk.builder.tracer.call_module(
        walk.builder.placement.of_graphs(node), module, arguments, specs
    )
    return outcome[: len(node.outputs)]


def _decoder(walk: TorchWalk, node: ir.Node, specs: Any) -> tuple[Decoder, list[Any]]:
    """Returns the decoder and the values that its graphs capture."""
    body = _imported(walk, _graph_of(node, "decoder"), specs)
    if "init_decoder" not in node.attributes:
        return Decoder(body.module, None, len(body.captured)), body.captured
    first = _imported(walk, node.attributes["init_decoder"].as_graph(), specs)
    return Decoder(body.module, first.module, len(body.captured)), [*body.captured, *first.captured]


def _imported(walk: TorchWalk, graph: ir.Graph, specs: Any) -> _Graph:
    """Imports a graph whose inputs have the shapes `specs(graph, sizes)`."""
    child = walk.builder.region()
    shapes = specs(graph, _Sizes(child))
    if len(shapes) != len(graph.inputs):
        raise OperatorError(
            f"its graph {graph.name!r} has {len(graph.inputs)} inputs, where {len(shapes)} are foreseen."
        )
    bindings = {}
    for index, (value, shape) in enumerate(zip(graph.inputs, shapes, strict=True)):
        dtype = torch.float32 if value.dtype is None else torch_dtype(value.dtype)
        bindings[value] = child.tracer.placeholder(f"value_{index}", Spec(shape, dtype))
    outputs = walk.inside(graph, bindings, child)
    module = child.program(outputs, "Body")
    return _Graph(module, list(child.tracer.captured))


def _of_decoder(graph: ir.Graph, sizes: _Sizes) -> list[tuple[Number, ...]]:
    """Returns the shapes of token ids, positions, the mask and the pasts."""
    layers, heads, size = _pasts(graph)
    tokens = (sizes.rows, sizes.length)
    return [
        tokens,
        tokens,
        (sizes.rows, sizes.past + sizes.length),
        *[(2, sizes.rows, heads, sizes.past, size)] * layers,
    ]


def _of_encoder(graph: ir.Graph, sizes: _Sizes) -> list[tuple[Number, ...]]:
    """Returns the shapes of the encoder's token ids and mask, and of the first token."""
    source: tuple[Number, ...] = (sizes.rows, sizes.source)
    return [source, source, (sizes.rows, 1)][: len(graph.inputs)]


def _behind_encoder(graph: ir.Graph, sizes: _Sizes) -> list[tuple[Number, ...]]:
    """Returns the shapes of token ids, the encoder's mask and result, and the pasts."""
    heads, size = _static(graph.outputs[1], (1, 3))
    layers = (len(graph.outputs) - 1) // 2
    shapes: list[tuple[Number, ...]] = [(sizes.rows, sizes.length if _whole(graph) else 1), (sizes.rows, sizes.source)]
    if (graph.inputs[2].name or "").startswith("encoder_hidden"):
        shapes.append((sizes.rows, sizes.source, *_static(graph.inputs[2], (2,))))
    own, cross = (sizes.rows, heads, sizes.past, size), (sizes.rows, heads, sizes.source, size)
    return [*shapes, *[own] * (2 * layers), *[cross] * (2 * layers)]


def _whole(graph: ir.Graph) -> bool:
    """Returns whether a decoder behind an encoder takes all tokens so far, which the shape of its ids says."""
    shape = graph.inputs[0].shape
    return shape is None or shape[1] != 1


def _pasts(graph: ir.Graph) -> tuple[int, int, int]:
    """Returns the number of pasts of a decoder alone, and the heads and their size.

    Raises:
        OperatorError: the decoder takes more, such as the length of a shared buffer.
    """
    layers = len(graph.outputs) - 1
    if layers < 1 or len(graph.inputs) != 3 + layers:
        raise OperatorError(
            f"its decoder has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs; it needs token ids, "
            "positions, a mask and a past for each present. Export it without a buffer that past and present share."
        )
    return layers, *_static(graph.inputs[3], (2, 4))


def _static(value: ir.Value, axes: Sequence[int]) -> tuple[Any, ...]:
    shape = value.shape
    sizes = tuple(None if shape is None or axis >= shape.rank() else shape[axis] for axis in axes)
    if not all(isinstance(size, int) for size in sizes):
        raise OperatorError(f"{value.name!r} of its decoder does not state the sizes of dimensions {list(axes)}.")
    return sizes


def _unknown(walk: TorchWalk, rank: int, dtype: torch.dtype) -> Spec:
    fresh = walk.builder.tracer.symbols.fresh
    return Spec(tuple(fresh(f"search{dtype.itemsize}_{rank}_{axis}_") for axis in range(rank)), dtype)


def _rules(node: ir.Node) -> Rules:
    return Rules(_int(node, "eos_token_id", None), _int(node, "no_repeat_ngram_size", 0))


def _name(node: ir.Node) -> str:
    return node.name or node.op_type


def _graph_of(node: ir.Node, name: str) -> ir.Graph:
    if name not in node.attributes:
        raise OperatorError(f"attribute {name!r} is missing.")
    return node.attributes[name].as_graph()


def _int(node: ir.Node, name: str, default: int | None) -> int:
    attribute = node.attributes.get(name)
    if attribute is None and default is None:
        raise OperatorError(f"attribute {name!r} is missing.")
    return default if attribute is None else attribute.as_int()  # type: ignore[return-value]  # None raised above


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def _filled(inputs: Sequence[Any], count: int) -> list[Any]:
    return [*inputs, *[None] * count][:count]
