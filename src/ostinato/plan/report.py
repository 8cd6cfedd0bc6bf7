"""The compile report of a graph, as readable text."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ostinato.lower.fusion.regions import Refusal
    from ostinato.passes.base import Event

__all__ = ["CompileReport", "CompiledSizes", "KernelNote", "NodeNote", "and_more"]

#: Number of entries of a list that are named before the rest is counted.
_NAMED = 3


@dataclass(frozen=True)
class NodeNote:
    """A node of the graph: its label and the name of its op."""

    label: str
    op: str


@dataclass(frozen=True)
class KernelNote:
    """A kernel that was made.

    Attributes:
        title: names of its ops (``"matmul+gelu"``).
        nodes: labels of the nodes that it computes.
        code: its name in the machine code; kernels with the same code share it.
    """

    title: str
    nodes: tuple[str, ...]
    code: str


@dataclass(frozen=True)
class CompiledSizes:
    """Sizes that a graph is compiled for.

    Attributes:
        sizes: in the words of the model; empty where all of them are Variables.
        seconds: what compiling took.
        compiled: kernels that were compiled; the others came from the cache.
        cached: those.
    """

    sizes: str
    seconds: float
    compiled: int
    cached: int


@dataclass
class CompileReport:
    """Passes, rewrites, kernels, and fusions that were made or refused.

    Attributes:
        graph: the graph's name.
        device: the device it was compiled for.
        passes: the changes of the passes, in order.
        native: nodes, after the passes, that the device computes natively.
        rewritten: nodes that it does not, which were decomposed into ops that it does.
        params: bytes of the graph's params, by the name of their dtype.
        kernels: of one run, in order.
        prepared: kernels that run once per write of a param, in order.
        refused: fusions that were not made, with the reason.
        remarks: of the device, about what it lacks.
        compiled: kernels compiled afresh; ``cached``: taken from the cache.
        seconds: the time of each stage of the compiler.
    """

    graph: str = ""
    device: str = ""
    passes: list[Event] = field(default_factory=list)
    native: list[NodeNote] = field(default_factory=list)
    rewritten: list[NodeNote] = field(default_factory=list)
    params: dict[str, int] = field(default_factory=dict)
    kernels: list[KernelNote] = field(default_factory=list)
    prepared: list[KernelNote] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    compiled: int = 0
    cached: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to that of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    @property
    def fused(self) -> list[KernelNote]:
        """The kernels that compute more than one node."""
        return [kernel for kernel in self.kernels if len(kernel.nodes) > 1]

    def __str__(self) -> str:
        timing = ", ".join(f"{stage} {1e3 * spent:.0f} ms" for stage, spent in self.seconds.items())
        in_kernels = sum(len(kernel.nodes) for kernel in self.fused)
        return "\n".join(
            [
                f"{self.graph} on {self.device}: {len(self.kernels)} kernels a run, "
                f"{len(self.prepared)} once per write of a param",
                *_section("passes", map(str, self.passes)),
                f"native: {_by_op(self.native)}",
                f"rewritten: {_by_op(self.rewritten)}",
                *([f"params: {_by_dtype(self.params)}"] if self.params else []),
                f"fused: {in_kernels} nodes in {len(self.fused)} kernels",
                *_section("kernels of one run", _kernels(self.kernels)),
                *_section("kernels once per write of a param", _kernels(self.prepared)),
                *_section("not fused", _refusals(self.refused)),
                *self.remarks,
                f"{self.compiled} kernels compiled, {self.cached} from the cache; {timing}",
            ]
        )


def and_more(names: Sequence[str]) -> str:
    """The first few of ``names``, and the number of further ones."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def _section(title: str, lines: Iterable[str]) -> list[str]:
    """A heading and indented lines; no heading without lines."""
    listed = [f"  {line}" for line in lines]
    return [f"{title}:", *listed] if listed else []


def _by_op(nodes: Sequence[NodeNote]) -> str:
    counts = Counter(node.op for node in nodes)
    listed = ", ".join(f"{op} ×{count}" if count > 1 else op for op, count in counts.items())
    return f"{len(nodes)} nodes{f' ({listed})' if listed else ''}"


def _by_dtype(params: Mapping[str, int]) -> str:
    return ", ".join(f"{dtype} {nbytes:,} B" for dtype, nbytes in params.items())


def _kernels(kernels: Sequence[KernelNote]) -> list[str]:
    """A line for each kernel that differs in its code, in order of first appearance."""
    alike: dict[str, list[KernelNote]] = {}
    for kernel in kernels:
        alike.setdefault(kernel.code, []).append(kernel)
    return [
        f"{_times(len(group))} {group[0].title:<32} {and_more(['+'.join(k.nodes) for k in group])}"
        for group in alike.values()
    ]


def _refusals(refused: Sequence[Refusal]) -> list[str]:
    """A line for each reason, the most frequent first."""
    by_reason: dict[str, list[str]] = {}
    for refusal in refused:
        pair = f"{refusal.producer}+{refusal.reader}"
        by_reason.setdefault(refusal.why, []).append(pair)
    ordered = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    return [f"{_times(len(pairs))} {why}: {and_more(pairs)}" for why, pairs in ordered]


def _times(count: int) -> str:
    return f"×{count:<4}" if count > 1 else " " * 5
