"""Models of the domain ``ai.onnx.ml``: linear ones, support vector machines, tree ensembles.

Where the standard says nothing, as about scores of two classes, they do as ONNX Runtime does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, INT64
from ostinato.frontends.onnx.converters.ml_features import floats
from ostinato.frontends.onnx.converters.ml_trees import Forest, forest_of, leaf_sums
from ostinato.frontends.onnx.known import Missing
from ostinato.frontends.onnx.tensors import read_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.ir.graph import Value

    Array = np.ndarray[Any, Any]

__all__ = ["MACHINE_LEARNING"]

_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


# -- scores and labels -----------------------------------------------------------------------------


def _transform_name(call: Call) -> str:
    name = call.text("post_transform", "NONE")
    if name not in _TRANSFORMS:
        call.malformed(f"post_transform should be one of {', '.join(_TRANSFORMS)}, got {name!r}")
    return name


def _transformed(call: Call, scores: Value, name: str) -> Value:
    """Scores ``[N, E]`` after ``post_transform``."""
    g = call.g
    if name == "LOGISTIC":
        return g.sigmoid(scores)
    if name == "SOFTMAX":
        return g.softmax(scores, axis=1)
    if name == "SOFTMAX_ZERO":
        # Scores next to zero stay there, others share one softmax.
        greatest = g.max(scores, axis=1, keepdims=True)
        zero = g.less_equal(g.abs(scores), 1e-7)
        small = g.multiply(scores, g.exp(g.neg(greatest)))
        parts = g.where(zero, small, g.exp(g.subtract(scores, greatest)))
        total = g.sum(parts, axis=1, keepdims=True)
        return g.where(g.equal(total, 0.0), 0.5, g.divide(parts, total))
    return _probit(call, scores) if name == "PROBIT" else scores


def _probit(call: Call, x: Value) -> Value:
    """The inverse of the normal distribution, by Winitzki's approximation."""
    g = call.g
    centred = g.subtract(g.multiply(x, 2.0), 1.0)
    log = g.log(g.subtract(1.0, g.square(centred)))
    v = g.add(g.multiply(log, 0.5), 2 / (math.pi * 0.147))
    root = g.sqrt(g.subtract(g.sqrt(g.subtract(g.square(v), g.multiply(log, 1 / 0.147))), v))
    return g.multiply(g.multiply(g.sign(centred), root), 1.41421356)


def _labels(call: Call, index: Value, names: Sequence[str] = ("classlabels_ints",)) -> Tensor:
    """The labels at positions ``index``."""
    if call.text_list("classlabels_strings", None):
        return Missing("its labels are strings, which no graph computes; classes may be numbers")
    labels = next((found for name in names if (found := call.integer_list(name, None))), None)
    if labels is None:
        return index
    return call.g.take(call.g.constant(np.asarray(labels, np.int64)), index, axis=0)


def _class_count(call: Call, *names: str) -> int:
    listed = [call.integer_list(name, ()) for name in names]
    return max(len(call.text_list("classlabels_strings", ())), *map(len, listed))


def _of_two(call: Call, score: Value, name: str, *, complementary: bool) -> Value:
    """Scores of two classes ``[N, 2]`` from that of the second ``[N, 1]``."""
    g = call.g
    if name == "PROBIT":
        call.unsupported("PROBIT of a single score for two classes")
    if complementary and name != "LOGISTIC":
        return g.concat([g.subtract(1.0, score), score], axis=1)
    both = g.concat([g.neg(score), score], axis=1)
    return _transformed(call, both, name)


# -- linear models ---------------------------------------------------------------------------------


def convert_linear_regressor(call: Call) -> Result:
    targets = call.integer("targets", 1)
    scores = _linear(call, floats(call, 0), targets)
    return call.g.cast(_transformed(call, scores, _transform_name(call)), FLOAT32)


def convert_linear_classifier(call: Call) -> Result:
    g, name, x = call.g, _transform_name(call), floats(call, 0)
    features = x.shape[-1]
    coefficients = call.real_list("coefficients", ())
    if not isinstance(features, int) or not features or len(coefficients) % features:
        call.malformed(f"{len(coefficients)} coefficients for {x.type}")
    rows = len(coefficients) // features
    scores = _linear(call, x, rows)
    if rows > 1:
        label = g.argmax(scores, axis=1)
        return [_labels(call, label), g.cast(_transformed(call, scores, name), FLOAT32)]
    positive = g.reshape(g.greater(scores, 0.0), (scores.shape[0],))
    label = g.cast(positive, INT64)
    if _class_count(call, "classlabels_ints") == 2:
        both = _of_two(call, _transformed(call, scores, name), "NONE", complementary=True)
        return [_labels(call, label), g.cast(both, FLOAT32)]
    return [label, g.cast(_transformed(call, scores, name), FLOAT32)]


def _linear(call: Call, x: Value, rows: int) -> Value:
    """``x [N, C]`` times ``rows`` rows of coefficients, plus their intercepts."""
    g, features = call.g, x.shape[-1]
    if x.ndim == 1:
        x = g.expand_dims(x, 0)
    weights = np.asarray(call.real_list("coefficients", ()))
    if not isinstance(features, int) or rows < 1 or weights.size != rows * features:
        call.malformed(f"{weights.size} coefficients for {rows} rows of {x.type}")
    scores = g.matmul(x, g.constant(weights.reshape(rows, features).T, x.dtype))
    intercepts = call.real_list("intercepts", ())
    return g.add(scores, g.constant(np.asarray(intercepts), x.dtype)) if intercepts else scores


# -- support vector machines -----------------------------------------------------------------------


def convert_svm_regressor(call: Call) -> Result:
    g, x, supports = call.g, floats(call, 0), call.integer("n_supports", 0)
    weights = np.asarray(call.real_list("coefficients", ()))
    rho = call.real_list("rho", ()) or (0.0,)
    if len(rho) != 1:
        call.malformed(f"rho has {len(rho)} numbers, expected one")
    vectors = np.asarray(call.real_list("support_vectors", ()))
    if supports > 0:
        if vectors.size % supports:
            call.malformed(f"{vectors.size} numbers for {supports} support vectors")
        kernels = _kernels(call, x, vectors.reshape(supports, -1))
    else:
        kernels, weights = x, weights.reshape(-1)
    scores = g.add(g.matmul(kernels, g.constant(weights.reshape(-1, 1), x.dtype)), rho[0])
    if call.flag("one_class", 0):
        scores = g.where(g.greater(scores, 0.0), 1.0, -1.0)
    return g.cast(_transformed(call, scores, _transform_name(call)), FLOAT32)


def _kernels(call: Call, x: Value, vectors: Array) -> Value:
    """The kernel of each row of ``x`` with each support vector: ``[N, vectors]``."""
    g, kind = call.g, call.text("kernel_type", "LINEAR")
    if x.ndim != 2 or x.shape[1] != vectors.shape[1]:
        call.malformed(f"support vectors of {vectors.shape[1]} features for {x.type}")
    gamma, bias, degree = (*call.real_list("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        apart = g.subtract(g.expand_dims(x, 1), g.constant(vectors, x.dtype))
        return g.exp(g.multiply(g.sum(g.square(apart), axis=2), -gamma))
    products = g.matmul(x, g.constant(vectors.T, x.dtype))
    if kind == "LINEAR":
        return products
    scaled = g.add(g.multiply(products, gamma), bias)
    if kind == "POLY":
        return g.pow(scaled, float(degree))
    if kind != "SIGMOID":
        call.malformed(f"kernel_type should be LINEAR, POLY, RBF or SIGMOID, got {kind!r}")
    return g.tanh(scaled)


def convert_svm_classifier(call: Call) -> Result:
    """Convert ``SVMClassifier``: a vote of all pairs of classes, or a linear score of each."""
    g, x, name = call.g, floats(call, 0), _transform_name(call)
    if call.real_list("prob_a", ()):
        call.unsupported("its probabilities are fitted pair by pair (prob_a)")
    counts = call.integer_list("vectors_per_class", ())
    classes = _class_count(call, "classlabels_ints")
    weights = np.asarray(call.real_list("coefficients", ()))
    rho = call.real_list("rho", ())
    if not counts:
        if classes < 1 or not rho or weights.size % classes:
            call.malformed(f"{weights.size} coefficients for {classes} classes")
        rows = g.constant(weights.reshape(classes, -1).T, x.dtype)
        scores = g.add(g.matmul(x, rows), rho[0])
        labels = _labels(call, g.argmax(scores, axis=1))
        return [labels, g.cast(_transformed(call, scores, name), FLOAT32)]
    total = sum(counts)
    if classes != len(counts) or classes < 2 or weights.size != total * (classes - 1):
        call.malformed(f"{weights.size} coefficients for {total} vectors of {classes} classes")
    if len(rho) != classes * (classes - 1) // 2:
        call.malformed(f"{len(rho)} rho for {classes} classes")
    vectors = np.asarray(call.real_list("support_vectors", ())).reshape(total, -1)
    pairs, votes = _pairs(counts, weights.reshape(classes - 1, total))
    kernels = _kernels(call, x, vectors)
    scores = g.add(g.matmul(kernels, g.constant(pairs.T, x.dtype)), g.constant(rho, x.dtype))
    won = g.greater(scores, 0.0)
    first, second = (g.constant(table, x.dtype) for table in votes)
    counted = g.add(
        g.matmul(g.cast(won, x.dtype), first),
        g.matmul(g.cast(g.logical_not(won), x.dtype), second),
    )
    label = _labels(call, g.argmax(counted, axis=1))
    if classes == 2:
        both = _of_two(call, scores, name, complementary=False)
        return [label, g.cast(both, FLOAT32)]
    return [label, g.cast(_transformed(call, scores, name), FLOAT32)]


def _pairs(counts: Sequence[int], weights: Array) -> tuple[Array, tuple[Array, Array]]:
    """For each pair of classes, the weights of all vectors, and the votes for either class."""
    ends = np.cumsum([0, *counts])
    classes = len(counts)
    chosen = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    table = np.zeros((len(chosen), ends[-1]))
    first, second = np.zeros((2, len(chosen), classes))
    for row, (i, j) in enumerate(chosen):
        own, other = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
        table[row, own] = weights[j - 1, own]
        table[row, other] = weights[i, other]
        first[row, i] = second[row, j] = 1
    return table, (first, second)


# -- tree ensembles --------------------------------------------------------------------------------


def convert_tree_ensemble(call: Call) -> Result:
    """Convert ``TreeEnsemble``, whose leaves are apart from its nodes, and whose enums are ints."""
    forest = Forest.of_one_op(call)
    names = dict(enumerate(("AVERAGE", "SUM", "MIN", "MAX")))
    aggregate = names.get(call.integer("aggregate_function", 1), "")
    transform = dict(enumerate(("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")))
    name = transform.get(call.integer("post_transform", 0), "")
    x = call.value(0)
    scores = leaf_sums(call, x, forest, aggregate)
    return call.g.cast(_transformed(call, scores, name), x.dtype)


def convert_tree_regressor(call: Call) -> Result:
    forest = forest_of(call, "target", call.integer("n_targets", 1))
    scores = leaf_sums(call, floats(call, 0), forest, call.text("aggregate_function", "SUM"))
    base = _base_values(call)
    if base:
        scores = call.g.add(scores, call.g.constant(np.asarray(base), scores.dtype))
    return call.g.cast(_transformed(call, scores, _transform_name(call)), FLOAT32)


def convert_tree_classifier(call: Call) -> Result:
    g, name = call.g, _transform_name(call)
    classes = _class_count(call, "classlabels_int64s")
    if classes < 1:
        call.malformed("its class labels are missing")
    forest = forest_of(call, "class", classes)
    scores = leaf_sums(call, floats(call, 0), forest, "SUM")
    base = _base_values(call)
    single = len(set(call.integer_list("class_ids", ()))) == 1
    if classes <= 2 and single:
        chosen = call.integer_list("class_ids", ())[0]
        score = g.slice(scores, [chosen], [chosen + 1], axes=[1])
        if base:
            score = g.add(score, base[-1])
        positive = bool((forest.weights >= 0).all())
        second = g.greater(g.reshape(score, (score.shape[0],)), 0.5 if positive else 0.0)
        index = g.cast(second, INT64)
        both = g.cast(_of_two(call, score, name, complementary=positive), FLOAT32)
        return [index if classes == 1 else _labels(call, index, ("classlabels_int64s",)), both]
    if base:
        scores = g.add(scores, g.constant(np.asarray(base), scores.dtype))
    label = _labels(call, g.argmax(scores, axis=1), ("classlabels_int64s",))
    return [label, g.cast(_transformed(call, scores, name), FLOAT32)]


def _base_values(call: Call) -> tuple[float, ...]:
    tensor = call.tensor("base_values_as_tensor")
    if tensor is not None:
        return tuple(read_tensor(tensor, call.external).reshape(-1).tolist())
    return call.real_list("base_values", ())


def convert_zip_map(call: Call) -> Result:
    return call.unsupported(
        "it makes a list of maps; convert the pipeline without it (options={'zipmap': False})"
    )


#: Ops of the ``ai.onnx.ml`` domain.
MACHINE_LEARNING: Mapping[str, Converter] = {
    "LinearClassifier": convert_linear_classifier,
    "LinearRegressor": convert_linear_regressor,
    "SVMClassifier": convert_svm_classifier,
    "SVMRegressor": convert_svm_regressor,
    "TreeEnsemble": convert_tree_ensemble,
    "TreeEnsembleClassifier": convert_tree_classifier,
    "TreeEnsembleRegressor": convert_tree_regressor,
    "ZipMap": convert_zip_map,
}
