"""A kernel under construction: its statements, and the module around them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.indices import is_wide
from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.points import PointCode
from ostinato.backends.common.clike.scalars import Scalars
from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.backends.common.clike.values import Code, CValue
from ostinato.backends.common.clike.writer import Writer
from ostinato.backends.webgpu.kernel import ENTRY_POINT, Shader
from ostinato.backends.webgpu.library import needed
from ostinato.backends.webgpu.render.arrays import KernelArrays
from ostinato.backends.webgpu.render.dialect import WgslDialect
from ostinato.backends.webgpu.render.mapping import SUBGROUP_THREADS
from ostinato.lower.loopir.dependences import Dependences, reached, roots
from ostinato.lower.loopir.nodes import Accumulator, extent_of
from ostinato.lower.loopir.views import unravel
from ostinato.variables import Dim, Expr, Symbol, axis, bounds, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ostinato.backends.webgpu.kernel import Bindings
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.nodes import Scalar, Stage, Store

__all__ = ["NAMESPACE", "KernelCode", "NestCode"]

#: The namespace of op rules; it has no state.
NAMESPACE = CNamespace()

_BUILT_INS = (
    ("at", "workgroup_id", "vec3<u32>"),
    ("grid", "num_workgroups", "vec3<u32>"),
)

#: Those that number the threads of a workgroup, and of one whose subgroups exchange values: there,
#: neighbours in a subgroup are neighbours in the workgroup, which the index does not promise.
_THREAD = (("thread", "local_invocation_index", "u32"),)
_LANES = (
    ("lane", "subgroup_invocation_id", "u32"),
    ("subgroup", "subgroup_id", "u32"),
    ("lanes", "subgroup_size", "u32"),
)

#: The least number of threads of a subgroup, by the standard.
_LEAST_LANES = 4

#: The variable of the library that is zero at run time.
_ZERO = "kept_zero"


class KernelCode(PointCode):
    """The entry point of one kernel.

    Args:
        kernel: its arguments and Variables.
        stages: the statements that it is made of.
        target: the device.
        bindings: of the arguments.

    Attributes:
        writer: the statements.
        arrays: the arguments, and temps.
        scalars: writes expressions and accesses.
        outermost: the scope of the entry point, which has the Variables.
        thread: the number of the thread in its workgroup, and ``group`` that of its workgroup.
    """

    dialect: WgslDialect

    def __init__(
        self,
        kernel: Kernel,
        stages: Iterable[Stage],
        target: WebGpuTarget,
        bindings: Bindings,
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.dialect = WgslDialect()
        self.writer = Writer(1)
        self.code = Code(self.writer, self.dialect)
        self.dependences = Dependences(stages)
        self.arrays = KernelArrays(kernel.args, bindings, target.part_bytes)
        self.scalars = Scalars(self.code, NAMESPACE, self.arrays, self.dependences)
        self.outermost = Scope()
        self._shared: dict[str, str] = {}
        self._by_lanes = False
        self._iterations: Dim = 0
        self._around: Dim = 1
        for position, variable in enumerate(kernel.variables):
            words = f"variables[{position // 2}].{'zw' if position % 2 else 'xy'}"
            wide = is_wide(Expr({(variable,): 1}, 0))
            text = words if wide else f"i32({words}.x)"
            self.outermost.symbols[variable] = Index(text, wide)

    # -- the module -------------------------------------------------------------------------

    def shared(self, type_: str, size: int) -> str:
        """The name of a new array in workgroup memory."""
        name = f"shared{len(self._shared)}"
        self._shared[name] = f"var<workgroup> {name}: array<{type_}, {max(size, 1)}>;"
        return name

    def shares_lanes(self, members: int, threads: int) -> bool:
        """Whether threads that share something are, or begin with, threads of one subgroup.

        If so, threads are numbered by subgroups from now on.

        Args:
            members: those that share it, which are neighbours: a power of two.
            threads: of a workgroup: all subgroups have to be full.
        """
        if members < _LEAST_LANES or threads % SUBGROUP_THREADS or not self.target.subgroups:
            return False
        self._by_lanes = True
        return True

    def shader(self, threads: int, groups: Dim) -> Shader:
        """The whole module.

        Args:
            threads: of a workgroup.
            groups: the number of workgroups.
        """
        body = self.writer.text
        accesses = _reachable(body, self.arrays.functions())
        text = "\n".join((*accesses, body))
        parts = [self.arrays.declarations()]
        functions = needed(text, halves=self.target.halves)
        if _ZERO in functions:
            last = f"offsets[{len(self.kernel.args) // 4}].{'xyzw'[len(self.kernel.args) % 4]}"
            body = f"    {_ZERO} = {last};\n{body}"
        if "offsets[" in text or _ZERO in functions:
            blocks = len(self.kernel.args) // 4 + 1
            parts.append(f"@group(1) @binding(0) var<uniform> offsets: array<vec4<u32>, {blocks}>;")
        if "variables[" in text:
            blocks = -(-len(self.kernel.variables) // 2)
            parts.append(
                f"@group(1) @binding(1) var<uniform> variables: array<vec4<u32>, {blocks}>;"
            )
        parts += self._shared.values()
        parts += [functions, *accesses]
        built_in = _BUILT_INS + (_LANES if self._by_lanes else _THREAD)
        arguments = ", ".join(f"@builtin({kind}) {name}: {type_}" for name, kind, type_ in built_in)
        if self._by_lanes:
            body = f"    let thread = subgroup * lanes + lane;\n{body}"
        parts.append(f"@compute @workgroup_size({threads})\nfn {ENTRY_POINT}({arguments}) {{")
        parts.append(f"    let group = at.x + at.y * grid.x;\n{body}}}\n")
        return Shader("\n".join(parts), threads, groups, self._iterations)

    # -- points -----------------------------------------------------------------------------

    def size(self, dim: Dim, scope: Scope) -> str:
        """A number of points, as an i32: kernels with more than that many have none to run on."""
        return self.narrow(self.scalars.indices.value(dim, scope))

    def narrow(self, index: Index) -> str:
        """An index as an i32."""
        return self.dialect.resize_index(index.text, False) if index.wide else index.text

    def declare(self, letter: str, value: str, type_: str = "i32") -> str:
        """A new local variable of this value, which stays as it is."""
        name = self.writer.fresh(letter)
        self.writer.line(f"let {name}: {type_} = {value};")
        return name

    def variable(self, letter: str, value: str, type_: str) -> str:
        name = self.writer.fresh(letter)
        self.writer.line(f"var {name}: {type_} = {value};")
        return name

    def at(self, values: dict[Symbol, str], scope: Scope) -> Scope:
        """A scope in which axes have values, given as i32."""
        return scope.child({symbol: Index(text, False) for symbol, text in values.items()})

    def enter(self, axes: Sequence[Symbol], number: str, scope: Scope) -> Scope:
        """The scope of the point with this number of those that ``axes`` run over, in C order."""
        extents = [extent_of(symbol) for symbol in axes]
        point = axis(self.writer.fresh("p"), prod(extents))
        inside = self.at(dict.fromkeys(symbols(point), number), scope)
        for symbol, position in zip(axes, unravel(extents, point), strict=True):
            inside.symbols[symbol] = self.scalars.indices.value(position, inside)
        return inside

    @contextmanager
    def loop(self, axis: Symbol, scope: Scope) -> Iterator[Scope]:
        stop, name = self.size(extent_of(axis), scope), self.writer.fresh("e")
        with self.repeat(f"for (var {name} = 0i; {name} < {stop}; {name}++)", extent_of(axis)):
            yield self.at({axis: name}, scope)

    @contextmanager
    def repeat(self, head: str, times: Dim) -> Iterator[None]:
        """A loop, whose iterations count among those of a thread.

        Args:
            head: the head of the loop.
            times: the most iterations of a thread.
        """
        around = self._around
        self._around = around * self.count_iterations(times)
        with self.writer.block(head):
            yield
        self._around = around

    def count_iterations(self, times: Dim) -> Dim:
        """Count iterations of a thread; return them, as far as the Variables tell."""
        if not {*self.kernel.variables}.issuperset(symbols(times)):
            times = bounds(times)[1]
        self._iterations = self._iterations + self._around * times
        return times

    # -- statements -------------------------------------------------------------------------

    def accumulate(self, stores: Iterable[Store], scope: Scope, *totals: CValue) -> None:
        """Gives ``Accumulator`` a meaning in some stores: the totals, by number."""
        for store in stores:
            for scalar in reached(roots(store)):
                if isinstance(scalar, Accumulator):
                    scope.values[id(scalar)] = totals[scalar.number]

    def store(self, store: Store, scope: Scope, *totals: CValue) -> None:
        """A store, in which ``Accumulator`` stands for the totals, by number."""
        if totals:
            self.accumulate((store,), scope, *totals)
        self.scalars.store(store, self.dtype(store.buffer), scope)

    def value(self, scalar: Scalar, dtype: DType, scope: Scope) -> str:
        """A scalar expression, converted to ``dtype``."""
        return self.scalars.value(scalar, scope).astype(dtype).text

    def dtype(self, number: int) -> DType:
        return self.kernel.args[number].dtype


class NestCode(KernelCode):
    """The entry point of a loop nest, which has temps; see :class:`KernelCode`."""

    def __init__(self, nest: LoopNest, target: WebGpuTarget, bindings: Bindings) -> None:
        super().__init__(nest, nest.stages, target, bindings)
        self.nest = nest

    def dtype(self, number: int) -> DType:
        args = len(self.nest.args)
        return super().dtype(number) if number < args else self.nest.temps[number - args].dtype


def _reachable(text: str, functions: dict[str, str]) -> list[str]:
    """The functions that a text calls, and those that these call, callees first."""
    found: dict[str, None] = {}
    waiting = [text]
    while waiting:
        part = waiting.pop()
        for name, body in functions.items():
            if name not in found and f"{name}(" in part:
                found[name] = None
                waiting.append(body)
    return [functions[name] for name in functions if name in found]
