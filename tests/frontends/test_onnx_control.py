"""Control flow in ONNX models, against ONNX Runtime."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from ostinato.frontends.onnx import importer
from tests.peer_runtime import onnxruntime_session

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

Array = np.ndarray[Any, Any]


def info(name: str, shape: Any = None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def stored(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(
    proto: onnx.ModelProto,
    *feeds: dict[str, Array],
    atol: float = 2e-5,
    dims: dict[str, Any] | None = None,
) -> ost.Graph:
    """Compare with ONNX Runtime, optimised and not; returns the graph."""
    peer = onnxruntime_session(proto)
    graph = ost.load_onnx(proto, dims=dims)
    for optimize in (True, False):
        session = ost.Session("cpu")
        compiled = session.compile(graph, options=ost.CompileOptions(optimize=optimize))
        for feed in feeds:
            wanted = peer.run(None, feed)
            found = compiled.run({name: feed[name] for name in graph.inputs})
            for a, b, value in zip(found, wanted, proto.graph.output, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol, err_msg=value.name)
                assert a.dtype == b.dtype
    return graph


# -- If ------------------------------------------------------------------------------------------


def branch(op: str, name: str, operand: str = "x") -> onnx.GraphProto:
    return helper.make_graph([node(op, [operand], [name])], name, [], [info(name)])


def test_only_one_branch_is_in_each_run() -> None:
    proto = model(
        [
            node("ReduceSum", ["x"], ["s"], keepdims=0),
            node("Greater", ["s", "zero"], ["p"]),
            node(
                "If",
                ["p"],
                ["y"],
                then_branch=branch("Exp", "a"),
                else_branch=branch("Neg", "b"),
            ),
        ],
        [info("x", [3, 4])],
        [info("y")],
        [stored("zero", np.float32(0))],
    )
    x = np.random.default_rng(0).random((3, 4), np.float32)
    graph = check(proto, {"x": x}, {"x": -x})
    assert [n.op.name for n in graph.nodes if n.op.name in ("cond", "where")] == ["cond"]


def test_a_result_that_both_branches_share_stays_known() -> None:
    def side(op: str) -> onnx.GraphProto:
        nodes = [
            node(op, ["x"], [f"{op}_y"]),
            node("Constant", [], [f"{op}_axis"], value=stored("", np.array([1]))),
        ]
        return helper.make_graph(nodes, op, [], [info(f"{op}_y"), info(f"{op}_axis", [1], INT64)])

    proto = model(
        [
            node("If", ["p"], ["y", "axis"], then_branch=side("Exp"), else_branch=side("Neg")),
            node("ReduceSum", ["y", "axis"], ["z"], keepdims=0),
        ],
        [info("x", [3, 4]), info("p", [], BOOL)],
        [info("z")],
    )
    x = np.random.default_rng(0).random((3, 4), np.float32)
    check(proto, {"x": x, "p": np.array(True)}, {"x": x, "p": np.array(False)})


# -- Loop ----------------------------------------------------------------------------------------


def loop_body(
    nodes: list[onnx.NodeProto], carried: list[str], results: list[str], shape: Any = None
) -> onnx.GraphProto:
    inputs = [info("i", [], INT64), info("cond", [], BOOL)]
    inputs += [info(name, shape) for name in carried]
    outputs = [info("go", [], BOOL), *(info(name, shape) for name in results)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def count_up() -> onnx.GraphProto:
    return loop_body(
        [
            node("Identity", ["cond"], ["go"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Mul", ["x", "f"], ["step"]),
            node("Add", ["y", "step"], ["new"]),
        ],
        ["y"],
        ["new"],
    )


@pytest.mark.parametrize("form", ["count", "condition", "both", "neither"])
def test_forms_of_loop(form: str) -> None:
    count = "n" if form in ("count", "both") else ""
    condition = "p" if form in ("condition", "both") else ""
    body = count_up()
    if form in ("condition", "neither", "both"):
        body = loop_body(
            [
                node("ReduceSum", ["y"], ["s"], keepdims=0),
                node("Less", ["s", "limit"], ["go"]),
                node("Add", ["y", "x"], ["new"]),
            ],
            ["y"],
            ["new"],
        )
    inputs = [info("x", [4])]
    inputs += [info("n", [], INT64)] if count else []
    inputs += [info("p", [], BOOL)] if condition else []
    proto = model(
        [node("Loop", [count, condition, "x"], ["y"], body=body)],
        inputs,
        [info("y")],
        [stored("limit", np.float32(20))],
    )
    feeds = []
    for n in (0, 1, 3, 40):
        for p in (True, False):
            feed: dict[str, Any] = {"x": np.ones(4, np.float32)}
            feed |= {"n": np.array(n)} if count else {}
            feed |= {"p": np.array(p)} if condition else {}
            feeds.append(feed)
    check(proto, *feeds)


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_scan_outputs_of_a_known_trip_count(trips: int) -> None:
    body = loop_body(
        [
            node("Identity", ["cond"], ["go"]),
            node("Add", ["y", "x"], ["new"]),
            node("Mul", ["new", "new"], ["square"]),
        ],
        ["y"],
        ["new", "square", "y"],
        [4],
    )
    proto = model(
        [node("Loop", ["n", "", "x"], ["last", "squares", "before"], body=body)],
        [info("x", [4])],
        [info("last"), info("squares"), info("before")],
        [stored("n", np.int64(trips))],
    )
    check(proto, {"x": np.arange(4, dtype=np.float32)})


def test_a_trip_count_that_is_a_dim() -> None:
    body = loop_body(
        [
            node("Identity", ["cond"], ["go"]),
            node("Gather", ["x", "i"], ["row"], axis=0),
            node("Add", ["y", "row"], ["new"]),
        ],
        ["y"],
        ["new", "new"],
    )
    proto = model(
        [
            node("Shape", ["x"], ["shape"], start=0, end=1),
            node("Squeeze", ["shape"], ["n"]),
            node("Loop", ["n", "", "zero"], ["sum", "sums"], body=body),
        ],
        [info("x", ["rows", 4])],
        [info("sum"), info("sums")],
        [stored("zero", np.zeros(4, np.float32))],
    )
    rng = np.random.default_rng(1)
    check(proto, *({"x": rng.random((n, 4), np.float32)} for n in (1, 7, 30)))


def test_a_value_that_grows_is_unrolled() -> None:
    body = loop_body(
        [
            node("Identity", ["cond"], ["go"]),
            node("Concat", ["y", "x"], ["new"], axis=0),
        ],
        ["y"],
        ["new"],
    )
    proto = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("x", [2, 3])],
        [info("y")],
        [stored("n", np.int64(4))],
    )
    graph = check(proto, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert graph.outputs["y"].shape == (10, 3)


def test_a_value_that_grows_is_compiled_for_the_trip_count_of_a_run() -> None:
    nodes = [node("Identity", ["cond"], ["go"]), node("Concat", ["y", "x"], ["new"], axis=0)]
    proto = model(
        [node("Loop", ["n", "", "x"], ["y"], body=loop_body(nodes, ["y"], ["new"]), name="grow")],
        [info("x", [2, 3]), info("n", [], INT64)],
        [info("y")],
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = check(proto, *({"x": x, "n": np.array(n)} for n in (0, 2, 5, 2)))
    assert "Loop 'grow'" in ost.Session("cpu").compile(graph).explain()


def test_scan_outputs_of_a_trip_count_of_the_data() -> None:
    body = loop_body(
        [node("Identity", ["cond"], ["go"]), node("Add", ["y", "x"], ["new"])],
        ["y"],
        ["new", "new"],
        [4],
    )
    proto = model(
        [node("Loop", ["n", "", "x"], ["last", "all"], body=body)],
        [info("x", [4]), info("n", [], INT64)],
        [info("last"), info("all")],
    )
    check(proto, *({"x": np.ones(4, np.float32), "n": np.array(n)} for n in (1, 6, 1)))


@pytest.mark.parametrize("form", ["most", "condition", "count of floats", "endless"])
def test_scan_outputs_of_a_loop_that_ends_on_data(form: str) -> None:
    body = loop_body(
        [
            node("ReduceSum", ["y"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["go"]),
            node("Add", ["y", "x"], ["new"]),
            node("Mul", ["new", "new"], ["square"]),
        ],
        ["y"],
        ["new", "square", "y"],
        [4],
    )
    count = {"most": "ten", "count of floats": "n"}.get(form, "")
    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Mul", ["top", "four"], ["size"]),
        node("Cast", ["size"], ["n"], to=INT64),
        node(
            "Loop",
            [count, "p" if form == "condition" else "", "x"],
            ["last", "squares", "before"],
            body=body,
        ),
        node("Shape", ["squares"], ["shape"]),
    ]
    inputs = [info("x", [4]), info("limit", [])]
    inputs += [info("p", [], BOOL)] if form == "condition" else []
    proto = model(
        nodes[0 if form == "count of floats" else 3 :],
        inputs,
        [info("last"), info("squares"), info("before"), info("shape", dtype=INT64)],
        [stored("ten", np.int64(10)), stored("four", np.float32(4))],
    )
    x = np.array([0.5, 1, 2, 1.5], np.float32)
    feeds: list[dict[str, Any]] = [
        {"x": x, "limit": np.array(n, np.float32)} for n in (20, 0, 49, 20)
    ]
    if form == "condition":
        feeds = [feed | {"p": np.array(p)} for feed in feeds for p in (True, False)]
    check(proto, *feeds)


def test_weights_of_a_body_are_params_of_the_graph() -> None:
    w = np.random.default_rng(2).random((8, 8), np.float32)
    body = loop_body(
        [
            node("Identity", ["cond"], ["go"]),
            node("MatMul", ["y", "w"], ["z"]),
            node("Tanh", ["z"], ["new"]),
        ],
        ["y"],
        ["new"],
    )
    body.initializer.append(stored("w", w))
    proto = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("x", [3, 8]), info("n", [], INT64)],
        [info("y")],
    )
    x = np.random.default_rng(3).random((3, 8), np.float32)
    graph = check(proto, *({"x": x, "n": np.array(n)} for n in (0, 1, 6)))
    assert list(graph.params) == ["w"]


def test_an_unsupported_node_of_a_body_is_named() -> None:
    nodes = [node("Identity", ["cond"], ["go"]), node("Strange", ["y"], ["new"], name="odd")]
    proto = model(
        [node("Loop", ["n", "", "x"], ["y"], body=loop_body(nodes, ["y"], ["new"]))],
        [info("x", [3, 3]), info("n", [], INT64)],
        [info("y")],
    )
    with pytest.raises(ost.UnsupportedOpError, match=r"'odd' \(Strange\)"):
        ost.load_onnx(proto)


def test_loops_that_multiply_are_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_MOST_REPEATED", importer._MOST_REPEATED // 20)
    nodes = [node("Identity", ["cond"], ["go"]), node("Concat", ["y", "x"], ["new"], axis=0)]
    body = loop_body(nodes, ["y"], ["new"])
    for _ in range(20):
        nodes = [
            node("Identity", ["cond"], ["go"]),
            node("Loop", ["n", "", "y"], ["new"], body=body),
        ]
        body = loop_body(nodes, ["y"], ["new"])
    proto = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("x", [2, 3])],
        [info("y")],
        [stored("n", np.int64(3))],
    )
    with pytest.raises(ost.ModelFormatError, match="iterations of loops multiply without end"):
        ost.load_onnx(proto)


# -- Scan ----------------------------------------------------------------------------------------


def test_recurrent_scan_in_all_directions() -> None:
    body = helper.make_graph(
        [
            node("MatMul", ["h", "w"], ["hw"]),
            node("Add", ["hw", "x"], ["sum"]),
            node("Tanh", ["sum"], ["new"]),
            node("ReduceMax", ["z"], ["most"], axes=[0], keepdims=0),
            node("Identity", ["new"], ["out"]),
        ],
        "body",
        [info("h"), info("x"), info("z")],
        [info("new"), info("out"), info("most")],
    )
    rng = np.random.default_rng(4)
    w = (rng.random((5, 5), np.float32) - 0.5).astype(np.float32)
    for forward in (0, 1):
        proto = model(
            [
                node(
                    "Scan",
                    ["h", "x", "z"],
                    ["last", "all", "most"],
                    body=body,
                    num_scan_inputs=2,
                    scan_input_axes=[0, 1],
                    scan_input_directions=[forward, 1 - forward],
                    scan_output_axes=[1, 0],
                    scan_output_directions=[1 - forward, forward],
                )
            ],
            [info("h", [2, 5]), info("x", [7, 2, 5]), info("z", [3, 7])],
            [info("last"), info("all"), info("most")],
            [stored("w", w)],
        )
        shapes = {"h": (2, 5), "x": (7, 2, 5), "z": (3, 7)}
        check(proto, {name: rng.random(s, np.float32) for name, s in shapes.items()})


# -- at random -----------------------------------------------------------------------------------


class RandomModel:
    """A model of nested control flow over vectors of three elements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        rng = np.random.default_rng(seed)
        self.initializers = [
            stored("w", (rng.random((3, 3)) - 0.5).astype(np.float32)),
            stored("zero", np.float32(0)),
            stored("limit", np.float32(30)),
            stored("most", np.int64(self.random.randint(0, 12))),
        ]

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def model(self) -> onnx.ModelProto:
        known = ["x", "y"]
        nodes = self.nodes(known, depth=3, count=5)
        inputs = [info("x", [3]), info("y", [3]), info("table", [5, 3]), info("n", [], INT64)]
        return model(nodes, inputs, [info(name, [3]) for name in known[-2:]], self.initializers)

    def nodes(self, known: list[str], depth: int, count: int) -> list[onnx.NodeProto]:
        """Nodes over the vectors ``known``, which grows by their results."""
        kinds = [self.simple, self.simple, self.weighted]
        if depth:
            kinds += [self.branches, self.loop, self.loop, self.scan]
        found: list[onnx.NodeProto] = []
        for _ in range(count):
            found += self.random.choice(kinds)(known, depth)
        return found

    def simple(self, known: list[str], _: int) -> list[onnx.NodeProto]:
        a, b = self.random.choice(known), self.random.choice(known)
        wide, out = self.name(), self.name()
        known.append(out)
        op = self.random.choice(["Add", "Sub", "Mul", "Max"])
        return [node(op, [a, b], [wide]), node("Tanh", [wide], [out])]

    def weighted(self, known: list[str], _: int) -> list[onnx.NodeProto]:
        out = self.name()
        result = [node("MatMul", [self.random.choice(known), "w"], [out])]
        known.append(out)
        return result

    def positive(self, value: str, limit: str = "zero") -> tuple[list[onnx.NodeProto], str]:
        total, flag = self.name(), self.name()
        reduce = node("ReduceSum", [value], [total], keepdims=0)
        return [reduce, node("Greater", [total, limit], [flag])], flag

    def branches(self, known: list[str], depth: int) -> list[onnx.NodeProto]:
        test, flag = self.positive(self.random.choice(known))
        graphs = []
        for _ in range(2):
            inner = list(known)
            nodes = self.nodes(inner, depth - 1, self.random.randint(1, 3))
            graphs.append(helper.make_graph(nodes, self.name(), [], [info(inner[-1], [3])]))
        out = self.name()
        known.append(out)
        return [*test, node("If", [flag], [out], then_branch=graphs[0], else_branch=graphs[1])]

    def loop(self, known: list[str], depth: int) -> list[onnx.NodeProto]:
        i, cond, a, b = (self.name() for _ in range(4))
        inner = [*known, a, b]
        nodes = self.nodes(inner, depth - 1, self.random.randint(1, 3))
        carried = inner[-2:]
        count = self.random.choice(["most", "n", "n"])
        if self.random.random() < 0.5:
            test, flag = self.positive(carried[0], "limit")
            going = self.name()
            nodes += [*test, node("Not", [flag], [going])]
        else:
            going = self.name()
            nodes.append(node("Identity", [cond], [going]))
        new = [self.name(), self.name()]  # a body may not give its own or outer values
        nodes += [node("Identity", [v], [n]) for v, n in zip(carried, new, strict=True)]
        body = helper.make_graph(
            nodes,
            self.name(),
            [info(i, [], INT64), info(cond, [], BOOL), info(a, [3]), info(b, [3])],
            [info(going, [], BOOL), *(info(name, [3]) for name in new)],
        )
        first = [self.random.choice(known), self.random.choice(known)]
        out = [self.name(), self.name()]
        known += out
        return [node("Loop", [count, "", *first], out, body=body)]

    def scan(self, known: list[str], depth: int) -> list[onnx.NodeProto]:
        h, part = self.name(), self.name()
        inner = [*known, h, part]
        nodes = self.nodes(inner, depth - 1, self.random.randint(1, 2))
        new, given = self.name(), self.name()
        nodes += [node("Identity", [inner[-1]], [new]), node("Identity", [inner[-1]], [given])]
        inputs, outputs = [info(h, [3]), info(part, [3])], [info(new, [3]), info(given, [3])]
        body = helper.make_graph(nodes, self.name(), inputs, outputs)
        last, stacked, total = self.name(), self.name(), self.name()
        known += [last, total]
        directions = [self.random.randint(0, 1)]
        return [
            node(
                "Scan",
                [self.random.choice(known[:-2]), "table"],
                [last, stacked],
                body=body,
                num_scan_inputs=1,
                scan_input_directions=directions,
                scan_output_directions=directions,
            ),
            node("ReduceMean", [stacked], [total], axes=[0], keepdims=0),
        ]


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 16))]
)
def test_random_models(seed: int) -> None:
    proto = RandomModel(seed).model()
    rng = np.random.default_rng(seed)
    feeds = [
        {
            "x": rng.normal(size=3).astype(np.float32),
            "y": rng.normal(size=3).astype(np.float32),
            "table": rng.normal(size=(5, 3)).astype(np.float32),
            "n": np.array(n),
        }
        for n in (0, 1, 4)
    ]
    check(proto, *feeds, atol=1e-4)
