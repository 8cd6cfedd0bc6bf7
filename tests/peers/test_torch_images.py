"""Resizing, sampling and pooling as PyTorch has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ostinato import reference  # noqa: E402
from ostinato.ops.builder import Graph  # noqa: E402

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
SHAPES = [
    ((1, 2, 7), (5,)),
    ((2, 1, 5, 8), (9, 3)),
    ((1, 2, 6, 6), (1, 12)),
    ((1, 1, 3, 4, 5), (6, 2, 5)),
]


F: Any = torch.nn.functional


def evaluated(build: Callable[..., Any], *arrays: Any) -> list[np.ndarray[Any, Any]]:
    """The results of ``build(g, *inputs)`` by the oracle."""
    g = Graph("test")
    given = [a.numpy() for a in arrays]
    results = build(g, *(g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(given)))
    g.set_outputs(list(results) if isinstance(results, tuple) else [results])
    return reference.evaluate(g, {f"x{i}": a for i, a in enumerate(given)})


def method(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """A build that calls a method of the vocabulary on the inputs, then these arguments."""
    return lambda g, *inputs: getattr(g, name)(*inputs, *args, **kwargs)


def same(build: Callable[..., Any], expected: Any, *arrays: Any, tolerance: float = 1e-5) -> None:
    """The results of ``build`` are PyTorch's."""
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for mine, theirs in zip(evaluated(build, *arrays), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=tolerance, atol=tolerance)


def tensor(*shape: int, seed: int = 3) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("shape", "sizes"), SHAPES)
def test_resize(shape: Sequence[int], sizes: Sequence[int]) -> None:
    x, linear = tensor(*shape), LINEAR[len(sizes)]
    for mode in ("nearest", "nearest-exact", "area"):
        same(method("resize", sizes, mode=mode), F.interpolate(x, sizes, mode=mode), x)
    smooth = [linear, "bicubic"] if len(sizes) == 2 else [linear]
    for mode, align in itertools.product(smooth, (False, True)):
        same(
            method("resize", sizes, mode=mode, align_corners=align),
            F.interpolate(x, sizes, mode=mode, align_corners=align),
            x,
        )
        if len(sizes) == 2:
            same(
                method("resize", sizes, mode=mode, align_corners=align, antialias=True),
                F.interpolate(x, sizes, mode=mode, align_corners=align, antialias=True),
                x,
            )


@pytest.mark.parametrize("scale", [2.0, 0.7, 1.3, 3.0])
def test_resize_by_scales(scale: float) -> None:
    x = tensor(1, 2, 7, 10)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        sizes = [int(7 * scale), int(10 * scale)]
        same(
            method("resize", sizes, scale, mode=mode),
            F.interpolate(x, scale_factor=scale, mode=mode),
            x,
        )


def test_nearest_neighbours_of_all_sizes() -> None:
    for size, target in itertools.product((1, 3, 5, 7, 10, 49), range(1, 60)):
        x = torch.arange(size, dtype=torch.float32).reshape(1, 1, size)
        for mode in ("nearest", "nearest-exact"):
            same(method("resize", target, mode=mode), F.interpolate(x, target, mode=mode), x)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    for shape, points in (((2, 3, 5, 6), (4, 3)), ((1, 2, 3, 4, 5), (2, 3, 2))):
        if mode == "bicubic" and len(points) == 3:
            continue
        x, grid = tensor(*shape), 1.5 * tensor(shape[0], *points, len(points), seed=4)
        same(
            method("grid_sample", mode, padding, align),
            F.grid_sample(x, grid, mode, padding, align),
            x,
            grid,
            tolerance=1e-4,
        )


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 1, 5), (1, 1, 2, 3, 4)])
def test_affine_grid(size: Sequence[int], align: bool) -> None:
    theta = tensor(size[0], len(size) - 2, len(size) - 1)
    same(lambda g, t: g.affine_grid(t, size, align), F.affine_grid(theta, list(size), align), theta)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation"),
    [
        ((2, 3, 11), 3, 2, 1, 2),
        ((2, 3, 8, 9), (3, 2), (2, 3), (1, 0), (1, 2)),
        ((1, 2, 5, 6, 7), 2, 2, 1, 1),
    ],
)
def test_pools(
    shape: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> None:
    x, ndim = tensor(*shape), len(shape) - 2
    x.view(-1)[::7] = x.view(-1)[1]  # equal elements
    x.view(-1)[::13] = float("nan")
    pool = getattr(F, f"max_pool{ndim}d")
    same(
        method("max_pool", kernel, stride, padding, dilation, ceil_mode, return_indices=True),
        pool(x, kernel, stride, padding, dilation, ceil_mode, return_indices=True),
        x,
    )
    x = tensor(*shape)
    mean = getattr(F, f"avg_pool{ndim}d")
    for include in (False, True):
        same(
            method("avg_pool", kernel, stride, padding, 1, ceil_mode, include),
            mean(x, kernel, stride, padding, ceil_mode, include),
            x,
        )
    if ndim > 1:
        same(
            method("avg_pool", kernel, stride, padding, 1, ceil_mode, divisor_override=3),
            mean(x, kernel, stride, padding, ceil_mode, divisor_override=3),
            x,
        )


@pytest.mark.parametrize(
    ("shape", "bins"),
    [((2, 3, 11), (4,)), ((2, 3, 7, 12), (3, 5)), ((1, 2, 4, 6), (2, 3)), ((1, 2, 3, 4), (7, 7)),
     ((1, 2, 5, 6, 7), (2, 6, 3)), ((1, 1, 5, 6), (1, 1))],
)  # fmt: skip
def test_adaptive_pools(shape: Sequence[int], bins: Sequence[int]) -> None:
    x, ndim = tensor(*shape), len(bins)
    x.view(-1)[::7] = x.view(-1)[1]
    mean, greatest = (getattr(F, f"adaptive_{kind}_pool{ndim}d") for kind in ("avg", "max"))
    same(method("adaptive_avg_pool", bins), mean(x, bins), x)
    same(method("adaptive_max_pool", bins), greatest(x, bins), x)
    same(
        method("adaptive_max_pool", bins, return_indices=True),
        greatest(x, bins, return_indices=True),
        x,
    )


def test_what_was_pooled_comes_back() -> None:
    x = tensor(2, 3, 8, 8)
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    same(
        method("max_unpool", (8, 8)),
        F.max_unpool2d(pooled, places, 2),
        pooled,
        places,
    )
    same(method("lp_pool", 3, 2, p=2.0), F.lp_pool2d(x, 2.0, 3, 2), x)
