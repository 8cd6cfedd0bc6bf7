"""A random ONNX graph under construction: its values at several sizes, and the nodes so far.

Every value is kept as the arrays that ONNX Runtime computes, one for each assignment of sizes to
the graph's dynamic dims. So a node is drawn freely, from operands that look right, and stays if
ONNX Runtime runs it at all sizes: what the op allows is not described a second time here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, helper, numpy_helper

__all__ = ["OPSET", "Drawing", "Value"]

Array = np.ndarray[Any, Any]

OPSET = 21

#: Values with more elements are not kept.
_LARGEST = 20_000

#: Numbers beyond this are not kept: errors of rounding would grow with them.
_GREATEST = 1e3

_FLOATS = ("float32", "float32", "float32", "float32", "float64")
_INTS = ("int64", "int64", "int32", "uint8", "int8", "int16", "uint32")


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph.

    Attributes:
        name: in the graph.
        arrays: its elements, by assignment of sizes.
        exact: whether every evaluator computes the same bits, so that decisions may follow.
        stored: whether it is an initializer.
    """

    name: str
    arrays: tuple[Array, ...]
    exact: bool
    stored: bool = False

    @property
    def dtype(self) -> str:
        return str(self.arrays[0].dtype)

    @property
    def kind(self) -> str:
        """``"f"``, ``"i"`` or ``"b"``."""
        return {"f": "f", "b": "b"}.get(self.arrays[0].dtype.kind, "i")

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    def size(self, axis: int) -> int | None:
        """The size of an axis; ``None``: dynamic."""
        sizes = {array.shape[axis] for array in self.arrays}
        return sizes.pop() if len(sizes) == 1 else None

    def least(self, axis: int) -> int:
        """The least size of an axis."""
        return min(array.shape[axis] for array in self.arrays)


class Drawing:
    """A graph, grown node by node.

    Args:
        rng: decides everything.
        dynamic: whether inputs have dynamic dims.
        assignments: how many assignments of sizes there are.
    """

    def __init__(self, rng: np.random.Generator, *, dynamic: bool, assignments: int) -> None:
        self.rng = rng
        self.values: list[Value] = []
        self.inputs: dict[str, list[int | str]] = {}
        self.nodes: list[NodeProto] = []
        self._count = assignments if dynamic else 1
        self._sizes = {
            name: [int(n) for n in rng.choice(np.arange(1, 12), self._count, replace=False)]
            for name in ("N", "S", "T")
        }
        self._dynamic = dynamic
        self._stored: dict[str, Array] = {}
        self._made = 0

    # -- choices -------------------------------------------------------------------------------

    def one(self, *things: Any) -> Any:
        """One of ``things``."""
        return things[int(self.rng.integers(len(things)))]

    def integer(self, low: int, high: int) -> int:
        """A number of ``low..high``."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def axis(self, value: Value) -> int:
        """An axis of ``value``, counted from either end."""
        return self.integer(-value.rank, value.rank - 1)

    # -- values --------------------------------------------------------------------------------

    def value(
        self, kinds: str = "f", ranks: tuple[int, int] = (0, 5), *, exact: bool = False
    ) -> Value:
        """A value computed before, or a new input.

        Args:
            kinds: of its elements, ``f``, ``i`` and ``b``.
            ranks: the least and the greatest.
            exact: whether it has to be exact.
        """
        low, high = ranks
        fitting = [
            value
            for value in self.values
            if value.kind in kinds and low <= value.rank <= high and (value.exact or not exact)
        ]
        if fitting and self.chance(0.85):
            recent = fitting[-6:] if self.chance(0.7) else fitting
            return recent[int(self.rng.integers(len(recent)))]
        rank = min(max(self.integer(1, 4), low), high)
        return self.input(self.one(*kinds), self.shape(rank))

    def shape(self, rank: int) -> list[int | str]:
        """Sizes and names of dynamic dims."""
        sizes: list[int | str] = [self.one(1, 2, 3, 4, 5, 7, 8, 16, 17) for _ in range(rank)]
        if self._dynamic and rank:
            for axis in self.rng.permutation(rank)[: self.one(0, 1, 1, 2)]:
                sizes[axis] = self.one(*self._sizes)
        return sizes

    def input(self, kind: str, shape: Sequence[int | str]) -> Value:
        """A new input with elements of ``kind``."""
        dtype = self.one(*{"f": _FLOATS, "i": _INTS, "b": ("bool",)}[kind])
        arrays = tuple(
            self.elements(dtype, [self._sizes[n][k] if isinstance(n, str) else n for n in shape])
            for k in range(self._count)
        )
        name = self._name()
        self.inputs[name] = list(shape)
        return self._kept(Value(name, arrays, exact=True))

    def elements(self, dtype: str, shape: Sequence[int]) -> Array:
        """Random elements, of a size that arithmetic bears."""
        kind = np.dtype(dtype).kind
        if kind == "f":
            return np.asarray(self.rng.standard_normal(shape)).astype(dtype)
        low, high = {"b": (0, 2), "u": (0, 9)}.get(kind, (-8, 9))
        return np.asarray(self.rng.integers(low, high, size=shape)).astype(dtype)

    def stored(self, array: Any) -> Value:
        """A new initializer."""
        name, data = self._name(), np.asarray(array)
        self._stored[name] = data
        return Value(name, (data,) * self._count, exact=True, stored=True)

    def weight(self, dtype: str, *shape: int) -> Value:
        """An initializer of random elements, scaled like a layer's."""
        fan = max(int(np.prod(shape[1:])), 1) if np.dtype(dtype).kind == "f" else 1
        return self.stored((self.elements(dtype, shape) / fan**0.5).astype(dtype))

    def integers(self, *numbers: int) -> Value:
        """An initializer of int64."""
        return self.stored(np.array(numbers, np.int64))

    def _name(self) -> str:
        self._made += 1
        return f"v{self._made}"

    def _kept(self, value: Value) -> Value:
        self.values.append(value)
        return value

    # -- nodes ---------------------------------------------------------------------------------

    def node(
        self,
        op_type: str,
        operands: Sequence[Value | None],
        *,
        outputs: int = 1,
        exact: bool = False,
        keep: bool = True,
        **attributes: Any,
    ) -> list[Value]:
        """Add a node; its values, none if ONNX Runtime refuses it at some size.

        Args:
            op_type: in the default domain.
            operands: ``None`` for one that is left out.
            outputs: how many.
            exact: whether exact operands make exact results.
            keep: whether further nodes may read the results.
            attributes: of the node.
        """
        names = [self._name() for _ in range(outputs)]
        given = [operand.name if operand else "" for operand in operands]
        node = helper.make_node(op_type, given, names, name=f"n{len(self.nodes)}", **attributes)
        present = {operand.name: operand for operand in operands if operand}
        try:
            results = self._run(node, list(present.values()))
        except Exception:  # ONNX Runtime's own, of any kind: the draw made no sense
            return []
        if not all(_sane(array) for arrays in results for array in arrays):
            return []
        self.nodes.append(node)
        made = [
            Value(name, arrays, exact and all(o.exact for o in present.values()))
            for name, arrays in zip(names, results, strict=True)
        ]
        self.values += made if keep else []
        return made

    def _run(self, node: NodeProto, operands: Sequence[Value]) -> list[tuple[Array, ...]]:
        """The node's results, by assignment of sizes."""
        live = [o for o in operands if not o.stored]
        stored = [numpy_helper.from_array(o.arrays[0], o.name) for o in operands if o.stored]
        declared = [
            helper.make_tensor_value_info(
                o.name, helper.np_dtype_to_tensor_dtype(o.arrays[0].dtype), [None] * o.rank
            )
            for o in live
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
        graph = helper.make_graph([node], "node", declared, outputs, stored)
        session = runtime_session(_model(graph))
        runs = [session.run(None, {o.name: o.arrays[k] for o in live}) for k in range(self._count)]
        return [tuple(run[i] for run in runs) for i in range(len(node.output))]

    # -- the graph -----------------------------------------------------------------------------

    def finished(self) -> tuple[ModelProto, list[dict[str, Array]]]:
        """The model with the last values as results, and its inputs by assignment of sizes."""
        read = {name for node in self.nodes for name in node.input}
        made = {name for node in self.nodes for name in node.output}
        outputs = sorted(made - read) or sorted(made)
        inputs = {value.name: value for value in self.values if value.name in self.inputs}
        used = {name: value for name, value in inputs.items() if name in read}
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [
                helper.make_tensor_value_info(
                    name,
                    helper.np_dtype_to_tensor_dtype(value.arrays[0].dtype),
                    self.inputs[name],
                )
                for name, value in used.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(a, name) for name, a in self._stored.items() if name in read],
        )
        runs = [{n: v.arrays[k] for n, v in used.items()} for k in range(self._count)]
        return _model(graph), runs


def runtime_session(model: ModelProto) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime on one thread, without its messages."""
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _model(graph: Any) -> ModelProto:
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _sane(array: Any) -> bool:
    """Whether further nodes can use an array: numbers, not too many, none too great."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        return False
    if array.size > _LARGEST or array.ndim > 6:
        return False
    return array.dtype.kind != "f" or bool((np.abs(array) < _GREATEST).all())
