"""Equal scalars of a nest's stages as one: what depends on no element is computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.lower.loopir.nodes import Apply, IndexValue, Number, Ref, Scalar, Stage
from ostinato.lower.loopir.rewrite import Rewriter

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["with_shared_scalars"]

_Key: TypeAlias = "tuple[Hashable, ...]"


def with_shared_scalars(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages, with one scalar in the places of those that are equal and read no memory.

    A scalar is computed where it is needed first, and known to all stages behind: a quotient by
    which a row is divided in one stage, and which another one stores.
    """
    rewriter = _Sharing()
    return tuple(
        Stage(stage.axes, tuple(map(rewriter.statement, stage.statements))) for stage in stages
    )


class _Sharing(Rewriter):
    """Rebuilds scalars, each that it has met before as what it was then."""

    def __init__(self) -> None:
        super().__init__()
        self._met: dict[_Key, Scalar] = {}
        self._pure: set[int] = set()

    def _rebuild(self, scalar: Scalar) -> Scalar:
        made = super()._rebuild(scalar)
        key = self._key(made)
        if key is None:
            return made
        found = self._met.setdefault(key, made)
        self._pure.add(id(found))
        return found

    def _key(self, scalar: Scalar) -> _Key | None:
        """The text of a scalar that reads no memory; ``None`` for all others."""
        match scalar:
            case Number():
                kind = type(scalar.value).__name__
                return "number", scalar.dtype, kind, repr(scalar.value)
            case Ref():
                return "ref", scalar.dtype, scalar.name
            case IndexValue() if not scalar.bindings:
                return "index", scalar.dtype, scalar.index
            case Apply() if all(id(operand) in self._pure for operand in scalar.operands):
                operands = tuple(map(id, scalar.operands))
                return "apply", scalar.op, scalar.dtype, scalar.attrs, operands
        return None
