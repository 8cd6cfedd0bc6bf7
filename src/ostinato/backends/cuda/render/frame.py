"""The frame of a kernel that is written by hand, and the parts of it that the loop IR defines.

Such a kernel is a template: text with places for sizes, for elements of its operands and for the
stores of its results. A :class:`Frame` writes these, each at the point where it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.arrays import NamedArrays
from ostinato.backends.common.clike.indices import is_wide
from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.scalars import Scalars
from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.backends.common.clike.values import Code, CValue
from ostinato.backends.common.clike.writer import Writer
from ostinato.backends.cuda.abi import FAILED
from ostinato.backends.cuda.render.body import Body
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.lower.loopir.dependences import Dependences, reached, roots
from ostinato.lower.loopir.nodes import Accumulator, Reduce, Stage, extent_of
from ostinato.records import dataclass, replace
from ostinato.variables import Expr, prod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render.body import SharedArray
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Load, Scalar, Store
    from ostinato.variables import Dim, Symbol

__all__ = ["Frame", "Point", "body_of", "function", "grid_of"]

_HEADERS = ("arithmetic", "conversion", "groups", "math", "packs", "products")
_INCLUDES = "".join(f'#include "{header}.cuh"\n' for header in _HEADERS)

#: Blocks of a grid, at most, for each multiprocessor.
_MOST_BLOCKS = 16


def grid_of(blocks: int, target: CudaTarget) -> int:
    """The grid for so many blocks: a few waves, whose blocks go on to others, or fewer."""
    return max(1, min(blocks, _MOST_BLOCKS * target.multiprocessors))


def function(
    kernel: CudaKernel,
    body: str,
    sizes: Mapping[str, Dim],
    threads: int,
    types: Mapping[int, str] | None = None,
    before: str = "",
    resident: int = 1,
    early: bool = False,
) -> str:
    """The source of a kernel.

    Args:
        kernel: its arguments become ``b0``, ``b1``, ...
        body: statements, which may mention the sizes.
        sizes: by name, the numbers that are computed first.
        threads: of a block.
        types: the element types of arguments that the kernel takes for something else.
        before: functions that the body calls.
        resident: blocks that a multiprocessor is to run at a time.
        early: whether it is launched so that it starts before those in front of it have ended.
    """
    made = body_of(kernel, body, sizes, threads, types, resident, early=early)
    return made.kernel(kernel.name, before)


def body_of(
    kernel: CudaKernel,
    text: str,
    sizes: Mapping[str, Dim],
    threads: int,
    types: Mapping[int, str] | None = None,
    resident: int = 1,
    arrays: tuple[SharedArray, ...] = (),
    *,
    early: bool = False,
) -> Body:
    """The body of a kernel; see :func:`function`.

    Args:
        kernel, sizes, threads, types, resident, early: see :func:`function`.
        text: statements, which may mention the sizes and the arrays.
        arrays: in shared memory.
    """
    dialect, given = CudaDialect(), {} if types is None else types
    parameters = [
        f"{'' if arg.writes else 'const '}{given.get(i) or dialect.memory_type(arg.dtype)}* b{i}"
        for i, arg in enumerate(kernel.args)
    ]
    start = ["    ost::wait_for_earlier_kernels();"] * early
    if kernel.guarded:
        start += [f"    if (vars[{FAILED}] != 0)", "        return;"]
    return Body(
        _INCLUDES,
        (*parameters, "const long long* vars"),
        f"{Frame(kernel).sizes(sizes)}\n{text}",
        threads,
        arrays,
        resident,
        start="\n".join(start),
    )


@dataclass(frozen=True)
class Point:
    """A point of a kernel at which axes have values.

    Attributes:
        writer: writes the statements that stand there.
        scalars: writes scalar expressions.
        scope: the values that are known.
        kernel: the kernel.
    """

    writer: Writer
    scalars: Scalars
    scope: Scope
    kernel: CudaKernel

    @property
    def text(self) -> str:
        """The statements so far."""
        return self.writer.text.rstrip("\n")

    def index(self, dim: Dim) -> str:
        """The value of an index expression."""
        return self.scalars.indices.value(dim, self.scope).text

    def value(self, scalar: Scalar, dtype: DType) -> CValue:
        """A scalar expression, converted to ``dtype``."""
        return self.scalars.value(scalar, self.scope).astype(dtype)

    def store(self, store: Store, *totals: CValue) -> None:
        """Store a result.

        Args:
            store: the statement.
            totals: the values that ``Accumulator`` stands for in it, by number.
        """
        for scalar in reached(roots(store)):
            if isinstance(scalar, Accumulator):
                self.scope.values[id(scalar)] = totals[scalar.number]
        self.scalars.store(store, self.kernel.args[store.buffer].dtype, self.scope)


class Frame:
    """Writes the parts of a kernel that scalar expressions define.

    Args:
        kernel: the kernel.
        operands: the expressions of elements.
        stores: what becomes of the results.
    """

    def __init__(
        self, kernel: CudaKernel, operands: Sequence[Scalar] = (), stores: Sequence[Store] = ()
    ) -> None:
        self._kernel = kernel
        read = [Reduce("", "sum", scalar, scalar.dtype) for scalar in operands]
        self._dependences = Dependences([Stage((), (*read, *stores))])

    def sizes(self, sizes: Mapping[str, Dim]) -> str:
        """Declarations of numbers that follow from Variables."""
        point = self.point(1, {})
        for name, dim in sizes.items():
            index = point.index(dim)
            point.writer.line(f"const long long {name} = {index};")
        return point.text

    def element(
        self, scalar: Scalar, dtype: DType, depth: int, names: Mapping[Symbol, str], target: str
    ) -> str:
        """Statements that assign an element.

        Args:
            scalar: the element.
            dtype: the dtype that it is converted to.
            depth: of the statements, in blocks.
            names: by axis, the variable that has its value.
            target: the variable that is assigned to.
        """
        point = self.point(depth, names)
        value = point.value(scalar, dtype)
        point.writer.line(f"{target} = {value.text};")
        return point.text

    def elements(
        self,
        scalar: Scalar,
        axis: Symbol,
        count: int,
        dtype: DType,
        depth: int,
        names: Mapping[Symbol, str],
        target: str,
    ) -> str:
        """Statements that assign ``count`` elements along an axis to an array, one by one."""
        point = self.point(depth, names)
        for i in range(count):  # names of locals stay distinct: one writer
            own = {axis: _index(axis, f"({names[axis]} + {i})")}
            inside = replace(point, scope=point.scope.child(own))
            point.writer.line(f"{target}[{i}] = {inside.value(scalar, dtype).text};")
        return point.text

    def vector(
        self,
        scalar: Scalar,
        load: Load,
        count: int,
        dtype: DType,
        depth: int,
        names: Mapping[Symbol, str],
        target: str,
    ) -> str:
        """Statements that assign elements that are next to one another, loaded at once.

        Args:
            scalar: the element, computed from ``load`` alone.
            load: the first one, at a multiple of ``count``.
            count: of elements.
            dtype: the dtype that they are converted to.
            depth: of the statements, in blocks.
            names: by axis, the variable that has its value.
            target: the array that is assigned to.
        """
        type_ = f"ost::vector<{CudaDialect().memory_type(load.dtype)}, {count}>"
        point = self.point(depth, names)
        writer = point.writer
        index, name = point.index(load.index), writer.fresh("v")
        writer.line(f"const {type_} {name} = *(const {type_}*)(b{load.buffer} + {index});")
        self._convert(point, scalar, load, count, dtype, name, target)
        return point.text

    def converted(
        self,
        scalar: Scalar,
        load: Load,
        count: int,
        dtype: DType,
        depth: int,
        names: Mapping[Symbol, str],
        source: str,
        target: str,
    ) -> str:
        """Statements that assign elements of a vector that is there.

        Args:
            scalar, load, count, dtype, depth, names, target: see :meth:`vector`.
            source: the vector.
        """
        point = self.point(depth, names)
        self._convert(point, scalar, load, count, dtype, source, target)
        return point.text

    @staticmethod
    def _convert(
        point: Point,
        scalar: Scalar,
        load: Load,
        count: int,
        dtype: DType,
        source: str,
        target: str,
    ) -> None:
        """Write the statements that assign elements of a vector."""
        code = point.scalars.code
        for i in range(count):
            inside = replace(point, scope=point.scope.child())
            element = code.dialect.from_memory(f"{source}.at[{i}]", load.dtype)
            inside.scope.values[id(load)] = code.keep(load.dtype, element)
            point.writer.line(f"{target}[{i}] = {inside.value(scalar, dtype).text};")

    def address(self, load: Load, depth: int, names: Mapping[Symbol, str], target: str) -> str:
        """Statements that assign the address of an element, as that of a byte.

        Args:
            load: the element.
            depth: of the statements, in blocks.
            names: by axis, the variable that has its value.
            target: the variable that is assigned to.
        """
        point = self.point(depth, names)
        index = point.index(load.index)
        point.writer.line(f"{target} = (const unsigned char*)(b{load.buffer} + {index});")
        return point.text

    def words(
        self, load: Load, type_: str, depth: int, names: Mapping[Symbol, str], target: str
    ) -> str:
        """Statements that assign what is in memory from an element on, as it is.

        Args:
            load: the element, aligned as the type is.
            type_: takes several elements.
            depth: of the statements, in blocks.
            names: by axis, the variable that has its value.
            target: the variable that is assigned to.
        """
        point = self.point(depth, names)
        index = point.index(load.index)
        point.writer.line(f"{target} = *(const {type_}*)(b{load.buffer} + {index});")
        return point.text

    def stores(
        self,
        stores: Sequence[Store],
        acc: DType,
        depth: int,
        names: Mapping[Symbol, str],
        *totals: str,
    ) -> str:
        """Statements that store results.

        Args:
            stores: in which ``Accumulator`` stands for a sum.
            acc: the dtype of sums.
            depth: of the statements, in blocks.
            names: by axis, the variable that has its value.
            totals: the variables that have the sums, by number.
        """
        point = self.point(depth, names)
        for store in stores:
            point.store(store, *(CValue(point.scalars.code, total, acc) for total in totals))
        return point.text

    def unravel(
        self, axes: Sequence[Symbol], number: str, depth: int
    ) -> tuple[str, dict[Symbol, str]]:
        """Declarations of the values of axes at a point, and their names.

        Args:
            axes: outermost first.
            number: the variable that has the number of the point, in C order.
            depth: of the statements, in blocks.
        """
        if len(axes) == 1:
            return "", {axes[0]: number}
        point = self.point(depth, {})
        wide = is_wide(prod(map(extent_of, axes)))
        type_, rest = ("long long", number) if wide else ("int", f"(int){number}")
        names = {}
        for position, axis in enumerate(reversed(axes[1:])):
            extent = point.index(extent_of(axis))
            names[axis], following = f"{number}_{position}", f"{number}_before_{position}"
            point.writer.line(f"const {type_} {names[axis]} = {rest} % {extent};")
            point.writer.line(f"const {type_} {following} = {rest} / {extent};")
            rest = following
        return point.text, names | dict.fromkeys(axes[:1], rest)

    def point(self, depth: int, names: Mapping[Symbol, str]) -> Point:
        """A point of the kernel at which axes have values.

        Args:
            depth: of the statements there, in blocks.
            names: by axis, the variable that has its value.
        """
        kernel, writer = self._kernel, Writer(depth)
        code = Code(writer, CudaDialect())
        arrays = NamedArrays(code.dialect, [f"b{i}" for i in range(len(kernel.args))])
        scalars = Scalars(code, CNamespace(), arrays, self._dependences)
        scope = Scope()
        for i, variable in enumerate(kernel.variables):
            scope.symbols[variable] = _index(variable, f"vars[{i}]")
        for symbol, name in names.items():
            scope.symbols[symbol] = _index(symbol, name)
        return Point(writer, scalars, scope, kernel)


def _index(symbol: Symbol, name: str) -> Index:
    """An axis or Variable whose variable has 64 bits."""
    wide = is_wide(Expr({(symbol,): 1}, 0))
    return Index(name if wide else f"(int){name}", wide)
