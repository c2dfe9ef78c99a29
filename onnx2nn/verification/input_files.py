"""Reads the inputs of a model from an `.npz` file."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from onnx2nn.errors import InputError
from onnx2nn.importing import inputs as model_inputs


def load_arrays(path: str | os.PathLike[str], specs: Sequence[model_inputs.InputSpec]) -> dict[str, np.ndarray]:
    """Read the inputs of a model from an `.npz` file, one array an input, by its name.

    Raises:
        InputError: the file cannot be read, lacks an input, or an array has another dtype or shape than the input.
    """
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as stored_arrays:
            arrays = {name: stored_arrays[name] for name in stored_arrays.files}
    except OSError as error:
        raise InputError(f"Cannot read inputs from {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is no .npz file of arrays of numbers, as np.savez writes: {error}") from error
    result = {}
    for spec in specs:
        if spec.name not in arrays:
            raise InputError(
                f"{path} holds no array for input {spec.name!r}. It holds {', '.join(arrays) or 'nothing'}."
            )
        array = arrays[spec.name]
        wanted = None if spec.dtype is None or spec.dtype.name == "STRING" else spec.dtype.numpy()
        if wanted is not None and array.dtype.kind == "V":  # NumPy stores its own types only; these are bare bytes
            array = array.view(wanted)
        if wanted is not None and array.dtype != wanted:
            raise InputError(
                f"{path} holds {array.dtype} for input {spec.name!r}, which is {wanted}. Convert the array."
            )
        result[spec.name] = array.astype(object) if wanted is None else array
    model_inputs.check_shapes(specs, {name: array.shape for name, array in result.items()})
    return result
