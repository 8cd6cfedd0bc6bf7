"""Loading of compiled objects: by the core if they are simple, else by LLVM."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ostinato.backends.cpu import _core
from ostinato.backends.cpu.host import function_address
from ostinato.backends.cpu.llvm.toolchain import LinkedCode, link
from ostinato.backends.cpu.loader.elf import lay_out

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.backends.cpu.loader.elf import CodeBlock

__all__ = ["load"]


def load(objects: Collection[tuple[bytes, Sequence[str]]]) -> LinkedCode:
    """Executable code of objects, each with the symbols wanted from it.

    Raises:
        OstinatoError: an object is damaged or refers to symbols that do not exist.
    """
    block = lay_out(tuple(objects))
    if block is None or not _supply_imports(block):
        return link(objects)
    memory = _core.Arena(len(block.code), huge_pages=False)
    memoryview(memory)[:] = block.code
    try:
        memory.seal()
    except OSError:  # some systems let only their own loaders make code
        return link(objects)
    addresses = {name: memory.address + place for name, place in block.symbols.items()}
    return LinkedCode(addresses, [memory])


def _supply_imports(block: CodeBlock) -> bool:
    """Resolve the addresses of imported functions; return whether all were found."""
    for name, place in block.imports.items():
        address = function_address(name)
        if address is None:
            return False
        struct.pack_into("<Q", block.code, place, address)
    return True
