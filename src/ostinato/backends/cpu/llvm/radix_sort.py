"""A radix sort of unsigned integers in a kernel's scratch memory.

It sorts *entries*, a key in the upper half and a payload in the lower one, by their keys, eight
bits at a time from the least: linear in their number, and stable. All digits are counted while
entries are added; a digit that all of them share costs nothing more.
"""

from __future__ import annotations

from llvmlite import ir

from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I1, I8, I64, call_intrinsic
from ostinato.backends.cpu.rules.topk import SORT_DIGITS

__all__ = ["RadixSort"]

_DIGIT_BITS = SORT_DIGITS.bit_length() - 1


class RadixSort:
    """The sort of one row after another.

    Args:
        builder: emits it.
        memory: :attr:`.TopK.scratch_bytes` of it.
        key_bits: of a key, half of those of an entry.
        capacity: the most entries.
    """

    def __init__(
        self, builder: ir.IRBuilder, memory: ir.Value, key_bits: int, capacity: int
    ) -> None:
        self.builder = builder
        self.key_bits = key_bits
        self.entry = ir.IntType(2 * key_bits)
        half = capacity * key_bits // 4
        self.arrays = memory, self._beyond(memory, half)
        self.counts = self._beyond(memory, 2 * half)
        self.passes = range(key_bits // _DIGIT_BITS)

    def clear(self) -> None:
        """Forget all entries."""
        nbytes = len(self.passes) * SORT_DIGITS * 8
        arguments = [self.counts, I8(0), I64(nbytes), I1(0)]
        call_intrinsic(self.builder, "llvm.memset.p0.i64", ir.VoidType(), arguments)

    def add(self, index: ir.Value, entry: ir.Value) -> None:
        """Have ``entry`` as the one at ``index``, before the sort."""
        b = self.builder
        b.store(entry, self._slot(self.arrays[0], index), align=8)
        for number in self.passes:
            count = self._count(number, self._digit(entry, number))
            b.store(b.add(b.load(count, typ=I64), I64(1)), count)

    def sort(self, size: ir.Value) -> ir.Value:
        """The address of ``size`` entries, one at least, by ascending keys."""
        b = self.builder
        source, target = stack_slot(b, BYTE_POINTER), stack_slot(b, BYTE_POINTER)
        b.store(self.arrays[0], source)
        b.store(self.arrays[1], target)
        for number in self.passes:
            first = self.load(b.load(source, typ=BYTE_POINTER), I64(0))
            alike = b.load(self._count(number, self._digit(first, number)), typ=I64)
            with b.if_then(b.icmp_unsigned("!=", alike, size)):
                old = b.load(source, typ=BYTE_POINTER)
                new = b.load(target, typ=BYTE_POINTER)
                self._starts(number)
                self._distribute(number, old, new, size)
                b.store(new, source)
                b.store(old, target)
        return b.load(source, typ=BYTE_POINTER)

    def load(self, array: ir.Value, index: ir.Value) -> ir.Value:
        """The entry at ``index`` of an array."""
        return self.builder.load(self._slot(array, index), align=8, typ=self.entry)

    def _starts(self, number: int) -> None:
        """Turn the counts of a digit into the places of the first entry with each."""
        b = self.builder
        total = stack_slot(b, I64)
        b.store(I64(0), total)

        def value(digit: ir.Value) -> None:
            slot = self._count(number, digit)
            count, start = b.load(slot, typ=I64), b.load(total, typ=I64)
            b.store(start, slot)
            b.store(b.add(start, count), total)

        counted_loop(b, I64(0), I64(SORT_DIGITS), 1, value, trips=SORT_DIGITS, name="digit")

    def _distribute(self, number: int, old: ir.Value, new: ir.Value, size: ir.Value) -> None:
        b = self.builder

        def move(index: ir.Value) -> None:
            entry = self.load(old, index)
            slot = self._count(number, self._digit(entry, number))
            place = b.load(slot, typ=I64)
            b.store(b.add(place, I64(1)), slot)
            b.store(entry, self._slot(new, place), align=8)

        counted_loop(b, I64(0), size, 1, move, name="moved")

    def _digit(self, entry: ir.Value, number: int) -> ir.Value:
        b = self.builder
        shifted = b.lshr(entry, self.entry(self.key_bits + number * _DIGIT_BITS))
        return b.and_(b.trunc(shifted, I64), I64(SORT_DIGITS - 1))

    def _count(self, number: int, digit: ir.Value) -> ir.Value:
        start = self._beyond(self.counts, number * SORT_DIGITS * 8)
        return self.builder.gep(start, [digit], source_etype=I64)

    def _slot(self, array: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.gep(array, [index], source_etype=self.entry)

    def _beyond(self, memory: ir.Value, nbytes: int) -> ir.Value:
        return self.builder.gep(memory, [I64(nbytes)], source_etype=I8)
