"""Converters from ATen ops to ops of the vocabulary: one converter an op, one file a family."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.torch.call import Converter

__all__ = ["converters", "find_converter"]

_FAMILIES = (
    "elementwise",
    "special",
    "polynomials",
    "logic",
    "activations",
    "casts",
    "creation",
    "contraction",
    "shape",
    "slicing",
    "indexing",
    "order",
    "reduction",
    "normalization",
    "attention",
    "convolution",
    "pooling",
    "binning",
    "images",
    "losses",
    "gradients",
    "random",
    "sizes",
    "control",
)

#: The families whose operands or results are complex.
_COMPLEX_FAMILIES = ("complex", "fourier", "sizes", "control")


@lru_cache(maxsize=2)
def converters(*, of_complex: bool = False) -> Mapping[str, Converter]:
    """All converters, by the name of an op (``"aten.add"``) or of an overload
    (``"aten.add.Scalar"``).

    Args:
        of_complex: those for nodes with a complex operand or result.
    """
    found: dict[str, Converter] = {}
    for family in _COMPLEX_FAMILIES if of_complex else _FAMILIES:
        table = import_module(f"ostinato.frontends.torch.converters.{family}").CONVERTERS
        assert not found.keys() & table.keys(), f"{family}: {found.keys() & table.keys()}"
        found.update(table)
    return MappingProxyType(found)


def find_converter(target: str, *, of_complex: bool = False) -> Converter | None:
    """The converter of an overload, else that of its op; ``None`` without one."""
    table = converters(of_complex=of_complex)
    return table.get(target) or table.get(target.rpartition(".")[0])
