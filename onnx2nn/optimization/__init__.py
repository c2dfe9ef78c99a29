"""Makes an imported module faster for inference: `optimize(module, "eager")` and `optimize(module, "compile")`.

A module of `onnx2nn.load` comes in; a module with equal outputs goes out, which is not meant to be trained any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from onnx2nn.errors import InputError
from onnx2nn.ground.extras import require

if TYPE_CHECKING:
    import torch

MODES = ("eager", "compile")


def check_mode(mode: str) -> None:
    """Raises an InputError for what is no mode of `optimize`."""
    if mode not in MODES:
        raise InputError(f"optimize={mode!r}: give {' or '.join(map(repr, MODES))}.")


def optimize(module: torch.nn.Module, mode: str, *, example_inputs: Sequence[Any] | None = None) -> torch.nn.Module:
    """Returns a faster form of an imported module, for inference. The module itself stays as it is.

    `"eager"` gives the same tree of `nn.Module`s: batch norms are folded into the layers before them, whose keys they
    leave as they are, convolutions, linear layers and self-attention pack their weights for oneDNN where that is
    faster (on the CPU), and activations work in place on what nothing else reads.

    `"compile"` gives machine code for all sizes of the dynamic dimensions, in a package of torch's AOTInductor, which
    has the weights: a `CompiledModule` without state. Compiling takes from seconds to minutes and needs a C++ compiler.
    Packages are kept in a folder (`$ONNX2NN_CACHE`, else `onnx2nn` in the user's cache folder), so that the same model
    is compiled once. Where AOTInductor refuses a module, `torch.compile` wraps it, which leaves out what cannot be
    compiled, and where there is no compiler it is optimised for `"eager"`: a warning says so. The machine code is
    compared with the module on the example before it is kept.

    Args:
        module: a module of `onnx2nn.load`, on the CPU or on a GPU, where the result runs.
        mode: `"eager"` or `"compile"`.
        example_inputs: for `"compile"`: one tensor or array for each input; left out, they are made, which takes
            fixed sizes but that of the first dimension.

    Returns:
        The faster module, in evaluation mode. Its `train()` raises a `RuntimeError`.

    Raises:
        InputError: another mode, a module that was not imported, is on several devices or has no elements, or example
            inputs are needed and missing.
        VerificationError: the compiled module gives other outputs.
    """
    check_mode(mode)
    require("torch", extra="torch", purpose="Optimising a module")
    if getattr(module, "meta", {}).get("onnx2nn", {}).get("signature") is None:
        raise InputError(f"A {type(module).__name__} cannot be optimised. Give a module of onnx2nn.load.")
    devices = dict.fromkeys(str(tensor.device) for tensor in (*module.parameters(), *module.buffers()))
    if len(devices) > 1 or "meta" in devices:
        raise InputError(f"The weights are on {', '.join(devices)}. Optimise a module whose weights are on one device.")
    if mode == "eager":
        from onnx2nn.optimization.eager import optimized

        return optimized(module)
    from onnx2nn.optimization.compiling import compiled

    with _evaluating(module):
        return compiled(module, example_inputs)


@contextlib.contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Has a module in evaluation mode, and gives each of its parts its own mode back."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
