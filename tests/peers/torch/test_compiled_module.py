"""``ost.torch.compile`` next to eager: results, writes, views, weights that change, bad input."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

import ostinato as ost

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.utils import _pytree  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def compile_module(source: Any, *args: Any, **options: Any) -> Any:
    return ost.torch.compile(source, args, threads=1, **options)


def agree(found: Any, wanted: Any) -> None:
    """Nested results have eager's structure, values, dtypes, shapes and strides."""
    leaves, spec = _pytree.tree_flatten(found)
    expected, wanted_spec = _pytree.tree_flatten(wanted)
    assert spec == wanted_spec
    for a, b in zip(leaves, expected, strict=True):
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert not a.requires_grad or a.is_leaf
            torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert type(a) is type(b)
            assert a == b


class Mixed(nn.Module):
    """Writes to an argument and to buffers; gives views of arguments, buffers and each other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.tied = self.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("rows", torch.zeros(4, 8))

    def forward(self, x: Any, position: Any, *, flag: bool = True) -> Any:
        self.calls += 1
        self.rows.index_copy_(0, position, x)
        flat = x.view(-1)
        flat.add_(1)
        h = x @ self.weight + x @ self.tied
        return {"h": h, "turned": h.t(), "x": x, "flat": flat, "flag": flag}, (
            self.rows,
            self.rows[1:, ::2],
            self.calls,
            h[:, 1:3],
            x.sum(1, keepdim=True).expand(2, 5),
            x.shape[0],
            None,
        )


@pytest.mark.parametrize("weights", ["checked", "live", "frozen"])
def test_results_writes_and_views(weights):
    module = Mixed()
    twin = copy.deepcopy(module)
    position = torch.tensor([3, 1])
    x = torch.randn(2, 8)
    compiled = compile_module(twin, x.clone(), position, weights=weights)
    assert not twin.rows.any()
    assert not twin.calls
    y = x.clone()
    for _ in range(4):
        with torch.no_grad():
            wanted = module(x, position)
        found = compiled(y, position)
        agree(found, wanted)
        assert torch.equal(x, y)
        assert torch.equal(module.rows, twin.rows)
        assert module.calls == twin.calls
        assert found[0]["x"] is y
        assert found[1][0] is twin.rows
        assert found[1][1].data_ptr() == twin.rows[1:].data_ptr()
        assert found[0]["h"].data_ptr() == found[0]["turned"].data_ptr()
        assert found[0]["flat"].data_ptr() == y.data_ptr()
    assert y._version > 0
    assert twin.rows._version > 0


def test_results_are_fresh():
    compiled = compile_module(nn.ReLU(), torch.ones(3))
    first = compiled(torch.ones(3))
    compiled(torch.full((3,), 2.0))
    assert first.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"],
)
def test_dtypes(dtype):
    x = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))

    def function(x: Any) -> Any:
        return x + x, x.t(), (x * 2).t()

    compiled = compile_module(function, x)
    for _ in range(2):
        agree(compiled(x), function(x))


def test_complex_numbers_and_bools():
    def function(z: Any, mask: Any) -> Any:
        return z * 2, z.real, torch.view_as_real(z).sum(-1), mask & ~mask

    z, mask = torch.randn(3, dtype=torch.complex64), torch.tensor([True, False])
    compiled = compile_module(function, z, mask)
    for _ in range(2):
        agree(compiled(z, mask), function(z, mask))


def test_arguments_of_all_layouts():
    def function(x: Any) -> Any:
        return x * 2, x.reshape(-1), x[..., :1]

    compiled = compile_module(function, torch.randn(4, 6))
    base = torch.randn(8, 12)
    misaligned = torch.frombuffer(bytearray(97), dtype=torch.uint8)[1:].view(torch.uint8)
    for x in [
        torch.randn(4, 6),
        torch.randn(6, 4).t(),
        base[::2, ::2],
        base[1:5, 3:9],
        torch.randn(4, 1).expand(4, 6),
        torch.randn(4, 6).requires_grad_(),
        nn.Parameter(torch.randn(4, 6)),
        misaligned[:24].view(4, 6),
    ]:
        with torch.no_grad():
            wanted = function(x)
            for _ in range(2):
                agree(compiled(x), wanted)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1), (2, 0, 3)])
def test_scalars_and_empty_tensors(shape):
    def function(x: Any) -> Any:
        return x + 1, x.sum()

    compiled = compile_module(function, torch.ones(shape))
    for _ in range(2):
        agree(compiled(torch.ones(shape)), function(torch.ones(shape)))


def test_other_shapes_dtypes_and_constants_compile_anew():
    def function(x: Any, *, scale: Any = 2, twice: bool = False) -> Any:
        return x * scale if not twice else x * scale * 2

    compiled = compile_module(function, torch.ones(3))
    for args, kwargs in [
        ((torch.ones(3),), {}),
        ((torch.ones(4),), {}),
        ((torch.ones(4, 2),), {}),
        ((torch.ones(3, dtype=torch.float64),), {}),
        ((torch.ones(3, dtype=torch.int64),), {}),
        ((torch.ones(3),), {"scale": 3}),
        ((torch.ones(3),), {"scale": 3.0, "twice": True}),
        ((torch.ones(3),), {"scale": torch.ones(3)}),
    ]:
        for _ in range(2):
            agree(compiled(*args, **kwargs), function(*args, **kwargs))
    assert len(compiled.graphs) == 8


def test_keyword_arguments_in_any_order():
    def function(*, a: Any, b: Any, c: Any) -> Any:
        b.add_(1)
        return a - c, b, c.t()

    tensors = {name: torch.randn(3, 3) for name in "abc"}
    twins = {name: tensor.clone() for name, tensor in tensors.items()}
    compiled = ost.torch.compile(function, (), tensors, threads=1)
    for order in ("abc", "cab", "bca", "acb") * 2:
        found = compiled(**{name: tensors[name] for name in order})
        agree(found, function(**twins))
        assert found[1] is tensors["b"]
        assert found[2].data_ptr() == tensors["c"].data_ptr()
    assert len(compiled.graphs) == 1


def test_nested_arguments():
    def function(x: Any, more: Any) -> Any:
        more["b"][0].add_(x)
        return {"sum": x + more["a"], "b": more["b"]}

    def arguments() -> Any:
        torch.manual_seed(1)
        return torch.randn(3), {"a": torch.randn(3), "b": [torch.randn(3), 2, "word"]}

    compiled = ost.torch.compile(function, arguments(), threads=1)
    given, twin = arguments(), arguments()
    for _ in range(4):
        agree(compiled(*given), function(*twin))
        agree(given, twin)
    assert len(compiled.graphs) == 1


def test_the_number_of_programs_is_bounded():
    compiled = compile_module(lambda x: x + 1, torch.ones(1))
    for size in range(1, 20):
        agree(compiled(torch.ones(size)), torch.ones(size) + 1)
    assert len(compiled.graphs) == 16


def test_sizes_that_vary_need_one_program():
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU())
    x = torch.randn(4, 3)
    compiled = compile_module(module, x, dynamic_shapes=({0: Dim("n", min=1, max=64)},))
    for size in (4, 1, 2, 64, 1, 4):
        x = torch.randn(size, 3)
        for _ in range(2):
            agree(compiled(x), module(x))
    assert len(compiled.graphs) == 1


def test_a_broken_guard_compiles_anew():
    def function(x: Any) -> Any:
        return x * 2 if x.shape[0] > 3 else x

    compiled = compile_module(function, torch.ones(5), dynamic_shapes=({0: Dim.AUTO},))
    for size in (5, 2, 7, 1):
        agree(compiled(torch.ones(size)), function(torch.ones(size)))


def test_views_and_numbers_follow_sizes():
    def function(x: Any) -> Any:
        return x.t(), (x + 1).t(), x[1:], x.shape[0] * 2

    x = torch.randn(4, 3)
    compiled = compile_module(function, x, dynamic_shapes=({0: Dim.AUTO},))
    for size in (4, 5, 9):
        x = torch.randn(size, 3)
        for _ in range(2):
            agree(compiled(x), function(x))
    assert len(compiled.graphs) == 1


# -- weights -----------------------------------------------------------------------------------


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2))).eval()


def in_place(module: nn.Module) -> None:
    with torch.no_grad():
        module[0].weight.mul_(3)


def replaced(module: nn.Module) -> None:
    module[1][1].bias = nn.Parameter(torch.randn(2))


def loaded(module: nn.Module) -> None:
    module.load_state_dict(network().state_dict(), strict=False)


def assigned(module: nn.Module) -> None:
    module.load_state_dict(network().state_dict(), assign=True, strict=False)


def swapped(module: nn.Module) -> None:
    module[0].weight.data = torch.randn(8, 4)


def other_layer(module: nn.Module) -> None:
    module[1] = nn.Sequential(nn.Linear(8, 2), nn.Tanh())


def other_dtype(module: nn.Module) -> None:
    module.double().float()


def transposed(module: nn.Module) -> None:
    """The same memory, read in another order."""
    module[2].weight.data = module[2].weight.data.t()


def hooked(module: nn.Module) -> None:
    module[0].register_forward_hook(lambda *args: args[-1] * 2)
    module[1][1].register_forward_pre_hook(lambda layer, args: (args[0] + 1,))


def unhooked(module: nn.Module) -> None:
    module[2]._forward_hooks.clear()


def hooked_otherwise(module: nn.Module) -> None:
    unhooked(module)
    module[2].register_forward_hook(lambda *args: args[-1] - 1)


def resized(module: nn.Module) -> None:
    module[0].weight = nn.Parameter(torch.randn(5, 4))
    module[0].bias = nn.Parameter(torch.randn(5))
    module[1][1].weight = nn.Parameter(torch.randn(2, 5))


@pytest.mark.parametrize("weights", ["checked", "live"])
@pytest.mark.parametrize(
    "change",
    [
        *(in_place, replaced, loaded, assigned, swapped, other_layer, other_dtype, resized),
        *(transposed, hooked, unhooked, hooked_otherwise),
    ],
)
def test_changed_weights(weights, change):
    module = network()
    module.append(nn.Linear(2, 2))
    module[2].register_forward_hook(lambda *args: args[-1] + 1)
    x = torch.randn(3, 4)
    compiled = compile_module(module, x, weights=weights)
    for _ in range(3):
        agree(compiled(x), module(x).detach())
    change(module)
    for _ in range(3):
        agree(compiled(x), module(x).detach())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.words(ids))


@pytest.mark.parametrize("weights", ["checked", "live"])
def test_tied_weights_may_part_and_meet(weights):
    module = Tied()
    ids = torch.tensor([[1, 2]])
    compiled = compile_module(module, ids, weights=weights)
    with torch.no_grad():
        for _ in range(2):
            agree(compiled(ids), module(ids))
        module.words.weight.mul_(2)
        agree(compiled(ids), module(ids))
        for weight in (nn.Parameter(torch.randn(10, 8)), module.words.weight):
            module.head.weight = weight
            for _ in range(3):
                agree(compiled(ids), module(ids))
        module.words.weight = nn.Parameter(torch.randn(10, 8))
        for _ in range(2):
            agree(compiled(ids), module(ids))


def test_frozen_weights_stay():
    module = network()
    x = torch.randn(3, 4)
    before = module(x).detach()
    compiled = compile_module(module, x, weights="frozen")
    compiled(x)
    in_place(module)
    agree(compiled(x), before)
    compiled.refresh()
    agree(compiled(x), module(x).detach())


def test_writes_that_pytorch_does_not_count_need_a_refresh():
    module = network()
    x = torch.randn(3, 4)
    compiled = compile_module(module, x)
    compiled(x)
    module[0].weight.data.mul_(2)
    compiled.refresh()
    agree(compiled(x), module(x).detach())


def test_a_deleted_weight():
    module = network()
    x = torch.randn(3, 4)
    compiled = compile_module(module, x)
    compiled(x)
    del module[0].weight
    with pytest.raises(ost.InputError, match=r"'0.weight' was deleted"):
        compiled(x)
    module[0].weight = nn.Parameter(torch.randn(8, 4))
    agree(compiled(x), module(x).detach())


def test_the_mode_of_the_module():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    twin = copy.deepcopy(module)
    x = torch.randn(6, 4)
    compiled = compile_module(twin, x)
    for training in (False, True, False):
        module.train(training)
        twin.train(training)
        for _ in range(2):
            agree(compiled(x), module(x).detach())
            agree(twin[1].running_mean, module[1].running_mean)
            assert twin[1].num_batches_tracked == module[1].num_batches_tracked


def test_a_method_of_a_module():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def encode(self, x: Any) -> Any:
            return self.inner(x)

    model = Model()
    x = torch.randn(2, 3)
    compiled = compile_module(model.encode, x)
    agree(compiled(x), model.encode(x).detach())
    with torch.no_grad():
        model.inner.bias.add_(1)
    agree(compiled(x), model.encode(x).detach())


def test_a_weight_as_a_result():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3))

        def forward(self, x: Any) -> Any:
            return self.weight, self.weight.t(), x + 1

    model = Model()
    compiled = compile_module(model, torch.ones(2))
    for _ in range(2):
        weight, turned, _ = compiled(torch.ones(2))
        assert weight is model.weight
        assert turned.data_ptr() == model.weight.data_ptr()


def test_nothing_of_the_module_is_kept_alive_by_calls():
    compiled = compile_module(lambda x: x + 1, torch.ones(1000))
    result = compiled(torch.ones(1000))
    compiled(torch.ones(1000))
    import weakref

    reference = weakref.ref(result)
    del result
    gc.collect()
    assert reference() is None


# -- bad input ---------------------------------------------------------------------------------


def test_unknown_words_are_refused():
    with pytest.raises(ost.InputError, match="'checked', 'live', 'frozen'"):
        compile_module(nn.ReLU(), torch.ones(1), weights="stale")


def test_tensors_of_other_devices_and_layouts_are_refused():
    compiled = compile_module(nn.ReLU(), torch.ones(2))
    with pytest.raises(ost.InputError, match="on meta"):
        compiled(torch.ones(2, device="meta"))
    with pytest.raises(ost.InputError, match="layout"):
        compiled(torch.ones(2).to_sparse())


def test_memory_in_common_with_a_written_argument_is_refused():
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        return x * y

    compiled = compile_module(function, torch.ones(4), torch.ones(4))
    x = torch.ones(8)
    compiled(x[:4], x[4:])
    assert x.tolist() == [2] * 4 + [1] * 4
    for other in (x[:4], x[2:6]):
        with pytest.raises(ost.InputError, match="memory in common"):
            compiled(x[:4], other)
    assert x.tolist() == [2] * 4 + [1] * 4


def test_a_written_argument_with_gaps():
    def function(x: Any) -> Any:
        x.mul_(2)
        return x + 1

    compiled = compile_module(function, torch.ones(3, 2))
    base, twin = torch.ones(6, 4), torch.ones(6, 4)
    for _ in range(2):
        agree(compiled(base[::2, ::2]), function(twin[::2, ::2]))
        assert torch.equal(base, twin)


def test_too_few_arguments_raise_like_the_module():
    compiled = compile_module(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(Exception, match="input"):
        compiled()
    agree(compiled(torch.zeros(1, 2)).shape, torch.Size([1, 2]))


def test_an_exported_program_has_one_shape():
    exported = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    compiled = ost.torch.compile(exported, threads=1)
    agree(compiled(torch.ones(1, 2)), exported.module()(torch.ones(1, 2)).detach())
    with pytest.raises(ost.InputError, match=r"float32\[1, 2\]; got float32\[3, 2\]"):
        compiled(torch.ones(3, 2))


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.nn.functional.gelu(self.inner(x))
            with torch.autocast("cpu", enabled=False):
                z = self.inner(x)
        with torch.no_grad():
            x.add_(1)
        return y, z, y.float() + x


def test_regions_of_autocast_and_of_modes():
    module = Mixing()
    x, twin = torch.ones(2, 4), torch.ones(2, 4)
    compiled = compile_module(module, x.clone())
    for _ in range(2):
        found, wanted = compiled(x), module(twin)
        assert [t.dtype for t in found] == [t.dtype for t in wanted]
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=2e-2, atol=2e-2)
        assert torch.equal(x, twin)


def test_autocast_around_a_call_is_refused():
    compiled = compile_module(nn.Linear(2, 2), torch.ones(1, 2))
    compiled(torch.ones(1, 2))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ost.InputError, match="autocast"):
        compiled(torch.ones(1, 2))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ost.InputError, match="autocast"):
        ost.from_torch(nn.Linear(2, 2), (torch.ones(1, 2),))


def test_gradients_of_arguments_are_refused():
    module = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    compiled = compile_module(module, x)
    wanted = module(x).detach()
    for asked in (x.clone().requires_grad_(), nn.Parameter(x.clone()), (x.requires_grad_() * 1)):
        for _ in range(2):
            with pytest.raises(ost.InputError, match="requires a gradient"):
                compiled(asked)
            agree(compiled(asked.detach()), wanted)
            with torch.no_grad():
                agree(compiled(asked), wanted)
    nested = ost.torch.compile(lambda pair: pair["x"] + 1, ({"x": torch.ones(2)},), threads=1)
    for _ in range(2):
        agree(nested({"x": torch.ones(2)}), torch.full((2,), 2.0))
        with pytest.raises(ost.InputError, match="requires a gradient"):
            nested({"x": torch.ones(2, requires_grad=True)})


def test_unsupported_nodes_are_listed():
    with pytest.raises(ost.UnsupportedOpError, match="svd"):
        compile_module(torch.linalg.svdvals, torch.eye(2))


def test_a_compiled_module_within_another():
    inner = network()
    x = torch.randn(3, 4)
    compiled = compile_module(inner, x)
    outer = compile_module(lambda x: compiled(x * 2) + 1, x)
    for _ in range(2):
        agree(outer(x), (inner(x * 2) + 1).detach())
        agree(compiled(x), inner(x).detach())
    torch._dynamo.reset()
    traced = torch.compile(lambda x: compiled(x * 2) + 1, backend="eager")
    for _ in range(2):
        agree(traced(x), (inner(x * 2) + 1).detach())


# -- threads and processes ---------------------------------------------------------------------


def test_calls_and_compiles_from_threads():
    module = network()
    compiled = compile_module(module, torch.randn(1, 4))
    failures: list[BaseException] = []
    cases = {(n, s): torch.full((n, 4), float(s)) for n in (1, 2, 3) for s in range(4)}
    wanted = {key: module(x).detach() for key, x in cases.items()}  # exports change the module

    def work(seed: int) -> None:
        try:
            for size in (1 + seed % 3, 2, 3) * 5:
                agree(compiled(cases[size, seed]), wanted[size, seed])
            own = network()
            x = torch.randn(2, 4)
            agree(compile_module(own, x)(x), own(x).detach())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_a_fork_can_call():
    module = network()
    x = torch.randn(3, 4)
    compiled = compile_module(module, x)
    expected = compiled(x).numpy().copy()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child() -> None:
        queue.put(compiled(x).numpy().tolist())

    process = context.Process(target=child)
    process.start()
    found = queue.get(timeout=60)
    process.join()
    np.testing.assert_array_equal(np.asarray(found, np.float32), expected)


def test_views_of_negated_memory_are_read_negated() -> None:
    module = torch.nn.Linear(4, 3).eval()
    x = torch.randn(2, 4)
    fast = ost.torch.compile(module, (x,))
    for given in (x, x, x, torch._neg_view(x), x):
        torch.testing.assert_close(fast(given), module(given).detach())


def test_sizes_of_results_may_depend_on_data() -> None:
    class Chosen(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x[x > 0] * 2, x.nonzero(), torch.unique(x.round())

    module = Chosen()
    x = torch.randn(3, 6)
    fast = ost.torch.compile(module, (x,))
    for given in (x, torch.randn(3, 6), torch.zeros(3, 6)):
        for result, wanted in zip(fast(given), module(given), strict=True):
            torch.testing.assert_close(result, wanted, rtol=0, atol=0)
            assert not result.numel() or result.stride() == wanted.stride()


@pytest.mark.parametrize("value", [True, 3.5, 4])
def test_numbers_of_tensors(value: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        return x.item(), x + 1

    x = torch.tensor(value)
    fast = ost.torch.compile(function, (x,), threads=1)
    for given in (x, x, torch.zeros_like(x)):
        agree(fast(given), function(given))


@pytest.mark.parametrize(
    ("module", "shape"),
    [(torch.nn.Linear(4, 2), (2, 4)), (torch.nn.Conv2d(1, 1, 2), (1, 1, 3, 3))],
)
def test_dtypes_that_eager_refuses(module: torch.nn.Module, shape: tuple[int, ...]) -> None:
    fast = ost.torch.compile(module.eval(), (torch.randn(shape),))
    with pytest.raises((ost.OstinatoError, RuntimeError), match=r"dtype|type"):
        fast(torch.randn(shape, dtype=torch.float64))
    fast(torch.randn(shape))
