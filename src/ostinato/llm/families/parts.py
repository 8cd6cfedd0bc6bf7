"""The mixers and feed-forwards that layers name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ostinato.llm.families.attention import ATTENTION
from ostinato.llm.families.experts import EXPERTS
from ostinato.llm.families.feed_forward import DENSE
from ostinato.llm.families.latent_attention import LATENT_ATTENTION
from ostinato.llm.families.linear_attention import LINEAR_ATTENTION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.families.family import Part

__all__ = ["FEED_FORWARDS", "MIXERS"]

#: By the name that :class:`~ostinato.llm.config.Layer` has as ``mixer``.
MIXERS: Final[Mapping[str, Part]] = MappingProxyType(
    {"attention": ATTENTION, "latent": LATENT_ATTENTION, "linear": LINEAR_ATTENTION}
)

#: By the name that :class:`~ostinato.llm.config.Layer` has as ``feed_forward``.
FEED_FORWARDS: Final[Mapping[str, Part]] = MappingProxyType({"dense": DENSE, "experts": EXPERTS})
