"""Decision trees: all rows go down all trees at once, a level at a time.

The nodes of all trees stand in tables. A step looks up the feature and the threshold of each row's
node, compares, and moves to one of two children; leaves are their own children. After as many
steps as the deepest tree has levels, each row stands at a leaf of each tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.frontends.onnx.tensors import read_tensor
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.frontends.onnx.call import Call
    from ostinato.ir.graph import Value

    Array = np.ndarray[Any, Any]

__all__ = ["Forest", "forest_of", "leaf_sums"]

_LEAF = "LEAF"
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_MEMBER = "BRANCH_MEMBER"


@dataclass(frozen=True)
class Forest:
    """The nodes of all trees, in tables of one row each.

    Attributes:
        features: the feature that a node tests.
        thresholds: the number that it is compared with.
        modes: the comparison.
        nan_is_true: whether a missing feature goes to the true child.
        children: the false and the true child ``[2, nodes]``; a leaf is its own.
        weights: of leaves ``[nodes, targets]``.
        roots: of the trees.
        members: by node, the sets that membership tests look into.
    """

    features: Array
    thresholds: Array
    modes: Sequence[str]
    nan_is_true: Array
    children: Array
    weights: Array
    roots: Array
    members: dict[int, Array]

    def depth(self, call: Call) -> int:
        """The levels below the roots of the deepest tree."""
        reached = self.roots
        for level in range(len(self.modes) + 1):
            below = np.unique(self.children[:, reached])
            if np.isin(below, reached).all() and len(below) == len(reached):
                return level
            reached = below
        return call.malformed("a tree goes in circles")

    @staticmethod
    def of_one_op(call: Call) -> Forest:
        """The forest of ``TreeEnsemble``."""
        features = np.asarray(call.integer_list("nodes_featureids", ()), np.int64)
        nodes = len(features)
        modes = (*_MODES, _MEMBER)
        numbers = _tensor(call, "nodes_modes")
        thresholds = _tensor(call, "nodes_splits")
        leaf_weights = _tensor(call, "leaf_weights")
        if thresholds is None or leaf_weights is None or numbers is None:
            call.malformed("its splits, modes or leaf weights are missing")
        leaves, targets = len(leaf_weights), call.integer("n_targets", 1)
        ids = np.asarray(call.integer_list("leaf_targetids", ()), np.int64)
        lengths = {
            "nodes_modes": (len(numbers), nodes),
            "nodes_splits": (len(thresholds), nodes),
            "leaf_targetids": (len(ids), leaves),
            **{
                name: (len(call.integer_list(name, ())), nodes)
                for side in ("false", "true")
                for name in (f"nodes_{side}nodeids", f"nodes_{side}leafs")
            },
        }
        for name, (found, expected) in lengths.items():
            if found != expected:
                call.malformed(f"{name} has {found} entries, expected {expected}")
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= targets:
            call.malformed(f"a target is not between 0 and {targets - 1}")
        if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= len(modes):
            call.malformed("a mode is unknown")
        weights = np.zeros((nodes + leaves, targets))
        weights[nodes + np.arange(leaves), ids] = leaf_weights
        children = np.tile(np.arange(nodes + leaves), (2, 1))
        for row, side in enumerate(("false", "true")):
            at = np.asarray(call.integer_list(f"nodes_{side}nodeids", ()), np.int64)
            is_leaf = np.asarray(call.integer_list(f"nodes_{side}leafs", ()), np.int64)
            children[row, :nodes] = np.where(is_leaf != 0, nodes + at, at)
        named = [modes[int(number)] for number in numbers]
        return Forest(
            _filled(features, leaves, 0),
            _filled(thresholds, leaves, 0),
            [*named, *[_LEAF] * leaves],
            _tracks(call, nodes, leaves),
            _checked(call, children),
            weights,
            np.asarray(call.integer_list("tree_roots", ()), np.int64),
            _member_sets(call, named),
        )


def forest_of(call: Call, kind: str, targets: int) -> Forest:
    """The forest of ``TreeEnsembleRegressor`` (``"target"``) or ``...Classifier`` (``"class"``)."""
    trees = call.integer_list("nodes_treeids", ())
    ids = call.integer_list("nodes_nodeids", ())
    position = {key: i for i, key in enumerate(zip(trees, ids, strict=True))}
    nodes = len(position)
    modes = list(call.text_list("nodes_modes", ()))
    features = np.asarray(call.integer_list("nodes_featureids", ()), np.int64)
    thresholds = _numbers(call, "nodes_values")
    if not nodes or nodes != len(trees) or not len(modes) == len(features) == nodes:
        call.malformed("the attributes of its nodes differ in number")
    children = np.tile(np.arange(nodes), (2, 1))
    for row, side in enumerate(("false", "true")):
        below = call.integer_list(f"nodes_{side}nodeids", ())
        for i, (tree, child) in enumerate(zip(trees, below, strict=True)):
            if modes[i] != _LEAF:
                children[row, i] = position.get((tree, child), -1)
    weights = np.zeros((nodes, targets))
    leaf_keys = zip(
        call.integer_list(f"{kind}_treeids", ()),
        call.integer_list(f"{kind}_nodeids", ()),
        strict=True,
    )
    columns = call.integer_list(f"{kind}_ids", ())
    for key, column, weight in zip(
        leaf_keys, columns, _numbers(call, f"{kind}_weights"), strict=True
    ):
        if key not in position or not 0 <= column < targets:
            call.malformed(f"a weight of node {key}, column {column}, which it does not have")
        weights[position[key], column] += weight
    first = {tree: i for i, tree in reversed(list(enumerate(trees)))}
    roots = np.asarray(sorted(first.values()), np.int64)
    return Forest(
        features,
        thresholds,
        modes,
        _tracks(call, nodes, 0),
        _checked(call, children),
        weights,
        roots,
        {},
    )


def leaf_sums(call: Call, x: Value, forest: Forest, aggregate: str) -> Value:
    """The weights of the leaves that rows ``x [N, C]`` reach, over all trees: ``[N, targets]``."""
    g, weights = call.g, call.g.constant(forest.weights, x.dtype)
    if x.ndim != 2:
        call.malformed(f"expected features [N,C], got {x.type}")
    features = x.shape[1]
    if isinstance(features, int) and forest.features.max(initial=0) >= features:
        call.malformed(f"a node reads feature {forest.features.max()} of {x.type}")
    unknown = {*forest.modes} - {*_MODES, _MEMBER, _LEAF}
    if unknown:
        call.malformed(f"unknown modes {sorted(unknown)}")
    node = g.broadcast_to(g.constant(forest.roots), (x.shape[0], len(forest.roots)))
    for _ in range(forest.depth(call)):
        node = _children(call, x, forest, node)
    reached = g.take(weights, node, axis=0)  # [N, trees, targets]
    if aggregate == "SUM":
        return g.sum(reached, axis=1)
    if aggregate == "AVERAGE":
        return g.mean(reached, axis=1)
    if aggregate not in ("MIN", "MAX"):
        call.malformed(f"unknown aggregate_function {aggregate!r}")
    return (g.min if aggregate == "MIN" else g.max)(reached, axis=1)


def _children(call: Call, x: Value, forest: Forest, node: Value) -> Value:
    """The nodes one level further down."""
    g = call.g

    def of_node(table: Any) -> Value:
        return g.take(g.constant(table), node, axis=0)

    value = g.take_along_axis(x, of_node(forest.features), axis=1)
    threshold = of_node(forest.thresholds.astype(x.dtype.numpy))
    compare = {
        "BRANCH_LEQ": g.less_equal,
        "BRANCH_LT": g.less,
        "BRANCH_GTE": g.greater_equal,
        "BRANCH_GT": g.greater,
        "BRANCH_EQ": g.equal,
        "BRANCH_NEQ": g.not_equal,
    }
    used = [mode for mode in dict.fromkeys(forest.modes) if mode in compare]
    taken: Value | None = None
    for mode in used:
        holds = compare[mode](value, threshold)
        if taken is None:
            taken = holds
        else:
            taken = g.where(of_node(np.array([m == mode for m in forest.modes])), holds, taken)
    if forest.members:
        held = _membership(call, forest, node, value)
        is_member = of_node(np.array([m == _MEMBER for m in forest.modes]))
        taken = held if taken is None else g.where(is_member, held, taken)
    if taken is None:
        return node
    if forest.nan_is_true.any():
        missing = g.logical_and(g.isnan(value), of_node(forest.nan_is_true))
        taken = g.logical_or(taken, missing)
    return g.where(taken, of_node(forest.children[1]), of_node(forest.children[0]))


def _membership(call: Call, forest: Forest, node: Value, value: Value) -> Value:
    """Whether a value is in the set of its node."""
    g, most = call.g, max(map(len, forest.members.values()))
    table = np.full((len(forest.modes), most), np.nan)
    for index, members in forest.members.items():
        table[index, : len(members)] = members
    rows = g.take(g.constant(table, value.dtype), node, axis=0)
    return g.any(g.equal(g.expand_dims(value, 2), rows), axis=2)


def _member_sets(call: Call, modes: Sequence[str]) -> dict[int, Array]:
    """The sets of membership tests, which NaN separates in one list."""
    values = _tensor(call, "membership_values")
    if values is None:
        return {}
    ends = np.flatnonzero(np.isnan(values))
    sets = np.split(values, ends)
    found = [part[~np.isnan(part)] for part in sets]
    tests = [i for i, mode in enumerate(modes) if mode == _MEMBER]
    return dict(zip(tests, found, strict=False))


def _checked(call: Call, children: Array) -> Array:
    """The children, all of which are nodes."""
    if children.min(initial=0) < 0 or children.max(initial=0) >= children.shape[1]:
        call.malformed("a node's child is missing")
    return children


def _tracks(call: Call, nodes: int, leaves: int) -> Array:
    listed = call.integer_list("nodes_missing_value_tracks_true", None) or (0,) * nodes
    return _filled(np.asarray(listed, np.int64), leaves, 0).astype(np.bool_)


def _filled(array: Array, count: int, value: int) -> Array:
    """``array`` with ``count`` more entries."""
    return np.concatenate([array, np.full(count, value, array.dtype)])


def _tensor(call: Call, name: str) -> Array | None:
    tensor = call.tensor(name)
    return None if tensor is None else read_tensor(tensor, call.external).reshape(-1)


def _numbers(call: Call, name: str) -> Array:
    """A list of floats, or the tensor that takes its place."""
    tensor = _tensor(call, f"{name}_as_tensor")
    return np.asarray(call.real_list(name, ())) if tensor is None else tensor
