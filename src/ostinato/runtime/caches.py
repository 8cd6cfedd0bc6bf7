"""Caches of compiled graphs: by range of sizes, and by any key.

A graph with Variables needs neither: one compile serves every size. These are for graphs that are
compiled at fixed sizes, because a front end or a device asks for it.
"""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.cache.single_flight import SingleFlight
from ostinato.errors import GraphError, InputError
from ostinato.ir.leaves import as_numpy
from ostinato.runtime.arrays import checked_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from ostinato.ir.graph import BaseGraph
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.compiled_graph import CompiledGraph
    from ostinato.runtime.session import Session

__all__ = ["BucketedCompileCache", "CompileCache", "power_of_two_ladder"]

Bucket = tuple[int, int]
"""A half-open range of keys, ``(start, end)``."""


def power_of_two_ladder(lo: int, hi: int) -> list[Bucket]:
    """Buckets for keys up to ``hi`` whose upper ends are ``lo`` and its doubles.

    >>> power_of_two_ladder(8, 64)
    [(1, 9), (9, 17), (17, 33), (33, 65)]

    The first bucket takes every key from 1 to ``lo``; the last is cut at ``hi``, so nothing is
    padded beyond it.

    Raises:
        ValueError: not ``1 <= lo <= hi``.
    """
    lo, hi = operator.index(lo), operator.index(hi)
    if not 1 <= lo <= hi:
        raise ValueError(f"a ladder needs 1 <= lo <= hi, got lo={lo}, hi={hi}")
    buckets = []
    start, upper = 1, lo
    while start <= hi:
        buckets.append((start, min(upper, hi) + 1))
        start, upper = upper + 1, 2 * upper
    return buckets


class BucketedCompileCache:
    """One compiled graph for each range of sizes, compiled when a size first falls into it.

    A graph is built for the greatest size of its bucket, ``upper = end - 1``; smaller inputs are
    padded. May be used from many threads: a bucket is compiled once however many ask at the same
    time.

    >>> cache = ost.BucketedCompileCache(session, ost.power_of_two_ladder(8, 64))
    >>> upper, (logits,) = cache.run_padded(11, 11, build, {"x": x})   # x: 11 rows; upper: 16

    Args:
        session: compiles the graphs.
        buckets: half-open ranges ``(start, end)`` of keys: ascending, none empty, none
            overlapping another. Gaps are allowed; a key in one has no graph.
        params: weights for every graph that is compiled, beside those in the graphs themselves.

    Raises:
        ValueError: no buckets, or they are not as described.
    """

    def __init__(
        self,
        session: Session,
        buckets: Sequence[Bucket],
        *,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.buckets = _checked_buckets(buckets)
        self._session = session
        self._params = params
        self._compiled: SingleFlight[Bucket, CompiledGraph] = SingleFlight(kind="bucket")

    def bucket_of(self, key: int) -> Bucket | None:
        """The range that holds ``key``, if one does."""
        return next((bucket for bucket in self.buckets if bucket[0] <= key < bucket[1]), None)

    def get(self, key: int, build: Callable[[int], BaseGraph]) -> CompiledGraph | None:
        """The graph for ``key``; ``None`` where no range holds it, and then nothing is built.

        Args:
            key: the size.
            build: makes the graph of a given leading size; called with the bucket's ``upper`` the
                first time that a key falls into a bucket. What it raises, and what compiling
                raises, reaches all callers that wait; the next call tries again. It may ask this
                cache for other buckets.

        Raises:
            CircularBuildError: ``build`` asks, directly or over the builds of other threads, for
                the bucket that it builds.
        """
        bucket = self.bucket_of(key)
        return None if bucket is None else self._get(bucket, build)

    def run_padded(
        self,
        key: int,
        rows: int,
        build: Callable[[int], BaseGraph],
        inputs: Mapping[str, Any],
        *,
        pad: Sequence[str] | None = None,
        trim: Sequence[int] | None = None,
    ) -> tuple[int, list[Array]]:
        """Run the graph for ``key`` on ``rows`` rows.

        Rows are added to the inputs until the graph's size is reached, all zero, and taken off
        the outputs again. The active extent tells kernels to leave them alone where they can.

        Args:
            key: picks the bucket.
            rows: how many rows there are; at most the bucket's ``upper``.
            build: see :meth:`get`.
            inputs: by name. Those that are padded have ``rows`` rows.
            pad: which inputs to pad; by default, every one whose axis 0 is ``upper`` in the graph.
            trim: positions of the outputs to cut to ``rows`` rows; by default, those whose axis 0
                is ``upper`` in the graph.

        Returns:
            ``upper``, and the outputs.

        Raises:
            InputError: no range holds ``key``; ``rows`` is more than ``upper``; ``pad`` or
                ``trim`` names what does not exist or is not ``upper`` long; no input is padded; or
                an input does not fit. Nothing has run.
        """
        bucket = self.bucket_of(key)
        if bucket is None:
            raise InputError(f"no bucket holds {key!r}; they are {list(self.buckets)}")
        upper = bucket[1] - 1
        if not isinstance(rows, int | np.integer) or not 0 <= rows <= upper:
            raise InputError(f"expected 0 <= rows <= {upper}, got {rows!r}")
        compiled = self._get(bucket, build)
        padded = _named_for_padding(compiled, upper, pad)
        trimmed = _numbered_for_trimming(compiled, upper, trim)
        feeds = dict(checked_mapping("input", inputs, compiled.inputs))
        for name in padded:
            if name in feeds:
                feeds[name] = _pad_rows(name, feeds[name], rows, upper)
        with compiled.active_extent(rows, upper):
            outputs = compiled.run(feeds)
        for position in trimmed:
            outputs[position] = outputs[position][:rows]
        return upper, outputs

    def _get(self, bucket: Bucket, build: Callable[[int], BaseGraph]) -> CompiledGraph:
        def compile_() -> CompiledGraph:
            return self._session.compile(build(bucket[1] - 1), self._params)

        return self._compiled.get(bucket, compile_)


class CompileCache:
    """Compiled graphs by key; the one that was used longest ago makes room for a new one.

    May be used from many threads: a graph is compiled once however many ask at the same time. An
    evicted graph lives on as long as it is referenced.

    Args:
        session: compiles the graphs.
        capacity: how many are kept.

    Attributes:
        hits: how many calls found their graph, or waited while another compiled it.
        misses: how many compiled.
        evictions: how many graphs had to go.

    Raises:
        ValueError: ``capacity`` is less than 1.
    """

    def __init__(self, session: Session, capacity: int) -> None:
        if isinstance(capacity, bool) or operator.index(capacity) < 1:
            raise ValueError(f"a cache holds at least one graph, got capacity={capacity!r}")
        self.capacity = capacity
        self._session = session
        self._compiled: SingleFlight[Hashable, CompiledGraph] = SingleFlight(capacity, kind="key")

    def get(self, key: Hashable, build: Callable[[], BaseGraph]) -> CompiledGraph:
        """The graph of ``key``, compiled from ``build()`` if it is not there.

        What ``build`` or compiling raises reaches all callers that wait, and is not kept. ``build``
        may ask this cache for other keys.

        Raises:
            CircularBuildError: ``build`` asks, directly or over the builds of other threads, for
                the key that it builds.
        """
        return self._compiled.get(key, lambda: self._session.compile(build()))

    @property
    def hits(self) -> int:
        return self._compiled.hits

    @property
    def misses(self) -> int:
        return self._compiled.misses

    @property
    def evictions(self) -> int:
        return self._compiled.evictions

    def __len__(self) -> int:
        return len(self._compiled)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._compiled


def _checked_buckets(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    listed = tuple((operator.index(start), operator.index(end)) for start, end in buckets)
    if not listed:
        raise ValueError("at least one bucket is needed")
    for start, end in listed:
        if not start < end:
            raise ValueError(f"bucket ({start}, {end}) is empty: it holds start <= key < end")
    for (a, b), (c, d) in itertools.pairwise(listed):
        if c < b:
            raise ValueError(f"buckets ({a}, {b}) and ({c}, {d}) overlap or are not in order")
    return listed


def _named_for_padding(
    compiled: CompiledGraph, upper: int, pad: Sequence[str] | None
) -> Sequence[str]:
    long_enough = [name for name, spec in compiled.inputs.items() if spec.shape[:1] == (upper,)]
    chosen = long_enough if pad is None else list(pad)
    for name in chosen:
        if name not in long_enough:
            shape = compiled.inputs[name].shape if name in compiled.inputs else "no such input"
            raise InputError(f"cannot pad {name!r} to {upper} rows in the graph: {shape}")
    if not chosen:
        raise InputError(f"the graph has no input of {upper} rows to pad")
    return chosen


def _numbered_for_trimming(
    compiled: CompiledGraph, upper: int, trim: Sequence[int] | None
) -> Sequence[int]:
    shapes = [spec.shape for spec in compiled.outputs.values()]
    long_enough = [number for number, shape in enumerate(shapes) if shape[:1] == (upper,)]
    chosen = long_enough if trim is None else list(trim)
    for number in chosen:
        if number not in long_enough:
            shape = shapes[number] if number in range(len(shapes)) else "no such output"
            raise InputError(f"output {number} does not have {upper} rows in the graph: {shape}")
    return chosen


def _pad_rows(name: str, given: Any, rows: int, upper: int) -> Array:
    try:
        array = as_numpy(given)
    except GraphError as error:
        raise InputError(f"input {name!r}: {error}") from None
    if array.shape[:1] != (rows,):
        raise InputError(f"input {name!r} is to have {rows} rows, got shape {array.shape}")
    padded = np.zeros((upper, *array.shape[1:]), array.dtype)
    padded[:rows] = array
    return padded
