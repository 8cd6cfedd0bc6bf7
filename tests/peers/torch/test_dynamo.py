"""``torch.compile(backend="ostinato")`` next to eager."""

from __future__ import annotations

import copy
import itertools
import threading
import warnings
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

import ostinato as ost
from ostinato.frontends.torch.dynamo import backend, report
from ostinato.frontends.torch.native import NativePartition


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """No test sees the compiles of another one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()


def compiled(function, *, dynamic=None, **options):
    return torch.compile(function, backend=backend, dynamic=dynamic, options=options or None)


def agree(found, wanted, *, exact=False):
    """Values, dtypes, shapes and strides of nested results are eager's."""
    if isinstance(wanted, tuple | list):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            agree(f, w, exact=exact)
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.stride() == wanted.stride()
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(found, wanted, equal_nan=True, **tolerance)
    else:
        assert found == wanted


def check(function, *args, **options):
    """A compiled function agrees with eager, and its report has no eager node."""
    c = compiled(function, **options)
    with torch.no_grad():
        agree(c(*args), function(*args))
    return report(c)


class Perceptron(nn.Module):
    def __init__(self, depth=3, width=16):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def test_a_perceptron_is_one_native_partition():
    found = check(Perceptron(), torch.randn(5, 16))
    (graph,) = found.graphs
    assert (graph.kind, graph.partitions, len(graph.eager_nodes)) == ("inference", 1, 0)
    assert found.native_nodes == 6 and found.recompiles == 0
    assert "6 native nodes in 1 partitions" in str(found)


def test_the_entry_point_names_the_backend():
    point = EntryPoint(
        "ostinato", "ostinato.frontends.torch.dynamo:backend", "torch_dynamo_backends"
    )
    assert point.load() is backend


def test_a_mode_is_accepted():
    m, x = Perceptron(), torch.randn(2, 16)
    c = torch.compile(m, backend=backend, mode="reduce-overhead")
    with torch.no_grad():
        agree(c(x), m(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "live"}, "unknown option 'weight'.*'weights'"),
        ({"weights": "dead"}, "'checked' or 'live' or 'frozen', got 'dead'"),
        ({"threads": 0}, "number of threads"),
        ({"min_partition": True}, "number of nodes"),
        ({"compile": {}}, "CompileOptions"),
        ({"fallback": None}, "'eager' or 'error'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ost.InputError, match=message):
        compiled(Perceptron(), **options)(torch.randn(2, 16))


def shown(x):
    y = torch.relu(x) * 2 + 1
    q = torch.linalg.qr(y).R
    return torch.relu(q) * 3 + x.sum() * 0 + 1


def test_ops_without_an_equivalent_run_in_eager_with_one_warning():
    x = torch.randn(4, 4)
    c = compiled(shown, min_partition=1)
    with pytest.warns(RuntimeWarning, match="linalg_qr.*test_dynamo.py:") as warned:
        agree(c(x), shown(x))
        agree(c(x + 1), shown(x + 1))
    assert len([w for w in warned if "run in PyTorch" in str(w.message)]) == 1
    (graph,) = report(c).graphs
    assert graph.partitions == 2
    assert any("linalg_qr" in node.op and node.where for node in graph.eager_nodes)


def test_without_a_fallback_all_nodes_are_listed():
    with pytest.raises(ost.UnsupportedOpError, match="linalg_qr"):
        compiled(shown, fallback="error")(torch.randn(4, 4))


def test_random_numbers_come_from_the_generator_in_order():
    def noisy(x):
        a = torch.rand_like(x)
        b = torch.relu(x + a) * 2
        return b + torch.randn(x.shape) + torch.nn.functional.dropout(x, 0.5, training=True), a

    x = torch.randn(6, 4)
    c = compiled(noisy, min_partition=1)
    for seed in range(3):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            wanted = noisy(x)
            torch.manual_seed(seed)
            agree(c(x), wanted)


def test_inputs_are_written_as_in_eager():
    def write(x, y):
        x.mul_(2)
        y[1] = x[0] + 1
        return x + y, None, 3, y[0]

    c = compiled(write, min_partition=1)
    with torch.no_grad():
        given = [torch.randn(3, 4), torch.randn(3, 4)]
        eager = [t.clone() for t in given]
        addresses = [t.data_ptr() for t in given]
        result, wanted = c(*given), write(*eager)
    agree(result, wanted)
    agree(given, eager)
    assert [t.data_ptr() for t in given] == addresses
    assert result[3].data_ptr() == given[1].data_ptr()


def test_outputs_alias_inputs_as_in_eager():
    def views(x):
        return x.t(), x[1:], x, x.view(-1) + 1

    x = torch.randn(3, 4)
    with torch.no_grad():
        result = compiled(views)(x)
    agree(result, views(x))
    assert result[2] is x and result[0].data_ptr() == x.data_ptr()
    assert result[1].data_ptr() == x[1:].data_ptr()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "views",
    [
        lambda x: (x + 1, torch.chunk(x, 2)),
        lambda x: (x.unbind(0)[2], x.sum()),
        lambda x: (x.chunk(2)[1] * 2, x.chunk(2)[1], x.chunk(2)[1].chunk(2)[1]),
        lambda x: [f(y) for y in (x * 2,) for f in (torch.t, torch.ravel, torch.abs, torch.clone)],
        lambda x: [y for y in (x * 2,) for y in (y[2:], y.view(-1)[1:], y)],
        lambda x: torch.chunk(x + 1, 2),
        lambda x: [*x.split([1, 1, 2])][::-1],
    ],
)
def test_results_share_memory_as_in_eager(views, dynamic):
    c = compiled(views, dynamic=dynamic)
    for width in (4, 6):
        x = torch.randn(4, width)
        with torch.no_grad():
            found, wanted = c(x), views(x)
        agree(found, wanted)
        found, wanted = (torch.utils._pytree.tree_leaves(r) for r in (found, wanted))
        memory = [[t.untyped_storage().data_ptr() for t in (*r, x)] for r in (found, wanted)]
        for i, j in itertools.combinations(range(len(memory[0])), 2):
            assert (memory[0][i] == memory[0][j]) == (memory[1][i] == memory[1][j])
        assert [t.storage_offset() for t in found] == [t.storage_offset() for t in wanted]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 6).t(),
        lambda: torch.randn(2, 8, 3, 5)[:, ::2],
        lambda: torch.randn(1, 5).expand(4, 5),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(0, 3),
        lambda: torch.tensor(2.5),
        lambda: torch.randn(3, 1, 2).permute(2, 0, 1),
    ],
)
def test_strides_are_those_of_eager(make):
    def run(x):
        return torch.relu(x), x * 2 + x, (x + 1).unsqueeze(0), (x + 2).expand(2, *x.shape)

    check(run, make())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_dtypes(dtype):
    x = torch.randn(3, 5).mul(4).to(dtype)
    check(lambda x: (x + x, x * 3, x > 0), x)


def test_changed_weights_are_packed_again():
    m, x = Perceptron(), torch.randn(2, 16)
    c = compiled(m)
    with torch.no_grad():
        agree(c(x), m(x))
        m.layers[1].weight.mul_(2)
        agree(c(x), m(x))
        m.load_state_dict(Perceptron().state_dict())
        agree(c(x), m(x))
        m.layers[0].weight.data = torch.randn(16, 16)
        agree(c(x), m(x))
        m.layers[2].bias = nn.Parameter(torch.randn(16))
        agree(c(x), m(x))
        count = sum(graph.repacked for graph in report(c).graphs)
        agree(c(x), m(x))
    assert count >= 3 and sum(graph.repacked for graph in report(c).graphs) == count


def test_live_weights_are_read_at_each_call():
    m, x = Perceptron(), torch.randn(2, 16)
    c = compiled(m, weights="live")
    with torch.no_grad():
        agree(c(x), m(x))
        m.layers[0].weight.data.mul_(3)
        agree(c(x), m(x))


def test_frozen_weights_stay():
    m, x = Perceptron(), torch.randn(2, 16)
    c = compiled(m, weights="frozen")
    with torch.no_grad():
        wanted = m(x)
        agree(c(x), wanted)
        m.layers[0].weight.mul_(3)
        agree(c(x), wanted)


def test_sizes_may_differ_with_one_compile():
    m = Perceptron()
    c = compiled(m, dynamic=True)
    with torch.no_grad():
        for rows in (3, 7, 2, 40, 513, 2000):
            x = torch.randn(rows, 16)
            agree(c(x), m(x))
    found = report(c)
    assert len(found.graphs) == 1 and found.graphs[0].variables


def test_sizes_become_dynamic_after_the_second():
    m = Perceptron()
    c = compiled(m)
    with torch.no_grad():
        for rows in (3, 7, 9, 12):
            x = torch.randn(rows, 16)
            agree(c(x), m(x))
    assert len(report(c).graphs) == 2 and report(c).recompiles == 1


def test_numbers_that_differ_are_given_to_native_nodes():
    def scaled(x, n):
        return torch.relu(x.repeat(n, 1) if False else x.reshape(n, -1)) + n, n + 1

    c = compiled(scaled, dynamic=True)
    with torch.no_grad():
        for n in (2, 3, 4):
            x = torch.randn(12, 2)
            agree(c(x, n), scaled(x, n))


def test_training_gives_eagers_gradients():
    m, x = Perceptron(), torch.randn(4, 16)
    c = compiled(m)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c(x).square().sum().backward()
    found = [p.grad.clone() for p in m.parameters()]
    m.zero_grad()
    m(x).square().sum().backward()
    for got, p in zip(found, m.parameters(), strict=True):
        torch.testing.assert_close(got, p.grad)
    assert [graph.kind for graph in report(c).graphs] == ["forward", "backward"]
    assert all(graph.native_nodes for graph in report(c).graphs)


def test_ops_without_an_equivalent_are_decomposed():
    def run(x, y):
        return torch.nn.functional.gelu(x) * 2, torch.ops.aten.gelu_backward(y, x) + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = check(run, torch.randn(4, 8), torch.randn(4, 8))
    assert not found.eager_nodes


def test_a_graph_without_outputs_runs():
    def fill(x):
        x.add_(1)

    x = torch.zeros(3)
    assert compiled(fill)(x) is None
    assert x.tolist() == [1, 1, 1]


def test_a_failure_costs_one_call(monkeypatch):
    m, x = Perceptron(), torch.randn(2, 16)
    c = compiled(m)
    with torch.no_grad():
        agree(c(x), m(x))

        def fail(self, *args, **kwargs):
            raise ost.InputError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(NativePartition, "__call__", fail)
            with pytest.warns(RuntimeWarning, match="not now"):
                agree(c(x), m(x))
        agree(c(x), m(x))
    assert report(c).failures == 1
    assert "failed 1 times" in str(report(c))


def test_threads_compile_and_run_at_the_same_time():
    models = [Perceptron(depth) for depth in (2, 3)]
    x, problems = torch.randn(4, 16), []

    def work(m):
        try:
            c = compiled(m)
            with torch.no_grad():
                for _ in range(20):
                    agree(c(x), m(x))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(m,)) for m in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_copies_of_a_compiled_module_compile_anew():
    m, x = Perceptron(), torch.randn(2, 16)
    c = compiled(m, threads=1)
    with torch.no_grad():
        agree(c(x), m(x))
        twin = copy.deepcopy(c)
        twin._orig_mod.layers[0].weight.mul_(2)
        agree(twin(x), twin._orig_mod(x))
        agree(c(x), m(x))


def test_report_refuses_other_objects():
    with pytest.raises(ost.InputError, match=r"torch\.compile"):
        report(Perceptron())
    assert report(compiled(lambda x: x)).graphs == ()


class Cache(nn.Module):
    """A layer with a cache that it writes a row of."""

    def __init__(self, rows):
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, rows, 8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x, at):
        self.rows.index_copy_(1, at, torch.relu(x))
        self.count.add_(1)
        return (self.rows * 2).sum(1) + self.count, self.rows


def test_caches_are_written_in_place():
    eager, m = Cache(6), Cache(6)
    c = compiled(m)
    with torch.no_grad():
        for at in range(5):
            x, position = torch.randn(2, 1, 8), torch.tensor([at])
            before = m.rows._version
            found, wanted = c(x, position), eager(x, position)
            agree(found, wanted)
            assert found[1] is m.rows and m.rows._version > before
    (graph,) = report(c).graphs
    assert not [node for node in graph.eager_nodes if "copy_" in node.op]


def test_a_tensor_that_is_written_and_read_by_eager_nodes():
    def run(x, y):
        r = torch.linalg.qr(x).R
        old = x + 0
        x.mul_(2).add_(y)
        later = torch.linalg.qr(old).R + torch.relu(x)
        y.copy_(x.t())
        return r + later, old, torch.linalg.qr(y).R

    c = compiled(run, min_partition=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            given = [torch.randn(4, 4), torch.randn(4, 4)]
            eager = [t.clone() for t in given]
            agree(c(*given), run(*eager))
            agree(given, eager)


def test_arguments_that_overlap():
    def run(x, y):
        x.add_(1)
        return torch.relu(x) + y * 2

    c = compiled(run)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(6)
            eager = x.clone()
            agree(c(x[:4], x[2:]), run(eager[:4], eager[2:]))
            agree(x, eager)
            agree(c(x, x), run(eager, eager))
            agree(x, eager)


def test_attention_with_shared_heads_and_its_gradients():
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    assert not check(attend, q, k, v).eager_nodes

    def loss(function, *given):
        given = [t.clone().requires_grad_() for t in given]
        function(*given).square().sum().backward()
        return [t.grad for t in given]

    same = torch.nn.functional.scaled_dot_product_attention
    c = compiled(lambda q, k, v: same(q, k, v) + 0)
    heads = torch.randn(2, 4, 5, 8)
    for got, wanted in zip(loss(c, q, heads, heads), loss(same, q, heads, heads), strict=True):
        torch.testing.assert_close(got, wanted)
    assert not report(c).eager_nodes


def test_tensors_that_are_part_of_a_graph():
    def run(x):
        return torch.relu(x) * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(1.5)

    assert not check(run, torch.randn(2, 3)).eager_nodes
