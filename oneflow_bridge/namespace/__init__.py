"""OneFlow seen through torch's names: what the op table's bodies take as `F` on OneFlow.

`from oneflow_bridge import namespace as F` gives `F.relu(x)`, `F.nn.functional.conv2d(...)`, `F.float32`, and tensors
whose methods and operators are torch's. Where OneFlow 0.9 differs from torch the difference is mended in one place, the
function of that name. Tensors enter by `wrap` and leave by `unwrap`; it works in the same way while a
`oneflow.nn.Graph` is traced.

A name that torch has and OneFlow cannot give raises `MissingNameError`, which is an OperatorError that says what is
missing.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from oneflow_bridge.namespace import (
    creation,
    dtypes,
    elementwise,
    functional,
    indexing,
    linalg,
    methods,
    recurrent,
    reduction,
    shaping,
    sizes,
)
from oneflow_bridge.namespace.dtypes import ALIASES, BY_NAME, DType, flow
from oneflow_bridge.namespace.dtypes import FInfo as finfo
from oneflow_bridge.namespace.dtypes import IInfo as iinfo
from oneflow_bridge.namespace.dtypes import promote_types as promote_types
from oneflow_bridge.namespace.tensor import Size, Tensor, broadcast_shapes, result_type, unwrap, wrap
from onnx2nn.errors import OperatorError

MISSING = {
    "fft": "Fourier transforms",
    "stft": "a complex short-time Fourier transform",
    "istft": "Fourier transforms",
    "complex": "complex numbers",
    "polar": "complex numbers",
    "real": "complex numbers",
    "imag": "complex numbers",
    "view_as_complex": "complex numbers",
    "view_as_real": "complex numbers",
    "angle": "complex numbers",
    "quantize_per_tensor": "quantized tensors",
    "svd": "a singular value decomposition",
    "qr": "a QR decomposition",
    "solve": "a solver of linear equations",
    "eigh": "an eigenvalue decomposition",
    "cholesky": "a Cholesky decomposition",
    "digamma": "the digamma function",
    "i0": "Bessel functions",
    "ops": "operators of PyTorch's own library",
}
"""Names of torch that OneFlow 0.9 has nothing for, with what it lacks."""


class MissingNameError(OperatorError, AttributeError):
    """A name that torch has and this namespace does not."""

    def __init__(self, name: str):
        lacks = MISSING.get(name.rsplit(".", 1)[-1]) or MISSING.get(name.split(".")[0])
        super().__init__(
            f"OneFlow 0.9 has no {lacks} (torch.{name})." if lacks else f"There is no torch.{name} on OneFlow 0.9."
        )


class Names:
    """A part of the namespace, such as `F.linalg`."""

    def __init__(self, path: str, names: dict[str, Any], layers: Any = None):
        self.__dict__.update(names)
        self._path, self._layers = path, layers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._layers is not None and hasattr(self._layers, name):
            return getattr(self._layers, name)
        raise MissingNameError(f"{self._path}.{name}")

    def __dir__(self) -> list[str]:
        return sorted(name for name in self.__dict__ if not name.startswith("_"))


def _functions(module: ModuleType) -> dict[str, Any]:
    """The public functions a module defines."""
    found = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {name: value for name, value in found.items() if not name.startswith("_") and callable(value)}


_FROM_FUNCTIONAL = (
    "adaptive_avg_pool1d adaptive_max_pool1d alpha_dropout avg_pool1d batch_norm bilinear celu "
    "channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "cosine_similarity dropout group_norm hardshrink instance_norm layer_norm log_softmax max_pool1d "
    "max_pool2d max_pool3d pairwise_distance pixel_shuffle pixel_unshuffle prelu rms_norm selu softmax "
    "threshold"
)

_functional = {
    **_functions(functional),
    **{name: getattr(indexing, name) for name in ("embedding", "one_hot")},
    **{name: getattr(elementwise, name) for name in ("relu", "sigmoid", "tanh")},
}
_special = {
    name: getattr(elementwise, name)
    for name in ("erf", "erfc", "erfinv", "exp2", "expm1", "log1p", "logit", "sinc", "xlogy", "round")
}

_TORCH: dict[str, Any] = {
    name: value
    for module in (creation, elementwise, shaping, indexing, reduction, linalg)
    for name, value in _functions(module).items()
}
for _name in (
    "view",
    "to",
    "type",
    "type_as",
    "view_as",
    "reshape_as",
    "getitem",
    "setitem",
    "checked_index",
    "take_rows",
    "as_tensor_like",
):
    _TORCH.pop(_name)
for _name in (
    "unfold",
    "cpu",
    "cuda",
    "half",
    "double",
    "short",
    "long",
    "byte",
    "char",
    "float_",
    "int_",
    "bool_",
    "bfloat16_",
):
    _TORCH.pop(_name, None)
_TORCH |= {
    **{name: _functional[name] for name in _FROM_FUNCTIONAL.split()},
    **BY_NAME,
    **ALIASES,
    "Size": Size,
    "Tensor": Tensor,
    "bilinear": functional.bilinear,
    "broadcast_shapes": broadcast_shapes,
    "device": flow.device,
    "dtype": DType,
    "e": math.e,
    "embedding": lambda weight, index, *_, **__: indexing.embedding(index, weight),
    "enable_grad": flow.enable_grad,
    "finfo": finfo,
    "get_default_dtype": lambda: dtypes.float32,
    "iinfo": iinfo,
    "inf": math.inf,
    "is_complex": Tensor.is_complex,
    "is_floating_point": Tensor.is_floating_point,
    "is_grad_enabled": flow.is_grad_enabled,
    "jit": Names("jit", {"is_tracing": sizes.is_tracing}),
    "linalg": Names(
        "linalg",
        {
            **{
                name: getattr(linalg, name)
                for name in ("cross", "det", "diagonal", "inv", "matmul", "matrix_norm", "matrix_power")
            },
            "norm": reduction.vector_norm,
            "vector_norm": reduction.vector_norm,
        },
    ),
    "nan": math.nan,
    "newaxis": None,
    "nn": Names("nn", {"functional": Names("nn.functional", _functional)}, flow.nn),
    "no_grad": flow.no_grad,
    "pi": math.pi,
    "promote_types": promote_types,
    "result_type": result_type,
    "special": Names("special", _special | {"expit": elementwise.sigmoid, "gammaln": elementwise.lgamma}),
    "unwrap": unwrap,
    "wrap": wrap,
    **{name: getattr(recurrent, name) for name in ("gru", "lstm", "rnn_relu", "rnn_tanh")},
    **{name: getattr(sizes, name) for name in ("sym_int", "sym_ite", "sym_max", "sym_min")},
}
globals().update(_TORCH)
methods.attach()

__all__ = sorted(_TORCH)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in MISSING and name == "fft":
        return Names("fft", {})
    raise MissingNameError(name)
