"""The oracle that an imported module is compared with: ONNX Runtime, or onnx.reference."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from onnx2nn.errors import VerificationError, first_line
from onnx2nn.ground.extras import require
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.reading.embedded import embedded
from onnx2nn.reading.remote import local_source

Stored = str | os.PathLike[str] | bytes | onnx.ModelProto
"""The forms of a model that can be read several times."""


_BEYOND_NUMPY = {
    "tensor(bfloat16)": onnx.TensorProto.BFLOAT16,
    "tensor(float8e4m3fn)": onnx.TensorProto.FLOAT8E4M3FN,
    "tensor(float8e4m3fnuz)": onnx.TensorProto.FLOAT8E4M3FNUZ,
    "tensor(float8e5m2)": onnx.TensorProto.FLOAT8E5M2,
    "tensor(float8e5m2fnuz)": onnx.TensorProto.FLOAT8E5M2FNUZ,
}
"""ONNX Runtime's names of types that have whole bytes and that NumPy lacks, and ONNX's numbers of them."""


class Oracle:
    """Runs an ONNX model on NumPy arrays: ONNX Runtime, or onnx.reference where ONNX Runtime cannot load the file.

    Args:
        source: path, bytes or ModelProto.
        folder: of the external data that a ModelProto refers to.
        optimised: whether ONNX Runtime may rewrite the graph.
        threads: number of ONNX Runtime's threads within an operator, 0 for its own choice.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        VerificationError: neither of the two can load the model.
    """

    def __init__(self, source: Stored, *, folder: str | None = None, optimised: bool = True, threads: int = 0):
        runtime = require("onnxruntime", extra="verify", purpose="Comparing with ONNX Runtime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # its warnings would mix with the commands' lines
        options.intra_op_num_threads = threads
        if not optimised:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # It fuses DequantizeLinear and MatMul into a MatMulNBits of level 4, which rounds activations to int8.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        self._session: Any = None
        self._reference: Any = None
        try:
            model = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
            model = os.fspath(model) if isinstance(model, os.PathLike) else model
            self._session = runtime.InferenceSession(
                model,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["Pad_Fusion"],  # 1.31 merges a Pad with 0 into a MaxPool, which pads with -inf
            )
            self.name = f"ONNX Runtime {runtime.__version__}"
        except Exception as error:  # its exceptions share no base class
            self._load_reference(source, folder, error)

    def _load_reference(self, source: Stored, folder: str | None, runtime_error: Exception) -> None:
        from onnx.reference import ReferenceEvaluator

        try:
            self._reference = ReferenceEvaluator(embedded(source, base_dir=folder))
        except Exception as error:  # the two oracles have no common class of errors
            raise VerificationError(
                f"No oracle can load the model: neither ONNX Runtime ({first_line(runtime_error)}) nor onnx.reference "
                f"({first_line(error)})."
            ) from error
        self.name = f"onnx.reference {onnx.__version__} (ONNX Runtime: {first_line(runtime_error)})"

    @property
    def input_names(self) -> list[str]:
        """The graph's inputs in the file's order."""
        if self._session is not None:
            return [value.name for value in self._session.get_inputs()]
        return list(self._reference.input_names)

    @property
    def output_names(self) -> list[str]:
        """The graph's outputs in the file's order."""
        if self._session is not None:
            return [output.name for output in self._session.get_outputs()]
        return list(self._reference.output_names)

    @property
    def output_types(self) -> dict[str, str]:
        """The types of the outputs by name, in ONNX Runtime's words; empty for onnx.reference."""
        return {} if self._session is None else {output.name: output.type for output in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Runs the model once.

        Raises:
            VerificationError: the oracle refused these inputs.
        """
        try:
            if self._session is None:
                return list(self._reference.run(None, dict(feeds)))
            if _beyond_numpy(self._session):
                return _run_values(self._session, feeds)
            return list(self._session.run(None, dict(feeds)))
        except Exception as error:  # the two oracles have no common class of errors
            raise VerificationError(f"{self.name.partition(' (')[0]} failed: {first_line(error)}") from error


def _beyond_numpy(session: Any) -> bool:
    """Returns whether an input or output has a type that NumPy lacks, such as bfloat16.

    ONNX Runtime neither takes nor gives arrays of these, and gives their tensors' memory instead.
    """
    return any(value.type in _BEYOND_NUMPY for value in (*session.get_inputs(), *session.get_outputs()))


def _run_values(session: Any, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """Runs a session on ONNX Runtime's own values, and returns them as arrays, with the types of ml_dtypes."""
    types = {value.name: _BEYOND_NUMPY.get(value.type) for value in session.get_inputs()}
    values = {name: _to_value(array, types[name]) for name, array in feeds.items()}
    return [_to_array(value) for value in session.run_with_ort_values(None, values)]


def _to_value(array: np.ndarray, element_type: int | None) -> Any:
    from onnxruntime import OrtValue

    if element_type is None:
        return OrtValue.ortvalue_from_numpy(array)
    carrier = np.uint16 if array.dtype.itemsize == 2 else np.uint8
    return OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array).view(carrier), element_type)


def _to_array(value: Any) -> Any:
    if not value.is_tensor() or value.data_type() not in _BEYOND_NUMPY:
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(raw, ir.DataType(_BEYOND_NUMPY[value.data_type()]).numpy()).reshape(value.shape())


def stored(source: Stored | BinaryIO, limits: Limits | None = None) -> Stored:
    """Returns an open file as bytes, a URL as the path of its copy, any other form of a model unchanged.

    Raises:
        LimitError, MissingDependencyError, ModelFileError: the file at a URL cannot be fetched.
        TypeError: the source is no form of a model.
    """
    if isinstance(source, str | os.PathLike | bytes | onnx.ModelProto):
        local: Stored = local_source(source, Account(limits))
        return local
    if not hasattr(source, "read"):
        raise TypeError(f"A model is a path, bytes, a binary stream or a ModelProto, not a {type(source).__name__}.")
    return source.read()
