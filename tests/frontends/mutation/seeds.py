"""Valid models that mutations start from: our own, and the node tests of the ``onnx`` package."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, parser
from onnx.numpy_helper import to_array

from tests.frontends.onnx_cases import node_cases

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Seed", "node_seeds", "own_seeds"]

Array = np.ndarray[Any, Any]

_HEADER = '<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>\n'

#: One graph a family of ops, in the text form of ONNX.
_GRAPHS = {
    "perceptron": """
        perceptron (float[N, 4] x) => (float[N, 2] y)
        <float[4, 3] w = {1, 2, -3, 4, 5, 6, -7, 8, 9, 1, 2, 3}, float[3] b = {1, -2, 3},
         float[3, 2] v = {1, 2, -3, 4, 5, 6}, int64[2] shape = {-1, 2}>
        { m = MatMul(x, w)  h = Add(m, b)  r = Relu(h)  p = MatMul(r, v)
          s = Reshape(p, shape)  y = Softmax<axis = -1>(s) }""",
    "convolution": """
        convolution (float[1, 2, 8, 8] x) => (float[1, 3] y)
        <float[4, 2, 1, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4,
         5, 6}, float[4] scale = {1, 2, 3, 4}, float[4] zero = {0, 1, 0, 1},
         float[3, 8] g = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}>
        { c = Conv<pads = [0, 1, 0, 1], strides = [1, 1], kernel_shape = [1, 3]>(x, w)
          n = BatchNormalization<epsilon = 0.001>(c, scale, zero, zero, scale)
          r = Relu(n)  q = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r)
          j = Concat<axis = 1>(r, q)
          m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(j)
          a = GlobalAveragePool(m)  f = Flatten(a)  y = Gemm<transB = 1, alpha = 0.5>(f, g) }""",
    "shapes": """
        shapes (float[N, 6, 4] x) => (float[A, B, C] y, float[D, E] z)
        <int64 zero = {0}, int64[1] axis = {0}, int64[2] tail = {4, 6}, int64[3] ones = {1, 1, 1},
         int64[1] end = {5}, int64[1] first = {1}, int64[2] parts = {2, 2},
         int64[3] times = {1, 2, 1}>
        { s = Shape(x)  n = Gather<axis = 0>(s, zero)  u = Unsqueeze(n, axis)
          shape = Concat<axis = 0>(u, tail)  t = Transpose<perm = [0, 2, 1]>(x)
          r = Reshape(t, shape)  c = Slice(r, axis, end, first)
          a, b = Split<axis = 1>(c, parts)  i = Tile(a, times)  y = Identity(i)
          k = Slice(b, axis, first, first)  q = Squeeze(k, first)
          e = Expand(b, ones)  z = ReduceSum<keepdims = 0>(e, first) }""",
    "arithmetic": """
        arithmetic (float[N, 5] x, float[5] w, int32[N, 1] k) => (float[N, 5] y, bool[N, 5] q)
        <float low = {-1}, float high = {2}, float two = {2}>
        { a = Add(x, w)  s = Sub(a, two)  m = Mul(s, w)  e = Erf(m)  c = Clip(e, low, high)
          f = Cast<to = 1>(k)  p = Pow(c, two)  d = Div(p, high)  g = Sigmoid(d)
          t = Tanh(g)  h = LeakyRelu<alpha = 0.1>(t)  l = Less(h, f)  n = Not(l)
          v = Where(n, h, x)  b = Max(v, x, w)  o = Mod<fmod = 1>(b, two)
          y = HardSigmoid<alpha = 0.3>(o)  q = And(n, l) }""",
    "reductions": """
        reductions (float[3, N, 5] x) => (float[3, K, 5] top, int64[3, K, 5] at, float[3, 1, 5] y)
        <int64[1] axes = {1}, int64[1] k = {1}, int64 one = {1}>
        { c = CumSum<reverse = 1>(x, one)  l = LogSoftmax<axis = 1>(c)
          top, at = TopK<axis = 1, largest = 0>(l, k)  m = ReduceMean(x, axes)
          i = ArgMax<axis = 1, keepdims = 1>(x)  f = Cast<to = 1>(i)
          n = ReduceL2(x, axes)  s = Sum(m, f, n)  y = Softplus(s) }""",
    "attention": """
        attention (float[B, S, 8] x, bool[B, 1, S, S] mask) => (float[B, S, 8] y)
        <int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8}, float scale = {0.5},
         float[8] gain = {1, 2, 3, 4, 5, 6, 7, 8}, float never = {-10000}>
        { n = LayerNormalization<axis = -1>(x, gain, gain)  h = Reshape(n, heads)
          q = Transpose<perm = [0, 2, 1, 3]>(h)  k = Transpose<perm = [0, 2, 3, 1]>(h)
          w = MatMul(q, k)  s = Mul(w, scale)  m = Where(mask, s, never)  p = Softmax(m)
          o = MatMul(p, q)  t = Transpose<perm = [0, 2, 1, 3]>(o)  j = Reshape(t, joined)
          e = Einsum<equation = "bsd,btd->bst">(j, x)  f = MatMul(e, j)  y = Gelu(f) }""",
    "recurrent": """
        recurrent (float[4, N, 2] x) => (float[4, 1, N, 2] y, float[1, N, 2] h)
        <float[1, 8, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8},
         float[1, 8, 2] r = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8},
         float[1, 6, 2] v = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, int64[1] axis = {1}>
        { y, l, c = LSTM<hidden_size = 2>(x, w, r)  s = Squeeze(y, axis)
          g, h = GRU<hidden_size = 2, linear_before_reset = 1>(s, v, v) }""",
    "indexing": """
        indexing (float[5, 4] x, int64[3] i, int64[5, 2] j) => (float[A, B] y, float[C, D] z)
        <int64[2, 1] rows = {0, 3}, float[2, 4] new = {1, 2, 3, 4, 5, 6, 7, 8},
         int64[4] pads = {1, 0, 0, 2}, float fill = {7}, int64 depth = {6}, float[2] onoff = {0, 1}>
        { g = Gather(x, i)  e = GatherElements<axis = 1>(x, j)  s = ScatterND(x, rows, new)
          p = Pad(s, pads, fill)  o = OneHot<axis = -1>(i, depth, onoff)
          z = MatMul(o, p)  t = Trilu(g)  y = Concat<axis = 0>(t, s) }""",
    "resampling": """
        resampling (float[1, 4, 3, 5] x) => (float[1, A, B, C] y)
        <float[1] one = {1}, float[1] zero = {0}, float[4] scales = {1, 1, 2, 1.5},
         float[4, 1, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3,
         4, 5, 6, 7}>
        { r = Resize<mode = "linear">(x, , scales)
          c = ConvTranspose<group = 4, strides = [2, 2]>(r, w)
          d = DepthToSpace<blocksize = 2>(c)  n = InstanceNormalization(d, one, zero)
          y = LpNormalization<axis = 1>(n) }""",
    "functions": """
        functions (float[N, 3] x) => (float[N, 3] y)
        { a = mine.twice<slope = 0.5>(x)  b = mine.twice(a)  y = mine.outer(a, b) }""",
    "branches": """
        branches (float[3] x, bool flag) => (float[3] y)
        <bool on = {1}>
        { a = If (on) <then_branch = t () => (float[3] p) { p = Neg(x) },
                       else_branch = e () => (float[3] q) { q = Exp(x) }>
          y = If (flag) <then_branch = t2 () => (float[3] r) { r = Add(a, x) },
                         else_branch = e2 () => (float[3] s) {
              s = If (on) <then_branch = t3 () => (float[3] u) { u = Mul(a, x) },
                           else_branch = e3 () => (float[3] v) { v = Sub(a, x) }> }> }""",
    "loops": """
        loops (float[3] x) => (float[3] y, float[4, 3] rows)
        <int64 count = {4}, bool on = {1}>
        { y, rows = Loop (count, on, x) <body = step (int64 i, bool c, float[3] a)
            => (bool d, float[3] b, float[3] row) {
              d = Identity(c)  b = Mul(a, x)  row = Neg(b) }> }""",
    "scans": """
        scans (float[5, 3] x, float[3] start) => (float[3] last, float[5, 3] sums)
        { last, sums = Scan<num_scan_inputs = 1, body = step (float[3] a, float[3] r)
            => (float[3] b, float[3] out) { b = Add(a, r)  out = Identity(b) }>(start, x) }""",
    "quantised": """
        quantised (float[N, 4] x) => (float[N, 3] y, int32[N, 3] z)
        <float scale = {0.05}, uint8 zero = {128},
         int8[4, 3] w = {1, 2, -3, 4, 5, 6, -7, 8, 9, 1, 2, 3},
         float[3] scales = {0.1, 0.2, 0.3}>
        { q = QuantizeLinear(x, scale, zero)  d = DequantizeLinear(q, scale, zero)
          v = DequantizeLinear<axis = 1>(w, scales)  y = MatMul(d, v)
          z = MatMulInteger(q, w, zero) }""",
    "integers": """
        integers (int64[N] a, uint8[N] b, int32[4] c) => (int64[N] y, uint8[N] z, int32[4] w)
        <int64 two = {2}, uint8 three = {3}>
        { m = Mod(a, two)  d = Div(a, two)  s = Mul(m, d)  y = Abs(s)
          t = BitShift<direction = "LEFT">(b, three)  z = Max(t, b)  n = Neg(c)  w = Min(n, c) }""",
    "made": """
        made (float[N] x) => (float[A, B] y)
        <int64 zero = {0}, int64 five = {5}, int64 one = {1}, int64[2] dims = {3, 5}>
        { r = Range(zero, five, one)  f = Cast<to = 1>(r)
          c = ConstantOfShape<value = float[1] {2}>(dims)
          k = Constant<value = float[5] {1, 2, 3, 4, 5}>()
          e = EyeLike<dtype = 1>(c)  a = Add(e, f)  b = Mul(a, k)  s = ReduceSum<keepdims = 0>(x)
          y = Add(b, s) }""",
    "sequences": """
        sequences (float[2, 3] x) => (float[A, 3] y)
        <int64 one = {1}>
        { s = SequenceConstruct(x, x)  n = SequenceInsert(s, x, one)  a = SequenceAt(n, one)
          c = ConcatFromSequence<axis = 0>(n)  y = Add(c, a) }""",
}

_FUNCTIONS = """
<domain: "mine", opset_import: ["" : 21]>
twice<slope: float = 0.25>(a) => (b) { t = LeakyRelu<alpha: float = @slope>(a)  b = Add(t, a) }
<domain: "mine", opset_import: ["" : 21, "mine" : 1]>
outer(a, b) => (c) { t = mine.twice<slope = 0.75>(a)  c = Mul(t, b) }
"""


@dataclass(frozen=True)
class Seed:
    """A valid model.

    Attributes:
        name: of the graph or the node test.
        model: the model; mutations change a copy.
        inputs: by name, arrays that it accepts, where that is known.
    """

    name: str
    model: ModelProto
    inputs: dict[str, Array]


@functools.cache
def own_seeds() -> tuple[Seed, ...]:
    """Small models of our own, one a family of ops."""
    return tuple(Seed(name, _parsed(name, text), {}) for name, text in _GRAPHS.items())


def _parsed(name: str, text: str) -> ModelProto:
    return parser.parse_model(_HEADER + text + (_FUNCTIONS if name == "functions" else ""))


@functools.cache
def node_seeds() -> tuple[Seed, ...]:
    """The node tests of the ``onnx`` package."""
    small = [c for c in node_cases() if c.model is not None and c.model.ByteSize() < 1 << 16]
    small.sort(key=lambda case: case.name)
    return tuple(Seed(case.name, case.model, _stored_inputs(case)) for case in small)


def _stored_inputs(case: Any) -> dict[str, Array]:
    if not case.data_sets:
        return {}
    names = [value.name for value in case.model.graph.input]
    arrays = [to_array(a) if isinstance(a, TensorProto) else a for a in case.data_sets[0][0]]
    return {n: a for n, a in zip(names, arrays, strict=False) if isinstance(a, np.ndarray)}
