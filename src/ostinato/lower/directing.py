"""Arguments that direct a kernel: it takes their contents for positions, and checks none of them.

Such are lists of rows by expert, plans of copies, tables of slots, numbers of masked rows. The
compiler knows that they are right; a plan that is built by hand has to show that they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.lower.grouping import GroupLayout

__all__ = ["directing_arguments", "listed_rows"]

_NONE: Mapping[int, GroupLayout | None] = {}


def directing_arguments(kernel: Any) -> Mapping[int, GroupLayout | None]:
    """The arguments that direct ``kernel``; of a list of rows by expert, its layout.

    Kernels are told apart by the names of their classes, which may never be imported.
    """
    match type(kernel).__name__:
        case "Contraction" | "JointProduct":
            return _NONE if kernel.idle is None else {kernel.idle: None}
        case "GroupedProduct":
            return {kernel.groups: kernel.layout}
        case "Copying":
            return {len(kernel.args) - 1: None}
        case "Choosing":
            return {0: None, 1: None, 2: None}
        case "Fetching":
            return {0: None, 1: None}
    return _NONE


def listed_rows(kernel: Any) -> tuple[int, GroupLayout] | None:
    """The argument that ``kernel`` writes a list of rows by expert to, and its layout."""
    return (kernel.groups, kernel.layout) if type(kernel).__name__ == "Grouping" else None
