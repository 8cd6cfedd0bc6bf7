"""Intel AMX in NumPy: runs LLVM IR with AMX's intrinsics on processors that have none.

Each instruction does to memory and to eight arrays what the processor's does to memory and to tile
registers, and refuses the operands that the processor's refuses.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.records import replace

Array = np.ndarray[Any, Any]

HOST = TargetSpec.host()

FEATURES = "+amx-tile,+amx-bf16,+amx-int8"

#: This machine's processor, as if it had AMX.
EMULATED = replace(HOST, features=f"{HOST.features},{FEATURES}")

_REGISTERS, _ROWS, _ROW_BYTES = 8, 16, 64
_DECLARATION = re.compile(r'declare void @"llvm\.x86\.(tile\w+|ldtilecfg|tdp\w+)"\((.*)\)')
_CALL = re.compile(r'@"llvm\.x86\.(?=tile|ldtilecfg|tdp)')
_TYPES = {"i8": ctypes.c_uint8, "i64": ctypes.c_int64, "ptr": ctypes.c_void_p}
_SIGNS = {"s": np.int8, "u": np.uint8}


class Amx:
    """The tile registers of one thread.

    Attributes:
        executed: how often each instruction was.
        configurations: the operands of ``ldtilecfg``, in order.
    """

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self.configurations: list[bytes] = []
        self._shapes: list[tuple[int, int]] | None = None
        self._tiles = np.zeros((_REGISTERS, _ROWS, _ROW_BYTES), np.uint8)
        self._callbacks: dict[str, Any] = {}
        self._fault: Exception | None = None

    def rewritten(self, text: str) -> str:
        """The IR with a call into this object in place of each intrinsic."""
        return _CALL.sub('@"emulated.', _DECLARATION.sub(self._definition, text))

    def check(self) -> None:
        """Raise what went wrong so far; check that no tiles are in use."""
        if self._fault is not None:
            raise self._fault
        assert self._shapes is None, "tiles are not released"

    def _definition(self, declaration: re.Match[str]) -> str:
        """A function that calls the method of an intrinsic's name."""
        name, kinds = declaration[1], re.findall(r"(\S+) %", declaration[2])
        parameters = ["ptr" if kind.endswith("*") else kind for kind in kinds]
        if name not in self._callbacks:
            kind = ctypes.CFUNCTYPE(None, *(_TYPES[parameter] for parameter in parameters))
            self._callbacks[name] = kind(self._guarded(name))
        address = ctypes.cast(self._callbacks[name], ctypes.c_void_p).value
        named = ", ".join(f"{kind} %p{i}" for i, kind in enumerate(parameters))
        return (
            f'define internal void @"emulated.{name}"({named}) {{\n'
            f"  call void inttoptr (i64 {address} to ptr)({named})\n  ret void\n}}"
        )

    def _guarded(self, name: str) -> Callable[..., None]:
        """An instruction that keeps its exception, which cannot pass through machine code."""
        method = self._product if name.startswith("tdp") else getattr(self, f"_{name}")
        operands = (name,) if name.startswith("tdp") else ()

        def call(*arguments: int) -> None:
            self.executed[name] += 1
            try:
                method(*operands, *arguments)
            except Exception as fault:  # the first one, whatever it is
                self._fault = self._fault or fault

        return call

    # -- instructions -------------------------------------------------------------------------

    def _ldtilecfg(self, address: int) -> None:
        held = ctypes.string_at(address, 64)
        columns = np.frombuffer(held[16:48], "<u2")
        rows = np.frombuffer(held[48:], np.uint8)
        assert held[0] == 1, "there is no other palette"
        assert not any(held[1:16]), "reserved bytes, and no restart, are zero"
        assert not columns[_REGISTERS:].any() and not rows[_REGISTERS:].any(), "no such registers"
        assert (columns <= _ROW_BYTES).all() and (rows <= _ROWS).all(), "too large"
        assert ((columns == 0) == (rows == 0)).all(), "rows without columns"
        self.configurations.append(held)
        self._shapes = [(int(r), int(c)) for r, c in zip(rows, columns, strict=True)][:_REGISTERS]
        self._tiles[...] = 0

    def _tilerelease(self) -> None:
        self._shapes = None
        self._tiles[...] = 0

    def _tilezero(self, register: int) -> None:
        self._shape(register)
        self._tiles[register] = 0

    def _tileloadd64(self, register: int, address: int, stride: int) -> None:
        rows, nbytes = self._shape(register)
        self._tiles[register] = 0
        for row in range(rows):
            read = ctypes.string_at(address + row * stride, nbytes)
            self._tiles[register, row, :nbytes] = np.frombuffer(read, np.uint8)

    def _tilestored64(self, register: int, address: int, stride: int) -> None:
        rows, nbytes = self._shape(register)
        for row in range(rows):
            ctypes.memmove(address + row * stride, self._tiles[register, row].tobytes(), nbytes)

    def _product(self, name: str, total: int, left: int, right: int) -> None:
        (rows, width), (left_rows, depth) = self._shape(total), self._shape(left)
        right_rows, right_width = self._shape(right)
        assert len({total, left, right}) == 3, "one register twice"
        assert rows == left_rows and width == right_width and depth == 4 * right_rows, "shapes"
        bfloat16 = name == "tdpbf16ps"
        kinds = (ml_dtypes.bfloat16,) * 2 if bfloat16 else (_SIGNS[name[4]], _SIGNS[name[5]])
        steps = 2 if bfloat16 else 4
        a = self._elements(left, kinds[0]).reshape(_ROWS, -1, steps)  # m, k, step
        b = self._elements(right, kinds[1]).reshape(_ROWS, -1, steps)  # k, n, step
        add = _add_bfloat16 if bfloat16 else _add_bytes
        sums = self._tiles[total].view(np.float32 if bfloat16 else np.int32)
        sums[:rows, : width // 4] = add(sums, a, b)[:rows, : width // 4]

    def _shape(self, register: int) -> tuple[int, int]:
        assert self._shapes is not None, "tiles are not configured"
        rows, nbytes = self._shapes[register]
        assert rows, "this register is not configured"
        return rows, nbytes

    def _elements(self, register: int, kind: Any) -> Array:
        return self._tiles[register].view(kind)


def _add_bytes(sums: Array, a: Array, b: Array) -> Array:
    products = np.einsum("mks,kns->mn", a.astype(np.int64), b.astype(np.int64))
    return (sums + products).astype(np.int32)  # wraps


def _add_bfloat16(sums: Array, a: Array, b: Array) -> Array:
    """Even and odd positions apart, each a chain of float32 multiply-adds; no subnormal numbers."""
    left, right = (_flushed(x.astype(np.float32)).astype(np.float64) for x in (a, b))
    parts = np.zeros((*sums.shape, 2), np.float32)
    with np.errstate(all="ignore"):
        for k in range(left.shape[1]):
            parts = _flushed((parts + left[:, k, None] * right[None, k]).astype(np.float32))
        both = _flushed(parts[..., 0] + parts[..., 1])
        return _flushed(_flushed(sums) + both)


def _flushed(x: Array) -> Array:
    """Subnormal numbers as zero."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(0, x), x).astype(np.float32)
