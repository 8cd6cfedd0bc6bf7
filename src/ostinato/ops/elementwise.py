"""The elementwise ops: arithmetic, activations, logic, and special functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ostinato.ops import activations, arithmetic, logic, special

if TYPE_CHECKING:
    from ostinato.ops.base import Elementwise

__all__ = ["ELEMENTWISE", "FAMILY"]

#: All but special functions, whose modules are imported at their first use.
FAMILY: tuple[Elementwise, ...] = (*arithmetic.FAMILY, *activations.FAMILY, *logic.FAMILY)

_COMMON: Mapping[str, Elementwise] = MappingProxyType({op.name: op for op in FAMILY})


class _Table(Mapping[str, "Elementwise"]):
    """Ops by name: names are known without the modules of special functions, ops are not."""

    def __getitem__(self, name: str) -> Elementwise:
        try:
            return _COMMON[name]
        except KeyError:
            return special.find(name)

    def __contains__(self, name: object) -> bool:
        return name in _COMMON or name in special.NAMES

    def __iter__(self) -> Iterator[str]:
        yield from _COMMON
        yield from special.NAMES

    def __len__(self) -> int:
        return len(_COMMON) + len(special.NAMES)


#: Every elementwise op by its name.
ELEMENTWISE: Final[Mapping[str, Elementwise]] = _Table()
