"""The methods of mixtures of experts."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.ir.graph import Value
from ostinato.ir.leaves import CONSTANT
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.order import OrderVocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ops import moe, packed_experts
else:
    moe = LazyModule("ostinato.ops.moe")
    packed_experts = LazyModule("ostinato.ops.packed_experts")

__all__ = ["MoeVocabulary"]


class MoeVocabulary(OrderVocabulary[T]):
    """Methods that choose matrices by number; they raise :class:`~ostinato.errors.GraphError`.

    Matrices are ``[E, in, out]``: rows are multiplied from the left. Numbers of experts may count
    from the end. One that is out of range raises if it is known when the method is called, and in
    every run whose input it is; one that is computed, or in an array that a call is bound to, is
    clamped when the graph runs, as in :meth:`take`.
    """

    def grouped_matmul(self, x: Any, w: Any, expert_ids: Any = None, *, offsets: Any = None) -> T:
        """Row ``i`` of ``x`` times the matrix ``w[expert_ids[i]]``.

        Args:
            x: ``[R, K]``.
            w: ``[E, K, N]``, of the dtype of ``x``, or 16-bit floats beside float32.
            expert_ids: ``[R]`` integers.
            offsets: ``[E]`` integers instead, in ascending order: where the rows of each matrix
                end. Rows behind the last one give zeros.

        Returns:
            ``[R, N]`` in the dtype of ``x``; floats accumulate in float32 or wider.
        """
        rows, rows_type = self._typed(x)
        matrices, matrices_type = self._typed(w)
        if (expert_ids is None) == (offsets is None):
            raise GraphError("rows are matched with matrices by expert_ids, or by offsets")
        if offsets is None:
            ids = self._expert_ids(expert_ids, matrices)
            return self._one(moe.GROUPED_MATMUL, rows, matrices, ids)
        ends, ends_type = self._typed(offsets)
        if not ends_type.dtype.is_integer or ends_type.shape != matrices_type.shape[:1]:
            raise GraphError(f"expected an offset for each of {matrices_type}, got {ends_type}")
        line = self.iota(rows_type.shape[:1])
        ids = self.searchsorted(self.cast(ends, INT64), line, right=True)
        product = self._one(moe.GROUPED_MATMUL, rows, matrices, ids)
        last = self.slice(self.cast(ends, INT64), [-1], [None])
        inside = self.expand_dims(self.less(line, last), -1)
        return self.where(inside, product, 0)

    def packed_grouped_matmul(self, x: Any, w: Any, expert_ids: Any, format: str) -> T:
        """Row ``i`` of ``x``, rounded to 8 bits by blocks, times ``w[expert_ids[i]].T``.

        Args:
            x: float32, float16 or bfloat16 ``[R, K]``.
            w: uint8 ``[E, N, bytes]``, each row the blocks of ``K`` elements: matrices are
                ``[out, in]``, as :meth:`packed_matmul` takes them.
            expert_ids: ``[R]`` integers.
            format: of ``w``, such as ``"gguf:q4_k"``.

        Returns:
            ``[R, N]`` in the dtype of ``x``; a row is what :meth:`packed_matmul` gives.
        """
        rows, matrices = self._typed(x)[0], self._typed(w)[0]
        ids = self._expert_ids(expert_ids, matrices)
        op = packed_experts.PACKED_GROUPED_MATMUL
        return self._one(op, rows, matrices, ids, format=format)

    def expert_mlp(
        self,
        x: Any,
        expert_ids: Any,
        weights: Any,
        gate: Any,
        up: Any,
        down: Any,
        *,
        activation: str = "silu",
    ) -> T:
        """Every token through the experts that a router of your own has chosen for it.

        ``sum over j of weights[t, j] * f(x[t], expert_ids[t, j])``, where an expert ``f`` is
        ``(act(x @ gate) * (x @ up)) @ down``. Between the operands and the result nothing is
        rounded to 16 bits, and the sum always starts at ``j = 0``.

        Args:
            x: ``[T, D]``.
            expert_ids: ``[T, k]`` integers.
            weights: ``[T, k]``, of the dtype of ``x`` or float32.
            gate: ``[E, D, F]``; ``None`` for experts ``act(x @ up) @ down``.
            up: ``[E, D, F]``.
            down: ``[E, F, O]``. Matrices beside a float32 ``x`` may be of 16-bit floats.
            activation: ``"silu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"relu"``.

        Returns:
            ``[T, O]`` in the dtype of ``weights``.
        """
        operands = [self._typed(operand)[0] for operand in (up, down, gate) if operand is not None]
        ids = self._expert_ids(expert_ids, operands[0])
        tokens, scale = self._typed(x)[0], self._typed(weights)[0]
        return self._one(moe.EXPERT_MLP, tokens, ids, scale, *operands, activation=activation)

    def moe(
        self,
        x: Any,
        router: Any,
        gate: Any,
        up: Any,
        down: Any,
        *,
        k: int,
        activation: str = "silu",
        route: str = "softmax_topk",
        renormalize: bool = True,
        shared: Sequence[Any] | None = None,
        shared_router: Any = None,
    ) -> T:
        """A mixture of experts: each token goes through the ``k`` experts of its greatest logits.

        The logits are ``x @ router``, in float32 or wider; equal ones count in the order of the
        experts' numbers. An expert is ``(act(x @ gate) * (x @ up)) @ down``, and the results are
        summed with the router's weights, the greatest first.

        Args:
            x: ``[..., D]``.
            router: ``[D, E]``, of the dtype of ``x`` or float32.
            gate: ``[E, D, F]``; ``None`` for experts ``act(x @ up) @ down``.
            up: ``[E, D, F]``.
            down: ``[E, F, O]``.
            k: experts per token.
            activation: ``"silu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"relu"``.
            route: ``"softmax_topk"`` takes the weights from the softmax over all logits,
                ``"topk_softmax"`` from the softmax over the chosen ones.
            renormalize: with ``"softmax_topk"``, divide the weights by their sum. The other
                route's sum to 1 as they are.
            shared: ``(gate, up, down)`` of an expert that every token goes through, ``[D, S]``,
                ``[D, S]`` and ``[S, O]``, with ``gate`` as above. Its result is added.
            shared_router: ``[D, 1]``; what is added is first scaled by ``sigmoid(x @ it)``.

        Returns:
            ``[..., O]`` in the dtype of ``x``.
        """
        shared_gate, shared_up, shared_down = _parts(shared)
        optional = {
            "gate": gate,
            "shared_up": shared_up,
            "shared_down": shared_down,
            "shared_gate": shared_gate,
            "shared_router": shared_router,
        }
        given = {name: operand for name, operand in optional.items() if operand is not None}
        operands = [self._typed(o)[0] for o in (x, router, up, down, *given.values())]
        return self._one(
            moe.MOE,
            *operands,
            k=operator.index(k),
            activation=activation,
            route=route,
            renormalize=bool(renormalize),
            given=tuple(given),
        )

    def _expert_ids(self, ids: Any, matrices: T) -> T:
        """``ids`` as an operand, once those that are known are found to be experts."""
        lifted, type_ = self._typed(ids)
        matrices_type = self._typed(matrices)[1]
        known = np.asarray(ids) if self.type_of(ids) is None else _known(lifted)
        experts = matrices_type.shape[0] if matrices_type.ndim else 0
        if known is not None and isinstance(experts, int) and type_.dtype.is_integer:
            outside = known[(known < -experts) | (known >= experts)]
            if outside.size:
                raise GraphError(f"expert {outside[0]} is out of range for {experts} experts")
        return lifted


def _known(ids: Any) -> np.ndarray[Any, Any] | None:
    """The numbers that an operand holds, if they are known while the graph is built."""
    if isinstance(ids, Value) and ids.node.op is CONSTANT:
        return np.asarray(ids.node.attrs["array"])
    return None  # computed by the graph, or a session's buffer


def _parts(shared: Sequence[Any] | None) -> Sequence[Any]:
    """The gate, up and down matrices of the shared expert."""
    if shared is None:
        return (None, None, None)
    if not isinstance(shared, list | tuple) or len(shared) != 3:
        raise GraphError(f"shared is (gate, up, down), got {type(shared).__name__}")
    return shared
