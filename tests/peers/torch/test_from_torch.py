"""``ost.from_torch``: names, states, weights, sizes that vary, guards and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import ostinato as ost

torch = pytest.importorskip("torch")

from torch.export import Dim  # noqa: E402


@pytest.fixture(scope="module")
def session() -> ost.Session:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return ost.Session("cpu", threads=1)


class Counter(torch.nn.Module):
    """Writes to a buffer, to one that is not saved, and to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.tied = self.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("rows", torch.zeros(3, 4))

    def forward(self, x: Any, position: Any) -> Any:
        self.calls += 1
        self.rows.index_copy_(0, position, x)
        x.mul_(2)
        return x @ self.weight + x @ self.tied, self.rows[1:]


def test_writes_become_states_and_outputs(session):
    module = Counter()
    position = torch.tensor([2, 0])
    g = ost.from_torch(module, (torch.randn(2, 4), position))
    assert list(g.inputs) == ["x", "position"]
    assert list(g.outputs) == ["output_0", "output_1", "x"]
    assert set(g.states) == {"calls", "rows"}
    assert list(g.params) == ["weight"]
    compiled = session.compile(g)
    for calls in (1, 2, 3):
        x = torch.randn(2, 4)
        found = compiled.run({"x": x.numpy().copy(), "position": position.numpy()})
        product, rows = module(x, position)
        np.testing.assert_allclose(found[0], product.detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found[1], rows)
        np.testing.assert_array_equal(found[2], x)
        assert compiled.read_handle("calls") == calls


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


torch.utils._pytree.register_dataclass(Pair, serialized_type_name="ostinato_tests.Pair")


def test_names_come_from_the_tree():
    def function(x: Any, nested: Any, *, scale: Any, flag: bool = True) -> Any:
        y = x + nested["a"][0] if flag else x
        return {"logits": y * scale, "pair": Pair(y, nested["b"]), "list": [x, (y,)]}

    example = (torch.ones(2), {"a": [torch.ones(2)], "b": torch.ones(3)})
    g = ost.from_torch(function, example, {"scale": torch.ones(2), "flag": True})
    assert list(g.inputs) == ["x", "nested.a.0", "nested.b", "scale"]
    assert list(g.outputs) == ["logits", "pair.first", "pair.second", "list.0", "list.1.0"]
    assert g.name == "function"


def test_an_argument_that_is_named_like_a_weight():
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3,), 2.0))

        def forward(self, weight: Any) -> Any:
            return weight * self.weight

    g = ost.from_torch(Scaled(), (torch.ones(3),))
    (found,) = ost.Session("cpu").compile(g).run({"weight": np.ones(3, np.float32)})
    assert found.tolist() == [2, 2, 2]


def test_the_mode_of_a_module_is_respected():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.999))
    x = torch.randn(2, 4)
    g = ost.from_torch(module.eval(), (x,))
    (found,) = ost.Session("cpu").compile(g).run({"input": x.numpy()})
    np.testing.assert_allclose(found, module(x).detach(), atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "complex64", "int32"])
def test_weights_of_every_dtype(session, dtype):
    kind = getattr(torch, dtype)
    weight = (torch.arange(12).reshape(3, 4) / 4).to(kind)

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("plain", weight)
            self.register_buffer("turned", weight.t())
            self.register_buffer("scalar", weight[1, 1].clone())
            self.register_buffer("empty", weight[:0])

        def forward(self, x: Any) -> Any:
            if dtype == "complex64":
                return self.plain.real + x, self.turned.imag, self.empty.real
            return self.plain + x.to(kind), self.turned * self.scalar, self.empty

    x = torch.ones(3, 4)
    module = Holder()
    compiled = session.compile(ost.from_torch(module, (x,)))
    found = compiled.run({"x": x.numpy()})
    for result, wanted in zip(found, module(x), strict=True):
        expected = wanted.to(torch.float64).numpy()
        np.testing.assert_array_equal(result.astype(np.float64), expected)


def test_weights_are_taken_by_reference():
    module = torch.nn.Linear(64, 64)
    g = ost.from_torch(module, (torch.ones(1, 64),))
    assert np.shares_memory(g.param_values["weight"], module.weight.detach().numpy())


# -- sizes that vary ---------------------------------------------------------------------------


def check_sizes(compiled: ost.CompiledGraph, module: Any, sizes: Any, *shape: int) -> None:
    for size in sizes:
        x = torch.randn(size, *shape)
        (found,) = compiled.run({next(iter(compiled.inputs)): x.numpy()})
        np.testing.assert_allclose(found, module(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [Dim.AUTO, Dim.DYNAMIC, Dim("n", min=1, max=64), Dim("n")])
def test_dims(session, size):
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU())
    g = ost.from_torch(module, (torch.randn(4, 3),), dynamic_shapes=({0: size},))
    assert len(g.variables) == 1
    check_sizes(session.compile(g), module, (1, 2, 7, 64), 3)


def test_an_open_size_has_no_upper_bound(session):
    g = ost.from_torch(lambda x: x * 2, (torch.randn(4, 3),), dynamic_shapes=({0: Dim.AUTO},))
    check_sizes(session.compile(g), lambda x: x * 2, (1, 3, 700), 3)


def test_an_example_of_size_one_does_not_fix_the_size(session):
    module = torch.nn.Linear(3, 5)
    g = ost.from_torch(module, (torch.randn(1, 3),), dynamic_shapes=({0: Dim.AUTO},))
    check_sizes(session.compile(g), module, (1, 2, 7), 3)


def test_variables(session):
    n = ost.Variable("n", 1, 32)
    module = torch.nn.Linear(3, 5)
    g = ost.from_torch(module, (torch.randn(4, 3),), dynamic_shapes=({0: n},))
    assert g.inputs["input"].shape == (n, 3)
    compiled = session.compile(g)
    check_sizes(compiled, module, (1, 2, 32), 3)
    with pytest.raises(ost.VariableError, match=r"bounded by 1\.\.32"):
        compiled.run({"input": np.ones((33, 3), np.float32)})


def test_multiples_of_a_variable(session):
    n = ost.Variable("n", 1, 8)
    shapes = ({0: n}, {0: 2 * n})
    g = ost.from_torch(
        lambda x, y: torch.cat([x, x]) + y,
        (torch.randn(2, 3), torch.randn(4, 3)),
        dynamic_shapes=shapes,
    )
    compiled = session.compile(g)
    x, y = np.ones((3, 3), np.float32), np.ones((6, 3), np.float32)
    assert compiled.run({"x": x, "y": y})[0].shape == (6, 3)
    with pytest.raises(ost.OstinatoError):
        compiled.run({"x": x, "y": y[:5]})


def test_a_guard_is_checked_by_runs(session):
    def function(x: Any) -> Any:
        return x * 2 if x.shape[0] % 3 == 0 else x

    g = ost.from_torch(function, (torch.randn(9, 2),), dynamic_shapes=({0: Dim.AUTO},))
    compiled = session.compile(g)
    assert compiled.run({"x": np.ones((6, 2), np.float32)})[0].tolist() == [[2, 2]] * 6
    with pytest.raises(ost.VariableError, match=r"x.shape\[0\] % 3\) == 0"):
        compiled.run({"x": np.ones((4, 2), np.float32)})


def test_a_decision_on_a_size_of_one_is_guarded(session):
    def function(x: Any) -> Any:
        return x * 2 if x.shape[0] > 1 else x

    g = ost.from_torch(function, (torch.randn(4, 2),), dynamic_shapes=({0: Dim.AUTO},))
    compiled = session.compile(g)
    assert compiled.run({"x": np.ones((2, 2), np.float32)})[0].tolist() == [[2, 2]] * 2
    with pytest.raises(ost.VariableError):
        compiled.run({"x": np.ones((1, 2), np.float32)})


@pytest.mark.parametrize("size", [Dim("rows", min=1, max=64), ost.Variable("rows", 1, 64)])
def test_a_size_that_can_not_vary_is_named(size):
    def function(x: Any) -> Any:
        return x * 2 if x.shape[0] == 9 else x

    with pytest.raises(ost.VariableError, match="rows"):
        ost.from_torch(function, (torch.randn(9, 2),), dynamic_shapes=({0: size},))


@pytest.mark.parametrize("size", [Dim("rows", min=1, max=64), Dim.DYNAMIC])
def test_the_line_that_fixes_a_size_is_named(size):
    def function(x: Any) -> Any:
        y = x + 1
        return y * 2 if x.shape[0] == 9 else y

    line = function.__code__.co_firstlineno + 2
    with pytest.raises(ost.VariableError, match=rf"test_from_torch\.py:{line}"):
        ost.from_torch(function, (torch.randn(9, 2),), dynamic_shapes=({0: size},))


def test_the_line_that_needs_a_number_is_named():
    def function(x: Any) -> Any:
        y = x + 1
        return torch.fft.fft(y).real

    with pytest.raises(ost.GraphError, match=r"at \S+test_from_torch\.py:\d+: .*rows"):
        ost.from_torch(
            function, (torch.randn(9),), dynamic_shapes=({0: ost.Variable("rows", 2, 64)},)
        )


def test_assertions_of_the_source_are_checked_by_runs(session):
    def function(x: Any, y: Any) -> Any:
        torch._check(x.shape[0] + 2 <= y.shape[0])
        return x * 2, y + 1

    sizes = ({0: Dim.AUTO}, {0: Dim.AUTO})
    g = ost.from_torch(function, (torch.ones(2), torch.ones(9)), dynamic_shapes=sizes)
    compiled = session.compile(g)
    compiled.run({"x": np.ones(3, np.float32), "y": np.ones(5, np.float32)})
    with pytest.raises(ost.VariableError):
        compiled.run({"x": np.ones(4, np.float32), "y": np.ones(5, np.float32)})


# -- sizes and assertions that depend on data --------------------------------------------------


def test_an_assertion_on_data_is_checked_by_runs(session):
    def function(ids: Any) -> Any:
        torch._check(ids.max().item() <= 3, lambda: "ids are up to 3")
        return ids + 1

    compiled = session.compile(ost.from_torch(function, (torch.tensor([1, 3]),)))
    assert compiled.run({"ids": np.array([2, 3])})[0].tolist() == [3, 4]
    with pytest.raises(ost.VariableError, match="<= 3"):
        compiled.run({"ids": np.array([2, 4])})
    assert compiled.run({"ids": np.array([0, 0])})[0].tolist() == [1, 1]


def test_parts_whose_sizes_depend_on_data(session):
    def function(x: Any, counts: Any) -> Any:
        parts = x.split(counts.tolist())
        return torch.cat([part * (i + 1) for i, part in enumerate(parts)])

    x = torch.arange(6.0)
    compiled = session.compile(ost.from_torch(function, (x, torch.tensor([1, 3, 2]))))
    for counts in ([1, 3, 2], [0, 6, 0], [2, 2, 2], [6, 0, 0]):
        (found,) = compiled.run({"x": x.numpy(), "counts": np.array(counts)})
        np.testing.assert_array_equal(found, function(x, torch.tensor(counts)))
    for counts in ([1, 3, 1], [1, 3, 3], [7, 0, 0], [-1, 5, 2]):
        with pytest.raises(ost.VariableError):
            compiled.run({"x": x.numpy(), "counts": np.array(counts)})


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scans(session, length, reverse):
    """Strict exports have their parts; others have traces of ``vmap``."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def function(x: Any, y: Any) -> Any:
        return associative_scan(combine, (x, y), 1, reverse=reverse, combine_mode="generic")

    class Module(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return function(x, y)

    x, y = torch.randn(3, length), torch.randn(3, length)
    exported = torch.export.export(Module(), (x, y), strict=True)
    found = session.compile(ost.from_torch(exported)).run({"x": x.numpy(), "y": y.numpy()})
    order = range(length)[::-1] if reverse else range(length)
    wanted: dict[int, Any] = {}
    carried: Any = None
    for i in order:
        carried = (x[:, i], y[:, i]) if carried is None else combine(carried, (x[:, i], y[:, i]))
        wanted[i] = carried
    for result, position in zip(found, (0, 1), strict=True):
        expected = torch.stack([wanted[i][position] for i in range(length)], 1)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


# -- refusals ----------------------------------------------------------------------------------


def test_script_modules_are_refused():
    with pytest.raises(ost.InputError, match="ScriptModule"):
        ost.from_torch(torch.jit.script(torch.nn.Linear(2, 2)), (torch.ones(1, 2),))


@pytest.mark.parametrize("source", [None, 3, "model.pt"])
def test_other_sources_are_refused(source):
    with pytest.raises(ost.InputError, match=r"expected a torch\.nn\.Module"):
        ost.from_torch(source, ())


def test_a_single_tensor_is_no_tuple():
    with pytest.raises(ost.InputError, match=r"\(x,\)"):
        ost.from_torch(torch.nn.Linear(2, 2), torch.ones(1, 2))


def test_weights_without_elements_are_refused():
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2)
    with pytest.raises(ost.InputError, match="'weight' is on the device 'meta'"):
        ost.from_torch(module, (torch.ones(1, 2),))


def test_arguments_of_an_exported_program_are_refused():
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    assert list(ost.from_torch(exported).inputs) == ["input"]
    with pytest.raises(ost.InputError, match="example arguments"):
        ost.from_torch(exported, (torch.ones(1, 2),))


def test_all_unsupported_nodes_are_listed_with_their_lines():
    def function(x: Any) -> Any:
        return torch.linalg.svdvals(x) + torch.linalg.eigvalsh(x)

    with pytest.raises(ost.UnsupportedOpError) as caught:
        ost.from_torch(function, (torch.eye(3),))
    message = str(caught.value)
    assert "2 nodes" in message
    assert message.count("test_from_torch.py:") == 2
