"""WGSL as the renderer of scalar expressions writes it; the library is the package ``library``.

Registers are f32, i32, u32, bool, and ``vec2<u32>`` for integers of 64 bits; narrower integers are
held in 32 bits and wrapped after every operation. WGSL has no overloading, so functions of the
library have the type of their operands in their names: ``floor_divide_i32``.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.dialect import Dialect
from ostinato.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from ostinato.errors import OstinatoError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WgslDialect", "bits_of", "float_literal", "from_bits", "held", "wrapped"]

_TYPES = {
    BOOL: "bool",
    INT32: "i32",
    UINT32: "u32",
    FLOAT32: "f32",
    INT64: "vec2<u32>",
    UINT64: "vec2<u32>",
}

_SUFFIXES = {INT32: "i32", UINT32: "u32", FLOAT32: "f32", INT64: "i64", UINT64: "u64"}

#: Functions that are an operator of WGSL, on all registers of one word that are numbers.
_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*"}

#: The same on bools: their sum is "or", their difference "exclusive or", their product "and".
_BOOL_OPERATORS = {"add": "|", "subtract": "!=", "multiply": "&"}

#: Functions whose 64-bit results do not depend on the sign, by one name.
_SIGNLESS = frozenset({"add", "subtract", "multiply", "negate", "shift_left"})

#: The literals of the zeros.
_ZEROS = ("0.0f", "float_of(0x80000000u)")

#: Functions of floats whose results are operands, or parts of them: there is nothing to contract.
_EXACT = frozenset(
    {"absolute", "ceil", "copysign", "floor", "maximum", "minimum", "negate", "round", "sign"}
    | {"trunc"}
)

_SHIFTS = frozenset({"shift_left", "shift_right"})

#: Functions of i32 and u32 that WGSL has.
_BUILT_IN = {"maximum": "max", "minimum": "min", "absolute": "abs"}


class WgslDialect(Dialect):
    """WebGPU's shading language."""

    # -- types and literals -----------------------------------------------------------------

    def register_type(self, dtype: DType) -> str:
        return _TYPES[held(dtype)]

    def memory_type(self, dtype: DType) -> str:
        """The type of an element of an array in workgroup memory: that of registers."""
        return "u32" if dtype == BOOL else self.register_type(dtype)

    def index_type(self, wide: bool) -> str:
        return "vec2<u32>" if wide else "i32"

    def index_literal(self, value: int, wide: bool) -> str:
        return self.literal(INT64 if wide else INT32, value)

    def resize_index(self, index: str, wide: bool) -> str:
        return f"widened_i32({index})" if wide else f"i32({index}.x)"

    def index_sum(self, terms: Sequence[tuple[bool, Sequence[str]]], wide: bool) -> str:
        if not wide:
            return super().index_sum(terms, wide)
        total = ""
        for negative, factors in terms:
            product = factors[0]
            for factor in factors[1:]:
                product = f"multiply_u64({product}, {factor})"
            if not total:
                total = f"negate_u64({product})" if negative else product
            else:
                total = f"{'subtract' if negative else 'add'}_u64({total}, {product})"
        return total

    def is_nonnegative(self, index: str, wide: bool) -> str:
        return f"!is_negative({index})" if wide else f"{index} >= 0"

    def literal(self, dtype: DType, value: bool | int | float) -> str:
        kind = held(dtype)
        if kind == BOOL:
            return "true" if value else "false"
        if kind == FLOAT32:
            return float_literal(float(value))
        whole = int(value) & ((1 << dtype.bits) - 1)
        if dtype.is_narrow:
            whole = int(value) & ((1 << dtype.format.mantissa) - 1)
        bits = dtype.format.mantissa if dtype.is_narrow else dtype.bits
        signed = dtype.format.signed if dtype.is_narrow else dtype.is_signed
        if signed and whole >> (bits - 1):
            whole -= 1 << bits
        if kind in (INT64, UINT64):
            return f"vec2<u32>({whole & 0xFFFFFFFF}u, {whole >> 32 & 0xFFFFFFFF}u)"
        if kind == UINT32:
            return f"{whole}u"
        if whole == -(1 << 31):
            return "i32(0x80000000u)"
        return f"({whole}i)" if whole < 0 else f"{whole}i"

    # -- operations -------------------------------------------------------------------------

    def call(self, function: str, dtype: DType, *operands: str) -> str:
        kind = held(dtype)
        if function == "multiply_add":
            return self._multiply_add(kind, *operands)
        if kind == BOOL:
            return self._on_bools(function, *operands)
        if kind in (INT64, UINT64):
            suffix = "u64" if function in _SIGNLESS or _is_of_index(function) else _SUFFIXES[kind]
            if kind == UINT64 and function == "absolute":
                return operands[0]
            return f"{function}_{suffix}({', '.join(operands)})"
        if function == "multiply" and kind == FLOAT32:
            for x, zero in (operands, operands[::-1]):
                if zero in _ZEROS:
                    return f"times_zero({x}, {zero})"
        if function in _OPERATORS:
            left, right = _not_both_literal(operands, kind)
            text = f"{left} {_OPERATORS[function]} {right}"
            # Drivers contract and reassociate what they can look through.
            return f"kept({text})" if kind == FLOAT32 else wrapped(text, dtype)
        if kind.is_integer:
            return self._on_integers(function, dtype, kind, operands)
        text = f"{function}_{_SUFFIXES[kind]}({', '.join(operands)})"
        return text if function in _EXACT else f"kept({text})"

    def _on_integers(
        self, function: str, dtype: DType, kind: DType, operands: tuple[str, ...]
    ) -> str:
        arguments = ", ".join(operands)
        if function == "negate":
            zero = self.literal(kind, 0)
            return wrapped(f"opaque_{_SUFFIXES[kind]}({zero}) - {operands[0]}", dtype)
        if function == "sign":
            return f"sign({arguments})" if kind == INT32 else f"min({arguments}, 1u)"
        if function in _BUILT_IN:
            return wrapped(f"{_BUILT_IN[function]}({arguments})", dtype)
        if function in _SHIFTS:
            arguments += f", {dtype.bits}u"
        return wrapped(f"{function}_{_SUFFIXES[kind]}({arguments})", dtype)

    def _on_bools(self, function: str, *operands: str) -> str:
        if function in _BOOL_OPERATORS:
            left, right = operands
            return f"{left} {_BOOL_OPERATORS[function]} {right}"
        if function in ("maximum", "minimum"):
            left, right = operands
            return f"{left} {'|' if function == 'maximum' else '&'} {right}"
        raise OstinatoError(f"{function} of bools has no meaning in a kernel")

    def _multiply_add(self, kind: DType, x: str, y: str, z: str) -> str:
        if kind == FLOAT32:
            return f"fma({x}, {y}, {z})"
        if kind in (INT64, UINT64):
            return f"add_u64(multiply_u64({x}, {y}), {z})"
        if kind == BOOL:
            return f"({x} & {y}) | {z}"
        return f"{x} * {y} + {z}"

    def operator(self, operator: str, dtype: DType, left: str, right: str) -> str:
        kind = held(dtype)
        if kind in (INT64, UINT64):
            return self._wide_operator(operator, _SUFFIXES[kind], left, right)
        if kind == BOOL:
            if operator == "^":
                return f"{left} != {right}"
            if operator in ("<", "<=", ">", ">="):
                return f"u32({left}) {operator} u32({right})"
            return f"{left} {operator} {right}"
        left, right = _not_both_literal((left, right), kind)
        if operator == "/":
            return f"quotient({left}, {right})"
        if operator == "!=" and kind == FLOAT32:  # WGSL's operator may be false of NaN
            return f"!({left} == {right})"
        return f"{left} {operator} {right}"

    def _wide_operator(self, operator: str, suffix: str, left: str, right: str) -> str:
        match operator:
            case "&" | "|" | "^":
                return f"{left} {operator} {right}"
            case "==":
                return f"equal_u64({left}, {right})"
            case "!=":
                return f"!equal_u64({left}, {right})"
            case "<":
                return f"less_{suffix}({left}, {right})"
            case ">":
                return f"less_{suffix}({right}, {left})"
            case "<=":
                return f"!less_{suffix}({right}, {left})"
            case ">=":
                return f"!less_{suffix}({left}, {right})"
        raise OstinatoError(f"{operator} of 64-bit integers has no meaning in a kernel")

    def is_nan(self, value: str, dtype: DType) -> str:
        return f"is_nan({value})"

    def select(self, condition: str, chosen: str, otherwise: str) -> str:
        return f"select({otherwise}, {chosen}, {condition})"

    def declare(self, type_: str, name: str, value: str | None = None) -> str:
        return f"var {name}: {type_};" if value is None else f"let {name}: {type_} = {value};"

    # -- conversions ------------------------------------------------------------------------

    def convert(self, value: str, source: DType, target: DType) -> str:
        if source == target:
            return value
        if target == BOOL:
            return self._nonzero(value, source)
        if target.is_narrow and target.format.is_integer:
            return wrapped(self._to_integer(value, source, INT32, INT32), target)
        if target.is_float or target.is_narrow:
            return self.round(self._to_float(value, source), target)
        return self._to_integer(value, source, target, held(target))

    def _nonzero(self, value: str, source: DType) -> str:
        kind = held(source)
        if kind == BOOL:
            return value
        if kind in (INT64, UINT64):
            return f"!equal_u64({value}, vec2<u32>(0u, 0u))"
        if kind == FLOAT32:
            return f"(bitcast<u32>({value}) & 0x7FFFFFFFu) != 0u"
        return f"{value} != {self.literal(kind, 0)}"

    def _to_float(self, value: str, source: DType) -> str:
        kind = held(source)
        if kind == FLOAT32:
            return value
        if kind in (INT64, UINT64):
            return f"f32_of_{_SUFFIXES[kind]}({value})"
        return f"f32({value})"

    def _to_integer(self, value: str, source: DType, target: DType, kind: DType) -> str:
        given = held(source)
        if given == FLOAT32:
            text = f"{_SUFFIXES[kind]}_of_f32({value})"
            if target.bits >= INT32.bits:
                return text
            low, high = self.literal(target, target.lowest), self.literal(target, target.highest)
            return f"clamp({text}, {low}, {high})"
        if kind in (INT64, UINT64):
            if given in (INT64, UINT64):
                return value
            if given == INT32:
                return f"widened_i32({value})"
            return f"vec2<u32>(u32({value}), 0u)"
        word = f"{value}.x" if given in (INT64, UINT64) else value
        text = f"{_TYPES[kind]}({word})" if given != kind else word
        narrower = target.bits < INT32.bits and given != BOOL and not _fits(source, target)
        return wrapped(text, target) if narrower else text

    def round(self, value: str, dtype: DType) -> str:
        if dtype in (FLOAT16, BFLOAT16):
            return f"round_{dtype.name}({value})"
        if dtype.is_narrow and not dtype.format.is_integer:
            return f"from_{dtype.name}({dtype.name}_bits({value}))"
        return value

    def from_memory(self, value: str, dtype: DType) -> str:
        """An element of an array in workgroup memory, which has the form of registers."""
        return f"{value} != 0u" if dtype == BOOL else value

    def to_memory(self, value: str, dtype: DType, *, rounded: bool = False) -> str:
        if dtype == BOOL:
            return f"u32({value})"
        return value if rounded else self.round(value, dtype)

    def bitcast(self, value: str, source: DType, target: DType) -> str:
        if source.itemsize == INT64.itemsize:
            return value
        return from_bits(bits_of(value, source), target)


def held(dtype: DType) -> DType:
    """The dtype of the register that holds a value.

    Raises:
        OstinatoError: float64, of which WGSL has no registers.
    """
    if dtype == FLOAT64:
        raise OstinatoError("float64: WGSL has no such type, so the kernel cannot be rendered")
    if dtype.is_narrow:
        form = dtype.format
        return (INT32 if form.signed else UINT32) if form.is_integer else FLOAT32
    if dtype in (FLOAT16, BFLOAT16):
        return FLOAT32
    if dtype in (INT8, INT16):
        return INT32
    return UINT32 if dtype in (UINT8, UINT16) else dtype


def bits_of(value: str, dtype: DType) -> str:
    """The bits in memory of a register of a dtype of at most 32 bits, as a u32."""
    if dtype in (FLOAT16, BFLOAT16):
        return f"{dtype.name}_bits({value})"
    if dtype.is_narrow and not dtype.format.is_integer:
        return f"{dtype.name}_bits({value})"
    if dtype == FLOAT32:
        return f"bitcast<u32>({value})"
    return value if held(dtype) == UINT32 else f"u32({value})"


def from_bits(bits: str, dtype: DType) -> str:
    """The register of a dtype of at most 32 bits that has these bits in memory, given as a u32."""
    if dtype in (FLOAT16, BFLOAT16):
        return f"from_{dtype.name}({bits})"
    if dtype == BOOL:
        return f"{bits} != 0u"
    if dtype.is_narrow:
        form = dtype.format
        if not form.is_integer:
            return f"from_{dtype.name}({bits})"
        text = f"bitcast<i32>({bits})" if form.signed else bits
        return f"extractBits({text}, 0u, {form.mantissa}u)"
    if dtype == FLOAT32:
        return f"float_of({bits})"
    if dtype == INT32:
        return f"bitcast<i32>({bits})"
    if dtype.is_signed:
        return f"extractBits(bitcast<i32>({bits}), 0u, {dtype.bits}u)"
    return bits


def float_literal(value: float) -> str:
    """The nearest f32; bits for what WGSL has no literals for, or no exact ones."""
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        single = math.copysign(math.inf, value)
    plain = math.isfinite(single) and (abs(single) >= 2.0**-126 or single == 0.0)
    if not plain or (single == 0.0 and math.copysign(1.0, single) < 0.0):
        bits = int.from_bytes(struct.pack("<f", single), "little")
        return f"float_of(0x{bits:X}u)"
    text = f"{single!r}f"
    return f"({text})" if single < 0 else text


def _is_of_index(function: str) -> bool:
    """Whether a function takes indices that are not negative."""
    return function in ("index_divide", "index_remainder")


def _fits(source: DType, target: DType) -> bool:
    """Whether every integer of one dtype is one of the other."""
    if source.is_narrow:
        return target.is_signed or not source.format.signed
    return source.lowest >= target.lowest and source.highest <= target.highest


def wrapped(text: str, dtype: DType) -> str:
    """An integer in 32 bits, wrapped to the width of its dtype."""
    if dtype.is_narrow:
        return f"extractBits({text}, 0u, {dtype.format.mantissa}u)"
    if dtype.is_integer and dtype.bits < INT32.bits:
        return f"extractBits({text}, 0u, {dtype.bits}u)"
    return text


def _not_both_literal(operands: tuple[str, ...], kind: DType) -> tuple[str, str]:
    """Two operands of an operator; the first made opaque where both are literals.

    A compiler of WGSL evaluates an operator on literals, and refuses results that are out of range.
    """
    left, right = operands
    if _is_literal(left) and _is_literal(right):
        left = f"opaque_{_SUFFIXES[kind]}({left})"
    return left, right


def _is_literal(text: str) -> bool:
    return text.lstrip("(-")[:1].isdigit() or text.startswith("i32(0x")
