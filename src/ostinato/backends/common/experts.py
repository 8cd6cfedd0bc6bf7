"""Descriptions of a graph's layers of experts, shared by devices and their users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.stored import ExpertTensor

__all__ = ["ExpertLayer", "ExpertTransfers", "ExpertsInFile"]


@dataclass(frozen=True)
class ExpertsInFile:
    """Params whose experts stay in a file, and the memory budget for resident ones.

    Attributes:
        tensors: by param, the matrices of its experts in the file.
        budget: bytes of memory; ``None``: unlimited.
    """

    tensors: Mapping[str, ExpertTensor]
    budget: int | None = None


@dataclass(frozen=True)
class ExpertLayer:
    """A layer that routes tokens to experts.

    Attributes:
        name: the label of its node.
        experts: number of experts.
        slots: number of experts that can be resident, the others being in a file; ``None`` if all
            of them are on the device at all times.
    """

    name: str
    experts: int
    slots: int | None = None


@dataclass(frozen=True)
class ExpertTransfers:
    """Transfers of experts between a file and the device so far.

    Attributes:
        promotions: number of experts made resident.
        demotions: number of experts evicted.
        bytes_moved: bytes read from the file to make experts resident.
        bytes_staged: bytes read from the file for calls of non-resident experts.
    """

    promotions: int = 0
    demotions: int = 0
    bytes_moved: int = 0
    bytes_staged: int = 0
