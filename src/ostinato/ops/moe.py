"""Mixture of experts: matmuls with a matrix chosen per row, expert networks, and whole layers.

Experts are chosen by number. As in every gather, a negative number counts from the end and what is
still outside is clamped, so that no number can reach outside the weights. A caller that
sees the numbers before they are used refuses those outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ostinato.dtypes import INT64, DType
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops import activations
from ostinato.ops.base import Composite
from ostinato.ops.indexing import clamped
from ostinato.ops.normalization import SOFTMAX
from ostinato.ops.order import TOPK
from ostinato.variables import Dim, bounds, prod

if TYPE_CHECKING:
    from ostinato.ir.graph import Value

__all__ = [
    "ACTIVATIONS",
    "EXPERT_MLP",
    "FAMILY",
    "GROUPED_MATMUL",
    "MOE",
    "NUMBERED",
    "ROUTES",
    "ExpertMlp",
    "GroupedMatmul",
    "Moe",
]

_ELEMENTWISE = {op.name: op for op in activations.FAMILY}

#: The activations of an expert's hidden units: an elementwise op and its attributes.
ACTIVATIONS: Final[Mapping[str, tuple[Op, Mapping[str, Attr]]]] = MappingProxyType(
    {
        "silu": (_ELEMENTWISE["silu"], MappingProxyType({})),
        "gelu": (_ELEMENTWISE["gelu"], MappingProxyType({"approximate": False})),
        "gelu_tanh": (_ELEMENTWISE["gelu"], MappingProxyType({"approximate": True})),
        "relu": (_ELEMENTWISE["relu"], MappingProxyType({})),
    }
)

#: The ways in which expert weights follow from the router's logits.
ROUTES = ("softmax_topk", "topk_softmax")

#: Applies an op to arrays or to values of a graph, and gives all its results.
_Apply: TypeAlias = Callable[..., Sequence[Any]]


class GroupedMatmul(Composite):
    """Row ``i`` of ``x [R, K]`` times the matrix ``w[expert_ids[i]]`` of ``w [E, K, N]``.

    Matrices beside float32 rows may be of 16-bit floats. The result is ``[R, N]``. Floats
    accumulate in float32 or wider, integers wrap.
    """

    name = "grouped_matmul"
    takes_epilogue = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        x, w, ids = operands
        self.expect(x.ndim == 2, f"x is [rows, K], got {x}")
        self.expect(not x.dtype.is_bool, "expected numbers, got bool; cast them first")
        _expect_experts(self, "w", w, (w.shape[0] if w.ndim else 0, x.shape[1], None), x.dtype)
        self.expect(ids.dtype.is_integer, f"expert_ids are integers, got {ids}")
        self.expect(ids.shape == x.shape[:1], f"expert_ids are one for each row of {x}, got {ids}")
        return (TensorType(x.dtype, (x.shape[0], w.shape[2])),)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, w, ids = operands
        rows, experts = x.shape[0], w.shape[0]
        index = clamped(xp, ids, experts)
        if bounds(rows)[1] <= experts:
            product = xp.matmul(xp.reshape(x, (rows, 1, x.shape[1])), xp.take(w, index, axis=0))
            return xp.reshape(product, (rows, w.shape[2]))
        result = xp.matmul(x, w[0])
        for expert in range(1, experts):
            chosen = xp.reshape(xp.equal(index, expert), (rows, 1))
            result = xp.where(chosen, xp.matmul(x, w[expert]), result)
        return result

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        x, w, _ = operands
        return 2 * x.size * w.shape[2]


class ExpertMlp(Op):
    """Every token through the experts chosen for it: ``Σ_j weights[t, j] · f(x[t], ids[t, j])``.

    Operands: ``x [T, D]``; ``ids [T, k]``, integers; ``weights [T, k]``, of the dtype of ``x`` or
    of its sums; ``up [E, D, F]``; ``down [E, F, O]``; and, for gated experts, ``gate [E, D, F]``.
    With the matrices of expert ``e``, ``f(x, e)`` is ``(act(x @ gate) * (x @ up)) @ down``, or
    ``act(x @ up) @ down`` without a gate. The result ``[T, O]`` has the dtype of ``weights``.

    Between the operands and the result nothing is rounded to 16 bits. The sum over ``j`` starts at
    ``j = 0``, whichever expert is computed first.
    """

    name = "expert_mlp"
    takes_epilogue = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 5, 6)
        x, ids, weights, up, down = operands[:5]
        self.expect(x.ndim == 2 and x.dtype.is_float, f"x is a float [tokens, features], got {x}")
        self.expect(ids.dtype.is_integer, f"expert ids are integers, got {ids}")
        self.expect(
            ids.ndim == 2 and ids.shape[0] == x.shape[0] and isinstance(ids.shape[1], int),
            f"expert ids are [tokens, k] for {x}, got {ids}",
        )
        self.expect(ids.shape[1] != 0, "every token needs at least one expert, k is 0")
        self.expect(weights.shape == ids.shape, f"weights {weights} and ids {ids} differ in shape")
        self.expect(
            weights.dtype in (x.dtype, x.dtype.accumulator),
            f"weights are {x.dtype} or {x.dtype.accumulator}, got {weights}; cast them first",
        )
        _expect_experts(self, "up", up, (up.shape[0] if up.ndim else 0, x.shape[1], None), x.dtype)
        for gate in operands[5:]:
            _expect_experts(self, "gate", gate, up.shape, x.dtype)
        _expect_experts(self, "down", down, (up.shape[0], up.shape[2], None), x.dtype)
        _expect_activation(self, attrs["activation"])
        return (TensorType(weights.dtype, (x.shape[0], down.shape[2])),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _experts(xp, partial(_evaluated, xp), operands, attrs["activation"])

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        x, ids, weights, *matrices = operands
        wide = x.dtype.accumulator
        floats = [g.cast(v, wide) for v in (x, weights, *matrices)]
        operands = [floats[0], ids, *floats[1:]]
        result = _experts(g, partial(_appended, g), operands, attrs["activation"])
        return g.cast(result, weights.dtype)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        ids, matrices = operands[1], operands[3:]
        return 2 * ids.size * sum(prod(matrix.shape[1:]) for matrix in matrices)


class Moe(Op):
    """A layer of experts: a router, the ``k`` experts that it chooses for each token, shared ones.

    Operands: ``x [..., D]``, ``router [D, E]``, ``up [E, D, F]``, ``down [E, F, O]``; then, as the
    attribute ``given`` lists them, ``gate [E, D, F]``; ``shared_up [D, S]``, ``shared_down [S, O]``
    and ``shared_gate [D, S]``, an expert that every token goes through; ``shared_router [D, 1]``,
    the logit of a sigmoid that scales it. The result is ``[..., O]`` in the dtype of ``x``.

    Attributes: ``k``; ``activation`` (:data:`ACTIVATIONS`); ``route`` (:data:`ROUTES`); and
    ``renormalize``: with ``"softmax_topk"``, weights are divided by their sum. The chosen experts
    are those of the ``k`` greatest logits, ties to the lower number, whatever the route.
    """

    name = "moe"

    required = ("x", "router", "up", "down")
    optional = ("gate", "shared_up", "shared_down", "shared_gate", "shared_router")

    def named(self, operands: Sequence[Any], attrs: dict[str, Attr]) -> dict[str, Any]:
        """Operands by name.

        Raises:
            GraphError: their number differs, or ``given`` lists what does not exist.
        """
        given = attrs["given"]
        in_order = isinstance(given, tuple) and given == tuple(
            n for n in self.optional if n in given
        )
        self.expect(in_order, f"optional operands are {self.optional} in order, got {given!r}")
        names = (*self.required, *given)
        self.expect(
            len(operands) == len(names), f"takes {', '.join(names)}, got {len(operands)} operands"
        )
        return dict(zip(names, operands, strict=True))

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        named = self.named(operands, attrs)
        x, router, up, down = (named[name] for name in self.required)
        self.expect(x.ndim >= 1 and x.dtype.is_float, f"x is a float [..., features], got {x}")
        features = x.shape[-1]
        self.expect(isinstance(features, int), f"the features {features} of x are no size")
        _expect_experts(self, "up", up, (None, features, None), x.dtype)
        experts, _, hidden = up.shape
        if "gate" in named:
            _expect_experts(self, "gate", named["gate"], up.shape, x.dtype)
        _expect_experts(self, "down", down, (experts, hidden, None), x.dtype)
        self.expect(
            router.shape == (features, experts) and router.dtype in (x.dtype, x.dtype.accumulator),
            f"router is {x.dtype}[{features},{experts}], features by experts, got {router}",
        )
        self._check_attrs(experts, attrs)
        self._check_shared(named)
        return (TensorType(x.dtype, (*x.shape[:-1], down.shape[2])),)

    def _check_attrs(self, experts: Dim, attrs: dict[str, Attr]) -> None:
        k, route, renormalize = attrs["k"], attrs["route"], attrs["renormalize"]
        whole = isinstance(k, int) and not isinstance(k, bool) and isinstance(experts, int)
        self.expect(whole and 1 <= k <= experts, f"k is an int from 1 to {experts}, got {k!r}")
        self.expect(route in ROUTES, f"route is one of {', '.join(ROUTES)}, got {route!r}")
        self.expect(isinstance(renormalize, bool), f"renormalize is a bool, got {renormalize!r}")
        _expect_activation(self, attrs["activation"])

    def _check_shared(self, named: Mapping[str, TensorType]) -> None:
        x, down = named["x"], named["down"]
        given = [name for name in named if name.startswith("shared_")]
        if not given:
            return
        for name in ("shared_up", "shared_down"):
            self.expect(name in named, f"{given[0]} is given without {name}")
        self.expect(
            ("shared_gate" in named) == ("gate" in named),
            "shared experts are gated if and only if the others are",
        )
        up = named["shared_up"]
        self.expect(
            up.ndim == 2 and up.shape[0] == x.shape[-1], f"shared_up is [features, F], got {up}"
        )
        shapes = {
            "shared_up": up.shape,
            "shared_gate": up.shape,
            "shared_down": (up.shape[1], down.shape[2]),
            "shared_router": (x.shape[-1], 1),
        }
        for name in given:
            expected = TensorType(x.dtype, shapes[name])
            self.expect(named[name] == expected, f"{name} is {expected}, got {named[name]}")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _layer(xp, partial(_evaluated, xp), self.named(operands, attrs), attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        result = _layer(g, partial(_appended, g), self.named(operands, attrs), attrs)
        return g.cast(result, operands[0].dtype)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        named = self.named(operands, attrs)
        tokens = prod(named["x"].shape[:-1])
        chosen = [named[name] for name in ("up", "gate", "down") if name in named]
        work: Dim = attrs["k"] * sum(prod(matrix.shape[1:]) for matrix in chosen)
        every = [t for name, t in named.items() if name == "router" or name.startswith("shared_")]
        work += sum(matrix.size for matrix in every)
        return 2 * tokens * work


# -- rules, for arrays and for graphs --------------------------------------------------------------


def _evaluated(xp: Any, op: Op, *operands: Any, **attrs: Attr) -> Sequence[Any]:
    results = op.evaluate(xp, *operands, **attrs)
    return results if isinstance(results, tuple) else (results,)


def _appended(g: Any, op: Op, *operands: Any, **attrs: Attr) -> Sequence[Any]:
    results: Sequence[Any] = g.apply(op, operands, attrs)
    return results


def _layer(xp: Any, apply: _Apply, named: Mapping[str, Any], attrs: Mapping[str, Attr]) -> Any:
    """The layer's result, in the dtype of the sums."""
    x, activation = named["x"], attrs["activation"]
    lead, features = tuple(x.shape[:-1]), x.shape[-1]
    tokens = prod(lead)
    wide = DType.parse(x.dtype).accumulator
    rows = xp.reshape(x, (tokens, features))
    # Chosen in the dtype of sums: rounded to 16 bits, logits that differ would be ties.
    wide_rows = xp.cast(rows, wide)
    logits = xp.matmul(wide_rows, xp.cast(named["router"], wide))
    weights, ids = _routed(xp, apply, logits, attrs)
    gate = [named["gate"]] if "gate" in named else []
    experts = (named["up"], named["down"], *gate)
    (result,) = apply(EXPERT_MLP, rows, ids, weights, *experts, activation=activation)
    if "shared_up" in named:
        # An expert that every token chooses.
        parts = [named[f"shared_{name}"] for name in ("up", "down", "gate")[: len(experts)]]
        only = [xp.reshape(part, (1, *part.shape)) for part in parts]
        scale = xp.full((tokens, 1), 1.0, wide)
        if "shared_router" in named:
            logit = xp.matmul(wide_rows, xp.cast(named["shared_router"], wide))
            (scale,) = apply(_ELEMENTWISE["sigmoid"], logit)
        first = xp.full((tokens, 1), 0, INT64)
        (shared,) = apply(EXPERT_MLP, rows, first, scale, *only, activation=activation)
        result = result + shared
    return xp.reshape(result, (*lead, named["down"].shape[2]))


def _routed(xp: Any, apply: _Apply, logits: Any, attrs: Mapping[str, Attr]) -> tuple[Any, Any]:
    """Weights and numbers of the experts chosen for each row of ``logits``."""
    greatest, ids = apply(TOPK, logits, k=attrs["k"], axis=1, largest=True)
    if attrs["route"] == "topk_softmax":
        return apply(SOFTMAX, greatest, axis=1)[0], ids
    (all_weights,) = apply(SOFTMAX, logits, axis=1)
    weights = xp.take_along_axis(all_weights, ids, axis=1)
    if attrs["renormalize"]:
        weights = weights / xp.sum(weights, axis=1, keepdims=True)
    return weights, ids


def _experts(xp: Any, apply: _Apply, operands: Sequence[Any], activation: str) -> Any:
    x, ids, weights, up, down, *gate = operands
    (tokens, features), k = x.shape, ids.shape[1]
    op, attrs = ACTIVATIONS[activation]
    pairs = tokens * k
    repeated = xp.broadcast_to(xp.reshape(x, (tokens, 1, features)), (tokens, k, features))
    rows = xp.reshape(repeated, (pairs, features))
    chosen = xp.reshape(ids, (pairs,))

    def product(left: Any, matrices: Any) -> Any:
        return apply(GROUPED_MATMUL, left, matrices, chosen)[0]

    (hidden,) = apply(op, product(rows, gate[0] if gate else up), **attrs)
    if gate:
        hidden = hidden * product(rows, up)
    results = xp.reshape(product(hidden, down), (tokens, k, down.shape[2]))
    return xp.sum(results * xp.reshape(weights, (tokens, k, 1)), axis=1)


# -- checks ----------------------------------------------------------------------------------------


def _expect_experts(
    op: Op, name: str, matrices: TensorType, shape: Sequence[Dim | None], dtype: DType
) -> None:
    """Refuse all but matrices of this shape (``None``: of any size), one for each expert.

    They are of the dtype, or of floats whose sums are.
    """
    shown = ",".join("*" if size is None else str(size) for size in shape)
    expected = f"{name} is {dtype}[{shown}], experts first"
    fits = matrices.ndim == 3 and all(
        isinstance(have, int) and want in (None, have)
        for have, want in zip(matrices.shape, shape, strict=True)
    )
    held = matrices.dtype == dtype or (
        matrices.dtype.is_float and matrices.dtype.accumulator == dtype
    )
    op.expect(fits and held, f"{expected}, got {matrices}")
    op.expect(matrices.shape[0] != 0, f"{name} {matrices} holds no expert")


def _expect_activation(op: Op, activation: Any) -> None:
    known = isinstance(activation, str) and activation in ACTIVATIONS
    op.expect(known, f"activation is one of {', '.join(ACTIVATIONS)}, got {activation!r}")


GROUPED_MATMUL, EXPERT_MLP, MOE = GroupedMatmul(), ExpertMlp(), Moe()
FAMILY: tuple[Op, ...] = (GROUPED_MATMUL, EXPERT_MLP, MOE)

#: By op, the operands that are numbers of experts, and a matrix for each expert.
NUMBERED: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {GROUPED_MATMUL.name: (2, 1), EXPERT_MLP.name: (1, 3), "packed_grouped_matmul": (2, 1)}
)
