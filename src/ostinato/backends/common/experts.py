"""What a device says of the experts of a graph: which were called, and where they live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.stored import ExpertTensor

__all__ = ["ExpertLayer", "ExpertTransfers", "ExpertsInFile"]


@dataclass(frozen=True)
class ExpertsInFile:
    """Params that stay in a file, and how much memory a device may have for some of their experts.

    Attributes:
        tensors: by param, where its experts' matrices are.
        budget: bytes of memory; ``None``: as much as it takes.
    """

    tensors: Mapping[str, ExpertTensor]
    budget: int | None = None


@dataclass(frozen=True)
class ExpertLayer:
    """A layer that sends tokens to experts.

    Attributes:
        name: the label of its node.
        experts: how many there are.
        places: how many of them the device has room for, where the others are in a file; ``None``
            where all of them are on the device at all times.
    """

    name: str
    experts: int
    places: int | None = None


@dataclass(frozen=True)
class ExpertTransfers:
    """What was moved between the device and the file that experts live in, so far.

    Attributes:
        promotions: experts that were given a place on the device.
        demotions: experts that lost theirs.
        bytes_moved: bytes read from the file to fill places.
        bytes_staged: bytes read from the file for experts that runs called and that had no place.
    """

    promotions: int = 0
    demotions: int = 0
    bytes_moved: int = 0
    bytes_staged: int = 0
