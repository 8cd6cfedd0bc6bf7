"""The scores of paged attention of many rows, as tensor cores leave them in registers.

Without a cap, scores stay products of queries and keys, and the scale is part of the exponent.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.attention_scores import exponent_of
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.dtypes import FLOAT32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.lower.rules.paged_attention_spec import PagedAttentionSpec
    from ostinato.variables import Symbol

__all__ = ["capped_text", "exponent", "sink_text"]

_CAPPED = Template("""\
#pragma unroll
                for (int j = 0; j < $keys / 2; j++) {
                    float* const score = &scores[j / 4][j % 4];
                    const float scaled = *score * $scale;
                    *score = $capped;
                }""")

_SINK = Template("""\
                    float sink;
$element
                    if (sink != $minus_infinity) {
                        const float score = greatest[half] * $unit;
                        const float most = ::fmaxf(score, sink);
                        scale = ost::exp(score - most);
                        weights = weights * scale + ost::exp(sink - most);
                    }""")


def exponent(spec: PagedAttentionSpec) -> str:
    """The factor from scores to powers of 2."""
    return exponent_of(_unit(spec))


def capped_text(spec: PagedAttentionSpec, keys: int) -> str:
    """Statements that make scores of products by a tile of keys, where that takes any."""
    if _is_plain(spec):
        return ""
    dialect, capped = CudaDialect(), "scaled"
    if spec.softcap is not None:
        cap = dialect.literal(FLOAT32, spec.softcap)
        capped = f"ost::multiply({cap}, ost::tanh(ost::divide(scaled, {cap})))"
    return _CAPPED.substitute(keys=keys, scale=dialect.literal(FLOAT32, spec.scale), capped=capped)


def sink_text(spec: PagedAttentionSpec, frame: Frame, names: Mapping[Symbol, str]) -> str:
    """Statements that count a score without a key, if there is one, in the weights of a row."""
    if spec.sink is None:
        return ""
    dialect = CudaDialect()
    return _SINK.substitute(
        element=frame.element(spec.sink, FLOAT32, 5, names, "sink"),
        minus_infinity=dialect.literal(FLOAT32, float("-inf")),
        unit=dialect.literal(FLOAT32, _unit(spec)),
    )


def _is_plain(spec: PagedAttentionSpec) -> bool:
    return spec.softcap is None and spec.scale > 0


def _unit(spec: PagedAttentionSpec) -> float:
    """A score, where the greatest one and the weights are in this unit."""
    return spec.scale if _is_plain(spec) else 1.0
