"""Ops of the domain ``ai.onnx.ml``, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ostinato as ost
from ostinato.frontends.onnx import backend
from tests.peer_runtime import onnxruntime_session

RNG = np.random.default_rng(0)
X = RNG.standard_normal((13, 5)).astype(np.float32)


def model(op_type: str, operands: list[Any], outputs: int, version: int = 3, **attributes: Any):
    """A model of one node; all operands are inputs."""
    names = [f"x{i}" for i in range(len(operands))]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, domain="ai.onnx.ml", **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name,
            TensorProto.STRING if a.dtype == object else helper.np_dtype_to_tensor_dtype(a.dtype),
            a.shape,
        )
        for name, a in zip(names, operands, strict=True)
    ]
    empty = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "g", inputs, empty)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(op_type: str, *operands: Any, outputs: int = 1, **attributes: Any) -> None:
    """Compare all outputs of a node."""
    proto = model(op_type, list(operands), outputs, **attributes)
    expected = onnxruntime_session(proto).run(None, {f"x{i}": a for i, a in enumerate(operands)})
    for options in (None, ost.CompileOptions(optimize=False)):
        results = backend.prepare(proto, options=options).run(list(operands))
        for ours, theirs in zip(results, expected, strict=True):
            assert ours.shape == theirs.shape
            if theirs.dtype == object:
                np.testing.assert_array_equal(ours, theirs)
                continue
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# -- features --------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [X, X[:1], np.arange(15).reshape(3, 5)])
def test_scaler(x) -> None:
    check("Scaler", x, offset=[0.5, 1.0, -1.0, 0.0, 2.0], scale=[2.0, 1.0, 0.5, 3.0, -1.0])
    check("Scaler", x, offset=[0.25], scale=[2.0])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm) -> None:
    positive = np.abs(X)  # of rows with negative numbers, MAX is not the same everywhere
    check("Normalizer", positive, norm=norm)


def test_imputer() -> None:
    holes = np.where(X > 0.5, np.float32(np.nan), X)
    check(
        "Imputer",
        holes,
        imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0],
        replaced_value_float=np.nan,
    )
    check("Imputer", holes, imputed_value_floats=[7.0], replaced_value_float=np.nan)
    whole = np.arange(10).reshape(2, 5)
    check("Imputer", whole, imputed_value_int64s=[9], replaced_value_int64=3)


def test_binarizer_and_selection() -> None:
    check("Binarizer", X, threshold=0.25)
    check("ArrayFeatureExtractor", X, np.array([[4, 0, 4]]))
    check("FeatureVectorizer", X, X[:, :2], inputdimensions=[5, 2])


def test_one_hot_encoder() -> None:
    check("OneHotEncoder", np.array([[3], [1], [8]]), cats_int64s=[1, 3, 5])
    texts = np.array(["b", "z", "a"], object)
    check("OneHotEncoder", texts, cats_strings=["a", "b"])


def test_label_encoder() -> None:
    numbers = np.array([[1, 2, 3], [4, 2, 9]])
    check("LabelEncoder", numbers, keys_int64s=[1, 2, 3], values_floats=[0.5, 1.5, 2.5])
    check("LabelEncoder", numbers, keys_int64s=[1, 2], values_int64s=[7, 8], default_int64=-5)
    check("LabelEncoder", numbers, keys_int64s=[1, 2], values_strings=["one", "two"])
    check(
        "LabelEncoder",
        np.float32([1, np.nan, 2]),
        version=4,
        keys_floats=[1.0, np.nan],
        values_int64s=[3, 4],
        default_int64=-1,
    )
    texts = np.array(["a", "q", "b"], object)
    check("LabelEncoder", texts, keys_strings=["a", "b"], values_int64s=[1, 2])
    check("LabelEncoder", texts, keys_strings=["a", "b"], values_strings=["x", "y"])
    check("CategoryMapper", texts, cats_strings=["a", "b"], cats_int64s=[10, 20])
    check("CategoryMapper", numbers, cats_strings=["a", "b"], cats_int64s=[1, 2])


# -- models ----------------------------------------------------------------------------------------

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(targets) -> None:
    weights = RNG.standard_normal(5 * targets).tolist()
    check("LinearRegressor", X, targets=targets, coefficients=weights, intercepts=[0.5] * targets)
    check("LinearRegressor", X, targets=targets, coefficients=weights)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("rows", [2, 4])
def test_linear_classifier(rows, transform) -> None:
    check(
        "LinearClassifier",
        X,
        outputs=2,
        coefficients=RNG.standard_normal(5 * rows).tolist(),
        intercepts=RNG.standard_normal(rows).tolist(),
        classlabels_ints=[7, 3, 5, 9][:rows],
        post_transform=transform,
    )


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kernel) -> None:
    vectors = RNG.standard_normal((4, 5))
    for one_class in (0, 1):
        check(
            "SVMRegressor",
            X,
            kernel_type=kernel,
            kernel_params=[0.3, 0.2, 3.0],
            n_supports=4,
            support_vectors=vectors.reshape(-1).tolist(),
            coefficients=[0.5, -1.0, 0.75, 2.0],
            rho=[0.1],
            one_class=one_class,
        )
    linear = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 3.0]}
    check("SVMRegressor", X, coefficients=[1.0, 2.0, 3.0, 4.0, 5.0], rho=[0.5], **linear)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("counts", [[3, 2], [2, 3, 2], [2, 1, 2, 3]])
def test_svm_classifier(kernel, counts) -> None:
    classes, total = len(counts), sum(counts)
    check(
        "SVMClassifier",
        X,
        outputs=2,
        kernel_type=kernel,
        kernel_params=[0.3, 0.2, 3.0],
        vectors_per_class=counts,
        support_vectors=RNG.standard_normal(total * 5).tolist(),
        coefficients=RNG.standard_normal(total * (classes - 1)).tolist(),
        rho=RNG.standard_normal(classes * (classes - 1) // 2).tolist(),
        classlabels_ints=list(range(10, 10 + classes)),
    )


# -- trees -----------------------------------------------------------------------------------------


def forest(
    kind: str, trees: int, targets: int, modes: list[str], *, positive=False
) -> dict[str, Any]:
    """Attributes of random trees of various shapes."""
    rng = np.random.default_rng(trees * 7 + targets)
    nodes: dict[str, list[Any]] = {
        name: []
        for name in (
            "treeids",
            "nodeids",
            "featureids",
            "values",
            "modes",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        )
    }
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        waiting, count = [(0, 0)], 1
        while waiting:
            node, depth = waiting.pop()
            inner = depth == 0 or (depth < 5 and rng.random() < 0.6)
            entry = (tree, node, int(rng.integers(5)), float(rng.standard_normal()))
            for name, item in zip(
                ("treeids", "nodeids", "featureids", "values"), entry, strict=True
            ):
                nodes[name].append(item)
            nodes["modes"].append(modes[int(rng.integers(len(modes)))] if inner else "LEAF")
            nodes["truenodeids"].append(count if inner else 0)
            nodes["falsenodeids"].append(count + 1 if inner else 0)
            nodes["missing_value_tracks_true"].append(int(rng.integers(2)) if inner else 0)
            if inner:
                waiting += [(count, depth + 1), (count + 1, depth + 1)]
                count += 2
                continue
            for target in range(targets):
                weight = float(rng.standard_normal())
                for name, item in zip(
                    leaves, (tree, node, target, abs(weight) if positive else weight), strict=True
                ):
                    leaves[name].append(item)
    return {f"nodes_{k}": v for k, v in nodes.items()} | {
        f"{kind}_{k}": v for k, v in leaves.items()
    }


HOLES = np.where(X > 1, np.float32(np.nan), X)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(("trees", "targets"), [(1, 1), (7, 1), (3, 4)])
def test_tree_regressor(trees, targets, aggregate) -> None:
    attributes = forest("target", trees, targets, ["BRANCH_LEQ"])
    base = {"base_values": [0.5] * targets} if aggregate == "SUM" else {}
    for x in (X, HOLES):
        check(
            "TreeEnsembleRegressor",
            x,
            n_targets=targets,
            aggregate_function=aggregate,
            **base,
            **attributes,
        )


@pytest.mark.parametrize(
    "mode", ["BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
)
def test_modes_of_trees(mode) -> None:
    check("TreeEnsembleRegressor", X, n_targets=1, **forest("target", 4, 1, [mode]))
    check("TreeEnsembleRegressor", X, n_targets=1, **forest("target", 4, 1, [mode, "BRANCH_LEQ"]))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [3, 4])
def test_tree_classifier(classes, transform) -> None:
    attributes = forest("class", 5, classes, ["BRANCH_LEQ"], positive=True)
    check(
        "TreeEnsembleClassifier",
        X,
        outputs=2,
        classlabels_int64s=list(range(20, 20 + classes)),
        post_transform=transform,
        **attributes,
    )


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_two_classes_with_one_score(transform, positive) -> None:
    """The form of gradient boosting."""
    attributes = forest("class", 4, 1, ["BRANCH_LEQ"], positive=positive)
    for base in ({}, {"base_values": [0.25]}):
        check(
            "TreeEnsembleClassifier",
            X,
            outputs=2,
            classlabels_int64s=[4, 8],
            post_transform=transform,
            **base,
            **attributes,
        )


# -- what is refused -------------------------------------------------------------------------------


def test_labels_that_are_strings_are_refused_in_clear_words() -> None:
    weights = {"coefficients": [1.0] * 10, "classlabels_strings": ["a", "b"]}
    with pytest.raises(ost.UnsupportedOpError, match="output 'y0': its labels are strings"):
        ost.load_onnx(model("LinearClassifier", [X], 2, **weights))


def test_zip_map_says_what_to_do() -> None:
    with pytest.raises(ost.UnsupportedOpError, match="zipmap"):
        ost.load_onnx(model("ZipMap", [X], 1, classlabels_int64s=[0, 1]))


def test_a_damaged_tree_is_refused() -> None:
    attributes = forest("target", 1, 1, ["BRANCH_LEQ"])
    attributes["nodes_truenodeids"][0] = 99
    with pytest.raises(ost.ModelFormatError, match="a node's child is missing"):
        ost.load_onnx(model("TreeEnsembleRegressor", [X], 1, n_targets=1, **attributes))
