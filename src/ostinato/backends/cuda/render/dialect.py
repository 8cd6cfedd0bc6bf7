"""CUDA C++ as the renderer of scalar expressions writes it; the library is the headers'."""

from __future__ import annotations

import functools
import math
import struct

from ostinato.backends.common.clike.dialect import Dialect, Joined
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
from ostinato.lower.loopir.nodes import Apply

__all__ = ["CudaDialect"]

_REGISTERS = {
    BOOL: "bool",
    INT8: "signed char",
    INT16: "short",
    INT32: "int",
    INT64: "long long",
    UINT8: "unsigned char",
    UINT16: "unsigned short",
    UINT32: "unsigned",
    UINT64: "unsigned long long",
    FLOAT32: "float",
    FLOAT64: "double",
}

_SUFFIXES = {INT64: "LL", UINT32: "u", UINT64: "ULL"}


class CudaDialect(Dialect):
    """CUDA C++, which is host C++ once the built-ins are declared."""

    def register_type(self, dtype: DType) -> str:
        return _REGISTERS[_held(dtype)]

    def memory_type(self, dtype: DType) -> str:
        if dtype == BOOL or dtype.is_narrow:
            return "unsigned char"
        return "unsigned short" if dtype in (FLOAT16, BFLOAT16) else _REGISTERS[dtype]

    def index_type(self, wide: bool) -> str:
        return "long long" if wide else "int"

    def index_literal(self, value: int, wide: bool) -> str:
        return self.literal(INT64 if wide else INT32, value)

    def resize_index(self, index: str, wide: bool) -> str:
        return f"({self.index_type(wide)}){index}"

    def literal(self, dtype: DType, value: bool | int | float) -> str:
        held = _held(dtype)
        if held.is_bool:
            return "true" if value else "false"
        if held.is_float:
            return _float_literal(float(value), single=held == FLOAT32)
        return _integer_literal(int(value), held)

    def call(self, function: str, dtype: DType, *operands: str) -> str:
        return f"ost::{function}({', '.join(operands)})"

    def joined(self, scalar: Apply) -> Joined | None:
        if scalar.op == "cast":
            return self._rounded_byte(scalar)
        if scalar.op == "rsqrt":
            (x,) = scalar.operands
            return Joined("rsqrt", (x,), ()) if {x.dtype, scalar.dtype} == {FLOAT32} else None
        quotient = _operand(scalar, "divide") if scalar.op == "round" else None
        if quotient is None:
            return None
        return Joined("round_of_quotient", quotient.operands, (quotient,))

    def _rounded_byte(self, cast: Apply) -> Joined | None:
        """A byte that is what was rounded and brought within whole limits, if it is that."""
        clip = _operand(cast, "clip") if cast.dtype in (INT8, UINT8) else None
        whole = None if clip is None else _operand(clip, "round")
        if clip is None or whole is None:
            return None
        attrs, numbers = dict(clip.attrs), []
        for name in ("min", "max"):
            limit = attrs.get(name)
            if not isinstance(limit, int | float) or limit not in _VALUES[cast.dtype]:
                return None
            numbers.append(int(limit))
        of_type = f"<{self.register_type(cast.dtype)}, {numbers[0]}, {numbers[1]}>"
        quotient = _operand(whole, "divide")
        if quotient is None:
            return Joined(f"byte_of{of_type}", whole.operands, (clip, whole))
        inner = (clip, whole, quotient)
        return Joined(f"byte_of_quotient{of_type}", quotient.operands, inner)

    def operator(self, operator: str, dtype: DType, left: str, right: str) -> str:
        if operator == "/" and _held(dtype) == FLOAT32:
            return f"ost::divide({left}, {right})"
        return f"{left} {operator} {right}"

    def select(self, condition: str, chosen: str, otherwise: str) -> str:
        return f"{condition} ? {chosen} : {otherwise}"

    def declare(self, type_: str, name: str, value: str | None = None) -> str:
        return f"{type_} {name};" if value is None else f"const {type_} {name} = {value};"

    def convert(self, value: str, source: DType, target: DType) -> str:
        if source == target:
            return value
        source = _held(source) if source.is_narrow else source
        if target.is_narrow:
            return self._narrowed(value, source, target)
        if target == BOOL:
            return f"{value} != {self.literal(source, 0)}"
        if target.is_float and source.is_float:
            return self._float_to_float(value, source, target)
        if target.is_float:
            return self.round(f"{self.register_type(target)}({value})", target)
        type_ = self.register_type(target)
        return f"ost::to_integer<{type_}>({value})" if source.is_float else f"({type_}){value}"

    def round(self, value: str, dtype: DType) -> str:
        if dtype in (FLOAT16, BFLOAT16):
            return f"ost::round_{dtype.name}({value})"
        if dtype.is_narrow and not dtype.format.is_integer:
            return self.from_memory(self.to_memory(value, dtype), dtype)
        return value

    def from_memory(self, value: str, dtype: DType) -> str:
        if dtype == BOOL:
            return f"{value} != 0"
        if dtype in (FLOAT16, BFLOAT16):
            return f"ost::from_{dtype.name}({value})"
        if dtype.is_narrow:
            if dtype.format.is_integer:
                return (
                    f"ost::low_bits<{dtype.format.mantissa}>(({self.register_type(dtype)}){value})"
                )
            if not dtype.format.signed:
                return f"ost::from_{dtype.name}({value})"
            return f"ost::from_narrow<ost::{dtype.name}>({value})"
        return value

    def to_memory(self, value: str, dtype: DType, *, rounded: bool = False) -> str:
        if dtype == BOOL:
            return f"(unsigned char){value}"
        if dtype == BFLOAT16 and rounded:
            return f"ost::high_bits({value})"
        if dtype in (FLOAT16, BFLOAT16):
            return f"ost::{dtype.name}_bits({value})"
        if dtype.is_narrow:
            if dtype.format.is_integer:
                return f"(unsigned char){value}"
            if not dtype.format.signed:
                return f"ost::{dtype.name}_bits({value})"
            return f"ost::narrow_bits<ost::{dtype.name}>({value})"
        return value

    def bitcast(self, value: str, source: DType, target: DType) -> str:
        stored = self.to_memory(value, source)
        if source != BOOL and not source.is_narrow:
            stored = f"({self.memory_type(source)}){stored}"
        return self.from_memory(f"ost::bits_as<{self.memory_type(target)}>({stored})", target)

    def _narrowed(self, value: str, source: DType, target: DType) -> str:
        if target.format.is_integer:
            whole = self.convert(value, source, INT32)
            held = self.register_type(target)
            return f"ost::low_bits<{target.format.mantissa}>(({held})({whole}))"
        held = "ost::round_to_odd" if source == FLOAT64 else "float"
        return self.round(value if source == FLOAT32 else f"{held}({value})", target)

    def _float_to_float(self, value: str, source: DType, target: DType) -> str:
        if source == FLOAT64 and target == FLOAT32:
            return f"(float){value}"
        if source == FLOAT64:
            return self.round(f"ost::round_to_odd({value})", target)
        return f"(double){value}" if target == FLOAT64 else self.round(value, target)


#: The values of bytes.
_VALUES = {INT8: range(-128, 128), UINT8: range(256)}


def _operand(scalar: Apply, op: str) -> Apply | None:
    """The only operand of an op, if it is the result of such an op of float32."""
    (inner, *others) = scalar.operands
    if others or not isinstance(inner, Apply) or inner.op != op:
        return None
    return inner if {inner.dtype, *(each.dtype for each in inner.operands)} == {FLOAT32} else None


@functools.cache
def _held(dtype: DType) -> DType:
    """The dtype of registers: float32 for floats of 16 bits and less, bytes for narrow integers."""
    if dtype.is_narrow:
        form = dtype.format
        return (INT8 if form.signed else UINT8) if form.is_integer else FLOAT32
    return FLOAT32 if dtype in (FLOAT16, BFLOAT16) else dtype


def _integer_literal(value: int, dtype: DType) -> str:
    wrapped = value & ((1 << dtype.bits) - 1)
    if dtype.is_signed and wrapped >> (dtype.bits - 1):
        wrapped -= 1 << dtype.bits
    suffix = _SUFFIXES.get(dtype, "")
    if wrapped == -1 << (dtype.bits - 1) and dtype.bits >= INT32.bits:
        text = f"(-{-wrapped - 1}{suffix} - 1)"
    else:
        text = f"({wrapped}{suffix})" if wrapped < 0 else f"{wrapped}{suffix}"
    return f"({_REGISTERS[dtype]}){text}" if dtype.bits < INT32.bits else text


def _float_literal(value: float, *, single: bool) -> str:
    """The exact number; bits for what has no digits."""
    if single and math.isfinite(value):
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if not math.isfinite(value):
        form, suffix = ("<f", "u") if single else ("<d", "ULL")
        bits = int.from_bytes(struct.pack(form, value), "little")
        return f"ost::float_of(0x{bits:X}{suffix})"
    text = f"{value.hex()}{'f' if single else ''}"
    return f"({text})" if text.startswith("-") else text
