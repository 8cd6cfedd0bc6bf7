"""Every kernel is a module that WebGPU takes, wherever its arguments are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ostinato.backends.webgpu.code import obstacle
from ostinato.backends.webgpu.kernel import Bindings, WebGpuKernel
from ostinato.backends.webgpu.library import declarations, needed
from ostinato.backends.webgpu.target import WebGpuTarget

from .kernels import recipe_kernels

#: Devices with the least that the standard promises, with everything, and with small workgroups.
TARGETS = (
    WebGpuTarget(),
    WebGpuTarget(subgroups=True, threads=1024, shared_bytes=32 << 10),
    WebGpuTarget(threads=128, part_bytes=256),
)


def together(kernel: WebGpuKernel) -> Bindings:
    """All arguments in one buffer, as intermediate values are."""
    return Bindings(tuple((0,) for _ in kernel.args), (any(a.writes for a in kernel.args),))


def in_parts(kernel: WebGpuKernel) -> Bindings:
    """The first argument in three buffers, the others in one, at any whole element."""
    first, *others = kernel.args
    rest = (any(a.writes for a in others),) if others else ()
    places = ((0, 1, 2), *((3,) for _ in others))
    return Bindings(places, (first.writes,) * 3 + rest, aligned=False)


def check(kernel: WebGpuKernel, validate: Callable[[str], None]) -> None:
    for target in TARGETS:
        for bindings in (Bindings.apart(kernel), together(kernel), in_parts(kernel)):
            shader = kernel.shader(target, bindings)
            assert shader.threads <= target.threads
            validate(shader.source)


def test_every_declaration_of_the_library_is_valid(validate: Callable[[str], None]) -> None:
    names = " ".join(declarations())
    validate(f"{needed(names)}\n@compute @workgroup_size(1) fn main() {{}}\n")


@pytest.mark.parametrize("share", range(4))
def test_kernels_of_all_ops(share: int, validate: Callable[[str], None]) -> None:
    for kernel in list(recipe_kernels(every_dtype=False).values())[share::4]:
        if kernel.args:
            check(kernel, validate)


@pytest.mark.slow
def test_kernels_of_all_ops_and_dtypes(validate: Callable[[str], None]) -> None:
    for kernel in recipe_kernels(every_dtype=True).values():
        if kernel.args:
            check(kernel, validate)


@pytest.mark.parametrize(("part", "parts"), [(1 << 31, 8), (1 << 30, 16)])
def test_tensors_beyond_32_bit_addresses_are_the_cpus(part: int, parts: int) -> None:
    """Of floats; one more buffer is more than their words' numbers can count."""
    kernel = next(k for k in recipe_kernels(every_dtype=False).values() if k.args)
    rest = tuple((parts + n,) for n in range(1, len(kernel.args)))
    target = WebGpuTarget(part_bytes=part, bindings=1 << 10)
    units = 4 // min(kernel.args[0].dtype.itemsize, 4)
    for count, refused in ((parts // units, False), (parts // units + 1, True)):
        places = (tuple(range(count)), *rest)
        bindings = Bindings(places, (True,) * (parts + len(kernel.args)))
        assert bool(obstacle(kernel, target, bindings)) == refused
