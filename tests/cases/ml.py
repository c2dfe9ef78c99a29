"""Cases of `onnx2nn.ops.ml` and `onnx2nn.ops.svm`."""

from __future__ import annotations

import numpy as np

from tests.cases import case, f32, i64, of

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
NAN = float("nan")
RNG = np.random.default_rng(7)


def text(*values: str) -> np.ndarray:
    return np.array(values, dtype=object)


def numbers(*shape: int) -> list[float]:
    """Returns as many random numbers as `shape` has, as attributes hold them."""
    return RNG.standard_normal(int(np.prod(shape))).astype(np.float32).tolist()


def kernel(kind: str) -> dict[str, object]:
    return dict(kernel_type=kind, kernel_params=[0.3, 0.5, 3.0])


WORDS = text("b", "zz", "a", "c")
THREE = dict(coefficients=numbers(3, 4), intercepts=numbers(3), classlabels_ints=[5, 7, 9])
ONE = dict(coefficients=numbers(1, 4), intercepts=[0.1])
SVC = dict(
    vectors_per_class=[3, 2, 4],
    support_vectors=numbers(9, 4),
    coefficients=numbers(2, 9),
    rho=numbers(3),
    classlabels_ints=[4, 2, 8],
)
SVC2 = dict(
    vectors_per_class=[3, 2],
    support_vectors=numbers(5, 4),
    coefficients=numbers(1, 5),
    rho=[0.2],
    classlabels_strings=["no", "yes"],
)

CASES = [
    *(case("LinearClassifier", f32(6, 4), **THREE, post_transform=t, domain=ML, outputs=2) for t in TRANSFORMS),
    case("LinearClassifier", f32(4), **THREE, domain=ML, outputs=2, note="one row"),
    case("LinearClassifier", of("int64", 6, 4), **THREE, domain=ML, outputs=2, note="int64"),
    case("LinearClassifier", f32(6, 4), **ONE, classlabels_strings=["n", "y"], domain=ML, outputs=2),
    case("LinearClassifier", f32(6, 4), **ONE, classlabels_ints=[3, 4], post_transform="LOGISTIC", domain=ML, outputs=2),
    case("LinearClassifier", f32(6, 4), **ONE, classlabels_ints=[3, 4], post_transform="SOFTMAX", domain=ML, outputs=2),
    case("LinearRegressor", f32(6, 4), coefficients=numbers(4), intercepts=[0.5], domain=ML),
    case("LinearRegressor", f32(6, 4), coefficients=numbers(4), post_transform="LOGISTIC", domain=ML),
    *(
        case("LinearRegressor", f32(6, 4), coefficients=numbers(2, 4), targets=2, post_transform=t, domain=ML)
        for t in TRANSFORMS
    ),
    case("Scaler", f32(3, 4), offset=[1.0, 2.0, -3.0, 0.5], scale=[0.1, 2.0, 3.0, 4.0], domain=ML),
    case("Scaler", of("int64", 3, 4), offset=[1.5], scale=[0.1], domain=ML),
    case("Scaler", of("float64", 3, 4), offset=[1.5], scale=[0.1], domain=ML),
    *(case("Normalizer", f32(5, 4), norm=norm, domain=ML) for norm in ("MAX", "L1", "L2")),
    case("Normalizer", np.array([[-3.0, -1.0], [0.0, 0.0], [2.0, -5.0]], np.float32), norm="MAX", domain=ML, note="signs"),
    *(
        case("Normalizer", np.zeros((2, 3), np.float32), norm=norm, domain=ML, note=f"zero {norm}")
        for norm in ("MAX", "L1", "L2")
    ),
    case("Normalizer", f32(4), norm="L2", domain=ML, note="one row"),
    case("Normalizer", of("int64", 5, 4), norm="L1", domain=ML, note="int64"),
    case(
        "Imputer",
        np.array([[1.0, NAN, 3.0], [NAN, 5.0, 6.0]], np.float32),
        imputed_value_floats=[7.0, 8.0, 9.0],
        replaced_value_float=NAN,
        domain=ML,
    ),
    case("Imputer", np.array([[1, -1], [3, 4]]), imputed_value_int64s=[9], replaced_value_int64=-1, domain=ML),
    case("Binarizer", f32(3, 4), threshold=0.25, domain=ML),
    case("Binarizer", f32(3, 4), domain=ML),
    case("FeatureVectorizer", f32(3, 2), f32(3, 1), inputdimensions=[2, 1], domain=ML),
    case("FeatureVectorizer", of("int64", 3, 2), of("int64", 3, 3), inputdimensions=[2, 3], domain=ML),
    case("FeatureVectorizer", f32(3, 2), f32(3, 3), inputdimensions=[3, 2], domain=ML, note="padded and cut"),
    case("ArrayFeatureExtractor", f32(3, 5), i64(4, 0), domain=ML),
    case("ArrayFeatureExtractor", f32(2, 3, 5), i64(1, 3), domain=ML, constant=(1,)),
    case("ArrayFeatureExtractor", f32(5), i64(2), domain=ML),
    case("ArrayFeatureExtractor", WORDS, i64(2, 0), domain=ML),
    case("OneHotEncoder", np.array([1, 5, 2]), cats_int64s=[5, 1, 7], domain=ML),
    case("OneHotEncoder", np.array([[1.0, 5.0], [7.0, 1.0]], np.float32), cats_int64s=[5, 1, 7], zeros=0, domain=ML),
    case("OneHotEncoder", WORDS, cats_strings=["a", "b"], domain=ML),
    case("LabelEncoder", WORDS, classes_strings=["a", "b", "c"], default_int64=-7, domain=ML, until=1),
    case("LabelEncoder", np.array([2, 0, 9]), classes_strings=["a", "b", "c"], default_string="?", domain=ML, until=1),
    case("LabelEncoder", WORDS, keys_strings=["a", "b"], values_int64s=[1, 2], default_int64=42, domain=ML, since=2),
    case("LabelEncoder", WORDS, keys_strings=["a", "b"], values_floats=[1.5, 2.5], domain=ML, since=2),
    case("LabelEncoder", WORDS, keys_strings=["a", "b"], values_strings=["x", "y"], domain=ML, since=2),
    case("LabelEncoder", np.array([[1, 5], [3, 4]]), keys_int64s=[5, 1, 4], values_strings=["x", "y", "z"], domain=ML, since=2),
    case("LabelEncoder", np.array([1, 5, 3]), keys_int64s=[5, 1, 9], values_int64s=[10, 20, 30], domain=ML, since=2),
    case("LabelEncoder", np.array([1, 5, 3]), keys_int64s=[5, 1, 5], values_int64s=[10, 20, 30], domain=ML, since=2, note="twice"),
    case("LabelEncoder", np.array([0.5, NAN, 2], np.float32), keys_floats=[NAN, 0.5], values_floats=[1.0, 2.0], domain=ML, since=4),
    case("LabelEncoder", np.array([1, 5, 3]), keys_int64s=[5, 1], values_floats=[1.0, 2.0], domain=ML, since=2),
    case("LabelEncoder", np.array([0.1, 5, 3], np.float32), keys_floats=[5.0, 0.1], values_strings=["p", "q"], domain=ML, since=2),
    case(
        "LabelEncoder",
        WORDS,
        keys_tensor=text("a", "b"),
        values_tensor=np.array([3, 4], np.int16),
        default_tensor=np.array([9], np.int16),
        domain=ML,
        since=4,
    ),
    case(
        "LabelEncoder",
        of("float64", 3),
        keys_tensor=np.array([1.0, 2.0]),
        values_tensor=np.array([3.5, 4.5]),
        default_tensor=np.array([-1.5]),
        domain=ML,
        since=4,
    ),
    case("CategoryMapper", WORDS, cats_strings=["a", "b"], cats_int64s=[10, 20], default_int64=3, domain=ML),
    case("CategoryMapper", np.array([20, 5]), cats_strings=["a", "b"], cats_int64s=[10, 20], domain=ML),
    *(
        case("SVMClassifier", f32(6, 4), **SVC, **kernel(k), domain=ML, outputs=2)
        for k in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
    *(
        case("SVMClassifier", f32(40, 4), **svc, **kernel("RBF"), post_transform=t, domain=ML, outputs=2, note=f"{name} {t}")
        for t in TRANSFORMS
        for name, svc in (("three classes", SVC), ("two classes", SVC2))
    ),
    case("SVMClassifier", f32(6, 4), **SVC, domain=ML, outputs=2, note="default kernel"),
    case("SVMClassifier", f32(6, 4), **SVC, **kernel("RBF"), prob_a=[-1.0, -2.0, -0.5], prob_b=[0.1, 0.2, -0.1], domain=ML, outputs=2),
    case("SVMClassifier", f32(6, 4), **SVC2, **kernel("RBF"), prob_a=[-1.0], prob_b=[0.1], domain=ML, outputs=2),
    *(
        case("SVMClassifier", f32(40, 4), coefficients=numbers(n, 4), rho=numbers(r), classlabels_ints=[4, 2, 8][:n], **kernel("LINEAR"), domain=ML, outputs=2, note=f"linear, {n} classes, {r} rho")
        for n, r in ((3, 1), (3, 3), (2, 1), (2, 2))
    ),
    case("SVMClassifier", f32(40, 4), coefficients=np.abs(numbers(2, 4)).tolist(), rho=[0.3], classlabels_ints=[4, 2], **kernel("LINEAR"), domain=ML, outputs=2, note="linear, positive"),
    *(
        case("SVMRegressor", f32(6, 4), support_vectors=numbers(5, 4), coefficients=numbers(5), n_supports=5, rho=[0.2], **kernel(k), domain=ML)
        for k in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
    case("SVMRegressor", f32(6, 4), coefficients=numbers(4), rho=[0.2], domain=ML),
    case("SVMRegressor", f32(6, 4), coefficients=numbers(4), rho=[0.2], one_class=1, domain=ML),
]  # fmt: skip
