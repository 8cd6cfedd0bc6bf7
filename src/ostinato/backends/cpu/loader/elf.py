"""Object files laid out as one block of code, without a linker.

Kernels are made of code and constants that refer to one another by distance, and seldom call a
function of the C library. Laid out side by side they run wherever the block is put. So a process
that finds all its kernels in the cache needs no LLVM, which takes longer to load than a small
model. What is beyond this (another format, another processor, data to be written) is left to
LLVM's linker.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["CodeBlock", "lay_out"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, least byte first
_OBJECT_FILE, _X86_64 = 1, 62

_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL = 1, 2, 4, 8, 9  # kinds of sections
_UNWINDING = 0x70000001  # how exceptions would pass through; none do
_WRITE, _ALLOC, _TLS = 1, 2, 0x400
_UNDEFINED = 0  # the section of what is elsewhere

_PC32, _PLT32 = 2, 4  # kinds of references: by distance
_JUMP = b"\xff\x25\x02\x00\x00\x00\x66\x90"  # jmp [rip + 2]; what follows holds the address
_ALIGNMENT = 64
_PAGE = 4096  # how a block is aligned in memory, at least


class _Beyond(Exception):
    """The object has something that this module does not know."""


class CodeBlock(NamedTuple):
    """Code that runs at any address.

    Attributes:
        code: the bytes.
        symbols: where functions start, by name.
        imports: where the addresses of functions from outside are to be put, by name.
    """

    code: bytearray
    symbols: Mapping[str, int]
    imports: Mapping[str, int]


def lay_out(objects: Sequence[tuple[bytes, Sequence[str]]]) -> CodeBlock | None:
    """One block of the objects, each with the symbols wanted from it.

    Where several have a symbol of one name, the first stands for it.

    Returns:
        ``None`` where an object is not of the simple kind that is laid out here, or is damaged.
    """
    layout = _Layout()
    try:
        for data, names in objects:
            layout.add(_Object(data), names)
    except (_Beyond, struct.error, LookupError, ValueError):
        return None
    return CodeBlock(layout.code, layout.symbols, layout.imports)


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int

    @property
    def is_kept(self) -> bool:
        """Whether it is needed to run."""
        return bool(self.flags & _ALLOC) and self.kind != _UNWINDING


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


class _Object:
    """An ELF file of code and constants."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        header = _HEADER.unpack_from(data)
        identity, kind, machine, at, count = header[0], header[1], header[2], header[6], header[12]
        if not identity.startswith(_IDENTITY) or (kind, machine) != (_OBJECT_FILE, _X86_64):
            raise _Beyond
        self.sections = [self._section(at + i * _SECTION.size) for i in range(count)]
        for section in self.sections:
            kept = section.is_kept
            if section.kind == _REL or (kept and section.flags & (_WRITE | _TLS)):
                raise _Beyond
            if kept and section.size and section.kind != _PROGBITS:
                raise _Beyond
            if kept and section.alignment > _PAGE:
                raise _Beyond
        (table,) = (s for s in self.sections if s.kind == _SYMTAB)
        names = self.sections[table.link]
        self.symbols = [
            self._symbol(table.offset + i * _SYMBOL.size, names.offset)
            for i in range(table.size // _SYMBOL.size)
        ]

    def _section(self, at: int) -> _Section:
        _, kind, flags, _, offset, size, link, info, alignment, _ = _SECTION.unpack_from(
            self.data, at
        )
        if offset + size > len(self.data) and kind != _NOBITS:
            raise _Beyond
        return _Section(kind, flags, offset, size, link, info, alignment)

    def _symbol(self, at: int, names: int) -> _Symbol:
        name, _, _, section, value, _ = _SYMBOL.unpack_from(self.data, at)
        start = names + name
        return _Symbol(self.data[start : self.data.index(0, start)].decode(), section, value)

    def kept(self) -> Iterator[tuple[int, _Section]]:
        """The sections that are needed to run, by number."""
        for number, section in enumerate(self.sections):
            if section.is_kept and section.size:
                yield number, section

    def references(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Every reference: its section, offset, kind, symbol's number, and what to add."""
        for section in self.sections:
            if section.kind == _RELA and self.sections[section.info].is_kept:
                for i in range(section.size // _RELOCATION.size):
                    at = section.offset + i * _RELOCATION.size
                    offset, info, addend = _RELOCATION.unpack_from(self.data, at)
                    yield section.info, offset, info & 0xFFFFFFFF, info >> 32, addend


class _Layout:
    def __init__(self) -> None:
        self.code = bytearray()
        self.symbols: dict[str, int] = {}
        self.imports: dict[str, int] = {}

    def add(self, obj: _Object, names: Sequence[str]) -> None:
        places = {}
        for number, section in obj.kept():
            places[number] = self._append(
                obj.data[section.offset : section.offset + section.size], section.alignment
            )
        own = {s.name: places[s.section] + s.value for s in obj.symbols if s.section in places}
        for name in names:
            if name not in own:
                raise _Beyond
            self.symbols.setdefault(name, own[name])
        for section_number, offset, kind, symbol, addend in obj.references():
            if kind not in (_PC32, _PLT32):
                raise _Beyond
            place = places[section_number] + offset
            target = self._target(obj.symbols[symbol], places, kind)
            struct.pack_into("<i", self.code, place, target + addend - place)

    def _append(self, data: bytes, alignment: int) -> int:
        alignment = max(alignment, _ALIGNMENT)
        self.code.extend(b"\0" * (-len(self.code) % alignment))
        start = len(self.code)
        self.code.extend(data)
        return start

    def _target(self, symbol: _Symbol, places: Mapping[int, int], kind: int) -> int:
        """The address of a symbol; for a function from outside, that of a jump to it."""
        if symbol.section in places:
            return places[symbol.section] + symbol.value
        if symbol.section != _UNDEFINED or kind != _PLT32:
            raise _Beyond
        if symbol.name not in self.imports:
            start = self._append(_JUMP + bytes(8), 16)
            self.imports[symbol.name] = start + len(_JUMP)
        return self.imports[symbol.name] - len(_JUMP)
