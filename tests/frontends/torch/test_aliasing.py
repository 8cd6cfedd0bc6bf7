"""Functionalisation, on programs written by hand, against NumPy's views and in-place writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontends.torch.aliasing import functional_target, written_inputs
from ostinato.frontends.torch.assembly import build_graph
from ostinato.frontends.torch.layout import is_viewable
from ostinato.frontends.torch.program import (
    BUFFER,
    USER_INPUT,
    USER_OUTPUT,
    InputSpec,
    OutputSpec,
    Program,
    ProgramNode,
    Ref,
    TensorMeta,
)


class Writer:
    """Builds a program over one float32 input, or a buffer, and shows NumPy's counterpart.

    Args:
        shape: of the tensor.
        kind: an input or a buffer.
    """

    def __init__(self, *shape: int, kind: str = USER_INPUT) -> None:
        self.array = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        self.initial = self.array.copy()
        self._nodes: list[ProgramNode] = []
        self._arrays: dict[str, np.ndarray] = {"x": self.array}
        self._kind = kind

    def op(self, target: str, result: np.ndarray, *args: Any, **kwargs: Any) -> str:
        """Append an op whose result, in NumPy, is ``result``."""
        name = f"n{len(self._nodes)}"
        strides = tuple(s // result.itemsize for s in result.strides)
        meta = TensorMeta(result.dtype.name, result.shape, strides)
        given = tuple(Ref(arg) if arg in self._arrays else arg for arg in args)
        node = ProgramNode(name, target, given, kwargs, (name,), (meta,))
        self._nodes.append(node)
        self._arrays[name] = result
        return name

    def array_of(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def program(self, *outputs: str) -> Program:
        meta = TensorMeta("float32", self.initial.shape, _strides(self.initial))
        spec = InputSpec("x", self._kind, meta, "x")
        results = tuple(OutputSpec(Ref(name), USER_OUTPUT, f"out_{name}") for name in outputs)
        weights = {} if self._kind == USER_INPUT else {"x": self.initial}
        return Program("test", (spec,), tuple(self._nodes), results, {}, weights)

    def check(self, *outputs: str) -> ost.Graph:
        """Compare outputs, and the tensor after the run, with NumPy."""
        graph = build_graph(self.program(*outputs), "test")
        compiled = ost.Session("cpu", threads=1).compile(graph)
        found = compiled.run({"x": self.initial} if self._kind == USER_INPUT else {})
        for name, result in zip(outputs, found, strict=False):
            np.testing.assert_array_equal(result, self._arrays[name], err_msg=name)
        if self._kind == BUFFER:
            np.testing.assert_array_equal(compiled.read_handle("x"), self.array)
        elif len(found) > len(outputs):
            np.testing.assert_array_equal(found[-1], self.array)
        else:
            np.testing.assert_array_equal(self.initial, self.array)
        return graph


def _strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


def add(writer: Writer, name: str, number: float) -> str:
    """``name += number`` in place."""
    array = writer.array_of(name)
    array += np.float32(number)
    return writer.op("aten.add_.Tensor", array, name, number)


KINDS = pytest.mark.parametrize("kind", [USER_INPUT, BUFFER])


@KINDS
def test_a_write_is_seen_by_every_view(kind):
    w = Writer(2, 3, kind=kind)
    view = w.op("aten.view.default", w.array.reshape(6), "x", (6,))
    turned = w.op("aten.transpose.int", w.array.T, "x", 0, 1)
    add(w, view, 10)
    add(w, turned, 1)
    w.check(view, turned)


@KINDS
def test_reads_before_a_write_keep_their_values(kind):
    w = Writer(2, 3, kind=kind)
    before = w.op("aten.neg.default", -w.array, "x")
    add(w, "x", 5)
    after = w.op("aten.neg.default", -w.array, "x")
    w.check(before, after)


@KINDS
def test_views_of_views(kind):
    w = Writer(4, 3, 2, kind=kind)
    a = w.op("aten.slice.Tensor", w.array[1:3], "x", 0, 1, 3)
    b = w.op("aten.select.int", w.array[1:3][:, -1], a, 1, -1)
    c = w.op("aten.unsqueeze.default", w.array_of(b)[None], b, 0)
    add(w, c, 100)
    add(w, a, 1)
    w.check(a, b, c)


@pytest.mark.parametrize("bounds", [(0, 4), (1, 9223372036854775807), (-2, -1), (2, 2), (3, 1)])
def test_slices(bounds):
    w = Writer(4, 3)
    start, stop = bounds
    part = w.op("aten.slice.Tensor", w.array[start:stop], "x", 0, start, stop)
    add(w, part, 7)
    w.check(part)


def test_a_strided_slice():
    w = Writer(7, 2)
    part = w.op("aten.slice.Tensor", w.array[1:6:2], "x", 0, 1, 6, 2)
    add(w, part, 7)
    w.check(part)


def test_permuted():
    w = Writer(2, 3, 4)
    view = w.op("aten.permute.default", w.array.transpose(2, 0, 1), "x", (2, 0, -2))
    part = w.op("aten.select.int", w.array_of(view)[1], view, 0, 1)
    add(w, part, 3)
    w.check(view, part)


def test_a_part_of_a_split():
    w = Writer(5, 2)
    parts = np.split(w.array, [2, 4])
    whole = w.op("aten.split.Tensor", w.array, "x", 2)
    metas = tuple(TensorMeta("float32", p.shape, _strides(p)) for p in parts)
    node = w._nodes[-1]
    w._nodes[-1] = ProgramNode(node.name, node.target, node.args, {}, node.results, metas)
    last = w.op("_operator.getitem", parts[1], whole, 1)
    add(w, last, 3)
    w.check(last)


def test_expanded_and_then_selected():
    """A write to one row of an expanded tensor is one to the row that all of them are."""
    w = Writer(1, 3)
    wide = np.lib.stride_tricks.as_strided(w.array, (4, 3), (0, 4))
    view = w.op("aten.expand.default", wide, "x", (4, 3))
    row = w.op("aten.select.int", wide[2], view, 0, 2)
    add(w, row, 3)
    w.check(view, row)


def test_a_reshape_that_copies_is_no_view():
    w = Writer(2, 3)
    turned = w.op("aten.transpose.int", w.array.T, "x", 0, 1)
    flat = w.op("aten.reshape.default", w.array.T.reshape(6).copy(), turned, (6,))
    add(w, flat, 3)
    w.check(flat)


def test_a_write_of_another_dtype_and_shape_is_converted():
    w = Writer(2, 3)
    row = w.op("aten.select.int", w.array[0].copy(), "x", 0, 0)
    compared = w.op("aten.gt.Scalar", w.array[0] > 2, row, 2)
    w.array[...] = w.array[0] > 2
    w.op("aten.copy_.default", w.array, "x", compared)
    w.check()


def test_empty_tensors():
    w = Writer(0, 3)
    part = w.op("aten.slice.Tensor", w.array[:, 1:2], "x", 1, 1, 2)
    add(w, part, 3)
    w.check(part)


def test_an_input_that_is_only_read_is_no_output():
    w = Writer(2, 3)
    view = w.op("aten.view.default", w.array.reshape(6), "x", (6,))
    graph = w.check(view)
    assert list(graph.outputs) == ["out_n0"]


def test_a_written_input_is_an_output_of_its_name():
    w = Writer(2, 3)
    add(w, "x", 1)
    graph = w.check("n0")
    assert list(graph.outputs) == ["out_n0", "x"]


def test_a_cache_row_is_written_in_place():
    """A row that is written to a buffer costs one row, not the whole buffer."""
    w = Writer(64, 8, kind=BUFFER)
    row = w.op("aten.slice.Tensor", w.array[5:6], "x", 0, 5, 6)
    w.array[5:6] = 3
    w.op("aten.fill_.Scalar", w.array[5:6], row, 3.0)
    w.check(row)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("aten.add_.Tensor", "aten.add.Tensor"),
        ("aten.index_copy_.default", "aten.index_copy.default"),
        ("aten.__iand__.Tensor", "aten.__and__.Tensor"),
        ("aten.__rsub__.Scalar", None),
        ("aten.add.Tensor", None),
        ("_operator.add", None),
        ("aten._index_put_impl_.default", "aten._index_put_impl.default"),
    ],
)
def test_functional_targets(target, found):
    assert functional_target(target) == found


def test_written_inputs_are_found_before_the_conversion():
    w = Writer(2, 3)
    view = w.op("aten.view.default", w.array.reshape(6), "x", (6,))
    assert not written_inputs(w.program(view))
    add(w, view, 1)
    assert written_inputs(w.program(view)) == {"x"}


@pytest.mark.parametrize("shape", [(2, 3, 4), (4, 1, 3), (1, 6), (5,), (2, 2, 2, 3)])
def test_views_by_strides_are_those_of_numpy(shape):
    """A reshape is a view for strides with which NumPy makes one without a copy."""
    base = np.arange(int(np.prod(shape)) * 2, dtype=np.float32)
    dense = base[: base.size // 2].reshape(shape)
    layouts = [dense, dense.transpose(), base[::2].reshape(shape), np.flip(dense, 0)[::-1]]
    for array in layouts:
        size = array.size
        for wanted in [(size,), (1, size), array.shape[::-1], (size // 2, 2), (2, size // 2)]:
            if np.prod(wanted) != size:
                continue
            made = array.view()
            try:
                made.shape = wanted
                expected = True
            except AttributeError:
                expected = False
            assert is_viewable(array.shape, _strides(array), wanted) == expected, (array, wanted)
