"""The text form: its format, its round trip, and the robustness of the parser."""

from __future__ import annotations

import hashlib
import math
import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.dtypes import ALL_DTYPES
from ostinato.errors import GraphError
from ostinato.ir.text import constant_digest, graph_constants, graphs_equal
from ostinato.ir.verify import verify
from ostinato.ops.builder import Graph
from ostinato.ops.parser import parse_graph
from ostinato.variables import Variable, maximum, minimum


def digest(array):
    return hashlib.sha256(np.asarray(array).tobytes()).hexdigest()[:16]


def example() -> Graph:
    n = Variable("n", 1, 512)
    g = Graph("matmul_bias_gelu")
    x, w, b = g.input("x", (n, 4)), g.param("w", (4, 3)), g.param("b", (3,), "f16")
    with g.labelled("encoder/fc1"):
        y = g.matmul(x, w) + g.cast(b, "float32")
    values, indices = g.topk(g.gelu(y * 0.5), 2)
    s = g.state("seen", (3,), "int32", init=7)
    g.assign(s, s + 1)
    g.set_outputs({"values": values, "indices": indices, "flat": g.reshape(y, (n * 3,))})
    return g


def test_text():
    assert str(example()).splitlines() == [
        'graph "matmul_bias_gelu" {',
        "  variable n in 1..512",
        '  %0 = input("x") : f32[n,4]',
        '  %1 = param("w") : f32[4,3]',
        '  %2 = param("b") : f16[3]',
        '  %3 = matmul(%0, %1) : f32[n,3]  @"encoder/fc1"',
        '  %4 = cast(%2, dtype=f32) : f32[3]  @"encoder/fc1"',
        '  %5 = add(%3, %4) : f32[n,3]  @"encoder/fc1"',
        f"  %6 = constant<f32[] sha256:{digest(np.float32(0.5))}>  # 0.5",
        "  %7 = multiply(%5, %6) : f32[n,3]",
        "  %8 = gelu(%7, approximate=False) : f32[n,3]",
        "  %9, %10 = topk(%8, k=2, axis=1, largest=True) : f32[n,2], i64[n,2]",
        '  %11 = state("seen", init=7) : i32[3]',
        f"  %12 = constant<i32[] sha256:{digest(np.int32(1))}>  # 1",
        "  %13 = add(%11, %12) : i32[3]",
        "  %14 = reshape(%5, shape=(3*n,)) : f32[3*n]",
        '  assign "seen" = %13',
        '  output "values" = %9',
        '  output "indices" = %10',
        '  output "flat" = %14',
        "}",
    ]


def round_trip(g: Graph) -> Graph:
    again = parse_graph(str(g), constants=graph_constants(g))
    assert str(again) == str(g)
    assert graphs_equal(again, g)
    verify(again)
    return again


def test_round_trip():
    again = round_trip(example())
    assert list(again.inputs) == ["x"]
    assert list(again.outputs) == ["values", "indices", "flat"]
    assert again.nodes[3].label == "encoder/fc1"
    assert again.states["seen"].node.attrs["init"].tolist() == [7, 7, 7]


def test_constants_by_digest_prefix_or_in_any_order():
    g = Graph()
    g.set_outputs([g.constant(np.float32([1, 2])) + g.constant(np.float32([3, 4]))])
    text = str(g)
    arrays = list(graph_constants(g).values())
    full = graph_constants(g)
    short = {f"sha256:{k[:16]}": v for k, v in full.items()}
    for constants in (arrays, arrays[::-1], iter(arrays), full, short):
        assert graphs_equal(parse_graph(text, constants), g)


def test_equal_bytes_of_other_types_share_a_digest():
    g = Graph()
    zeros = np.zeros((2, 2), np.float32)
    g.set_outputs([g.constant(zeros), g.constant(zeros.reshape(4)), g.constant(np.zeros(2, "i8"))])
    assert len(graph_constants(g)) == 1
    round_trip(g)


def test_a_missing_constant_is_named():
    g = Graph()
    g.set_outputs([g.constant(np.float32([1, 2]))])
    with pytest.raises(
        GraphError, match=rf"line 2: no array.*{digest(np.float32([1, 2]))}.*f32\[2\]"
    ):
        parse_graph(str(g))
    with pytest.raises(GraphError, match="other contents"):
        parse_graph(str(g), {digest(np.float32([1, 2])): np.float32([2, 1])})


@pytest.mark.parametrize("dtype", [d.name for d in ALL_DTYPES])
def test_states_and_constants_of_every_dtype(dtype):
    g = Graph()
    kind = g.input("kind", (1,), dtype).dtype.numpy
    rng = np.random.default_rng(0)
    mixed = rng.integers(0, 2, (2, 3)).astype(kind)
    mixed[0, 0], mixed[0, 1] = 1, 0
    for name, init in (("zero", 0), ("one", 1), ("mixed", mixed)):
        g.state(name, (2, 3), dtype, init)
    g.set_outputs([g.constant(mixed), g.constant(np.ones((), kind)), g.constant(np.ones(0, kind))])
    again = round_trip(g)
    for name, state in g.states.items():
        got = again.states[name].node.attrs["init"]
        assert got.tobytes() == state.node.attrs["init"].tobytes()


def test_states_of_odd_floats():
    g = Graph()
    for name, init in (("a", -0.0), ("b", math.inf), ("c", math.nan), ("d", 0.1), ("e", -math.inf)):
        g.state(name, (2,), init=init)
    g.set_outputs([g.states["a"]])
    again = round_trip(g)
    assert np.signbit(again.states["a"].node.attrs["init"]).all()


def test_names_with_quotes_and_newlines():
    g = Graph('a "graph"\n# {}')
    x = g.input('x" : f32[1]\n', (2,))
    with g.labelled("a # label, 'quoted' \\ \u2028 ü"):
        y = g.exp(x)
    g.set_outputs({'"': y, "": x})
    again = round_trip(g)
    assert again.name == g.name
    assert list(again.outputs) == ['"', ""]


def test_variables_named_like_literals():
    """A Variable may have any identifier for a name; literals of that spelling are escaped."""
    g = Graph()
    names = ("inf", "None", "True", "f32", "min", "nan", "graph", "if")
    dims = [Variable(name, 1, 9) for name in names]
    x = g.input("x", tuple(dims))
    y = g.cast(g.clip(x, None, math.inf), "float64")
    z = g.reshape(g.cast(y, "float32"), (dims[0] * dims[1], *dims[2:]))
    g.set_outputs([g.sum(z, axis=0, keepdims=True)])
    assert "min=$None, max=$inf" in str(g) or "max=$None" in str(g)
    round_trip(g)


N, M = Variable("n", 1, 64), Variable("m", 2, 8)


@pytest.mark.parametrize(
    "dim",
    [
        N + 1,
        2 * N * M - M + 3,
        (N + 3) // 4,
        (N * M) % 7 + 1,
        minimum(N, 17),
        maximum(N - M, M) * 2,
        (minimum(N, 2 * M) + 5) // (M + 1) + 1,
        maximum(minimum(N + M, 20) // 3, N % M),
    ],
)
def test_symbolic_dims(dim):
    g = Graph()
    x = g.input("x", (N, M))
    g.set_outputs([g.broadcast_to(x[0:1, 0:1], (dim, 3)) + g.iota((dim, 3), dtype="float32")])
    again = round_trip(g)
    assert next(iter(again.outputs.values())).shape == (dim, 3)


dims = st.recursive(
    st.sampled_from([N, M]) | st.integers(1, 9),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+*/%<>"), inner, inner),
    ),
    max_leaves=6,
)


def as_dim(tree):
    if not isinstance(tree, tuple):
        return tree
    sign, left, right = tree[0], as_dim(tree[1]), as_dim(tree[2])
    match sign:
        case "+":
            return left + right
        case "*":
            return left * right
        case "/":
            return left // maximum(right, 1)
        case "%":
            return left % maximum(right, 1)
        case "<":
            return minimum(left, right)
    return maximum(left, right)


@given(dims)
@settings(max_examples=150, deadline=None)
def test_any_dim_round_trips(tree):
    dim = as_dim(tree)
    g = Graph()
    g.set_outputs([g.input("x", (N, M)), g.iota((dim,), dtype="int32")])
    again = parse_graph(str(g))
    assert str(again) == str(g)
    assert list(again.outputs.values())[1].shape == (dim,)


# -- what is no graph ----------------------------------------------------------------------------

LEAF = '%0 = input("x") : f32[n,4]'

WRONG = {
    "": "ends before",
    "grph": "line 1: expected 'graph'",
    'graph "g" {': "ends before",
    'graph "g" {\n}\n}': "line 3",
    'graph "g" {\n  %0 = exp(%1) : f32[1]\n}': "line 2: %1 is not defined",
    'graph "g" {\n  %0 = wat() : f32[1]\n}': "line 2: unknown op 'wat'",
    'graph "g" {\n  %0 = input("x") : f33[1]\n}': "unknown dtype 'f33'",
    'graph "g" {\n  %0 = input("x") : f32[-1]\n}': "line 2: a dim is never negative",
    'graph "g" {\n  %0 = input("x") : f32[1.5]\n}': "integer expression",
    'graph "g" {\n  %0 = input("x") : f32[n]\n}': "'n' is neither a declared Variable",
    'graph "g" {\n  %0 = input("x") : f32[1//0]\n}': "a divisor must be positive",
    'graph "g" {\n  %0 = input(3) : f32[1]\n}': "line 2: expected a value",
    'graph "g" {\n  %0 = input() : f32[1]\n}': "a name is a non-empty string",
    'graph "g" {\n  %0 = input("x") : f32[1], f32[1]\n}': "expected input",
    'graph "g" {\n  %0 = param("x", init=3) : f32[1]\n}': "expected param",
    'graph "g" {\n  %0 = state("x", init="a") : f32[1]\n}': "init is a number",
    'graph "g" {\n  %0 = exp("x", a=sha256:00) : f32[1]\n}': "cannot be an array",
    'graph "g" {\n  %0 = input("x") : f32[4]\n  %0 = exp(%0) : f32[4]\n}': "line 3: %0 is defined",
    'graph "g" {\n  %0 = input("x") : f32[4]\n  %1 = exp(%0) : f32[5]\n}': "the text says",
    'graph "g" {\n  %0 = input("x") : f32[4]\n  %1 = exp(%0, a=1) : f32[4]\n}': "line 3",
    'graph "g" {\n  %0 = input("x") : f32[4]\n  %1 = sum(%0) : f32[4]\n}': "line 3",
    'graph "g" {\n  %0 = input("x") : f32[4]\n  %1, %2 = exp(%0) : f32[4]\n}': "2 names",
    'graph "g" {\n  variable n in 4..3\n}': "line 2: Variable 'n'",
    'graph "g" {\n  variable n in 1..2\n  variable n in 1..2\n}': "declared twice",
    'graph "g" {\n  output "y" = %0\n}': "%0 is not defined",
    'graph "g" {\n  assign "s" = %0\n}': "no state 's'",
    'graph "g" {\n  %0 = input("x") : f32[4] trailing\n}': "the end of the line",
    'graph "g" {\n  ???\n}': "line 2: cannot read",
    'graph "\\x" {\n}': "is no string",
}


@pytest.mark.parametrize("text", WRONG)
def test_errors_name_the_line(text):
    with pytest.raises(GraphError, match=re.escape(WRONG[text])):
        parse_graph(text)


@pytest.mark.parametrize(
    "dim",
    [
        "(" * 1000 + "1" + ")" * 1000,
        "9" * 5000,
        "*".join(["99999"] * 2000),
        "*".join(["(n+m)"] * 500),
        "*".join(["n"] * 500),
        "+".join(["n"] * 20000),
        "min(" * 40 + "n" + ", m)" * 40,
        "-" * 5000 + "1",
    ],
    ids=range(8),
)
def test_runaway_expressions(dim):
    text = f'graph "g" {{\nvariable n in 1..9\nvariable m in 1..9\n%0 = input("x") : f32[{dim}]\n}}'
    try:
        parse_graph(text)
    except GraphError as error:
        assert str(error).startswith("line 4")
        assert len(str(error)) < 300


def test_text_of_another_type():
    with pytest.raises(GraphError, match="expected the text"):
        parse_graph(b"graph")


TOKENS = re.compile(r'"[^"]*"|%?\w+|[^\w\s]|\s+')
STRANGE = ("//", "..", "sha256:ab", "1e9", "-", "$", "(", ")", "é", "\0", "\\", '"', "\n")
PIECES = [*TOKENS.findall(str(example())), *STRANGE]


@pytest.mark.parametrize("seed", range(400))
def test_garbled_text_gives_graph_errors_alone(seed):
    """Mutations of a real text: cut, doubled, swapped, replaced pieces."""
    rng = random.Random(seed)
    g = example()
    pieces = TOKENS.findall(str(g))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(pieces))
        match rng.randrange(4):
            case 0:
                del pieces[at : at + rng.randint(1, 3)]
            case 1:
                pieces[at:at] = pieces[at : at + rng.randint(1, 12)]
            case 2:
                other = rng.randrange(len(pieces))
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case 3:
                pieces[at] = rng.choice(PIECES)
    try:
        verify(parse_graph("".join(pieces), graph_constants(g)))
    except GraphError as error:
        assert re.match(r"line \d+: |the text ends before", str(error))


@given(st.text(max_size=80))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_noise(text):
    with pytest.raises(GraphError):
        parse_graph(text)


def test_digest_is_of_the_bytes():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert constant_digest(array.T) == hashlib.sha256(array.T.tobytes()).hexdigest()
