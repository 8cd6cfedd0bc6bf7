"""The map from values of the user's graph to buffers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ostinato.errors import PlanError
from ostinato.ir.graph import BaseGraph, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.plan.buffer import Buffer

__all__ = ["Origin", "ValueBuffers"]


class Origin:
    """The graph that a user built, and the one that passes made of it.

    Args:
        built: the user's; it is not kept alive, since its weights may be large.
        lowered: the graph that was lowered to kernels.
    """

    def __init__(self, built: BaseGraph, lowered: BaseGraph) -> None:
        self._built = weakref.ref(built)
        self.lowered = lowered

    def is_of(self, value: Value) -> bool:
        """Whether it is a value of the graph that the user built."""
        return value.graph is self._built()

    def stand_ins(self) -> Mapping[int, Value]:
        """By the ids of values of the user's graph, their counterparts in the lowered one."""
        if self.lowered.stand_ins is not None:
            return self.lowered.stand_ins
        return {value.id: value for value in self.lowered.values()}


class ValueBuffers:
    """Buffers by the ids of the values that they hold.

    Args:
        by_id: the buffers.
        origin: the graph whose values they are; by default, of any graph.
    """

    def __init__(self, by_id: Mapping[int, Buffer], origin: Origin | None = None) -> None:
        self.by_id = by_id
        self._origin = origin

    def find(self, value: Value | int) -> Buffer | None:
        """The buffer that holds a value, or the value with an id; ``None`` if none does.

        Raises:
            PlanError: it is a value of another graph, or neither a value nor an id.
        """
        if isinstance(value, Value):
            if self._origin is not None and not self._origin.is_of(value):
                raise PlanError(f"{value!r} is of another graph than the plan")
            return self.by_id.get(value.id)
        if isinstance(value, int) and not isinstance(value, bool):
            return self.by_id.get(value)
        raise PlanError(f"a buffer is asked for by a Value or its id, got {value!r:.80}")
