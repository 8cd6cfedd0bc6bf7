"""Slices of a matmul's operands on their way into shared memory.

Where elements are next to one another in memory, threads copy chunks of 16 bytes, asynchronously;
other elements are computed and stored one by one.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.render.sums import runs_along
from ostinato.lower.loopir.nodes import Load, extent_of
from ostinato.records import dataclass
from ostinato.variables import Expr, coefficient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Dim, Symbol

__all__ = ["CHUNK", "SLICE", "TileOperand", "chunks_along"]

CHUNK = 8
"""Elements of 16 bytes, and those that pad a row of shared memory against bank conflicts."""

SLICE = 64
"""Products between two barriers."""

_SOURCES = Template("""\
        const unsigned short* ${target}_from[$count];
#pragma unroll
        for (int i = 0; i < $count; i++) {
            const int chunk = threadIdx.x + i * $threads;
            const int line = chunk / ($length / $chunk);
            const int place = chunk % ($length / $chunk) * $chunk;
            const long long $across = $across_start + line, $along = $along_start + place;
            ${target}_from[i] = nullptr;
            if (chunk < $lines * $length / $chunk && $outer < $outer_end) {
$place
            }
        }""")

_CHUNKS = Template("""\
${before}#pragma unroll
            for (int i = 0; i < $count; i++) {
                const int chunk = threadIdx.x + i * $threads;
                const int line = chunk / ($length / $chunk);
                const int place = chunk % ($length / $chunk) * $chunk;
                const bool inside = ${target}_from[i] != nullptr && start + $k_place < depth;
                if ($whole || chunk < $lines * $length / $chunk)
                    ost::copy_async(
                        $target + $slot, ${target}_from[i] + $offset, inside
                    );
            }""")

_WANDERING_CHUNKS = Template("""\
${before}#pragma unroll
            for (int i = threadIdx.x; i < $lines * $length / $chunk; i += $threads) {
                const int line = i / ($length / $chunk), place = i % ($length / $chunk) * $chunk;
                const long long $across = $across_first + line, $along = $along_first + place;
                const bool inside = $across < $across_end && $along < $along_end;
                const unsigned short* source = b$buffer;
                if (inside) {
$place
                }
                ost::copy_async($target + $slot, source, inside);
            }""")

_ELEMENTS = Template("""\
            for (int i = threadIdx.x; i < $lines * $length; i += $threads) {
                const int line = $line, place = $place_in_line;
                const long long $across = $across_first + line, $along = $along_first + place;
                unsigned short bits = 0;
                if ($across < $across_end && $along < $along_end) {
$place
                }
                $target[$slot] = bits;
            }""")


def chunks_along(scalar: Scalar, axis: Symbol) -> Load | None:
    """The element that chunks along ``axis`` begin with; ``None``: they are no chunks."""
    run = run_of(scalar, axis, extent_of(axis))
    return run.load if run is not None and run.count == CHUNK and run.load is scalar else None


@dataclass(frozen=True)
class TileOperand:
    """An operand of a matmul, of whose rows, or columns, a block has those of a tile.

    Attributes:
        matmul: the kernel.
        frame: writes its parts.
        is_right: whether it is the right operand.
        run: the element that chunks begin with; ``None``: elements are loaded one by one.
        by_rows: whether chunks of the right operand are along columns.
        extent: its rows, or columns, of a tile.
        threads: of a block.
        slot: the place in shared memory of an element of a line.
    """

    matmul: Matmul
    frame: Frame
    is_right: bool
    run: Load | None
    by_rows: bool
    extent: int
    threads: int
    slot: str

    def load(self, names: Mapping[Symbol, str]) -> tuple[str, str]:
        """Statements that find where chunks come from, and that load a slice.

        Args:
            names: by axis, the variable that has its value.
        """
        matmul, run, by_rows = self.matmul, self.run, self.by_rows
        outer = ("n", "first_column", "columns") if self.is_right else ("m", "first_row", "rows")
        axes = [outer, ("k", "start", "depth")]
        lines, length = self.extent, SLICE
        if by_rows:
            axes.reverse()
            lines, length = length, lines
        values: dict[str, object] = {
            "target": "right" if self.is_right else "left",
            "threads": self.threads,
            "lines": lines,
            "length": length,
            "slot": self.slot,
            "chunk": CHUNK,
        }
        for role, (name, first, end) in zip(("across", "along"), axes, strict=True):
            values |= {role: name, f"{role}_first": first, f"{role}_end": end}
        if run is None:
            return "", self._elements(values, names)
        steps = [coefficient(run.index, axis) for axis in matmul.k]
        even = all(step is not None and isinstance(step[0], int) for step in steps)
        if len(matmul.k) > 1 and (by_rows or not even):
            return "", self._wandering(run, values, names)
        values |= {
            "count": -(-lines * length // CHUNK // self.threads),
            "outer": outer[0],
            "outer_end": outer[2],
            "across_start": "0" if by_rows else outer[1],
            "along_start": outer[1] if by_rows else "0",
            "k_place": "line" if by_rows else "place",
            "whole": str(lines * length // CHUNK % self.threads == 0).lower(),
        }
        start = {matmul.k[0]: "k"} if len(matmul.k) == 1 else dict.fromkeys(matmul.k, "0")
        point = self.frame.point(4, {**names, **start})
        point.writer.line(f"{values['target']}_from[i] = b{run.buffer} + {point.index(run.index)};")
        sources = _SOURCES.substitute(values, place=point.text)
        if len(matmul.k) > 1:
            before, offset = self._offset(run, str(values["target"]))
            return sources, _CHUNKS.substitute(values, before=before, offset=offset)
        (step,) = steps
        assert step is not None
        point = self.frame.point(2, names)
        name = f"{values['target']}_step"
        point.writer.line(f"const long long {name} = {point.index(step[0] * SLICE)};")
        chunks = _CHUNKS.substitute(values, before="", offset=f"number * {name}")
        return f"{point.text}\n{sources}", chunks

    def _offset(self, run: Load, target: str) -> tuple[str, str]:
        """Statements for the way of a thread's chunks from where sums begin, and its name.

        All chunks that a thread loads of a slice begin at the same place of the sums.
        """
        index: Dim = 0
        for axis in self.matmul.k:
            step = coefficient(run.index, axis)
            assert step is not None
            index = index + step[0] * Expr({(axis,): 1}, 0)
        place, offset = f"{target}_place", f"{target}_offset"
        unraveled, inner = self.frame.unravel(self.matmul.k, place, 4)
        point = self.frame.point(4, inner)
        point.writer.line(f"{offset} = {point.index(index)};")
        first = f"start + threadIdx.x % {SLICE // CHUNK} * {CHUNK}"
        lines = [
            f"            long long {offset};",
            "            {",
            f"                const long long {place} = {first};",
            unraveled,
            point.text,
            "            }",
            "",
        ]
        return "\n".join(lines), offset

    def _wandering(
        self, run: Load, values: Mapping[str, object], names: Mapping[Symbol, str]
    ) -> str:
        """Statements that load chunks whose addresses no step leads to."""
        unraveled, inner = self.frame.unravel(self.matmul.k, "k", 5)
        point = self.frame.point(5, {**names, **inner})
        point.writer.line(f"source += {point.index(run.index)};")
        place = "\n".join([*filter(None, [unraveled]), point.text])
        return _WANDERING_CHUNKS.substitute(values, buffer=run.buffer, place=place)

    def _elements(self, values: Mapping[str, Any], names: Mapping[Symbol, str]) -> str:
        """Statements that compute the elements of a slice, one by one."""
        scalar = self.matmul.b if self.is_right else self.matmul.a
        unraveled, inner = self.frame.unravel(self.matmul.k, "k", 5)
        point = self.frame.point(5, {**names, **inner})
        point.writer.line(f"bits = {point.value(scalar, scalar.dtype).stored};")
        lines, length = values["lines"], values["length"]
        along = self.by_rows or runs_along(scalar, self.matmul.k[-1])
        at = (f"i / {length}", f"i % {length}") if along else (f"i % {lines}", f"i / {lines}")
        place = "\n".join([*filter(None, [unraveled]), point.text])
        return _ELEMENTS.substitute(values, line=at[0], place_in_line=at[1], place=place)
