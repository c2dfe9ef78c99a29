"""The measured models: files of torch's exporters, and two synthetic files of exact size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import importers  # first: it makes the export helpers of the tests importable
import numpy as np
import onnx
import torch
import window_attention
from onnx import TensorProto, helper, numpy_helper
from realmodels import EXPORTERS, Tensors, seeded

from scripts import torchvision_schemas

MIB = 1 << 20
Quantise = Callable[[Path, Path, Tensors], None]  # file, file to write, samples of the inputs

CACHE = importers.ROOT / ".cache" / "benchmarks"


def weights_only(mebibytes: int, *, external: bool) -> Path:
    """Returns a chain of MatMul nodes over square float32 weights of 4 MiB each, in the file or as external data."""
    path = CACHE / f"matmul{mebibytes}{'-external' if external else ''}" / "model.onnx"
    if path.exists():
        return path
    generator = np.random.default_rng(0)
    count, size = max(1, mebibytes // 4), 1024
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"matmul{i}") for i in range(count)]
    weights = [
        numpy_helper.from_array(generator.standard_normal((size, size), np.float32) / np.float32(32), f"w{i}")
        for i in range(count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(_model(nodes, weights, f"x{count}", size), str(path), save_as_external_data=external, size_threshold=0)
    return path


def many_nodes(count: int) -> Path:
    """Returns a chain of `count` cheap nodes of four operators on a small tensor."""
    path = CACHE / f"nodes{count}" / "model.onnx"
    if path.exists():
        return path
    kinds = [("Add", True), ("Relu", False), ("Mul", True), ("Sigmoid", False)]
    nodes, weights = [], []
    for index in range(count):
        kind, binary = kinds[index % len(kinds)]
        names = [f"x{index}"]
        if binary:
            names.append(f"w{index}")
            weights.append(numpy_helper.from_array(np.full(8, 0.5 + index / count, np.float32), f"w{index}"))
        nodes.append(helper.make_node(kind, names, [f"x{index + 1}"], f"{kind}{index}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(_model(nodes, weights, f"x{count}", 8), str(path))
    return path


def shifted_windows(count: int) -> Path:
    """Returns a model of at least `count` nodes like SwinIR, with the nodes and names of torch's older exporter."""
    path = CACHE / f"windows{count}" / "model.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(window_attention.model(count), str(path))
    return path


def sparse_weights(gibibytes: int) -> Path:
    """Returns a chain of MatMul nodes over zeros of 4 MiB each, external data that take no room on the disk."""
    path = CACHE / f"zeros{gibibytes}" / "model.onnx"
    count, size = 256 * gibibytes, 1024
    names = [f"w{i}" for i in range(count)]
    weights = []
    for index, name in enumerate(names):
        weight = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[size, size])
        place = {"location": "model.data", "offset": index * 4 * MIB, "length": 4 * MIB}
        for key, value in place.items():
            weight.external_data.add(key=key, value=str(value))
        weight.data_location = TensorProto.EXTERNAL
        weights.append(weight)
    nodes = [helper.make_node("MatMul", [f"x{i}", name], [f"x{i + 1}"], f"matmul{i}") for i, name in enumerate(names)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_model(nodes, weights, f"x{count}", size).SerializeToString())
    with path.with_name("model.data").open("wb") as file:
        file.truncate(count * 4 * MIB)
    return path


def llama(layers: int = 4, width: int = 2048, words: int = 16384) -> Path:
    """Returns a Llama of transformers with random weights, of 1 GB by default, by torch's exporter."""
    path = CACHE / f"llama{layers}-{width}-{words}" / "model.onnx"
    if path.exists():
        return path
    torchvision_schemas.predefine()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        use_cache=False,
    )
    model = seeded(lambda: LlamaForCausalLM(config))
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    torch.onnx.export(model, (llama_tokens(),), path, dynamo=True, dynamic_shapes=axes, input_names=["input_ids"])
    return path


def llama_tokens() -> torch.Tensor:
    """Returns tokens `(batch, steps)` for `llama`."""
    return torch.arange(32).reshape(2, 16)


def _model(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], output: str, size: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "benchmark",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["batch", size])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", size])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _torchvision(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        torchvision_schemas.predefine()
        import torchvision

        return torchvision.models.get_model(name, weights=None)

    return build


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        torchvision_schemas.predefine()
        import timm

        model: torch.nn.Module = timm.create_model(name, exportable=True)
        return model

    return build


def _bert(**sizes: int) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        torchvision_schemas.predefine()
        from transformers import BertConfig, BertModel

        class Hidden(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = BertModel(BertConfig(**sizes))

            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)[0]

        return Hidden()

    return build


class TransformerLayer(torch.nn.Module):
    """One layer of a transformer, whose four matrices are layers of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the next hidden states for hidden states `(batch, steps, width)`."""
        parts = self.attention(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.projection(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Transformer(torch.nn.Module):
    """A deep transformer of narrow layers: most of its time goes into calls, and most of a load into nodes."""

    def __init__(self, layers: int = 48, width: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, width)
        self.layers = torch.nn.ModuleList(TransformerLayer(width, 4) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Returns hidden states `(batch, steps, width)` for tokens `(batch, steps)`."""
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Recogniser(torch.nn.Module):
    """Reads a line of text as CRNN does (Shi et al. 2015): convolutions, then two bidirectional LSTMs over columns."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        before = 1
        for width, pool in ((64, 2), (128, 2), (256, 0), (256, (2, 1)), (512, 0), (512, (2, 1)), (512, (2, 1))):
            layers += [torch.nn.Conv2d(before, width, 3, padding=1), torch.nn.BatchNorm2d(width), torch.nn.ReLU()]
            layers += [torch.nn.MaxPool2d(pool)] if pool else []
            before = width
        self.features = torch.nn.Sequential(*layers)
        self.columns = torch.nn.LSTM(512, 256, num_layers=2, bidirectional=True)
        self.classes = torch.nn.Linear(512, 37)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns scores `(columns, batch, 37)` for images `(batch, 1, 32, width)`."""
        found, _ = self.columns(self.features(image).squeeze(2).permute(2, 0, 1))
        return self.classes(found)


class VoiceDetector(torch.nn.Module):
    """Tells speech from noise in a frame of sound, with a state: short-time spectra, convolutions, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = torch.nn.Conv1d(1, 258, 256, 128, bias=False)
        self.encoder = torch.nn.Sequential(
            *(
                layer
                for i, o in ((129, 128), (128, 64), (64, 64), (64, 128))
                for layer in (_conv(i, o), torch.nn.ReLU())
            )
        )
        self.memory, self.score = torch.nn.LSTM(128, 128), torch.nn.Linear(128, 1)

    def forward(self, sound: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns a probability `(batch, 1)` and the next states `(1, batch, 128)` for sound `(batch, samples)`."""
        real, imaginary = self.spectrum(sound.unsqueeze(1)).chunk(2, 1)
        found = self.encoder((real.square() + imaginary.square()).sqrt())
        _, (h, c) = self.memory(found.permute(2, 0, 1), (h, c))
        return self.score(h[0].relu()).sigmoid(), h, c


class Memory(torch.nn.Module):
    """An LSTM over `(steps, batch, hidden)`."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.memory = torch.nn.LSTM(hidden, hidden, layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the hidden states, of the shape of `x`."""
        outputs: torch.Tensor = self.memory(x)[0]
        return outputs


def _conv(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Conv1d(inputs, outputs, 3, padding=1)


def _line(batch: int) -> Tensors:
    return (torch.randn(batch, 1, 32, 96 + 4 * batch, generator=torch.Generator().manual_seed(0)),)


def _sound(batch: int) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    states = [torch.zeros(1, batch, 128) for _ in range(2)]
    return torch.randn(batch, 512 + 128 * batch, generator=generator), *states


def _image(batch: int) -> Tensors:
    return (torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0)),)


def _sentence(batch: int) -> Tensors:
    return torch.arange(batch * 16).reshape(batch, 16), torch.ones(batch, 16, dtype=torch.int64)


def _tokens(batch: int) -> Tensors:
    return (torch.arange(batch * 16).reshape(batch, 16),)


LSTMS = {"lstm_64": (64, 1, 100), "lstm_128": (128, 1, 100), "lstm_256": (256, 1, 100), "lstm_512": (512, 2, 50)}
"""Name → hidden values, layers, and the steps of a sequence."""


def _sequences(hidden: int, steps: int) -> Callable[[int], Tensors]:
    return lambda batch: (torch.randn(steps, batch, hidden, generator=torch.Generator().manual_seed(0)),)


ORIGINALS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[int], Tensors]]] = {
    "resnet18": (_torchvision("resnet18"), _image),
    "resnet50": (_torchvision("resnet50"), _image),
    "mobilenet_v2": (_torchvision("mobilenet_v2"), _image),
    "mobilenet_v3_small": (_torchvision("mobilenet_v3_small"), _image),
    "squeezenet1_1": (_torchvision("squeezenet1_1"), _image),
    "shufflenet_v2_x1_0": (_torchvision("shufflenet_v2_x1_0"), _image),
    "efficientnet_b0": (_torchvision("efficientnet_b0"), _image),
    "densenet121": (_torchvision("densenet121"), _image),
    "regnet_x_400mf": (_torchvision("regnet_x_400mf"), _image),
    "convnext_tiny": (_torchvision("convnext_tiny"), _image),
    "vit_b_16": (_torchvision("vit_b_16"), _image),
    "mobilenetv4_conv_small": (_timm("mobilenetv4_conv_small"), _image),
    "repvgg_a0": (_timm("repvgg_a0"), _image),
    "resnet26d": (_timm("resnet26d"), _image),
    "deit_tiny_patch16_224": (_timm("deit_tiny_patch16_224"), _image),
    "convnextv2_atto": (_timm("convnextv2_atto"), _image),
    "mixer_s32_224": (_timm("mixer_s32_224"), _image),
    "bert_base": (_bert(), _sentence),
    "bert_small": (
        _bert(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, vocab_size=1000),
        _sentence,
    ),
    "transformer_48": (Transformer, _tokens),
    "recogniser": (Recogniser, _line),
    "voice_detector": (VoiceDetector, _sound),
    "minilm": (
        _bert(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=2000),
        _sentence,
    ),
    **{
        name: (functools.partial(Memory, hidden, layers), _sequences(hidden, steps))
        for name, (hidden, layers, steps) in LSTMS.items()
    },
}


def exported(name: str, exporter: str) -> tuple[torch.nn.Module, Path, Tensors]:
    """Returns a model of `ORIGINALS` or `QUANTISED`, its file with a dynamic batch, and inputs of batch 1."""
    base, quantise = QUANTISED.get(name, (name, None))
    build, inputs = ORIGINALS[base]
    original = seeded(build)
    path = EXPORTERS[exporter](f"benchmark_{base}", original, inputs(2), inputs(3))
    if quantise is not None:
        path = _quantised(path, name, inputs(1), quantise)
    return original, path, inputs(1)


def _dynamically(path: Path, written: Path, inputs: Tensors) -> None:
    """Writes a file with weights of 8 bits, whose activations are quantised in each call."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(path), str(written))


def _statically(form: str) -> Quantise:
    """Writes a file whose weights and activations have 8 bits, as pairs of nodes (QDQ) or as QLinear operators."""

    def quantise(path: Path, written: Path, inputs: Tensors) -> None:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Samples(CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime has no types
            def __init__(self) -> None:
                names = [value.name for value in onnx.load(str(path), load_external_data=False).graph.input]
                self.left = [{name: x.numpy() for name, x in zip(names, inputs, strict=True)}]

            def get_next(self) -> dict[str, np.ndarray] | None:
                return self.left.pop() if self.left else None

        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(str(path), str(written), Samples(), quant_format=QuantFormat[form], **types)

    return quantise


QUANTISED: dict[str, tuple[str, Quantise]] = {
    "bert_base_dynamic_int8": ("bert_base", _dynamically),
    "recogniser_dynamic_int8": ("recogniser", _dynamically),
    "voice_detector_dynamic_int8": ("voice_detector", _dynamically),
    **{f"{name}_dynamic_int8": (name, _dynamically) for name in LSTMS},
    "minilm_qdq_int8": ("minilm", _statically("QDQ")),
    "resnet18_qoperator_int8": ("resnet18", _statically("QOperator")),
    "resnet18_qdq_int8": ("resnet18", _statically("QDQ")),
    "mobilenet_v2_qoperator_int8": ("mobilenet_v2", _statically("QOperator")),
    "mobilenet_v2_qdq_int8": ("mobilenet_v2", _statically("QDQ")),
}
"""Name → a model of `ORIGINALS`, and how ONNX Runtime's tools quantise its file."""


def _quantised(path: Path, name: str, inputs: Tensors, quantise: Quantise) -> Path:
    written = path.with_name(f"{name}.onnx")
    if not written.exists():
        quantise(path, written, inputs)
    return written
