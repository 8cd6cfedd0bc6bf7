"""``torch.compile(backend="ostinato")`` where processes fork, modules vanish and calls go wrong."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from ostinato.frontends.torch.dynamo import backend, report
from tests.peers.torch.test_dynamo import Perceptron, agree, compiled

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()


def in_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_child_runs_what_its_parent_has_compiled():
    code = """
        import os, torch
        from ostinato.frontends.torch.dynamo import backend
        torch.set_num_threads(1)
        model, x = torch.nn.Linear(64, 64).eval(), torch.randn(256, 64)
        with torch.no_grad():
            fast = torch.compile(model, backend=backend, options={"threads": 2})
            wanted = fast(x)
            child = os.fork()
            if child == 0:
                os._exit(0 if torch.equal(fast(x), wanted) and fast(x[:5]).shape[0] == 5 else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert torch.equal(fast(x), wanted)
    """
    in_new_process(code)


@pytest.mark.parametrize("first", ["ostinato", "torch"])
def test_the_backend_is_found_by_its_name(first, tmp_path):
    folder = tmp_path / "ostinato_backend-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ostinato-backend\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\nostinato = ostinato.frontends.torch.dynamo:backend\n"
    )
    code = f"""
        import {first}
        import sys
        if "{first}" == "ostinato":
            ostinato.torch, ostinato.Session
            assert "torch" not in sys.modules
        import torch, ostinato
        assert "ostinato" in torch._dynamo.list_backends()
        model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
        with torch.no_grad():
            fast = torch.compile(model, backend="ostinato")
            assert torch.allclose(fast(x), model(x), atol=1e-6)
        print(ostinato.torch.report(fast).native_nodes)
    """
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    assert int(in_new_process(code, PYTHONPATH=path)) >= 1


def test_weights_do_not_outlive_what_dynamo_keeps():
    m, x = Perceptron(), torch.randn(2, 16)
    c = compiled(m)
    with torch.no_grad():
        c(x)
    weight = weakref.ref(m.layers[0].weight)
    del m, c
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None


def test_weights_may_be_replaced_by_others():
    m, x = Perceptron(2), torch.randn(2, 16)
    c = compiled(m)
    with torch.no_grad():
        agree(c(x), m(x))
        m.layers[1] = nn.Linear(16, 5)
        agree(c(x), m(x))
        m.double()
        agree(c(x.double()), m(x.double()))
        m.layers[0].bias = None
        agree(c(x.double()), m(x.double()))
        m.layers[1].weight.data = m.layers[1].weight.data.t().contiguous().t()
        agree(c(x.double()), m(x.double()))
    assert not report(c).failures


def test_an_error_of_eager_is_the_callers_and_later_calls_work():
    def run(x, ids):
        return torch.relu(torch.linalg.cholesky(x)) + ids

    good, bad = torch.eye(3), -torch.eye(3)
    c = compiled(run, min_partition=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agree(c(good, 1.0), run(good, 1.0))
        with pytest.raises(torch.linalg.LinAlgError):
            c(bad, 1.0)
        agree(c(good, 1.0), run(good, 1.0))


def test_arguments_of_other_kinds():
    def run(x):
        return torch.relu(x) * 2 + x

    c = compiled(run)
    wide = torch.randn(8, 6)
    with torch.no_grad():
        for x in (
            wide,
            wide.t(),
            wide[::2, 1:],
            wide.expand(3, 8, 6),
            wide.double(),
            torch.randn(()),
            torch.randn(0, 6),
            torch.frombuffer(bytearray(4 * 7 + 2), dtype=torch.uint8)[2:].view(torch.uint8),
            nn.Parameter(wide),
            torch.complex(wide, wide).imag,
            torch._neg_view(wide),
        ):
            agree(c(x), run(x))
            agree(c(x), run(x))


def test_inference_mode():
    m, x = Perceptron(), torch.randn(2, 16)
    c = compiled(m)
    with torch.inference_mode():
        agree(c(x), m(x))
        agree(c(x), m(x))
    with torch.no_grad():
        agree(c(x), m(x))


def test_many_threads_run_one_compiled_module():
    m = Perceptron()
    c = compiled(m, dynamic=True)
    problems = []
    with torch.no_grad():
        c(torch.randn(4, 16))

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        try:
            with torch.no_grad():
                for step in range(40):
                    x = torch.randn(2 + (seed + step) % 7, 16, generator=generator)
                    agree(c(x), m(x))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_nothing_but_the_backend_is_shared_between_compiles():
    m, x = Perceptron(), torch.randn(2, 16)
    first = torch.compile(m, backend=backend)
    second = torch.compile(m, backend=backend, options={"threads": 2})
    with torch.no_grad():
        agree(first(x), m(x))
        assert not report(second).graphs
        agree(second(x), m(x))
    assert len(report(first).graphs) == len(report(second).graphs) == 1
