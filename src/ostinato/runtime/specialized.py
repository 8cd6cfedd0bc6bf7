"""An executable for every size: members are compiled for the sizes that runs bring."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from ostinato.backends.base import Executable
from ostinato.backends.common.mutex import Mutex
from ostinato.errors import GraphError, InputError, PlanError, UnsupportedOpError
from ostinato.plan.order import ORDER, Accesses, Submission
from ostinato.plan.report import CompiledSizes, CompileReport
from ostinato.records import dataclass, field
from ostinato.runtime.variants import VariantValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from ostinato.backends.common.context import Context
    from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph
    from ostinato.plan.device_array import DeviceArray
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.variants import Variant, VariantKey, Variants

__all__ = ["SpecializedExecutable"]


@dataclass(eq=False)
class _Member:
    """An executable for one variant.

    Attributes:
        key: of the variant.
        executable: of its graph.
        positions: of its inputs among those of the model; ``None``: it has them all.
        sizes: for reports.
        facts: of its graph.
        used: the number of its last use.
        pinned: whether bound calls run it.
        plan: the plan, once it was made.
    """

    key: VariantKey
    executable: Executable
    positions: tuple[int, ...] | None
    sizes: CompiledSizes
    facts: Sequence[Fact]
    used: int = 0
    pinned: bool = False
    plan: ExecutionPlan | None = None

    def own(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Its inputs among those of the model."""
        return inputs if self.positions is None else [inputs[i] for i in self.positions]


class SpecializedExecutable(Executable):
    """The executables of a graph's variants, as one.

    A run takes the member for its sizes, which is compiled if there is none. Of those that are not
    bound, the least recently used one is dropped when there are too many.

    Args:
        variants: of the graph.
        build: compiles one.
        capacity: how many are kept.
        unset: params that have no value.
    """

    def __init__(
        self,
        variants: Variants,
        build: Callable[[BaseGraph, Mapping[str, Array], Sequence[Executable]], Executable],
        capacity: int,
        unset: set[str],
    ) -> None:
        self._variants = variants
        self._build = build
        self._capacity = capacity
        self._guard = Mutex()
        self._members: dict[VariantKey, _Member] = {}
        self._too_large: set[VariantKey] = set()
        self._clock = itertools.count(1)
        self._latest: _Member | None = None
        self._bound: _Member | None = None  # since the last run
        self._base: _Member | None = None
        self._token = Accesses([(id(self), 1, True)])
        self._accesses = self._token
        self._direct = False
        self._closed = False
        self._written: dict[str, Array] = {}
        self._limit: tuple[int, int] | None = None
        self._pushed: dict[int, list[tuple[tuple[int, int] | None, list[_Member]]]] = {}
        self._results: tuple[Array, ...] | None = None
        self._masks: Sequence[Array | None] | None = None
        self.unset = unset
        self.run_direct = self._run_member

    # -- members -------------------------------------------------------------------------------

    def compile_base(self) -> None:
        """Compile the graph as it is, for all sizes within its bounds.

        Raises:
            OstinatoError, MemoryError: it cannot be.
        """
        assert self._variants.base is not None
        base = self._member(self._variants.base)
        base.pinned = True
        self._latest = self._base = base
        self.run_direct = base.executable.run_direct  # as long as there is no other

    def at(self, variables: Sequence[int]) -> Executable:
        return self._of(variables)[0].executable

    def _of(self, variables: Any) -> tuple[_Member, Sequence[int]]:
        """The member for a run, and its own values of Variables."""
        if isinstance(variables, VariantValues):
            return self._of_sizes(variables)
        base = self._base
        assert base is not None
        base.used = next(self._clock)
        return base, variables

    def _of_sizes(self, chosen: VariantValues) -> tuple[_Member, Sequence[int]]:
        """The member for a variant; or for its sizes alone, if the device takes no larger ones."""
        if chosen.key not in self._too_large:
            try:
                return self._member(chosen.key), chosen.values
            except UnsupportedOpError:
                if self._variants.exact(chosen) == chosen.key:
                    raise
                self._too_large.add(chosen.key)
        return self._member(self._variants.exact(chosen)), ()

    def _member(self, key: VariantKey) -> _Member:
        """The member for a variant, compiled if there is none."""
        member = self._members.get(key)
        if member is None:
            with self._guard:
                member = self._members.get(key)
                if member is None:
                    member = self._compiled(self._variants.variant(key))
        member.used = next(self._clock)
        return member

    def _compiled(self, variant: Variant) -> _Member:
        if self._closed:
            raise PlanError("the memory of the compiled graph was released")
        start = time.perf_counter()
        graph = variant.take_graph() or self._variants.build(variant.key)
        siblings = [other.executable for other in self._members.values()]
        executable = self._build(graph, self._written, siblings)
        seconds = time.perf_counter() - start
        base = variant.key == self._variants.base
        words = "" if base else self._variants.describe(variant.key)
        report = executable.report
        sizes = CompiledSizes(words, seconds, report.compiled, report.cached)
        everything = variant.positions == tuple(range(len(self._variants.inputs)))
        positions = None if everything else variant.positions
        facts = variant.signature.facts
        member = _Member(variant.key, executable, positions, sizes, facts)
        if not base:
            self._log(graph.name, sizes)
        executable.direct = self._direct
        if self._limit is not None:
            executable.limit_rows(self._limit)
        if self._masks is not None:
            executable.place_experts(self._masks)
        self._add(member)
        return member

    def _log(self, name: str, sizes: CompiledSizes) -> None:
        import logging

        because = "; ".join(dict.fromkeys(self._variants.specialized.values()))
        logging.getLogger("ostinato.specialization").info(
            "compiled %s for %s in %.2f s (%d kernels compiled, %d from the cache)%s",
            name,
            sizes.sizes,
            sizes.seconds,
            sizes.compiled,
            sizes.cached,
            f", because of {because}" if because else "",
        )

    def _add(self, member: _Member) -> None:
        members = dict(self._members)
        loose = sorted((m for m in members.values() if not m.pinned), key=lambda m: m.used)
        for left in loose[: max(len(loose) + 1 - self._capacity, 0)]:
            del members[left.key]
        members[member.key] = member
        self._members = members  # one step: readers take no lock
        self._touch()
        self.run_direct = self._run_member

    def _touch(self) -> None:
        ranges = [*self._token]
        for member in self._members.values():
            ranges += member.executable.accesses
        self._accesses = Accesses(ranges)

    @property
    def planned(self) -> Executable:
        return self.current if self._bound is None else self._bound.executable

    @property
    def compiled_sizes(self) -> tuple[CompiledSizes, ...]:
        return tuple(m.sizes for m in sorted(self._members.values(), key=lambda m: m.used))

    @property
    def current(self) -> Executable:
        return self if self._latest is None else self._latest.executable

    def _ran_last(self, what: str) -> _Member:
        """The member of the last run.

        Raises:
            PlanError: nothing was compiled yet.
        """
        if self._latest is None:
            raise PlanError(
                f"{what}: the graph is compiled for the sizes of a run, and nothing has run yet; "
                "run it, or call warm with sizes"
            )
        return self._latest

    def _each(self) -> Iterator[Executable]:
        for member in self._members.values():
            yield member.executable

    def warm(self, variables: Sequence[int]) -> None:
        member, _ = self._of(variables)
        if self._latest is None:
            self._latest = member

    # -- running -------------------------------------------------------------------------------

    @property
    def accesses(self) -> Accesses:
        return self._accesses

    @property
    def direct(self) -> bool:
        return self._direct

    @direct.setter
    def direct(self, enable: bool) -> None:
        self._direct = enable
        for executable in self._each():
            executable.direct = enable

    @property
    def live_sizes(self) -> dict[str, int]:
        return {} if self._latest is None else self._latest.executable.live_sizes

    @property
    def last(self) -> tuple[Array, ...]:
        if self._results is not None:
            return self._results
        return () if self._latest is None else self._latest.executable.last

    @last.setter
    def last(self, results: tuple[Array, ...]) -> None:
        self._results = results

    def _run_member(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> bool:
        if not self._direct:
            return False
        member, values = self._of(variables)
        if not ORDER.in_flight:  # nothing was submitted that this would have to come after
            return self._run_directly(member, inputs, outputs, values)
        with Submission(self._accesses):
            return self._run_directly(member, inputs, outputs, values)

    def _run_directly(
        self,
        member: _Member,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        values: Sequence[int],
    ) -> bool:
        self._limit_as_pushed(member)
        ran = member.executable.run_direct(member.own(inputs), outputs, values)
        if ran:
            self._latest, self._results, self._bound = member, None, None
        return ran

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        member, values = self._of(variables)
        self._limit_as_pushed(member)
        member.executable.run(member.own(inputs), outputs, values)
        self._latest, self._results, self._bound = member, None, None

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        member, values = self._of(variables)
        if member.positions is not None:
            read = ", ".join(self._variants.way.inputs)
            raise GraphError(
                f"the graph depends on the contents of {read}, which a bound call does "
                "not read; use run"
            )
        member.pinned = True
        self._bound = member
        return member.executable.bind(inputs, outputs, values)

    # -- arrays on the device, which are the same for all members ------------------------------

    def adopt(self, array: Any) -> DeviceArray:
        first = next(self._each(), None)
        if first is None:
            raise InputError(
                f"a {type(array).__name__} is on a device, and the graph is compiled for the sizes "
                "of a run, of which there was none: call warm with sizes before"
            )
        return first.adopt(array)

    def resident(self, array: Array) -> Array:
        first = next(self._each(), None)
        return super().resident(array) if first is None else first.resident(array)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        first = next(self._each(), None)
        return super().empty(shape, dtype) if first is None else first.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        first = next(self._each(), None)
        return super().zeros(shape, dtype) if first is None else first.zeros(shape, dtype)

    # -- params and states ---------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        kept = {name: array.copy() for name, array in params.items()}
        for executable in self._each():
            executable.write_params(kept)
        self._written.update(kept)
        self.unset.difference_update(kept)

    def read_state(self, name: str) -> Array:
        return self._ran_last(f"state {name!r}").executable.read_state(name)

    def write_state(self, name: str, array: Array | None) -> None:
        self._ran_last(f"state {name!r}").executable.write_state(name, array)

    # -- leading rows --------------------------------------------------------------------------

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        self._limit = extent
        for executable in self._each():
            executable.limit_rows(extent)

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        members = list(self._members.values())
        for member in members:
            member.executable.push_limit(extent)
        self._pushed.setdefault(threading.get_ident(), []).append((extent, members))

    def _limit_as_pushed(self, member: _Member) -> None:
        """Give a member that was compiled since the limits of the calling thread."""
        if self._pushed:
            for extent, members in self._pushed.get(threading.get_ident(), ()):
                if member not in members:
                    member.executable.push_limit(extent)
                    members.append(member)

    def pop_limit(self) -> None:
        thread = threading.get_ident()
        for member in self._pushed[thread].pop()[1]:
            member.executable.pop_limit()
        if not self._pushed[thread]:
            del self._pushed[thread]

    # -- experts -------------------------------------------------------------------------------

    @property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        return () if self._latest is None else self._latest.executable.expert_layers

    def take_expert_ids(self) -> list[Array] | None:
        return None if self._latest is None else self._latest.executable.take_expert_ids()

    def place_experts(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        chosen = masks
        for executable in self._each():
            chosen = executable.place_experts(masks)
        self._masks = masks
        return chosen

    def resident_experts(self) -> Sequence[Array | None]:
        return [] if self._latest is None else self._latest.executable.resident_experts()

    def expert_transfers(self) -> ExpertTransfers:
        if self._latest is None:
            return super().expert_transfers()
        return self._latest.executable.expert_transfers()

    # -- lifetime and reports ------------------------------------------------------------------

    def clone(self, context: Context | None = None) -> SpecializedExecutable:
        with self._guard:
            twin = SpecializedExecutable(
                self._variants, self._build, self._capacity, set(self.unset)
            )
            twin._written = dict(self._written)
            twin._direct, twin._masks, twin._closed = self._direct, self._masks, self._closed
            for key, member in self._members.items():
                executable = member.executable.clone(context)
                copied = _Member(
                    key, executable, member.positions, member.sizes, member.facts, member.used
                )
                if member is self._base:
                    copied.pinned, twin._base = True, copied
                twin._members[key] = copied
                if member is self._latest:
                    twin._latest = copied
            if twin._base is not None and len(twin._members) == 1:
                twin.run_direct = twin._base.executable.run_direct
            twin._touch()
            return twin

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        member = self._bound or self._ran_last("plan")
        if member.plan is None:
            member.plan = member.executable.make_plan(member.facts)
        return member.plan

    def discard(self) -> None:
        for executable in self._each():
            executable.discard()

    def close(self) -> None:
        self._closed = True
        for executable in self._each():
            executable.close()

    @property
    def arena(self) -> memoryview:
        return self._ran_last("arena").executable.arena

    @property
    def arena_address(self) -> int:
        return self._ran_last("arena").executable.arena_address

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._ran_last("results").executable.result_offsets

    @property
    def report(self) -> CompileReport:  # type: ignore[override]
        """The compiler's report on the graph of the last run, under one on sizes."""
        lines = [f"symbolic: {', '.join(self._variants.symbolic) or 'none'}"]
        lines += [f"assumed: {word} {rule}" for word, rule in self._variants.way.conditions.items()]
        because: dict[str, list[str]] = {}
        for name, reason in {**self._variants.specialized, **self._variants.way.inputs}.items():
            because.setdefault(reason, []).append(name)
        lines += [f"specialised: {', '.join(n)}, because of {r}" for r, n in because.items()]
        sizes = [s.sizes for s in self.compiled_sizes if s.sizes]
        lines += [f"compiled for {text}" for text in sizes]
        if self._latest is None:
            return SizesReport(lines=lines)
        latest = self._latest.executable.report
        return SizesReport(**{n: getattr(latest, n) for n in vars(latest)}, lines=lines)


@dataclass
class SizesReport(CompileReport):
    """The report of a graph that is compiled for sizes.

    Attributes:
        lines: on its sizes.
    """

    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.lines, super().__str__()] if self.device else self.lines)
