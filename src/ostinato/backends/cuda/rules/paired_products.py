"""Two products of the same rows, one of whose epilogues reads the other's results: one kernel.

The gated layers of language models are ``silu(x @ gate) * (x @ up)``. As one kernel, the rows are
read once, and neither product's sums go through memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.rules.matmul import TiledMatmul
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.lazy import LazyModule
from ostinato.lower.control import Control
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Accumulator, Arg, Load, Store, extent_of
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.lower.program import Call, Role
from ostinato.variables import Expr, substitute

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import bulk_operands, bulk_tiles
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.program import LoweredBuffer
else:
    bulk_operands = LazyModule("ostinato.backends.cuda.render.bulk_operands")
    bulk_tiles = LazyModule("ostinato.backends.cuda.render.bulk_tiles")

__all__ = ["PairedMatmul", "with_pairs"]


class PairedMatmul(Matmul):
    """A large matmul by two right operands, for GPUs that copy operands in bulk."""

    def launch(self, target: CudaTarget) -> Launch:
        return bulk_tiles.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return bulk_tiles.source(self, target)


def with_pairs(calls: Sequence[Call], kept: Collection[LoweredBuffer]) -> list[Call]:
    """The calls, those of such products as one, in the place of the second.

    Args:
        calls: in order.
        kept: buffers that are read after the calls.
    """
    found = list(calls)
    position = 0
    while position < len(found):
        reader = _reader(found[position], found, kept)
        pair = None if reader is None else _paired(found[position], reader)
        if reader is None or pair is None:
            position += 1
            continue
        found[found.index(reader)] = pair
        del found[position]
    return found


def _reader(call: Call, calls: Sequence[Call], kept: Collection[LoweredBuffer]) -> Call | None:
    """The product that alone reads the only result of a product, if nothing between them matters.

    Args:
        call: the product.
        calls: all of them, in order.
        kept: buffers that are read after the calls.
    """
    if type(call.kernel) is not TiledMatmul or len(call.kernel.stores) != 1:
        return None
    (result,) = call.writes()
    if result.role is not Role.TEMP or result.home is not None or result in kept:
        return None
    others = [each for each in calls if each is not call]
    users = [each for each in others if any(result in (b, b.home) for b in each.buffers)]
    if len(users) != 1 or type(users[0].kernel) is not TiledMatmul:
        return None
    (reader,) = users
    first, last = calls.index(call), calls.index(reader)
    plain = reader.buffers.count(result) == 1 and result not in (*reader.writes(), *call.reads())
    return reader if plain and first < last and _may_wait(calls[first : last + 1]) else None


def _may_wait(calls: Sequence[Call]) -> bool:
    """Whether the first of some calls may run with the last one instead.

    What it reads has to be the same there, and to stay so while the last one writes; and both have
    to run as often.
    """
    call, *others = calls
    read = {buffer.home or buffer for buffer in call.reads()}
    written = {buffer.home or buffer for other in others for buffer in other.writes()}
    return not read & written and not any(isinstance(o.kernel, Control) for o in others)


def _paired(first: Call, second: Call) -> Call | None:
    """Two products as one; ``None``: they are not of the same rows, or not for such a kernel.

    Args:
        first: has one result.
        second: alone reads it.
    """
    one, other = first.kernel, second.kernel
    assert isinstance(one, TiledMatmul)
    assert isinstance(other, TiledMatmul)
    axes, others = (*one.batch, one.m, one.n, *one.k), (*other.batch, other.m, other.n, *other.k)
    if list(map(extent_of, axes)) != list(map(extent_of, others)) or one.acc != other.acc:
        return None
    (result,), (store,) = first.writes(), one.stores
    number = second.buffers.index(result)
    buffers = [buffer for buffer in second.buffers if buffer is not result]
    buffers += [buffer for buffer in first.reads() if buffer not in buffers]
    # What the first one computes, in terms of the second one's axes and of the pair's arguments.
    places = {old: Expr({(new,): 1}, 0) for old, new in zip(axes, others, strict=True)}
    sums = [s for s in reached([store.value]) if isinstance(s, Accumulator)]
    moving = Rewriter(
        lambda dim: substitute(dim, places),
        lambda n: buffers.index(first.buffers[n]),
        dict.fromkeys(sums, Accumulator(one.acc, 1)),
    )
    left, beside, value = map(moving.scalar, (one.a, one.b, store.value))
    at = substitute(store.index, places)
    loads = [s for s in _scalars(other) if isinstance(s, Load) and s.buffer == number]
    staying = Rewriter(
        buffer=lambda n: buffers.index(second.buffers[n]), scalars=dict.fromkeys(loads, value)
    )
    a, b = staying.scalar(other.a), staying.scalar(other.b)
    able = (
        store.update == "set"
        and not store.conditions
        and value.dtype == result.type.dtype
        and all(load.index == at and load.dtype == value.dtype for load in loads)
        and not any(getattr(s, "bindings", ()) for s in (store, *_scalars(one), *loads))
        and isinstance(a, Load)
        and isinstance(left, Load)
        and (a.buffer, a.index) == (left.buffer, left.index)
    )
    if not able:
        return None
    stores = tuple(map(staying.statement, other.stores))
    reads, writes = {*second.reads(), *first.reads()}, {*second.writes()}
    made = PairedMatmul(
        args=tuple(Arg(each.type.dtype, each in reads, each in writes) for each in buffers),
        batch=other.batch,
        m=other.m,
        n=other.n,
        k=other.k,
        a=a,
        b=b,
        acc=other.acc,
        stores=tuple(each for each in stores if isinstance(each, Store)),
        variables=other.variables,
        fixed_right=one.fixed_right and other.fixed_right,
        beside=beside,
    )
    if not bulk_operands.are_matrices(made):
        return None
    nodes = tuple(dict.fromkeys((*first.nodes, *second.nodes)))
    title, flops = f"{first.title}+{second.title}", first.flops + second.flops
    return Call(made, tuple(buffers), nodes, title, flops)


def _scalars(matmul: Matmul) -> list[Scalar]:
    """All that a matmul computes."""
    return list(reached([*matmul.operands, *(r for s in matmul.stores for r in roots(s))]))
