"""Accesses of a kernel's arguments in storage buffers, and of its temps in workgroup memory.

An argument ``i`` has functions of its own, written as far as the kernel calls them: ``b3(at)`` is
its element ``at``, ``put3(at, value)`` stores one. A storage buffer is an array of words, so
elements narrower than a word are parts of one. Threads that store different parts of a word at the
same time do so by atomic operations, which make the whole buffer an array of atomic words; a kernel
avoids that where one thread has all parts of a word, and puts it as a whole (``putword3``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.webgpu.render.dialect import WgslDialect, bits_of, from_bits, held
from ostinato.dtypes import BOOL, FLOAT16, INT8, INT32, INT64, UINT64, DType
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.clike.scopes import Index
    from ostinato.backends.common.clike.values import CValue
    from ostinato.backends.webgpu.kernel import Bindings
    from ostinato.lower.loopir.nodes import Arg

__all__ = ["KernelArrays", "TempArray", "element_type", "word"]

_DIALECT = WgslDialect()
_WIDE = (INT64, UINT64)

#: Types of a buffer's elements that are vectors of words, with the number of words.
_WIDTHS = {"vec2<u32>": 2, "vec4<u32>": 4}


@dataclass(frozen=True)
class TempArray:
    """A row of temps, whose elements have the form of registers.

    Attributes:
        name: the array in workgroup memory; of a row in an argument, that of its functions.
        start: the first element of this thread's row; in an argument, the first word.
        dtype: of its elements, if it is in an argument.
    """

    name: str
    start: str
    dtype: DType | None = None


class KernelArrays:
    """The arrays of one kernel.

    Args:
        args: the kernel's arguments.
        bindings: of the arguments.
        part_bytes: the size of a buffer that holds a part of an argument.
    """

    def __init__(self, args: Sequence[Arg], bindings: Bindings, part_bytes: int) -> None:
        self._args = args
        self._bindings = bindings
        self._part_words = part_bytes // 4
        self._patched: set[int] = set()
        self._vectored: set[int] = set()
        self.temps: dict[int, TempArray] = {}

    # -- accesses ---------------------------------------------------------------------------

    def load(self, number: int, dtype: DType, index: Index) -> str:
        temp = self.temps.get(number)
        if temp is None:
            return f"b{number}({word(index)})"
        if temp.dtype is not None:
            return f"{temp.name}({temp.start}, {word(index)})"
        return _DIALECT.from_memory(f"{temp.name}[{temp.start} + {word(index)}]", dtype)

    def store(self, number: int, index: Index, value: CValue) -> Sequence[str]:
        temp = self.temps.get(number)
        if temp is not None:
            if temp.dtype is not None:
                return [f"put{temp.name}({temp.start}, {word(index)}, {value.text});"]
            return [f"{temp.name}[{temp.start} + {word(index)}] = {value.stored};"]
        return [f"{self.putting(number)}({word(index)}, {value.text});"]

    def putting(self, number: int) -> str:
        """The function that stores an element, whichever threads store the others of its word."""
        if self._args[number].dtype.itemsize < INT32.itemsize:
            self._patched.add(number)
        return f"put{number}"

    def four(self, number: int, at: str) -> str:
        """Four elements of at most 32 bits, from one on whose number is a multiple of four."""
        self._vectored.add(number)
        return f"four{number}({at})"

    def packed(self, number: int, at: str) -> str:
        """A word with four elements of a byte, from one on whose number is a multiple of four."""
        return f"word{number}((offset{number}() + {at}) / 4u)"

    def scratch(self, number: int, dtype: DType, start: str) -> None:
        """Place a temp in the last argument, which is memory for temps, ``start`` words into it."""
        self.temps[number] = TempArray(f"temp{number}", start, dtype)

    @property
    def aligned(self) -> bool:
        """Whether every argument begins at a whole word, and words are all its own."""
        return self._bindings.aligned

    def may_split(self, number: int) -> bool:
        """Whether an argument is in several buffers."""
        return len(self._bindings.arguments[number]) > 1

    # -- declarations -----------------------------------------------------------------------

    def declarations(self) -> str:
        """The declarations of the buffers."""
        lines = []
        for binding, writable in enumerate(self._bindings.writable):
            access = "read_write" if writable else "read"
            lines.append(
                f"@group(0) @binding({binding}) var<storage, {access}> m{binding}: "
                f"array<{self._form(binding)}>;"
            )
        return "\n".join(lines)

    def functions(self) -> dict[str, str]:
        """By name, the functions that access arguments."""
        found: dict[str, str] = {}
        for number in range(len(self._args)):
            found |= self._functions(number)
        for temp in self.temps.values():
            if temp.dtype is not None:
                found |= self._scratch_functions(temp.name, temp.dtype)
        return found

    def _scratch_functions(self, name: str, dtype: DType) -> dict[str, str]:
        """The functions that access a temp in the last argument."""
        last, type_ = len(self._args) - 1, element_type(dtype)
        step = 2 if dtype in _WIDE else 1
        at = f"    let at = {_offset(last)} / 4u + start + {step}u * i;\n"
        reads = f"fn {name}(start: u32, i: u32) -> {type_} {{\n{at}"
        puts = f"fn put{name}(start: u32, i: u32, value: {type_}) {{\n{at}"
        if step == 2:
            reads += f"    return vec2<u32>(word{last}(at), word{last}(at + 1u));\n"
            puts += f"    putword{last}(at, value.x);\n    putword{last}(at + 1u, value.y);\n"
        else:
            form = held(dtype)
            reads += f"    return {from_bits(f'word{last}(at)', form)};\n"
            puts += f"    putword{last}(at, {bits_of('value', form)});\n"
        return {name: f"{reads}}}\n", f"put{name}": f"{puts}}}\n"}

    def _form(self, binding: int) -> str:
        """The type of a buffer's elements."""
        inside = [n for n, parts in enumerate(self._bindings.arguments) if binding in parts]
        if self._patched.intersection(inside):
            return "atomic<u32>"
        apart = all(len(self._bindings.arguments[n]) == 1 for n in inside)
        if not (self.aligned and apart) or self._bindings.writable[binding]:
            return "u32"
        words = max(
            (self._args[n].dtype.itemsize for n in self._vectored.intersection(inside)), default=1
        )
        return "u32" if words == 1 else f"vec{words}<u32>"

    def _functions(self, number: int) -> dict[str, str]:
        dtype = self._args[number].dtype
        type_ = element_type(dtype)
        parts = {
            f"offset{number}": f"fn offset{number}() -> u32 {{ return {_offset(number)}; }}\n",
            f"word{number}": self._read_word(number),
        }
        at = f"{_offset(number)} + i"
        if dtype in _WIDE:
            at = f"{_offset(number)} + 2u * i"
            value = f"vec2<u32>(word{number}(at), word{number}(at + 1u))"
        elif dtype.itemsize == INT32.itemsize:
            value = from_bits(f"word{number}(at)", dtype)
        else:
            value = from_bits(_part(f"word{number}", dtype), dtype)
        parts[f"b{number}"] = (
            f"fn b{number}(i: u32) -> {type_} {{\n    let at = {at};\n    return {value};\n}}\n"
        )
        if dtype.itemsize <= INT32.itemsize:
            parts[f"four{number}"] = self._read_four(number, dtype, type_)
        if self._args[number].writes:
            parts |= self._writes(number, dtype, type_, at)
        return parts

    def _read_word(self, number: int) -> str:
        binding = self._bindings.arguments[number][0]
        form = self._form(binding)
        if (width := _WIDTHS.get(form, 1)) > 1:
            place = f"at >> {width.bit_length() - 1}u][at & {width - 1}u"
            return f"fn word{number}(at: u32) -> u32 {{ return m{binding}[{place}]; }}\n"
        cases = self._by_part(number, lambda place: f"return {_read(place, form)};")
        return f"fn word{number}(at: u32) -> u32 {{\n{cases}}}\n"

    def _by_part(self, number: int, statement: object) -> str:
        """Statements about a word of an argument, whichever buffer it is in."""
        assert callable(statement)
        *parts, last = self._bindings.arguments[number]
        text = ""
        for position, binding in enumerate(parts):
            place = f"m{binding}[at - {position * self._part_words}u]"
            text += (
                f"    if (at < {(position + 1) * self._part_words}u) {{ {statement(place)} "
                f"{'' if 'return' in statement(place) else 'return; '}}}\n"
            )
        shift = f" - {len(parts) * self._part_words}u" if parts else ""
        return text + f"    {statement(f'm{last}[at{shift}]')}\n"

    def _read_four(self, number: int, dtype: DType, type_: str) -> str:
        binding = self._bindings.arguments[number][0]
        head = f"fn four{number}(i: u32) -> vec4<{type_}> {{\n    let at = {_offset(number)} + i;\n"
        per_word = INT32.itemsize // dtype.itemsize
        if not self.aligned:
            parts = ", ".join(f"b{number}(i + {lane}u)" for lane in range(4))
            return f"{head}    return vec4<{type_}>({parts});\n}}\n"
        words = [f"word{number}(first{f' + {n}u' if n else ''})" for n in range(4 // per_word)]
        shift = per_word.bit_length() - 1
        head += f"    let first = at >> {shift}u;\n"
        if len(words) == _WIDTHS.get(self._form(binding)):
            head += f"    let words = m{binding}[first >> {len(words).bit_length() - 1}u];\n"
            names = [f"words[{n}]" for n in range(len(words))]
        else:
            names = [f"w{n}" for n in range(len(words))]
            for name, text in zip(names, words, strict=True):
                head += f"    let {name} = {text};\n"
        lanes = []
        for lane in range(4):
            bits = names[lane // per_word]
            if per_word > 1:
                place = lane % per_word * dtype.bits
                bits = f"extractBits({bits}, {place}u, {dtype.bits}u)"
            lanes.append(from_bits(bits, dtype))
        if dtype == FLOAT16:
            for pair, name in enumerate(names):
                head += f"    let h{pair} = pair_of_halves({name});\n"
            lanes = [f"h{pair}.{part}" for pair in range(len(names)) for part in "xy"]
        return f"{head}    return vec4<{type_}>({', '.join(lanes)});\n}}\n"

    def _writes(self, number: int, dtype: DType, type_: str, at: str) -> dict[str, str]:
        binding = self._bindings.arguments[number][0]
        form = self._form(binding)
        whole = self._by_part(number, lambda place: _write(place, "bits", form))
        parts = {f"putword{number}": f"fn putword{number}(at: u32, bits: u32) {{\n{whole}}}\n"}
        head = f"fn put{number}(i: u32, value: {type_}) {{\n    let at = {at};\n"
        if dtype in _WIDE:
            parts[f"put{number}"] = (
                f"{head}    putword{number}(at, value.x);\n"
                f"    putword{number}(at + 1u, value.y);\n}}\n"
            )
        elif dtype.itemsize == INT32.itemsize:
            parts[f"put{number}"] = (
                f"{head}    putword{number}(at, {bits_of('value', dtype)});\n}}\n"
            )
        else:
            parts |= self._partial_writes(number, dtype, head)
        return parts

    def _partial_writes(self, number: int, dtype: DType, head: str) -> dict[str, str]:
        """Stores of a part of a word, by atomic operations; and of some of a word's parts."""
        form = self._form(self._bindings.arguments[number][0])
        shift = 2 if dtype.itemsize == INT8.itemsize else 1
        ones = (1 << dtype.bits) - 1
        bits = bits_of("value", dtype)
        if dtype != BOOL:
            bits = f"({bits} & {ones}u)"
        patch = self._by_part(
            number,
            lambda place: f"atomicAnd(&{place}, ~mask); atomicOr(&{place}, bits);",
        )
        merged = f"word{number}(at) & ~mask | bits"
        parts = {
            f"patch{number}": f"fn patch{number}(at: u32, mask: u32, bits: u32) {{\n{patch}}}\n",
            f"merge{number}": (
                f"fn merge{number}(at: u32, mask: u32, bits: u32) {{\n"
                f"    putword{number}(at, {merged});\n}}\n"
            ),
        }
        if form == "atomic<u32>":
            parts[f"put{number}"] = (
                f"{head}    let place = (at & {(1 << shift) - 1}u) * {dtype.bits}u;\n"
                f"    patch{number}(at >> {shift}u, {ones}u << place, {bits} << place);\n}}\n"
            )
        return parts


def element_type(dtype: DType) -> str:
    """The type of an argument's element in a register."""
    return _DIALECT.register_type(dtype)


def word(index: Index) -> str:
    """An index as a u32."""
    return f"{index.text}.x" if index.wide else f"u32({index.text})"


def _offset(number: int) -> str:
    return f"offsets[{number // 4}].{'xyzw'[number % 4]}"


def _part(function: str, dtype: DType) -> str:
    """The bits of the element ``at`` of an array of parts of words."""
    shift = 2 if dtype.itemsize == INT8.itemsize else 1
    place = f"(at & {(1 << shift) - 1}u) * {dtype.bits}u"
    return f"extractBits({function}(at >> {shift}u), {place}, {dtype.bits}u)"


def _read(place: str, form: str) -> str:
    return f"atomicLoad(&{place})" if form == "atomic<u32>" else place


def _write(place: str, value: str, form: str) -> str:
    if form == "atomic<u32>":
        return f"atomicStore(&{place}, {value});"
    return f"{place} = {value};"
