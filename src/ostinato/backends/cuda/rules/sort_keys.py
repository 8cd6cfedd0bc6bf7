"""Sort keys: unsigned integers in the order of elements, NaN above all, the zeros equal."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType

__all__ = ["bits_of", "key_function", "word_of"]

#: By bytes, the type of an element's bits.
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

_KEY = Template("""\
    const auto key_of = []($word bits) -> $word {
$ordered
        return $direction;
    };
""")

#: The bits of an element in the order of elements, by kind.
_UNSIGNED = ""
_SIGNED = Template("        bits ^= $sign;")
_FLOAT = Template("""\
        const $word magnitude = bits & ~($word)$sign;
        if (magnitude > $infinity)
            bits = ~($word)0 >> $unused;
        else if (magnitude == 0)
            bits = $sign;
        else
            bits = bits & $sign ? ~bits & ~($word)0 >> $unused : bits | $sign;""")

#: By dtype, the bits of infinity.
_INFINITY = {
    "float16": "0x7c00u",
    "bfloat16": "0x7f80u",
    "float32": "0x7f800000u",
    "float64": "0x7ff0000000000000ull",
}


def bits_of(dtype: DType) -> str:
    """The type of an element's bits."""
    return _BITS[dtype.itemsize]


def word_of(dtype: DType) -> str:
    """The type of an element's sort key."""
    return "unsigned long long" if dtype.itemsize > 4 else "unsigned int"


def key_function(dtype: DType, *, largest: bool) -> str:
    """A local function ``key_of`` from an element's bits to its key; better ones are greater.

    Args:
        dtype: of the elements.
        largest: whether the greatest element is the best.
    """
    names = {"word": word_of(dtype)}
    direction = "bits" if largest else "~bits"
    return _KEY.substitute(names, ordered=_ordered(dtype, names), direction=direction)


def _ordered(dtype: DType, names: Mapping[str, str]) -> str:
    """Statements that turn the bits of an element into its sort key."""
    sign = f"{1 << (dtype.bits - 1):#x}u{'ll' * (dtype.itemsize > 4)}"
    if dtype.is_float:
        unused = max(32, dtype.bits) - dtype.bits
        return _FLOAT.substitute(names, sign=sign, infinity=_INFINITY[dtype.name], unused=unused)
    return _SIGNED.substitute(sign=sign) if dtype.is_signed else _UNSIGNED
