"""Steps about sizes that depend on data: they bind them, and check what follows from them.

They are no kernels of a device: its runtime reads a number, or computes it from Variables, and
ends the run where it is out of bounds. Later kernels find the size among their Variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ir.facts import size_problem
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, maximum, symbols

if TYPE_CHECKING:
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["SizeStep", "lower_bind_size"]


@dataclass(frozen=True, eq=False)
class SizeStep(Kernel):
    """Gives a Variable its value, or checks a number that follows from Variables.

    Attributes:
        args: of a step that binds: the value, and a copy of it that outlives the run.
        variables: the graph's Variables.
        symbol: the Variable; ``None``: the step checks that ``limit`` is at least 0.
        limit: else, the greatest value.
        problem: the words for a number out of bounds, which they end with.
    """

    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...]
    symbol: Symbol | None
    limit: Dim
    problem: str

    def describe(self, text: KernelText) -> None:
        if self.symbol is None:
            text.line(0, f"check {self.limit} >= 0, else {self.problem}")
        else:
            text.line(0, f"bind {self.symbol.name} <= {self.limit}, else {self.problem}")
        text.head(self.args)

    def variable_free(self) -> bool:
        return False


def lower_bind_size(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``bind_size`` node, and check the facts that are decided from there on."""
    (count,), (value,) = root.inputs, root.outputs
    if count not in lowering.stored:
        lowering.copy(count)
    (symbol,) = symbols(root.attrs["size"])
    assert symbol.bound is not None
    buffer = LoweredBuffer(value.type, Role.TEMP, symbol.name, value)
    lowering.kept.add(buffer)
    lowering.live_sizes[symbol.name] = buffer
    build = lowering.helper_builder()
    build.argument(lowering.stored[count], reads=True)
    build.argument(buffer, writes=True)
    problem = size_problem(f"{root.op.name} {root.label!r}", symbol)
    step = SizeStep(build.args, lowering.variables, symbol, symbol.bound, problem)
    lowering.helper_call(root, f"size {symbol.name}", build, step)
    lowering.stored[value] = buffer
    for fact in lowering.decided_facts():
        _check(lowering, fact)


def _check(lowering: ProgramBuilder, fact: Fact) -> None:
    margin = fact.size - fact.least
    if fact.elements != 1:
        margin = maximum(margin, 0 - fact.elements)
    needed = f"a run needs {fact.size} >= {fact.least}: a difference of at least 0"
    problem = f"{fact.node}: {fact.problem}; {needed}"
    step = SizeStep((), lowering.variables, None, margin, problem)
    lowering.calls.append(Call(step, (), (fact.node,), "check"))
