"""OneFlow behind torch's names: the bodies of the op table take this namespace as `F` on OneFlow.

`from oneflow_bridge import namespace as F` gives `F.relu(x)`, `F.nn.functional.conv2d(...)`, `F.float32`, and tensors
with torch's methods and operators. A difference between OneFlow 0.9 and torch is corrected in one place, the function
of that name. Tensors enter by `wrap` and leave by `unwrap`. All of it also works while an `oneflow.nn.Graph` is traced.

A name of torch for which OneFlow has nothing raises `MissingNameError`, an `OperatorError` that names the missing
feature.

The importer and the modules that it makes call this room. The room imports OneFlow when it is imported.
"""

from __future__ import annotations

import math
from typing import Any

from oneflow_bridge.namespace import (
    arithmetic,
    bitwise,
    comparison,
    creation,
    dtypes,
    fourier,
    functional,
    indexing,
    linalg,
    methods,
    recurrent,
    reduction,
    shaping,
    sorting,
    symbolic_sizes,
    transcendental,
)
from oneflow_bridge.namespace.dtypes import ALIASES, BY_NAME, DType, flow
from oneflow_bridge.namespace.dtypes import FInfo as finfo
from oneflow_bridge.namespace.dtypes import IInfo as iinfo
from oneflow_bridge.namespace.dtypes import promote_types as promote_types
from oneflow_bridge.namespace.names import MISSING as MISSING
from oneflow_bridge.namespace.names import MissingNameError, Names, functions
from oneflow_bridge.namespace.tensor import Size, Tensor, broadcast_shapes, result_type, unwrap, wrap

_FROM_FUNCTIONAL = (
    "adaptive_avg_pool1d adaptive_max_pool1d alpha_dropout avg_pool1d batch_norm bilinear celu "
    "channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "cosine_similarity dropout group_norm hardshrink instance_norm layer_norm log_softmax max_pool1d "
    "max_pool2d max_pool3d pairwise_distance pixel_shuffle pixel_unshuffle prelu rms_norm selu softmax "
    "threshold"
)

_FAMILIES = (
    *(creation, arithmetic, comparison, transcendental, bitwise),
    *(shaping, indexing, sorting, reduction, linalg),
)
_TORCH: dict[str, Any] = {name: value for module in _FAMILIES for name, value in functions(module).items()}
_functional = {
    **functional.FUNCTIONS,
    **{name: _TORCH[name] for name in ("embedding", "one_hot", "relu", "sigmoid", "tanh")},
}
_special = {
    name: _TORCH[name]
    for name in ("erf", "erfc", "erfinv", "exp2", "expm1", "log1p", "logit", "sinc", "xlogy", "round")
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
    "bilinear": _functional["bilinear"],
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
    "complex": fourier.make_complex,
    "fft": Names("fft", {name: getattr(fourier, name) for name in ("fft", "ifft", "rfft", "irfft", "rfftn", "irfftn")}),
    "view_as_real": fourier.view_as_real,
    "compiler": Names(
        "compiler",
        {
            "is_compiling": symbolic_sizes.is_compiling,
            "is_dynamo_compiling": symbolic_sizes.is_dynamo_compiling,
        },
    ),
    "_check": symbolic_sizes.require,
    "jit": Names("jit", {"is_tracing": symbolic_sizes.is_tracing}),
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
    "special": Names("special", _special | {"expit": transcendental.sigmoid, "gammaln": transcendental.lgamma}),
    "unwrap": unwrap,
    "wrap": wrap,
    **{name: getattr(recurrent, name) for name in ("gru", "lstm", "rnn_relu", "rnn_tanh")},
    **{name: getattr(symbolic_sizes, name) for name in ("sym_int", "sym_ite", "sym_max", "sym_min", "sym_not")},
}
globals().update(_TORCH)
methods.attach()

__all__ = sorted(_TORCH)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise MissingNameError(name)
