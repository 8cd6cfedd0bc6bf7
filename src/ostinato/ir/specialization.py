"""Specialisation: the interface of what builds a graph again for the sizes that a run brings.

A front end that finds sizes which have to be numbers, or that has assumed bounds, gives its graph a
:class:`Specialization`. The runtime then builds and compiles the graph for the sizes of a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from ostinato.variables import Dim

__all__ = ["Specialization"]

G = TypeVar("G")


class Specialization(ABC, Generic[G]):
    """A way to build a graph again, for other shapes of its inputs.

    Args:
        reasons: by Variable that has to be a number, the node that needs it, and why.
        inputs: by input whose contents have to be known, the node that needs them, and why.
        open: the Variables whose bounds are defaults: a run may bring any size.
        words: by the text of an input's dim, the model's own name for it, where that differs.
        conditions: by such a name, what the graph assumes of the size (``"at most 64"``); a graph
            for other sizes is built again.

    Attributes:
        reasons, inputs, open, words, conditions: as given.
    """

    def __init__(
        self,
        reasons: Mapping[str, str],
        inputs: Mapping[str, str],
        open: frozenset[str],
        words: Mapping[str, str],
        conditions: Mapping[str, str],
    ) -> None:
        self.reasons = reasons
        self.inputs = inputs
        self.open = open
        self.words = words
        self.conditions = conditions

    def __deepcopy__(self, known: dict[int, Any]) -> Specialization[G]:
        """The same: copies of a graph are built from the same model."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as ``None``: the model is not at hand in another process."""
        return _absent, ()

    @property
    def needed(self) -> bool:
        """Whether the graph has to be built again before it can be compiled."""
        return bool(self.reasons or self.inputs)

    @abstractmethod
    def build(
        self,
        shapes: Mapping[str, tuple[Dim, ...]],
        contents: Mapping[str, np.ndarray[Any, Any]],
    ) -> G:
        """The graph for inputs of these shapes.

        Args:
            shapes: by input.
            contents: of :attr:`inputs`, which are no inputs of the result.

        Raises:
            OstinatoError: the graph makes no sense at these sizes; the node is named.
        """


def _absent() -> None:
    """The specialisation of a graph that was unpickled."""
