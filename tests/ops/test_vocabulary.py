"""The vocabulary as a whole: documented, located in errors, and independent of graphs."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.conversion import round_to
from ostinato.dtypes import DType
from ostinato.errors import GraphError
from ostinato.ir.leaves import as_numpy
from ostinato.ir.types import TensorType
from ostinato.ops import OPS
from ostinato.ops.builder import Graph
from ostinato.ops.namespace import ORACLE, as_oracle
from ostinato.ops.vocabulary import Vocabulary
from ostinato.ops.vocabulary.sizes import SizeVocabulary

METHODS = [m for m in inspect.getmembers(Vocabulary, inspect.isfunction) if m[0][0] != "_"]


@pytest.mark.parametrize(("name", "method"), METHODS, ids=[name for name, _ in METHODS])
def test_every_method_is_documented_and_typed(name, method):
    assert method.__doc__
    assert method.__name__ == name
    signature = inspect.signature(method)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in list(signature.parameters.values())[1:]:
        assert parameter.annotation is not inspect.Parameter.empty


def test_no_family_hides_a_method_of_another():
    """Their classes are mixed into one: not even private names may be the same."""
    homes: dict[str, type] = {}
    for family in SizeVocabulary.__mro__:
        for name, method in vars(family).items():
            if not inspect.isfunction(method) or name.startswith("__"):
                continue
            known = homes.setdefault(name, family)
            assert issubclass(known, family), f"{name}: {known.__name__} hides {family.__name__}'s"


def test_every_op_is_documented_and_named_once():
    for name, op in OPS.items():
        assert op.name == name
        assert type(op).__doc__


def test_errors_name_the_call_the_operands_the_node_and_the_line():
    g = Graph()
    x = g.input("x", (2, 3))
    with g.labelled("block.0/proj"), pytest.raises(GraphError) as caught:
        g.sum(x, axis=7)
    text = str(caught.value)
    for part in ("sum(f32[2,3], axis=7)", "out of range", "'block.0/proj'", "test_vocabulary.py:"):
        assert part in text
    with pytest.raises(GraphError, match=r"^matmul\(f32\[2,3\], f32\[2,3\]\): [^:]*$"):
        try:
            _ = x @ x
        except GraphError as error:
            raise GraphError(str(error).split(" at /")[0]) from None


def test_a_scalar_beyond_float16_is_infinite_without_a_warning():
    g = Graph()
    x = g.input("x", (2,), "float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masked = g.where(x > 0, x, -1e9)
    assert masked.dtype.name == "float16"


class Eager(Vocabulary[np.ndarray[Any, Any]]):
    """A holder of the vocabulary that computes at once, as a session does."""

    def type_of(self, operand):
        if not isinstance(operand, np.ndarray):
            return None
        return TensorType(DType.parse(operand.dtype), operand.shape)

    def constant(self, array, dtype=None):
        return as_numpy(array, None if dtype is None else DType.parse(dtype))

    def apply(self, op, operands, attrs):
        types = op.infer(*map(self.type_of, operands), **attrs)
        results = op.evaluate(ORACLE, *map(as_oracle, operands), **attrs)
        listed = results if isinstance(results, tuple) else (results,)
        return tuple(round_to(r, t.dtype) for r, t in zip(listed, types, strict=True))


def test_the_vocabulary_serves_others_than_graphs(rng):
    s = Eager()
    x = rng.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(s.add(x, 1.0), x + 1)
    np.testing.assert_allclose(s.mean(s.transpose(x), 0), x.mean(1), rtol=1e-6)
    np.testing.assert_array_equal(s.slice(x, [-2], [None], axes=[1]), x[:, -2:])
    np.testing.assert_array_equal(s.topk(x, 2)[0], -np.sort(-x, 1)[:, :2])
    with pytest.raises(GraphError, match=r"add\(f32\[3,4\], 'no'\).* at .*test_vocabulary.py"):
        s.add(x, "no")


def test_there_is_one_instance_of_each_op():
    for op in OPS.values():
        assert pickle.loads(pickle.dumps(op)) is op
        assert copy.deepcopy(op) is op
        assert type(op)() is op


def test_pickled_graphs_compute_what_they_did():
    g = Graph("pickled")
    x, w, s = g.input("x", (2, 3)), g.param("w", (3,)), g.state("s", (2, 3))
    g.assign(s, s + 1.0)
    g.set_outputs({"y": g.relu(x + w * 2.0) + s})
    values = {"w": np.arange(3, dtype=np.float32)}
    inputs = {"x": np.array([[1, -5, 2], [-9, 4, 0]], dtype=np.float32)}
    session = ost.Session()
    expected = session.compile(g, values).run(inputs)[0]
    actual = session.compile(pickle.loads(pickle.dumps(g)), values).run(inputs)[0]
    np.testing.assert_array_equal(actual, expected)
