"""The code of a loop nest under construction: its signature, its points, its statements."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.arrays import NamedArrays
from ostinato.backends.common.clike.indices import is_wide
from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.points import PointCode
from ostinato.backends.common.clike.scalars import Scalars
from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.backends.common.clike.values import Code
from ostinato.backends.common.clike.writer import Writer
from ostinato.backends.cuda.abi import FAILED, is_guarded
from ostinato.backends.cuda.render.body import Body
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.nodes import extent_of
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.lower.loopir.views import unravel
from ostinato.variables import Dim, Expr, Symbol, axis, bounds, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render.body import SharedArray
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nest import LoopNest

__all__ = ["NestCode"]

_INT32_MAX = (1 << 31) - 1


class NestCode(PointCode):
    """The function of one nest.

    Args:
        nest: the loops.
        launch: of the kernel.

    Attributes:
        writer: the function's statements.
        arrays: in shared memory.
        repeats: whether a few blocks have all points: a thread has several of them.
        alone: whether one block has all points.
        dynamic: the name of the dynamic shared memory, if there is any.
        scalars: writes expressions and accesses.
        outermost: the scope of the body, which has the Variables.
    """

    dialect: CudaDialect

    def __init__(self, nest: LoopNest, launch: Launch) -> None:
        self.nest = nest
        self.launch = launch
        self.dialect = CudaDialect()
        self.writer = Writer(1)
        self.code = Code(self.writer, self.dialect)
        self.dependences = Dependences(nest.stages)
        self._dtypes = [arg.dtype for arg in nest.args] + [temp.dtype for temp in nest.temps]
        names = [f"b{number}" for number in range(len(self._dtypes))]
        arrays = NamedArrays(self.dialect, names)
        self.scalars = Scalars(self.code, CNamespace(), arrays, self.dependences)
        self.outermost = Scope()
        self.arrays: list[SharedArray] = []
        self.dynamic = ""
        self.repeats = False
        self.alone = False
        self._read_variables()

    def body(self) -> Body:
        """The whole code."""
        parameters = [
            f"{'' if arg.writes else 'const '}{self.dialect.memory_type(arg.dtype)}* b{number}"
            for number, arg in enumerate(self.nest.args)
        ]
        start = ["    ost::wait_for_earlier_kernels();"] * self.launch.programmatic
        if is_guarded(self.nest.variables):
            start.append(f"    if (vars[{FAILED}] != 0) return;")
        return Body(
            '#include "kernel.cuh"\n',
            (*parameters, "const long long* vars"),
            self.writer.text,
            self.launch.block,
            tuple(self.arrays),
            dynamic=self.dynamic,
            start="\n".join(start),
        )

    def _read_variables(self) -> None:
        nest = self.nest
        used: set[Symbol] = set()
        dims = [extent_of(axis) for axis in nest.outer_axes]
        for stage in nest.stages:
            dims += [extent_of(axis) for axis in stage.axes]
            dims += index_expressions(stage.statements)
        for dim in dims:
            used |= symbols(dim)
        for position, variable in enumerate(nest.variables):
            if variable in used:
                wide = is_wide(Expr({(variable,): 1}, 0))
                type_ = self.dialect.index_type(wide)
                name = self.writer.fresh("n")
                self.writer.line(f"const {type_} {name} = ({type_})vars[{position}];")
                self.outermost.symbols[variable] = Index(name, wide)

    # -- loops ------------------------------------------------------------------------------

    def size(self, dim: Dim, scope: Scope, beyond: int = 0) -> Index:
        """A number of points, of 32 bits where loops that step by up to ``beyond`` fit in them."""
        index = self.scalars.indices.value(dim, scope)
        if not index.wide and bounds(dim)[1] + beyond > _INT32_MAX:
            return Index(self.dialect.resize_index(index.text, True), True)
        return index

    def enter(self, axes: Sequence[Symbol], number: Index, scope: Scope) -> Scope:
        """The scope of the point with this number of those that ``axes`` run over, in C order."""
        extents = [extent_of(axis) for axis in axes]
        point = axis(self.writer.fresh("p"), prod(extents))
        inside = scope.child(dict.fromkeys(symbols(point), number))
        for symbol, position in zip(axes, unravel(extents, point), strict=True):
            index = self.scalars.indices.value(position, inside)
            inside.symbols[symbol] = index
        return inside

    @contextmanager
    def loop(self, axis: Symbol, scope: Scope) -> Iterator[Scope]:
        stop = self.size(extent_of(axis), scope, 1)
        type_, name = self.dialect.index_type(stop.wide), self.writer.fresh("i")
        with self.writer.block(f"for ({type_} {name} = 0; {name} < {stop.text}; ++{name})"):
            yield scope.child({axis: Index(name, stop.wide)})

    # -- values -----------------------------------------------------------------------------

    def dtype(self, number: int) -> DType:
        return self._dtypes[number]

    def variable(self, letter: str, value: str, type_: str) -> str:
        name = self.writer.fresh(letter)
        self.writer.line(f"{type_} {name} = {value};")
        return name
