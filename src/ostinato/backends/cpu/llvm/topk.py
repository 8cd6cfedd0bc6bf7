"""Rendering a :class:`~ostinato.backends.cpu.rules.topk.TopK` as LLVM IR.

An element and its position become one unsigned integer, an *entry*: the element's sort key above
the complement of the position. Better elements are greater entries, ties included, and no two
entries are equal. The ``k`` greatest are kept in a heap whose root is the least of them; a vector
of elements none of which beats the root is passed over with one comparison. In the end the heap
is sorted in place. Long rows of which much is chosen are sorted as a whole instead, by radix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.expressions import enter_point, expression_scalars
from ostinato.backends.cpu.llvm.kernel import (
    KernelFunction,
    counted_loop,
    kernel_module,
    stack_slot,
    when,
)
from ostinato.backends.cpu.llvm.lanes import Lane, is_nan, where
from ostinato.backends.cpu.llvm.radix_sort import RadixSort
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.types import (
    BYTE_POINTER,
    I1,
    I8,
    I64,
    call_intrinsic,
    constant,
    register_dtype,
    register_type,
    vector_of,
)
from ostinato.dtypes import UINT32, UINT64
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.topk import TopK

__all__ = ["render"]


def render(topk: TopK, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it needs
    :attr:`TopK.scratch_bytes` of scratch.
    """
    return kernel_module(topk, name, target, lambda k: _Renderer(topk, name, k).render())


class _Renderer:
    def __init__(self, topk: TopK, name: str, kernel: KernelFunction) -> None:
        self.topk = topk
        self.kernel = kernel
        self.builder = kernel.builder
        self.scalars = expression_scalars(kernel, topk.args, [topk.value], topk.stores)
        self.key_dtype = UINT32 if topk.key_bits == 32 else UINT64
        self.entry = ir.IntType(2 * topk.key_bits)
        self.replace_root = _define_replace_root(kernel, f"{name}.replace", self.entry)

    def render(self) -> None:
        topk, kernel = self.topk, self.kernel
        outermost = Scope(symbols=dict(kernel.variables))
        self.k = self.scalars.indices.scalar(topk.k, outermost)
        parallel_axes = [(symbol, extent_of(symbol)) for symbol in topk.axes]

        def row(step: ir.Value) -> None:
            point = enter_point(self.scalars, outermost, parallel_axes, step)
            if topk.shortest_sorted is None:
                self._choose(point)
                return
            size = self.scalars.indices.scalar(extent_of(topk.along), point)
            long = self.builder.icmp_signed(">=", size, I64(topk.shortest_sorted))
            with self.builder.if_else(long) as (sorted_, chosen):
                with sorted_:
                    self._sort_row(point, size)
                with chosen:
                    self._choose(point)

        if topk.extent != 0:
            with when(self.builder, self._chooses()):
                counted_loop(self.builder, kernel.begin, kernel.end, 1, row, name="row")
        self.builder.ret_void()

    def _chooses(self) -> ir.Value | bool:
        """Whether there is a heap at all: a root is read and replaced."""
        if bounds(self.topk.k)[0] > 0:
            return True
        return self.builder.icmp_signed(">", self.k, I64(0))

    # -- keys and entries -------------------------------------------------------------------

    def _keys(self, x: Lane) -> ir.Value:
        """Unsigned integers in the order of the elements, better ones greater."""
        b, bits = self.builder, register_dtype(x.dtype).bits
        if x.dtype.is_float:
            order = _float_order(x)
        else:
            order = x.value
            if x.dtype.is_signed:
                order = b.xor(order, constant(x.dtype, 1 << bits - 1, x.lanes))
        if bits < self.topk.key_bits:
            order = b.zext(order, vector_of(ir.IntType(self.topk.key_bits), x.lanes))
        return order if self.topk.largest else b.not_(order)

    def _entry(self, key: ir.Value, position: ir.Value) -> ir.Value:
        """One element's key and position; earlier positions are greater."""
        b, bits = self.builder, self.topk.key_bits
        high = b.shl(b.zext(key, self.entry), self.entry(bits))
        low = b.not_(position)
        if bits < 64:
            low = b.trunc(low, ir.IntType(bits))
        return b.or_(high, b.zext(low, self.entry))

    def _position(self, entry: ir.Value) -> ir.Value:
        b, bits = self.builder, self.topk.key_bits
        position = b.not_(b.trunc(entry, ir.IntType(bits)))
        return position if bits == 64 else b.zext(position, I64)

    # -- whole rows -------------------------------------------------------------------------

    def _sort_row(self, point: Scope, size: ir.Value) -> None:
        """Sort all elements of a row, and store the first ones."""
        b, bits = self.builder, self.topk.key_bits
        capacity = max_extent(self.topk.along)
        sort = RadixSort(b, self.kernel.scratch, bits, capacity)
        sort.clear()

        def add(index: ir.Value) -> None:
            inside = point.child(symbols={self.topk.along: index})
            key = b.not_(self._keys(self.scalars.value(self.topk.value, inside)))
            high = b.shl(b.zext(key, self.entry), self.entry(bits))
            low = b.and_(b.zext(index, self.entry) if bits == 64 else index, self._low_mask)
            sort.add(index, b.or_(high, low))

        counted_loop(b, I64(0), size, 1, add, name="element")
        array = sort.sort(size)

        def position(rank: ir.Value) -> ir.Value:
            low = b.and_(sort.load(array, rank), self._low_mask)
            return low if low.type == I64 else b.trunc(low, I64)

        self._store(point, position)

    @property
    def _low_mask(self) -> ir.Constant:
        return self.entry((1 << self.topk.key_bits) - 1)

    # -- the heap ---------------------------------------------------------------------------

    def _slot(self, index: ir.Value) -> ir.Value:
        return self.builder.gep(self.kernel.scratch, [index], source_etype=self.entry)

    def _load(self, index: ir.Value) -> ir.Value:
        return self.builder.load(self._slot(index), align=8, typ=self.entry)

    def _choose(self, point: Scope) -> None:
        self._clear_heap()
        self._scan(point)
        self._sort_heap()
        self._store(point, lambda rank: self._position(self._load(rank)))

    def _clear_heap(self) -> None:
        """Fills the heap with zeros, which every entry beats."""
        nbytes = self.builder.mul(self.k, I64(self.topk.key_bits // 4))
        arguments = [self.kernel.scratch, I8(0), nbytes, I1(0)]
        call_intrinsic(self.builder, "llvm.memset.p0.i64", ir.VoidType(), arguments)

    def _scan(self, point: Scope) -> None:
        """Offers every element of the row to the heap, a vector at a time."""
        b, topk = self.builder, self.topk
        width = self.kernel.target.lanes(topk.key_bits // 8)
        end = self.scalars.indices.scalar(extent_of(topk.along), point)

        def vector(first: ir.Value) -> None:
            beyond = b.add(first, I64(width))
            whole = b.icmp_signed("<=", beyond, end)
            slot = stack_slot(b, I1)
            b.store(I1(1), slot)
            # Until the heap is full everything enters it.
            with b.if_then(b.and_(whole, b.icmp_signed(">=", first, self.k))):
                b.store(self._any_beats_root(point, first, width), slot)
            with b.if_then(b.load(slot, typ=I1)):
                stop = b.select(whole, beyond, end)
                counted_loop(b, first, stop, 1, lambda i: self._offer(point, i), name="element")

        counted_loop(b, I64(0), end, width, vector, name="vector")

    def _any_beats_root(self, point: Scope, first: ir.Value, width: int) -> ir.Value:
        """Whether an element of a vector behind all those in the heap is better than the root."""
        b, topk = self.builder, self.topk
        inside = Scope((point,), topk.along, width, None, {topk.along: first})
        lane = self.scalars.value(topk.value, inside)
        keys = self._keys(lane)
        root = b.trunc(
            b.lshr(self._load(I64(0)), self.entry(topk.key_bits)), ir.IntType(topk.key_bits)
        )
        if lane.lanes == 1:
            return b.icmp_unsigned(">", keys, root)
        limit = Lane(b, root, self.key_dtype, 1)
        better = Lane(b, keys, self.key_dtype, lane.lanes) > limit
        name = f"llvm.vector.reduce.or.v{lane.lanes}i1"
        return call_intrinsic(b, name, I1, [better.value])

    def _offer(self, point: Scope, index: ir.Value) -> None:
        b = self.builder
        inside = point.child(symbols={self.topk.along: index})
        entry = self._entry(self._keys(self.scalars.value(self.topk.value, inside)), index)
        with b.if_then(b.icmp_unsigned(">", entry, self._load(I64(0)))):
            b.call(self.replace_root, [self.kernel.scratch, entry, self.k])

    def _sort_heap(self) -> None:
        """Heapsort: the least entry of those left goes behind them, until the greatest is first."""
        b, k = self.builder, self.topk.k

        def take_out(done: ir.Value) -> None:
            last = b.sub(self.k, done)
            moved = self._load(last)
            b.store(self._load(I64(0)), self._slot(last), align=8)
            b.call(self.replace_root, [self.kernel.scratch, moved, last])

        trips = k - 1 if isinstance(k, int) else None
        counted_loop(b, I64(1), self.k, 1, take_out, trips=trips, name="sorted")

    # -- results ----------------------------------------------------------------------------

    def _store(self, point: Scope, position_of: Callable[[ir.Value], ir.Value]) -> None:
        topk = self.topk

        def chosen(rank: ir.Value) -> None:
            position = position_of(rank)
            inside = point.child(symbols={topk.rank: rank, topk.along: position})
            for store in topk.stores:
                lane = self.scalars.value(store.value, inside)
                dtype = topk.args[store.buffer].dtype
                self.scalars.store(store.buffer, dtype, store.index, lane, inside)

        trips = topk.k if isinstance(topk.k, int) else None
        counted_loop(self.builder, I64(0), self.k, 1, chosen, trips=trips, name="rank")


def _float_order(x: Lane) -> ir.Value:
    """Integers in the order of floats: the zeros equal, every NaN above all else."""
    b, dtype = x.builder, register_dtype(x.dtype)
    held = Lane(b, x.value, dtype, x.lanes) + 0.0  # makes -0 +0
    unsigned = UINT32 if dtype.bits == 32 else UINT64
    bits = b.bitcast(held.value, register_type(unsigned, x.lanes))
    # Of negative floats all bits are inverted, of others the sign alone.
    negative = b.ashr(bits, constant(unsigned, dtype.bits - 1, x.lanes))
    order = b.xor(bits, b.or_(negative, constant(unsigned, 1 << dtype.bits - 1, x.lanes)))
    return where(is_nan(held), -1, Lane(b, order, unsigned, x.lanes)).value


def _define_replace_root(kernel: KernelFunction, name: str, entry: ir.IntType) -> ir.Function:
    """Adds ``void name(heap, entry, size)``: the root of the heap gives way to ``entry``."""
    kind = ir.FunctionType(ir.VoidType(), [BYTE_POINTER, entry, I64])
    function = ir.Function(kernel.module, kind, name)
    function.linkage = "internal"
    kernel.target.decorate(function)
    heap, new, size = function.args
    start, step, choose, move, place = (
        function.append_basic_block(label) for label in ("entry", "step", "choose", "move", "place")
    )
    b = ir.IRBuilder(start)

    def slot(index: ir.Value) -> ir.Value:
        return b.gep(heap, [index], source_etype=entry)

    b.branch(step)
    b.position_at_end(step)
    hole = b.phi(I64)
    hole.add_incoming(I64(0), start)
    left = b.add(b.shl(hole, I64(1)), I64(1))
    b.cbranch(b.icmp_signed("<", left, size), choose, place)

    b.position_at_end(choose)
    right = b.add(left, I64(1))
    # The only child of the last parent is compared with itself.
    other = b.select(b.icmp_signed("<", right, size), right, left)
    first, second = (b.load(slot(index), align=8, typ=entry) for index in (left, other))
    take_other = b.icmp_unsigned("<", second, first)
    least = b.select(take_other, second, first)
    child = b.select(take_other, other, left)
    b.cbranch(b.icmp_unsigned("<", least, new), move, place)

    b.position_at_end(move)
    b.store(least, slot(hole), align=8)
    hole.add_incoming(child, move)
    b.branch(step)

    b.position_at_end(place)
    b.store(new, slot(hole), align=8)
    b.ret_void()
    return function
