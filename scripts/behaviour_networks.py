"""Architectures of `scripts/behaviour.py`, small: of torchvision, of transformers, and torch modules of our own."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from pathlib import Path

import torch
from torch import nn


def _declare_operators() -> torch.library.Library | None:
    """Declares what `import torchvision` refers to, where its compiled operators are of another build of torch."""
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder).glob("_C.*"):
            with contextlib.suppress(ImportError, OSError):
                torch.ops.load_library(path)
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_DECLARED = _declare_operators()  # they stay declared as long as it is held
import torchvision  # noqa: E402
import transformers  # noqa: E402


class First(nn.Module):
    """A transformers model with positional inputs and its first output alone."""

    def __init__(self, model: nn.Module, *names: str):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the first output."""
        return self.model(**dict(zip(self.names, (x, y), strict=False)), return_dict=True)[0]


def bert() -> nn.Module:
    """Returns a BERT of two layers."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=40, **sizes)
    return First(transformers.BertModel(config), "input_ids", "attention_mask")


def gpt2() -> nn.Module:
    """Returns a GPT-2 of two layers."""
    config = transformers.GPT2Config(vocab_size=50, n_positions=40, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return First(transformers.GPT2LMHeadModel(config), "input_ids", "attention_mask")


def llama() -> nn.Module:
    """Returns a Llama of two layers."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, use_cache=False, **sizes)
    return First(transformers.LlamaForCausalLM(config), "input_ids", "attention_mask")


def whisper() -> nn.Module:
    """Returns Whisper's encoder, two layers."""
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
    config = transformers.WhisperConfig(num_mel_bins=8, max_source_positions=20, **sizes)
    return First(WhisperEncoder(config), "input_features")


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers whose state goes in and out, linear decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 24, num_layers=2)
        self.decoder = nn.Linear(24, 50)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns logarithms of probabilities and the state, for tokens and a state."""
        output, (hidden, cell) = self.rnn(self.encoder(x), (y, z))
        return self.decoder(output).log_softmax(-1), hidden, cell


class Gated(nn.Module):
    """A bidirectional GRU and an Elman network over a batch-first sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 12, batch_first=True, bidirectional=True)
        self.rnn = nn.RNN(24, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the features of each step."""
        return self.rnn(self.gru(x)[0])[0]


class Assignment(nn.Module):
    """Slices, a row and a computed set of places assigned in place."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns `x` with values assigned, some at the places `y`."""
        x = x.clone()
        x[:, 1:3] = x[:, 2:4] * 2
        x[:, 0] = -1.0
        x[:, :, y] = 7.0
        return x


class Patches(nn.Module):
    """A class token before patches, a transformer layer, an image resized to its size in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a vector an image."""
        x = nn.functional.interpolate(x, size=(2 * x.shape[2], 2 * x.shape[3]))
        y = self.patches(x).flatten(2).transpose(1, 2)
        return self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1))[:, 0]


class LastStep(nn.Module):
    """A bidirectional LSTM of which the last step is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns scores."""
        return self.head(self.lstm(x)[0][:, -1])


class Repeated(nn.Module):
    """A layer applied as often as the second input says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: int) -> torch.Tensor:
        """Returns the features."""
        for _ in range(y):
            x = torch.tanh(self.linear(x))
        return x


class Halved(nn.Module):
    """A loop over the rows, whose count is a size, then one that ends when the data say so."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a decaying sum and how often it was halved."""
        total = torch.zeros_like(x[0])
        for row in range(x.size(0)):
            total = total * 0.5 + x[row]
        rounds = torch.zeros((), dtype=torch.int64)
        while bool(total.abs().max() > 1.0):
            total = total * 0.5
            rounds = rounds + 1
        return total, rounds


class Experts(nn.Module):
    """Layers in branches and in a branch of a branch; `shared` is used around them too."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.cold, self.warm, self.hot = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the features that the expert for `x` gives."""
        y = self.shared(x)
        if bool(x.sum() > 0):
            if bool(x.sum() > 10):
                z = self.hot(y)
            else:
                z = self.warm(y)
        else:
            z = self.shared(self.cold(y))
        return z


class Conditional(nn.Module):
    """Layers in the branches of `torch.cond`."""

    def __init__(self) -> None:
        super().__init__()
        self.cold, self.hot = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the layer for `x` gives."""
        return torch.cond(x.sum() > 0, lambda x: self.hot(x) + x, lambda x: self.cold(x), (x,))


def generator() -> nn.Module:
    """Returns DCGAN's generator, its image in blocks."""
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise([20, 32, 16, 8])):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(), nn.PixelUnshuffle(2))


def convolutions() -> nn.Module:
    """Returns convolutions, one depthwise, and a linear layer."""
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.SiLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def swin() -> nn.Module:
    """Returns a Swin transformer of two stages."""
    return torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10)


def vit() -> nn.Module:
    """Returns a vision transformer of two layers."""
    return torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)


def densenet() -> nn.Module:
    """Returns a DenseNet of two blocks."""
    return torchvision.models.DenseNet(8, (2, 2), 16, num_classes=10)


def vision(name: str, **options: object) -> nn.Module:
    """Returns a model of torchvision with ten classes."""
    return torchvision.models.get_model(name, weights=None, num_classes=10, **options)


def convnext() -> nn.Module:
    """Returns a ConvNeXt of two stages."""
    stage = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.ConvNeXt([stage(16, 32, 2), stage(32, None, 2)], num_classes=10)


class Listener(nn.Module):
    """Looks at one frame of sound; scripted, `squeeze` is an If of the number of frames."""

    def __init__(self, frame: int) -> None:
        super().__init__()
        self.filters, self.memory = nn.Conv1d(1, 4, frame, frame // 2), nn.LSTM(4, 3)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a score and the next state."""
        seen = self.filters(x.unsqueeze(1)).relu().squeeze(-1)
        _, (h, c) = self.memory(seen.unsqueeze(0), (state[:1], state[1:]))
        return h.sum(-1), torch.cat([h, c])


class VoiceDetector(nn.Module):
    """For two sampling rates, each with frames of its own; a file of it declares one open length for both."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = Listener(32), Listener(12)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a score and the next state, for sound, a state and a rate."""
        if z == 16:
            found = self.fast(x, y)
        else:
            found = self.slow(x, y)
        return found
