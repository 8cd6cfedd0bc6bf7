"""NVRTC takes the source of every kernel, for the GPUs of several generations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.backends.cuda.compiler import NvrtcToolchain, compile_text
from ostinato.backends.cuda.kernel import CudaKernel, CudaLoopNest
from ostinato.backends.cuda.target import CudaTarget
from ostinato.cache.objects import ObjectCache
from ostinato.dtypes import FLOAT32
from ostinato.errors import OstinatoError
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Arg, Load, Stage, Store
from ostinato.records import replace
from ostinato.variables import Expr, Symbol, axis, symbols
from tests.backends.cuda.render.recipe_kernels import kernels_of, recipe_kernels

pytest.importorskip("cuda.bindings.nvrtc")

#: Sources in one program: most of NVRTC's time is spent before the first.
TOGETHER = 50


def compile_all(kernels: Sequence[CudaKernel], arch: str) -> None:
    target = CudaTarget.of_arch(arch)
    sources = [kernel.source(target) for kernel in kernels]
    for start in range(0, len(sources), TOGETHER):
        assert compile_text("\n".join(sources[start : start + TOGETHER]), arch)


def test_kernels_of_all_ops_compile() -> None:
    kernels = list(recipe_kernels(every_dtype=False).values())
    compile_all(kernels, "sm_90")
    for number, arch in enumerate(("sm_80", "sm_100")):
        compile_all(kernels[number::8], arch)


def test_kernels_that_sort_long_rows_compile() -> None:
    g = ost.Graph()
    rows = [g.input(dtype, (2, 5000, 3), dtype) for dtype in ("float32", "bfloat16", "int64")]
    g.set_outputs([part for x in rows for part in g.sort(x, 1)])
    kernels = {kernel.name: kernel for kernel in kernels_of(g)}
    compile_all(list(kernels.values()), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_kernels_of_all_ops_and_dtypes_compile(arch: str) -> None:
    compile_all(list(recipe_kernels(every_dtype=True).values()), arch)


def symbols_in(objects: Mapping[str, tuple[bytes, Sequence[str]]]) -> list[str]:
    return sorted(symbol for _, symbols in objects.values() for symbol in symbols)


def test_blocks_that_meet_have_as_many_threads_as_their_barriers_take_them_to_have() -> None:
    """Those of other sizes between 256 and 512 are segments, of which 256 threads compute."""
    target, seen = CudaTarget.of_arch("sm_90"), set()
    for kernel in recipe_kernels(every_dtype=False).values():
        if "OST_SYNC" in kernel.source(target):
            seen.add(kernel.launch(target).block)
    assert len(seen) > 1
    assert not any(256 < block < 512 for block in seen)


def test_objects_are_kept_by_content(tmp_path: Path) -> None:
    kernels = list(recipe_kernels(every_dtype=False).values())[:7]
    cache = ObjectCache(tmp_path)
    toolchain = NvrtcToolchain(CudaTarget.of_arch("sm_90"), cache, helpers=1)
    reports: list[tuple[int, int]] = []
    first = toolchain.compile(kernels, lambda done, total: reports.append((done, total)))
    assert symbols_in(first) == sorted(kernel.name for kernel in kernels)
    assert len(first) == 2  # as many programs as threads
    assert reports[-1] == (7, 7)
    built = cache.counters.misses
    assert toolchain.compile(kernels) == first
    assert symbols_in(toolchain.compile(kernels[2:3])) == [kernels[2].name]
    assert symbols_in(NvrtcToolchain(toolchain.target, ObjectCache(tmp_path)).compile(kernels[:3]))
    assert cache.counters.misses == built
    other = NvrtcToolchain(CudaTarget.of_arch("sm_80"), cache)
    assert other.identity != toolchain.identity
    assert not other.compile(kernels[:1]).keys() & first.keys()


def test_assembly_is_ptx() -> None:
    kernel = next(iter(recipe_kernels(every_dtype=False).values()))
    text = NvrtcToolchain(CudaTarget.of_arch("sm_90")).assembly(kernel)
    assert f".entry {kernel.name}" in text


def test_machine_code_follows_where_a_disassembler_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text('#!/bin/sh\nhead -c 4 "$2" | tail -c 3; echo " disassembled"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    kernel = next(iter(recipe_kernels(every_dtype=False).values()))
    text = NvrtcToolchain(CudaTarget.of_arch("sm_90")).assembly(kernel)
    assert text.index(f".entry {kernel.name}") < text.index("ELF disassembled")
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert "disassembled" not in NvrtcToolchain(CudaTarget.of_arch("sm_90")).assembly(kernel)


def test_text_that_is_no_cuda_is_refused() -> None:
    with pytest.raises(OstinatoError, match=r"NVRTC, sm_90: kernel\.cu\(1\): error"):
        compile_text("void f() { nothing(); }", "sm_90")


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(OstinatoError, match=r"expected one of .*sm_90.* got 'sm_1'"):
        CudaTarget.of_arch("sm_1")


def test_kernels_that_stop_at_a_refused_size_have_objects_of_their_own() -> None:
    """Their descriptions are the same: only their names differ."""

    def double(size: Symbol) -> CudaLoopNest:
        i = axis("i", Expr({(size,): 1}, 0))
        value = Apply("add", (Load(0, i, FLOAT32), Load(0, i, FLOAT32)), FLOAT32)
        args = Arg(FLOAT32), Arg(FLOAT32, reads=False, writes=True)
        stages = (Stage((), (Store(1, i, value),)),)
        nest = LoopNest(args, (), stages, inner_axis=next(iter(symbols(i))), variables=(size,))
        return CudaLoopNest.of(nest)

    kernels = [double(Symbol("n", 0, 9)), double(Symbol("n", 0, 9, bound=9))]
    objects = NvrtcToolchain(CudaTarget.of_arch("sm_90"), helpers=0).compile(kernels)
    assert symbols_in(objects) == sorted(kernel.name for kernel in kernels)
    assert len({kernel.name for kernel in kernels}) == 2


def test_early_starts_can_be_switched_off() -> None:
    kernel = next(k for k in recipe_kernels(every_dtype=False).values() if k.prefix == "loops")
    target = CudaTarget.of_arch("sm_90")
    assert kernel.launch(target).programmatic
    assert "wait_for_earlier_kernels" in kernel.source(target)
    for other in (replace(target, early_starts=False), CudaTarget.of_arch("sm_80")):
        assert not kernel.launch(other).programmatic
        assert "wait_for_earlier_kernels" not in kernel.source(other)
