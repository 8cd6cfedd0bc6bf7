"""The methods of ops whose rows carry a state: linear attention, causal convolution.

Rows of several sequences stand one below the other, those of one sequence in the order of their
positions: ``sequence [N]`` has the slot of each row's state, ``position [N]`` its position. A row
at position 0 begins its state with zeros. Rows take effect one by one, so their bits depend neither
on how a sequence is divided into calls nor on the sequences beside it. States have known sizes.
Slots are taken as :meth:`take` takes indices. The second result is assigned to the state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T, VocabularyCore

if TYPE_CHECKING:
    from ostinato.ops import sequence_states
else:
    sequence_states = LazyModule("ostinato.ops.sequence_states")

__all__ = ["SequenceStateVocabulary"]


class SequenceStateVocabulary(VocabularyCore[T]):
    """Methods over rows with states; they raise :class:`~ostinato.errors.GraphError`."""

    def linear_attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        state: Any,
        sequence: Any,
        position: Any,
        decay: Any = None,
        beta: Any = None,
        *,
        update_rule: Literal["linear", "gated", "delta", "gated_delta"] = "gated_delta",
        scale: float | None = None,
    ) -> tuple[T, T]:
        """Attention by a matrix for each head, updated row by row. (ONNX ``LinearAttention``.)

        With ``g = exp(decay)``, 1 where there is none, a row makes the matrix ``s`` of its head
        ``g s + k v^T``, or by the delta rules ``g s + beta k (v - (g s)^T k)^T``, and gives
        ``scale * s^T q`` of the new one.

        Args:
            q: ``[N, Hq, Dk]``; ``Hq`` is a multiple of ``H``.
            k: ``[N, H, Dk]``.
            v: ``[N, H, Dv]``.
            state: ``[S, H, Dk, Dv]``, float32 beside 16-bit floats.
            sequence: integers ``[N]``, the slot of each row.
            position: integers ``[N]``.
            decay: ``[N, H]`` or ``[N, H, Dk]``, a logarithm; of the gated rules alone.
            beta: ``[N, H]``; of the delta rules alone.
            update_rule: the rule.
            scale: ``None`` for ``1 / sqrt(Dk)``.

        Returns:
            ``[N, Hq, Dv]``, and the state after the last row.
        """
        given = {"decay": decay, "beta": beta}
        rules = sequence_states.UPDATE_RULES
        if update_rule not in rules:
            raise GraphError(f"update_rule is one of {', '.join(rules)}, got {update_rule!r}")
        asked = rules[update_rule]
        known, type_ = self._typed(q)
        operands = [self._typed(x)[0] for x in (k, v, sequence, position)]
        for name, operand in given.items():
            self._expect_given(name, operand, name in asked, f"update_rule={update_rule!r}")
            if operand is not None:
                operands.append(self._typed(operand)[0])
        if scale is None:
            depth = type_.shape[-1] if type_.ndim else 1
            scale = 1 / math.sqrt(depth) if isinstance(depth, int) and depth else 1.0
        updated, y = self.apply(
            sequence_states.LINEAR_ATTENTION,
            [self._typed(state)[0], known, *operands],
            {"update_rule": update_rule, "scale": float(scale)},
        )
        return y, updated

    def causal_conv_with_state(
        self,
        x: Any,
        weight: Any,
        state: Any,
        sequence: Any,
        position: Any,
        bias: Any = None,
        *,
        activation: Literal["none", "silu"] = "none",
    ) -> tuple[T, T]:
        """Each channel's last inputs times its weights. (ONNX ``CausalConvWithState``.)

        Args:
            x: ``[N, C]``.
            weight: ``[C, K]``, the last one of the row itself.
            state: ``[S, C, K - 1]``, the last inputs of each sequence, the newest last.
            sequence: integers ``[N]``, the slot of each row.
            position: integers ``[N]``.
            bias: ``[C]``.
            activation: on the results.

        Returns:
            ``[N, C]``, and the state after the last row.
        """
        operands = [self._typed(o)[0] for o in (state, x, weight, sequence, position)]
        if bias is not None:
            operands.append(self._typed(bias)[0])
        attrs = {"activation": activation, "biased": bias is not None}
        updated, y = self.apply(sequence_states.CAUSAL_CONV_WITH_STATE, operands, attrs)
        return y, updated

    @staticmethod
    def _expect_given(name: str, operand: Any, asked: bool, by: str) -> None:
        if asked != (operand is not None):
            raise GraphError(f"{by} takes {name}" if asked else f"{by} takes no {name}")
