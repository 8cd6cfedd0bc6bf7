"""Which buffer holds which value of the graph that a user built."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ostinato.errors import PlanError
from ostinato.ir.graph import BaseGraph, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.plan.buffer import Buffer

__all__ = ["ValueBuffers"]


class ValueBuffers:
    """Buffers by the ids of the values that they hold.

    Args:
        by_id: the buffers.
        graph: whose values they are. It is not kept alive: its weights may be large.
    """

    def __init__(self, by_id: Mapping[int, Buffer], graph: BaseGraph | None = None) -> None:
        self.by_id = by_id
        self._graph = None if graph is None else weakref.ref(graph)

    def find(self, value: Value | int) -> Buffer | None:
        """The buffer that holds a value, or the value with an id; ``None`` if none does.

        Raises:
            PlanError: it is a value of another graph, or neither a value nor an id.
        """
        if isinstance(value, Value):
            if self._graph is not None and self._graph() is not value.graph:
                raise PlanError(f"{value!r} is of another graph than the plan")
            return self.by_id.get(value.id)
        if isinstance(value, int) and not isinstance(value, bool):
            return self.by_id.get(value)
        raise PlanError(f"a buffer is asked for by a Value or its id, got {value!r:.80}")
