"""The formats of packed weights whose elements are integers times a scale, less a minimum.

The names are those of ONNX ``DequantizePacked``, the layouts those of GGUF files. A block holds its
elements as codes of 2 to 8 bits, and a scale; in formats with two levels, also an integer for each
group of elements by which the scale counts there. An element is

``scale * factor * (code - zero)``, or ``scale * factor * codebook[code]``,

to which a minimum is added, or from which the product of a minimum and an integer is subtracted.
All products are exact in float32, so only that last sum is rounded.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ostinato.dtypes import FLOAT32, INT32, UINT16
from ostinato.ops.packed.fields import Digit, Field, Integers
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["APART", "FORMATS", "BlockFormat", "Scale", "elements"]

Array = np.ndarray[Any, Any]

#: Elements of a block of the formats with two levels.
_SUPER = 256

#: The codes of 4-bit floats (E2M1), doubled so that all are integers.
_E2M1: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

#: The codes of the non-linear formats, denser around zero.
_NON_LINEAR: Final = (
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """A float of a block, or several, for as many equal parts of it.

    Attributes:
        byte: where the first one is; they stand side by side.
        kind: ``"f16"``; ``"e8m0"``, the half of a power of two by its exponent; ``"ue4m3"``, the
            half of an unsigned float of 8 bits. Halves, because codebooks are doubled.
        count: the number of parts.
    """

    byte: int
    kind: Literal["f16", "e8m0", "ue4m3"] = "f16"
    count: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of each."""
        return 2 if self.kind == "f16" else 1

    def value(self, xp: Any, blocks: Any, bitcast: Callable[[Any], Any]) -> Any:
        """The scales of blocks ``[B, bytes]``: ``[B, count]``, float32.

        Args:
            xp: the functions of the vocabulary.
            blocks: uint8.
            bitcast: reads uint16 as float16.
        """
        places = self.byte + self.nbytes * np.arange(self.count)
        low = xp.take(blocks, places, axis=1)
        if self.kind != "f16":
            table = _POWERS if self.kind == "e8m0" else _UE4M3
            return xp.cast(xp.take(table, xp.cast(low, INT32), axis=0), FLOAT32)
        high = xp.cast(xp.take(blocks, places + 1, axis=1), UINT16)
        bits = xp.bitwise_or(xp.cast(low, UINT16), xp.bitwise_left_shift(high, np.uint16(8)))
        return xp.cast(bitcast(bits), FLOAT32)


@dataclass(frozen=True)
class BlockFormat:
    """A format of blocks.

    Attributes:
        name: as ONNX has it.
        size: elements of a block.
        nbytes: bytes of a block.
        group: consecutive elements with the same scale, factor and minimum.
        codes: an integer for each element.
        scale: counts for every element.
        factors: integers by which the scale counts, one for each group.
        codebook: the numbers that codes stand for, if they do not stand for themselves.
        minimum: a float, added to each element, or subtracted where there are ``minima``.
        minima: integers by which the minimum counts, one for each group.
    """

    name: str
    size: int
    nbytes: int
    group: int
    codes: Integers
    scale: Scale
    factors: Integers | None = None
    codebook: tuple[int, ...] | None = None
    minimum: Scale | None = None
    minima: Integers | None = None

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return self.size // self.group

    @property
    def computed(self) -> bool:
        """Whether matmuls take it as it is."""
        return self.scale.count == 1 and self.scale.kind != "ue4m3"

    @property
    def minimum_sign(self) -> int:
        """Whether the minimum is added (1) or subtracted (-1)."""
        return 1 if self.minima is None else -1

    def row_bytes(self, depth: int) -> int:
        """Bytes of so many elements, a multiple of :attr:`size`."""
        return depth // self.size * self.nbytes


def elements(xp: Any, blocks: Any, form: BlockFormat, bitcast: Callable[[Any], Any]) -> Any:
    """The elements of ``blocks``, uint8 ``[B, bytes]``: float32 ``[B, elements]``.

    Args:
        xp: the functions of the vocabulary: an array namespace's, or a graph's methods.
        blocks: uint8.
        form: of the blocks.
        bitcast: reads uint16 as float16.
    """
    count, groups = blocks.shape[0], 1 if form.factors is None else form.groups
    groups = max(groups, form.scale.count)

    def widen(part: Any) -> Any:
        return xp.cast(part, INT32)

    def weighted(scale: Scale, factors: Integers | None) -> Any:
        value = scale.value(xp, blocks, bitcast)
        if factors is not None:
            integers = factors.codes(xp, blocks, widen)
            if factors.zero:
                integers = integers - np.int32(factors.zero)
            value = value * xp.cast(integers, FLOAT32)
        return xp.reshape(value, (count, value.shape[1], 1))

    codes = form.codes.codes(xp, blocks, widen)
    if form.codebook is not None:
        numbers = xp.take(np.array(form.codebook, np.float32), codes, axis=0)
    else:
        numbers = xp.cast(codes - np.int32(form.codes.zero) if form.codes.zero else codes, FLOAT32)
    result = weighted(form.scale, form.factors) * xp.reshape(
        numbers, (count, groups, form.size // groups)
    )
    if form.minimum is not None:
        minimum = weighted(form.minimum, form.minima)
        result = result + minimum if form.minimum_sign > 0 else result - minimum
    return xp.reshape(result, (count, form.size))


def _powers() -> Array:
    """Half of ``2 ** (code - 127)``, for each code of 8 bits."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _ue4m3() -> Array:
    """Half of the unsigned E4M3 float of each code of 8 bits, whose highest bit is not used."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    value = np.where(exponent == 0, np.ldexp(fraction, -9), normal) / 2
    return np.where((codes == 0) | (codes == 0x7F), 0, value).astype(np.float32)


_POWERS, _UE4M3 = _powers(), _ue4m3()


# -- the table ---------------------------------------------------------------------------------


def _halves(byte: int, size: int = 32) -> Integers:
    """4-bit codes: the first half of a block in the low bits of bytes, the second in the high."""
    return Integers((_nibbles(byte, Digit(2, bits=4), Digit(size // 2, 1)),))


def _nibbles(byte: int, *digits: Digit) -> Field:
    return Field(4, byte, digits)


def _with_zero(integers: Integers, zero: int) -> Integers:
    return Integers(integers.fields, zero)


def _five_bits(low: int, high: int, zero: int = 0) -> Integers:
    """5-bit codes of a block of 32: halves, and a fifth bit of each side by side."""
    fifth = Field(1, high, (Digit(4, 1), Digit(8, bits=1)), to=4)
    return Integers((*_halves(low).fields, fifth), zero)


def _quarters(byte: int) -> Field:
    """2-bit codes: each half of a block has four codes 32 apart in one byte."""
    return Field(2, byte, (Digit(2, 32), Digit(4, bits=2), Digit(32, 1)))


def _pairs(byte: int) -> Field:
    """4-bit codes: each quarter of a block has two codes 32 apart in one byte."""
    return _nibbles(byte, Digit(4, 32), Digit(2, bits=4), Digit(32, 1))


def _eighths(byte: int, to: int) -> Field:
    """Single bits: eight codes 32 apart in one byte."""
    return Field(1, byte, (Digit(8, bits=1), Digit(32, 1)), to=to)


def _six_bits(first: int) -> tuple[Integers, Integers]:
    """Factors and minima of 6 bits in 12 bytes.

    The first four of each are whole, in four bytes each; those of the others are four bits in the
    last four bytes, and two bits above the whole ones.
    """
    four, high = Digit(4, 1), Digit(2, bits=2)
    factors = Integers((
        Field(4, first, (Digit(2, 8), four)),
        Field(2, first, (high, four), shift=4, to=4),
    ))  # fmt: skip
    minima = Integers((
        Field(4, first + 4, (Digit(2, 4, 4), four)),
        Field(2, first + 4, (high, four), shift=4, to=4),
    ))  # fmt: skip
    return factors, minima


def _signed_bytes(byte: int, count: int) -> Integers:
    """int8, as unsigned integers less 128."""
    return Integers((Field(8, byte, (Digit(count, 1),), flip=0x80),), 128)


def _blocks() -> list[BlockFormat]:
    f16 = Scale(0)
    return [
        BlockFormat("gguf:q4_0", 32, 18, 32, _with_zero(_halves(2), 8), f16),
        BlockFormat("gguf:q4_1", 32, 20, 32, _halves(4), f16, minimum=Scale(2)),
        BlockFormat("gguf:q5_0", 32, 22, 32, _five_bits(6, 2, 16), f16),
        BlockFormat("gguf:q5_1", 32, 24, 32, _five_bits(8, 4), f16, minimum=Scale(2)),
        BlockFormat("gguf:q8_0", 32, 34, 32, _signed_bytes(2, 32), f16),
        BlockFormat("gguf:iq4_nl", 32, 18, 32, _halves(2), f16, codebook=_NON_LINEAR),
        BlockFormat("gguf:mxfp4", 32, 17, 32, _halves(1), Scale(0, "e8m0"), codebook=_E2M1),
        BlockFormat(
            "gguf:nvfp4", 64, 36, 16,
            Integers((_nibbles(4, Digit(4, 8), Digit(2, bits=4), Digit(8, 1)),)),
            Scale(0, "ue4m3", 4), codebook=_E2M1,
        ),
    ]  # fmt: skip


def _super_blocks() -> list[BlockFormat]:
    two_bit_scales = (Digit(16, 1),)
    q3_scales = Integers((
        Field(4, 96, (Digit(2, bits=4), Digit(8, 1))),
        Field(2, 104, (Digit(4, bits=2), Digit(4, 1)), to=4),
    ), 32)  # fmt: skip
    q6_high = Field(2, 128, (Digit(2, 32), Digit(4, bits=2), Digit(32, 1)), to=4)
    xs_scales = Integers((
        Field(4, 4, (Digit(4, 1), Digit(2, bits=4))),
        Field(2, 2, (Digit(2, 1), Digit(4, bits=2)), to=4),
    ), 32)  # fmt: skip
    factors, minima = _six_bits(4)
    return [
        BlockFormat(
            "gguf:q2_k", _SUPER, 84, 16, Integers((_quarters(16),)), Scale(80),
            Integers((Field(4, 0, two_bit_scales),)), minimum=Scale(82),
            minima=Integers((Field(4, 0, two_bit_scales, shift=4),)),
        ),
        BlockFormat(
            "gguf:q3_k", _SUPER, 110, 16, Integers((_quarters(32), _eighths(0, 2)), 4), Scale(108),
            q3_scales,
        ),
        BlockFormat(
            "gguf:q4_k", _SUPER, 144, 32, Integers((_pairs(16),)), Scale(0), factors,
            minimum=Scale(2), minima=minima,
        ),
        BlockFormat(
            "gguf:q5_k", _SUPER, 176, 32, Integers((_pairs(48), _eighths(16, 4))), Scale(0),
            factors, minimum=Scale(2), minima=minima,
        ),
        BlockFormat(
            "gguf:q6_k", _SUPER, 210, 16,
            Integers((_nibbles(0, Digit(2, 64), Digit(2, bits=4), Digit(64, 1)), q6_high), 32),
            Scale(208), _signed_bytes(192, 16),
        ),
        BlockFormat(
            "gguf:iq4_xs", _SUPER, 136, 32,
            Integers((_nibbles(8, Digit(8, 16), Digit(2, bits=4), Digit(16, 1)),)), Scale(0),
            xs_scales, codebook=_NON_LINEAR,
        ),
        BlockFormat("gguf:tq2_0", _SUPER, 66, 32, Integers((_quarters(0),), 1), Scale(64)),
    ]  # fmt: skip


def _named() -> dict[str, BlockFormat]:
    return {form.name: form for form in (*_blocks(), *_super_blocks())}


#: By name.
FORMATS: Final[Mapping[str, BlockFormat]] = MappingProxyType(_named())

#: By name, the codes of blocks whose scales are apart, as safetensors files have them: neighbours
#: share a byte.
APART: Final[Mapping[str, BlockFormat]] = MappingProxyType(
    {
        "gguf:mxfp4": replace(
            FORMATS["gguf:mxfp4"],
            nbytes=16,
            codes=Integers((_nibbles(0, Digit(16, 1), Digit(2, bits=4)),)),
        )
    }
)
