"""The trained network in ``examples/digits``: the imported module answers as Keras did and as ONNX Runtime does."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from realmodels import check_against_onnxruntime, check_travels

import onnx2nn

FOLDER = Path(__file__).parents[1] / "examples" / "digits"
MODEL = FOLDER / "digits.onnx"


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.load(FOLDER / "digits_test.npz")["image"].astype(np.float32)


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.load(FOLDER / "digits_test.npz")["label"]


@pytest.fixture(scope="module")
def measured() -> dict:
    """What Keras measured when the network was trained."""
    return json.loads((FOLDER / "digits.json").read_text())


@pytest.fixture(scope="module")
def probability(images: np.ndarray) -> np.ndarray:
    """The imported module's answer, ``(450, 10)``."""
    with torch.no_grad():
        return onnx2nn.load(MODEL)(torch.from_numpy(images)).numpy()


def test_file_is_small_and_has_a_dynamic_batch_and_transposes():
    assert MODEL.stat().st_size < 200_000
    model = onnx.load(MODEL)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert any(node.op_type == "Transpose" for node in model.graph.node)


def test_reaches_the_accuracy_keras_measured(probability, labels, measured):
    prediction = probability.argmax(axis=1)
    assert prediction.tolist() == measured["prediction"]
    assert (prediction == labels).mean() == measured["accuracy"]
    assert measured["accuracy"] > 0.97


def test_probabilities_equal_keras(probability, measured):
    expected = np.asarray(measured["probability"])
    np.testing.assert_allclose(probability[: len(expected)], expected, rtol=0, atol=1e-5)


def test_equals_onnxruntime(images):
    check_against_onnxruntime(MODEL, onnx2nn.load(MODEL), (torch.from_numpy(images),))


def test_batch_size_does_not_change_an_answer(probability, images):
    module = onnx2nn.load(MODEL)
    with torch.no_grad():
        for rows in (slice(0, 1), slice(7, 12)):
            answer = module(image=torch.from_numpy(images[rows])).numpy()
            np.testing.assert_allclose(answer, probability[rows], rtol=0, atol=1e-6)


def test_travels(images):
    check_travels(onnx2nn.load(MODEL), (torch.from_numpy(images[:2]),), (torch.from_numpy(images[:5]),))
