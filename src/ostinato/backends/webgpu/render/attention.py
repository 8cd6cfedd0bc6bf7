"""Attention as WGSL: some rows of queries against all keys, with an online softmax.

A workgroup has some rows of queries in workgroup memory, and takes as many keys at a time as it has
threads. Each thread multiplies all rows with its key; threads of a row find the greatest score and
the weights; then threads add up the weighted values, each for its features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.webgpu.render.arrays import element_type
from ostinato.backends.webgpu.render.code import NAMESPACE, KernelCode
from ostinato.backends.webgpu.render.operands import LANES, are_neighbours, four_along
from ostinato.dtypes import BOOL
from ostinato.lower.loopir.nodes import Reduce, Stage, extent_of, max_extent
from ostinato.variables import bounds, ceil_div, prod

if TYPE_CHECKING:
    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.rules.attention_spec import AttentionSpec

__all__ = ["shader"]

#: Rows of a workgroup, at most, and threads; where there are few rows, more threads.
_ROWS, _THREADS, _MANY_THREADS = 8, 64, 256

#: Workgroups that keep a GPU busy.
_FILLED = 128

#: Elements of queries in workgroup memory, at most; of longer rows they are read where they are.
_MOST_QUERIES = 1024


def shader(
    attention: Kernel, spec: AttentionSpec, target: WebGpuTarget, bindings: Bindings
) -> Shader:
    """A kernel of attention, rendered for a device.

    Args:
        attention: the kernel.
        spec: its algebra.
        target: the device.
        bindings: of its arguments.
    """
    return _Attention(attention, spec, target, bindings).render()


class _Attention:
    def __init__(
        self, attention: Kernel, spec: AttentionSpec, target: WebGpuTarget, bindings: Bindings
    ) -> None:
        self.spec = spec
        reads = [Reduce("", "sum", scalar, scalar.dtype) for scalar in spec.operands]
        self.code = KernelCode(attention, [Stage((), (*reads, spec.store))], target, bindings)
        self.rows = 1
        while self.rows < min(_ROWS, max_extent(spec.m)):
            self.rows *= 2
        self.points = prod(map(extent_of, spec.batch))
        few = bounds(self.points)[1] * -(-max_extent(spec.m) // self.rows) < _FILLED
        self.threads = min(_MANY_THREADS if few else _THREADS, target.threads)
        self.columns = max(1, -(-max_extent(spec.column) // self.threads))
        self.depth = max_extent(spec.depth)
        self.type = element_type(spec.acc)
        self.query = ""

    def render(self) -> Shader:
        code, spec, writer = self.code, self.spec, self.code.writer
        row_tiles = ceil_div(extent_of(spec.m), self.rows)
        groups = self.points * row_tiles
        across = code.declare("n", code.size(row_tiles, code.outermost))
        rows = code.declare("n", code.size(extent_of(spec.m), code.outermost))
        keys = code.declare("n", code.size(extent_of(spec.key), code.outermost))
        length = code.declare("n", code.size(spec.length, code.outermost))
        count = code.size(groups, code.outermost)
        arrays = {
            name: code.shared(self.type, size)
            for name, size in (
                ("weights", self.rows * self.threads),
                ("exchange", self.threads),
                ("greatest", self.rows),
                ("totals", self.rows),
                ("corrections", self.rows),
            )
        }
        if self.rows * self.depth <= _MOST_QUERIES:
            self.query = code.shared(self.type, self.rows * self.depth)
        with writer.block(f"if (i32(group) < {count})"):
            writer.line(f"let first_row = i32(group) % {across} * {self.rows};")
            writer.line(f"let point = i32(group) / {across};")
            scope = code.enter(spec.batch, "point", code.outermost)
            minus_infinity = code.dialect.literal(spec.acc, float("-inf"))
            writer.line(f"let nothing = {minus_infinity};")
            with writer.block(f"if (thread < {self.rows}u)"):
                writer.line(f"{arrays['greatest']}[thread] = nothing;")
                writer.line(f"{arrays['totals']}[thread] = 0.0;")
            self._load_queries(scope, rows)
            self._key_range(rows, keys, length)
            for row in range(self.rows):
                for column in range(self.columns):
                    writer.line(f"var sum{row}_{column} = 0.0;")
            head = f"for (var start = low; start < high; start += {self.threads})"
            with code.repeat(head, ceil_div(extent_of(spec.key), self.threads)):
                self._scores(scope, arrays["weights"], rows, keys, length)
                self._weigh(arrays)
                self._add_values(scope, arrays)
            writer.line("workgroupBarrier();")
            self._store(scope, arrays["totals"], rows)
        return code.shader(self.threads, groups)

    def _load_queries(self, scope: Scope, rows: str) -> None:
        """Bring the queries into workgroup memory."""
        if not self.query:
            return
        code, spec, writer = self.code, self.spec, self.code.writer
        size = self.rows * self.depth
        with writer.block(f"for (var i = i32(thread); i < {size}; i += {self.threads})"):
            m = code.declare("q", f"min(first_row + i / {self.depth}, {rows} - 1)")
            inside = code.at({spec.m: m, spec.depth: f"(i % {self.depth})"}, scope)
            writer.line(f"{self.query}[i] = {code.value(spec.q, spec.acc, inside)};")
        writer.line("workgroupBarrier();")

    def _key_range(self, rows: str, keys: str, length: str) -> None:
        """The keys that some row attends to, if causality and the window say so."""
        spec, writer = self.spec, self.code.writer
        if not spec.causal and spec.window is None:
            writer.line("let low = 0i;")
            writer.line(f"let high = {keys};")
            return
        writer.line(f"var low = {keys};")
        writer.line("var high = 0i;")
        stop = f"min(first_row + {self.rows}, {rows})"
        with writer.block(f"for (var m = first_row; m < {stop}; m++)"):
            writer.line(f"let position = m % {length} + {keys} - {length};")
            first = "0i" if spec.window is None else f"position - {spec.window - 1}"
            writer.line(f"low = min(low, {first});")
            writer.line(f"high = max(high, {'position + 1' if spec.causal else keys});")
        writer.line("low = max(low, 0i);")
        writer.line(f"high = min(high, {keys});")

    def _scores(self, scope: Scope, weights: str, rows: str, keys: str, length: str) -> None:
        """The scores of all rows with the key of each thread."""
        code, spec, writer = self.code, self.spec, self.code.writer
        writer.line("let key = start + i32(thread);")
        for row in range(self.rows):
            writer.line(f"var product{row} = 0.0;")
        with writer.block("if (key < high)"):
            at_key = code.at({spec.key: "key"}, scope)
            self._multiply(at_key, rows)
        for row in range(self.rows):
            writer.line(f"var score{row} = nothing;")
            m = code.declare("q", f"first_row + {row}")
            with writer.block(f"if (key < high && {m} < {rows})"):
                at = code.at({spec.key: "key", spec.m: m}, scope)
                position = code.declare("e", f"{m} % {length} + {keys} - {length}")
                self._score(f"product{row}", f"score{row}", position, at)
            writer.line(f"{weights}[{row * self.threads}u + thread] = score{row};")
        writer.line("workgroupBarrier();")

    def _multiply(self, at_key: Scope, rows: str) -> None:
        code, spec, writer = self.code, self.spec, self.code.writer
        step = LANES if are_neighbours(spec.k, spec.depth) else 1
        head = f"for (var d = 0i; d < {self.depth}; d += {step})"
        with code.repeat(head, ceil_div(self.depth, step)):
            if step == LANES:
                found = four_along(code, spec.k, spec.depth, "d", at_key, spec.acc)
            else:
                found = code.value(spec.k, spec.acc, code.at({spec.depth: "d"}, at_key))
            for row in range(self.rows):
                left = self._queries(row, step, at_key, rows)
                product = f"dot({left}, {found})" if step == LANES else f"{left} * {found}"
                writer.line(f"product{row} += {product};")

    def _queries(self, row: int, count: int, scope: Scope, rows: str) -> str:
        """The queries of a row from ``d`` on: a number, or a vector."""
        code, spec = self.code, self.spec
        if self.query:
            parts = [f"{self.query}[{row * self.depth} + d + {i}]" for i in range(count)]
            return parts[0] if count == 1 else f"vec4<{self.type}>({', '.join(parts)})"
        m = code.declare("q", f"min(first_row + {row}, {rows} - 1)")
        inside = code.at({spec.m: m}, scope)
        if count == 1:
            return code.value(spec.q, spec.acc, code.at({spec.depth: "d"}, inside))
        return four_along(code, spec.q, spec.depth, "d", inside, spec.acc)

    def _score(self, product: str, target: str, position: str, scope: Scope) -> None:
        """Assign the score of ``key`` with the row at a position, if it has one."""
        code, spec = self.code, self.spec
        holds = [f"key <= {position}"] if spec.causal else []
        if spec.window is not None:
            holds.append(f"{position} - key < {spec.window}")
        score = code.code.keep(spec.acc, product) * spec.scale
        if spec.softcap is not None:
            score = NAMESPACE.tanh(score / spec.softcap) * spec.softcap
        if spec.mask is not None:
            mask = code.scalars.value(spec.mask, scope)
            if mask.dtype == BOOL:
                holds.append(mask.text)
            else:
                score = score + mask
        with code.writer.block(f"if ({' && '.join(holds)})" if holds else ""):
            code.writer.line(f"{target} = {score.text};")

    def _weigh(self, arrays: dict[str, str]) -> None:
        """The weights of the scores, and what they change in the sums so far."""
        writer, members = self.code.writer, self.threads // self.rows
        weights, exchange = arrays["weights"], arrays["exchange"]
        greatest, totals, corrections = (
            arrays[name] for name in ("greatest", "totals", "corrections")
        )
        writer.line(f"let row = thread / {members}u;")
        writer.line(f"let member = thread % {members}u;")
        writer.line(f"let before = {greatest}[row];")
        writer.line("var most = before;")
        every = f"for (var i = member; i < {self.threads}u; i += {members}u)"
        with self.code.repeat(every, self.threads // members):
            writer.line(f"most = maximum_f32(most, {weights}[row * {self.threads}u + i]);")
        self._exchange("most", "maximum_f32({}, {})", exchange, members)
        writer.line("let shift = select(most, 0.0, most == nothing);")
        writer.line("var total = 0.0;")
        with self.code.repeat(every, self.threads // members):
            writer.line(f"let score = {weights}[row * {self.threads}u + i];")
            writer.line("let weight = select(exp_f32(score - shift), 0.0, score == nothing);")
            writer.line(f"{weights}[row * {self.threads}u + i] = weight;")
            writer.line("total += weight;")
        self._exchange("total", "{} + {}", exchange, members)
        with writer.block("if (member == 0u)"):
            writer.line("var correction = 1.0;")
            with writer.block("if (!(before == most))"):
                writer.line("correction = exp_f32(before - most);")
            writer.line(f"{corrections}[row] = correction;")
            writer.line(f"{totals}[row] = {totals}[row] * correction + total;")
            writer.line(f"{greatest}[row] = most;")
        writer.line("workgroupBarrier();")

    def _exchange(self, name: str, combined: str, exchange: str, members: int) -> None:
        """Give the threads of a row what all of them have together."""
        writer = self.code.writer
        writer.line(f"{exchange}[thread] = {name};")
        writer.line("workgroupBarrier();")
        step = writer.fresh("s")
        with writer.block(f"for (var {step} = {members // 2}u; {step} > 0u; {step} >>= 1u)"):
            with writer.block(f"if (member < {step})"):
                mine, other = f"{exchange}[thread]", f"{exchange}[thread + {step}]"
                writer.line(f"{mine} = {combined.format(mine, other)};")
            writer.line("workgroupBarrier();")
        writer.line(f"{name} = {exchange}[row * {members}u];")
        writer.line("workgroupBarrier();")

    def _add_values(self, scope: Scope, arrays: dict[str, str]) -> None:
        """Add the weighted values to the sums of each thread's features."""
        code, spec, writer = self.code, self.spec, self.code.writer
        features = max_extent(spec.column)
        for row in range(self.rows):
            for column in range(self.columns):
                writer.line(f"sum{row}_{column} *= {arrays['corrections']}[{row}];")
        writer.line(f"let count = min(high - start, {self.threads});")
        for column in range(self.columns):
            n = code.declare("e", f"i32(thread) + {column * self.threads}")
            with writer.block(f"if ({n} < {features})"):
                i = writer.fresh("e")
                head = f"for (var {i} = 0i; {i} < count; {i}++)"
                with code.repeat(head, self.threads):
                    key = code.declare("k", f"start + {i}")
                    at = code.at({spec.key: key, spec.column: n}, scope)
                    value = code.value(spec.v, spec.acc, at)
                    for row in range(self.rows):
                        weight = f"{arrays['weights']}[{row * self.threads} + {i}]"
                        total = f"sum{row}_{column}"
                        writer.line(f"{total} = fma({weight}, {value}, {total});")
        writer.line("workgroupBarrier();")

    def _store(self, scope: Scope, totals: str, rows: str) -> None:
        code, spec, writer = self.code, self.spec, self.code.writer
        features = max_extent(spec.column)
        for column in range(self.columns):
            n = code.declare("e", f"i32(thread) + {column * self.threads}")
            with writer.block(f"if ({n} < {features})"):
                for row in range(self.rows):
                    m = code.declare("q", f"first_row + {row}")
                    with writer.block(f"if ({m} < {rows})"):
                        writer.line(f"let total = {totals}[{row}];")
                        result = code.code.keep(
                            spec.acc, f"sum{row}_{column} / select(total, 1.0, total == 0.0)"
                        )
                        at = code.at({spec.m: m, spec.column: n}, scope)
                        code.store(spec.store, at, result)
