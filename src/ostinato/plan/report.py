"""What the compiler did with a graph, for people to read."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CompileReport"]


@dataclass
class CompileReport:
    """What was rewritten, what fused, what did not and why.

    Attributes:
        passes: by pass, what it changed.
        regions: by kernel, the labels of the nodes that it computes.
        prepared: kernels that run once per write of a param.
        refused: fusions that were not made, with the reason.
        compiled: kernels compiled afresh; ``cached``: taken from the cache.
        seconds: by stage of the compiler, how long it took.
    """

    passes: list[str] = field(default_factory=list)
    regions: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    prepared: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    compiled: int = 0
    cached: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = ["passes:", *(f"  {event}" for event in self.passes or ["nothing to change"])]
        lines.append(f"kernels ({len(self.regions)} a run):")
        for title, nodes in self.regions:
            lines.append(f"  {title:<32} {', '.join(nodes)}")
        if self.prepared:
            lines.append(f"run once per write of a param ({len(self.prepared)}):")
            lines += [f"  {title:<32} {', '.join(nodes)}" for title, nodes in self.prepared]
        if self.refused:
            lines += ["not fused:", *(f"  {note}" for note in self.refused)]
        timing = ", ".join(f"{stage} {1e3 * spent:.0f} ms" for stage, spent in self.seconds.items())
        lines.append(f"{self.compiled} kernels compiled, {self.cached} from the cache; {timing}")
        return "\n".join(lines)
