"""NaN, infinities, signed zeros, denormals, extreme integers and zero divisors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType
from ostinato.ops import OPS
from ostinato.ops.base import Elementwise
from tests.devices.catalogue import abilities
from tests.devices.registered import open_session

from .compare import TOLERANCE
from .draw import ANY, NUMBERS
from .recipes import ATTRS, DTYPES_OF_DOMAIN

Array = np.ndarray[Any, Any]

ELEMENTWISE = {name: op for name, op in OPS.items() if isinstance(op, Elementwise)}
REDUCTIONS = ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all")

#: Functions that cancel on the way, so that small results have the error of larger ones.
_ABSOLUTE = frozenset({"gelu"})

#: Quotients of exponentials, one of which overflows where the result is subnormal.
_UNDERFLOWS = frozenset({"sigmoid", "silu", "mish"})

#: Functions with a term that may be subnormal next to results that are not, and its factor at most:
#: devices may take it for zero.
_SUBNORMAL_TERMS = {"logaddexp": 1.0, "celu": 1.0, "mish": 1000.0, "silu": 1000.0}

#: The sign of a zero is accident here: the larger of 0 and -0, or what underflows.
_ANY_ZERO = frozenset(
    {"maximum", "minimum", "relu", "relu6", "elu", "selu", "celu", "log_sigmoid", "max", "min"}
)


#: Ops with tests of their own below, and in ``tests/ops/test_special.py``: their kernels are long.
ELSEWHERE = frozenset(
    {"bitcast", "cast", "where", "gcd", "igamma", "igammac", "orthogonal_polynomial"}
)


def later_integers(name: str) -> set[str]:
    """Integers with which a plain run leaves out the special values of an elementwise op.

    ``test_ops.py`` has the op with these, and leaves out the other ones.
    """
    dtypes = DTYPES_OF_DOMAIN[ELEMENTWISE[name].domain]
    integers = [dtype for dtype in dtypes if DType.parse(dtype).is_integer]
    number = [*ELEMENTWISE].index(name)
    return {dtype for i, dtype in enumerate(integers) if (i + number) % 2}


class _Fixed:
    """Draws attributes deterministically."""

    def chance(self) -> bool:
        return False


def attributes(name: str, dtype: str) -> dict[str, Any]:
    if name == "clip":
        return {"min": 1 if dtype.startswith("uint") else -1, "max": 2}
    return ATTRS[name](_Fixed()) if name in ATTRS else {}  # type: ignore[arg-type]


def specials(dtype: str) -> Array:
    """Every kind of value of a dtype, and some that are nothing special."""
    parsed = DType.parse(dtype)
    if parsed.is_bool:
        return np.array([False, True])
    if parsed.is_integer:
        info = np.iinfo(parsed.numpy)
        near = [info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, 3, 7, 8, 31, 63, 64, 100]
        less = [-1, -2, -3, -7, -100] if parsed.is_signed else [128, 200, 255]
        return np.array(near + less, parsed.numpy)
    info = ml_dtypes.finfo(parsed.numpy) if dtype == "bfloat16" else np.finfo(parsed.numpy)
    extremes = [info.max, info.tiny, info.smallest_subnormal, info.tiny / 2, info.eps]
    plain = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 88.0, 104.0, 1000.0, 30000.0]
    both = np.array([*extremes, *plain, np.inf]).astype(parsed.numpy)
    return np.concatenate([both, -both, np.array([np.nan]).astype(parsed.numpy)])


def grid(dtype: str, arity: int) -> list[Array]:
    """All combinations of special values; of three operands, only those of some."""
    values = specials(dtype)
    choices = [values] * arity if arity < 3 else [values, values[::2], values[::3]]
    return [np.ascontiguousarray(a).ravel() for a in np.meshgrid(*choices, indexing="ij")]


def mismatches(
    actual: Array, expected: Array, name: str, *, subnormals: bool = True
) -> Iterator[int]:
    """The positions at which op ``name`` is off by a few roundings, in kind or in sign of zero.

    Args:
        actual, expected: the results.
        name: the op's.
        subnormals: whether the device computes with subnormal numbers.
    """
    assert actual.dtype == expected.dtype
    dtype = str(expected.dtype)
    if dtype not in TOLERANCE:
        yield from np.flatnonzero(actual != expected)
        return
    mine, truth = actual.astype(np.float64), expected.astype(np.float64)
    info = (ml_dtypes.finfo if dtype == "bfloat16" else np.finfo)(dtype)
    least = float(info.tiny if name in _UNDERFLOWS else info.smallest_subnormal)
    if not subnormals:
        least = max(least, _SUBNORMAL_TERMS.get(name, 0.0) * float(info.tiny))
    with np.errstate(invalid="ignore"):
        same = (mine == truth) | (np.isnan(mine) & np.isnan(truth))
        zeros = (mine == 0) & (truth == 0)
        if name not in _ANY_ZERO:
            same &= ~zeros | (np.signbit(mine) == np.signbit(truth))
        magnitude = np.maximum(np.abs(truth), 1.0 if name in _ABSOLUTE else 0.0)
        close = ~zeros & (np.abs(mine - truth) <= TOLERANCE[dtype] * magnitude + least)
    yield from np.flatnonzero(~same & ~close)


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


def flushed(array: Array) -> Array:
    """The array with zeros of the same sign in place of numbers that are subnormal in float32."""
    if array.dtype.kind not in "fV":
        return array
    small = np.abs(array.astype(np.float64)) < float(np.finfo(np.float32).tiny)
    return np.where(small, np.copysign(np.zeros_like(array), array), array).astype(array.dtype)


def check(session: ost.Session, graph: ost.Graph, arrays: list[Array]) -> None:
    """Compare results with the oracle's, or where subnormal numbers are zeros, with those too."""
    inputs = dict(zip(graph.inputs, arrays, strict=True))
    expected = ost.reference.evaluate(graph, inputs)
    accepted = [expected]
    subnormals = "subnormals" in abilities(session.device.kind.lower())
    if not subnormals:
        without = {name: flushed(array) for name, array in inputs.items()}
        accepted.append(ost.reference.evaluate(graph, without))
        accepted += [[flushed(array) for array in arrays] for arrays in accepted]
    actual = session.compile(graph).run(inputs)
    complaints = []
    for mine, truth, *others in zip(actual, *accepted, strict=True):
        results = [mine] if subnormals else [mine, flushed(mine)]
        wrong = set(range(mine.size))
        for result, other in itertools.product(results, (truth, *others)):
            found = mismatches(result.ravel(), other.ravel(), graph.name, subnormals=subnormals)
            wrong &= set(found)
        for i in sorted(wrong):
            given = ", ".join(repr(a.ravel()[i]) for a in arrays if a.size == mine.size)
            complaints.append(f"({given}): {mine.ravel()[i]!r}, expected {truth.ravel()[i]!r}")
    assert not complaints, f"{len(complaints)} differ\n" + "\n".join(complaints[:30])


def elementwise_cases() -> Iterator[Any]:
    """Each op with every dtype; with every second integer in a plain run, in turn."""
    for name, op in ELEMENTWISE.items():
        for dtype in DTYPES_OF_DOMAIN[op.domain] if name not in ELSEWHERE else ():
            marks = [pytest.mark.slow] if dtype in later_integers(name) else []
            yield pytest.param(name, dtype, marks=marks)


@pytest.mark.parametrize(("name", "dtype"), [*elementwise_cases()])
def test_elementwise(name: str, dtype: str, session: ost.Session) -> None:
    graph = ost.Graph(name)
    arrays = grid(dtype, ELEMENTWISE[name].arity)
    operands = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    attrs = attributes(name, dtype)
    graph.set_outputs([getattr(graph, name)(*operands, **attrs)])
    check(session, graph, arrays)


@pytest.mark.parametrize("target", ANY)
@pytest.mark.parametrize("dtype", ANY)
def test_cast(dtype: str, target: str, session: ost.Session) -> None:
    values = specials(dtype)
    graph = ost.Graph("cast")
    graph.set_outputs([graph.cast(graph.input("x", values.shape, dtype), target)])
    check(session, graph, [values])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str, dtype: str, session: ost.Session) -> None:
    """Rows that mix two special values among ordinary ones, long and short, along either axis."""
    values = specials(dtype)
    pairs = np.stack([a.ravel() for a in np.meshgrid(values, values)], 1)
    rows = np.zeros((len(pairs), 19), pairs.dtype)
    rows[:, 3] = pairs[:, 0]
    rows[:, 17] = pairs[:, 1]
    graph = ost.Graph(name)
    x = graph.input("x", rows.shape, dtype)
    y = graph.input("y", rows.T.shape, dtype)
    reduce = getattr(graph, name)
    graph.set_outputs([reduce(x, axis=1), reduce(y, axis=0)])
    check(session, graph, [rows, np.ascontiguousarray(rows.T)])
