"""The methods of recurrent networks, in ONNX's layouts.

``x`` is ``[seq, batch, input]``; ``dirs`` is 2 for ``direction="bidirectional"``, else 1; gates are
stacked in the order ``iofc`` for an LSTM and ``zrh`` for a GRU. States that are not given start at
zero. ``activations`` are listed in ONNX's order, direction after direction; one direction's list
serves both. Each is a name (``"sigmoid"``, ``"tanh"``, ``"relu"``, ``"softplus"``,
``"softsign"``), or a name with its parameters (``("leaky_relu", alpha)``, ``("elu", alpha)``,
``("thresholded_relu", alpha)``, ``("affine", alpha, beta)``, ``("scaled_tanh", alpha, beta)``,
``("hard_sigmoid", alpha, beta)``). ``clip`` bounds what enters them (but for the
cell of an LSTM on its way to the output). Steps at or past ``sequence_lens[b]`` give zeros and
leave the state as it is; a reverse direction starts at each sequence's own end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T, VocabularyCore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.op import Attr
    from ostinato.ops import recurrent
    from ostinato.ops.recurrent import RecurrentLayer
else:
    recurrent = LazyModule("ostinato.ops.recurrent")

__all__ = ["RecurrentVocabulary"]

Direction: TypeAlias = Literal["forward", "reverse", "bidirectional"]
Activation: TypeAlias = "str | tuple[Any, ...]"


class RecurrentVocabulary(VocabularyCore[T]):
    """Methods that run over time steps; they raise :class:`~ostinato.errors.GraphError`."""

    def lstm(
        self,
        x: Any,
        w: Any,
        r: Any,
        bias: Any = None,
        h0: Any = None,
        c0: Any = None,
        *,
        peepholes: Any = None,
        sequence_lens: Any = None,
        direction: Direction = "forward",
        activations: Sequence[Activation] | None = None,
        clip: float | None = None,
        coupled: bool = False,
    ) -> tuple[T, T, T]:
        """Long short-term memory.

        Args:
            x: ``[seq, batch, input]``.
            w: ``[dirs, 4 * hidden, input]``.
            r: ``[dirs, 4 * hidden, hidden]``.
            bias: ``[dirs, 8 * hidden]``: that of ``w``, then that of ``r``.
            h0: ``[dirs, batch, hidden]``, as is ``c0``.
            peepholes: ``[dirs, 3 * hidden]``, of the gates i, o, f.
            sequence_lens: integers ``[batch]``.
            direction: ``"forward"``, ``"reverse"`` or ``"bidirectional"``.
            activations: of the gates, the candidate and the output.
            clip: a positive bound.
            coupled: the forget gate is 1 less the input gate.

        Returns:
            ``y [seq, dirs, batch, hidden]``, and ``h`` and ``c`` after the last step,
            ``[dirs, batch, hidden]``.
        """
        optional = {
            "bias": bias,
            "h0": h0,
            "c0": c0,
            "peepholes": peepholes,
            "sequence_lens": sequence_lens,
        }
        attrs = {"coupled": True} if coupled else {}
        y, h, c = self._layer(
            recurrent.LSTM, (x, w, r), optional, direction, activations, clip, **attrs
        )
        return y, h, c

    def gru(
        self,
        x: Any,
        w: Any,
        r: Any,
        bias: Any = None,
        h0: Any = None,
        *,
        sequence_lens: Any = None,
        direction: Direction = "forward",
        activations: Sequence[Activation] | None = None,
        clip: float | None = None,
        linear_before_reset: bool = False,
    ) -> tuple[T, T]:
        """Gated recurrent unit; as :meth:`lstm`, with 3 gates and no cell.

        With ``linear_before_reset`` the reset gate scales the candidate's recurrent product (and
        bias), as in PyTorch and cuDNN; without, it scales the state that enters the product.

        Returns:
            ``y [seq, dirs, batch, hidden]`` and ``h [dirs, batch, hidden]``.
        """
        optional = {"bias": bias, "h0": h0, "sequence_lens": sequence_lens}
        after = bool(linear_before_reset)
        y, h = self._layer(
            recurrent.GRU,
            (x, w, r),
            optional,
            direction,
            activations,
            clip,
            linear_before_reset=after,
        )
        return y, h

    def rnn(
        self,
        x: Any,
        w: Any,
        r: Any,
        bias: Any = None,
        h0: Any = None,
        *,
        sequence_lens: Any = None,
        direction: Direction = "forward",
        activations: Sequence[Activation] | None = None,
        clip: float | None = None,
    ) -> tuple[T, T]:
        """A plain recurrent layer, ``h = tanh(x @ w^T + h @ r^T + bias)``; see :meth:`gru`."""
        optional = {"bias": bias, "h0": h0, "sequence_lens": sequence_lens}
        y, h = self._layer(recurrent.RNN, (x, w, r), optional, direction, activations, clip)
        return y, h

    def _layer(
        self,
        op: RecurrentLayer,
        required: Sequence[Any],
        optional: dict[str, Any],
        direction: str,
        activations: Sequence[Activation] | None,
        clip: float | None,
        **attrs: Attr,
    ) -> tuple[T, ...]:
        given = tuple(name for name, operand in optional.items() if operand is not None)
        operands = [self._typed(x)[0] for x in (*required, *(optional[name] for name in given))]
        usual = recurrent.DEFAULT_ACTIVATIONS[op.name]
        chosen = usual if activations is None else tuple(map(_activation, activations))
        if len(chosen) == len(usual):
            chosen *= len(recurrent.DIRECTIONS.get(direction, (False,)))
        return self.apply(
            op,
            operands,
            {
                "direction": direction,
                "activations": chosen,
                "clip": None if clip is None else float(clip),
                "given": given,
                **attrs,
            },
        )


def _activation(given: Activation) -> Attr:
    """An activation as attributes hold it."""
    return given if isinstance(given, str) else (given[0], *map(float, given[1:]))
