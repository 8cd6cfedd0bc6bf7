"""Methods with PyTorch's meaning, next to PyTorch: the same numbers, ties and NaN included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost

torch = pytest.importorskip("torch")


def values(*shape: int, nan: bool = False) -> Any:
    """Few different floats, so that there are ties."""
    rng = np.random.default_rng(sum(shape))
    array = rng.integers(-6, 7, shape).astype(np.float32) / 4
    if nan:
        array.reshape(-1)[[1, -2]] = np.nan
    return torch.from_numpy(array)


X, Y, IDS = values(4, 6), values(4, 6, nan=True), torch.tensor([[2, 0, 3], [1, 1, -1 + 4]])
ROWS = torch.tensor([3, 0, 3])
MASK = values(4, 6) > 0
BAG, OFFSETS = torch.tensor([1, 2, 3, 3, 0, 2]), torch.tensor([0, 2, 2, 5])
IMAGE = values(2, 3, 7, 6)

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def scatter_reduce(mode: str, theirs: str, include: bool) -> Case:
    return (
        lambda g, x, i, u: g.scatter_reduce(x, i, u, 0, mode, include),
        lambda x, i, u: x.scatter_reduce(0, i, u, theirs, include_self=include),
        (X, IDS, values(3, 5)),
    )


CASES: dict[str, Case] = {
    "argsort": (
        lambda g, x: g.argsort(x, 0, descending=True),
        lambda x: torch.argsort(x, dim=0, descending=True, stable=True),
        (Y,),
    ),
    "searchsorted": (
        lambda g, s, x: g.searchsorted(s, x, right=True),
        lambda s, x: torch.searchsorted(s, x, right=True),
        (X.sort()[0], Y),
    ),
    "bucketize": (
        lambda g, x, b: g.bucketize(x, b),
        lambda x, b: torch.bucketize(x, b),
        (Y, torch.tensor([-1.0, 0.25, 1.0])),
    ),
    "kthvalue": (
        lambda g, x: g.kthvalue(x, 4, 1, keepdims=True)[0],
        lambda x: torch.kthvalue(x, 4, 1, keepdim=True)[0],
        (X,),
    ),
    "median": (lambda g, x: g.median(x, 0)[0], lambda x: x.median(0)[0], (Y,)),
    "median_of_all": (lambda g, x: g.median(x)[0], lambda x: x.median(), (X,)),
    "nanmedian": (lambda g, x: g.nanmedian(x, 1)[0], lambda x: x.nanmedian(1)[0], (Y,)),
    "mode": (lambda g, x: g.mode(x, 1)[0], lambda x: x.mode(1)[0], (X,)),
    **{
        f"{name}_{way}": (
            lambda g, x, name=name, way=way: getattr(g, name)(
                x, [0.1, 0.5, 0.9], 1, interpolation=way
            ),
            lambda x, name=name, way=way: getattr(torch, name)(
                x, torch.tensor([0.1, 0.5, 0.9]), 1, interpolation=way
            ),
            (Y,),
        )
        for name in ("quantile", "nanquantile")
        for way in ("linear", "lower", "higher", "midpoint", "nearest")
    },
    "cummax": (lambda g, x: g.cummax(x, 1), lambda x: tuple(x.cummax(1)), (Y,)),
    "cummin": (lambda g, x: g.cummin(x, 0), lambda x: tuple(x.cummin(0)), (Y,)),
    "logcumsumexp": (lambda g, x: g.logcumsumexp(x, 1), lambda x: x.logcumsumexp(1), (Y,)),
    "nansum": (lambda g, x: g.nansum(x, 0), lambda x: x.nansum(0), (Y,)),
    "nanmean": (lambda g, x: g.nanmean(x, 1), lambda x: x.nanmean(1), (Y,)),
    "count_nonzero": (lambda g, x: g.count_nonzero(x, 1), lambda x: x.count_nonzero(1), (Y,)),
    "var_mean": (
        lambda g, x: g.var_mean(x, 0, 1),
        lambda x: torch.var_mean(x, 0, correction=1),
        (X,),
    ),
    "histc": (lambda g, x: g.histc(x, 5), lambda x: torch.histc(x, 5), (X,)),
    "histc_of_a_range": (
        lambda g, x: g.histc(x, 4, -1, 1),
        lambda x: torch.histc(x, 4, -1, 1),
        (Y,),
    ),
    "histogram": (
        lambda g, x, e: g.histogram(x, e, density=True),
        lambda x, e: torch.histogram(x, e, density=True)[0],
        (X, torch.tensor([-1.0, 0.0, 0.5, 1.5])),
    ),
    "gather": (lambda g, x, i: g.gather(x, i, 0), lambda x, i: x.gather(0, i), (X, IDS)),
    "scatter_sum": scatter_reduce("sum", "sum", True),
    "scatter_prod": scatter_reduce("prod", "prod", False),
    "scatter_mean": scatter_reduce("mean", "mean", True),
    "scatter_mean_alone": scatter_reduce("mean", "mean", False),
    "scatter_min": scatter_reduce("min", "amin", True),
    "scatter_max_alone": scatter_reduce("max", "amax", False),
    "index_copy": (
        lambda g, x, i, s: g.index_copy(x, i, s, 1),
        lambda x, i, s: x.index_copy(1, i, s),
        (X, torch.tensor([5, 0]), values(4, 2)),
    ),
    "index_add": (
        lambda g, x, i, s: g.index_add(x, i, s, 0, alpha=0.5),
        lambda x, i, s: x.index_add(0, i, s, alpha=0.5),
        (X, ROWS, values(3, 6)),
    ),
    "index_reduce": (
        lambda g, x, i, s: g.index_reduce(x, i, s, 0, "mean", False),
        lambda x, i, s: x.index_reduce(0, i, s, "mean", include_self=False),
        (X, ROWS, values(3, 6)),
    ),
    "index_put": (
        lambda g, x, i, v: g.index_put(x, [None, i, i], v, accumulate=True),
        lambda x, i, v: x.index_put((torch.arange(2)[:, None], i, i), v, accumulate=True),
        (values(2, 6, 4), ROWS, values(2, 3)),
    ),
    "index_put_mask": (
        lambda g, x, m, v: g.index_put(x, [m], v),
        lambda x, m, v: x.index_put((m,), v),
        (X, MASK, values(int(MASK.sum()))),
    ),
    "masked_scatter": (
        lambda g, x, m, s: g.masked_scatter(x, m, s),
        lambda x, m, s: x.masked_scatter(m, s),
        (X, MASK, values(30)),
    ),
    "slice_scatter": (
        lambda g, x, s: g.slice_scatter(x, s, 1, 1, 6, 2),
        lambda x, s: x.slice_scatter(s, 1, 1, 6, 2),
        (X, values(4, 3)),
    ),
    "select_scatter": (
        lambda g, x, s: g.select_scatter(x, s, 1, -2),
        lambda x, s: x.select_scatter(s, 1, -2),
        (X, values(4)),
    ),
    "diagonal_scatter": (
        lambda g, x, s: g.diagonal_scatter(x, s, 1),
        lambda x, s: x.diagonal_scatter(s, 1),
        (X, values(4)),
    ),
    "advanced": (
        lambda g, x, i: g.getitem(x, (slice(None), i, slice(1, 3), i)),
        lambda x, i: x[:, i, 1:3, i],
        (values(2, 4, 3, 4), ROWS),
    ),
    "advanced_after_int": (
        lambda g, x, i: g.getitem(x, (0, slice(None), i)),
        lambda x, i: x[0, :, i],
        (values(2, 3, 4), ROWS),
    ),
    "unfold": (lambda g, x: g.unfold(x, 1, 3, 2), lambda x: x.unfold(1, 3, 2), (X,)),
    "as_strided": (
        lambda g, x: g.as_strided(x, (3, 2, 2), (1, 0, 7), 2),
        lambda x: x.as_strided((3, 2, 2), (1, 0, 7), 2),
        (X,),
    ),
    "im2col": (
        lambda g, x: g.im2col(x, (3, 2), (2, 1), (1, 0), (1, 2)),
        lambda x: torch.nn.functional.unfold(x, (3, 2), (1, 2), (1, 0), (2, 1)),
        (IMAGE,),
    ),
    "col2im": (
        lambda g, x: g.col2im(g.im2col(x, (3, 2), 2, 1), (7, 6), (3, 2), 2, 1),
        lambda x: torch.nn.functional.fold(
            torch.nn.functional.unfold(x, (3, 2), 1, 1, 2), (7, 6), (3, 2), 1, 1, 2
        ),
        (IMAGE,),
    ),
    "diag_embed": (
        lambda g, x: g.diag_embed(x, -2, 0, 2),
        lambda x: x.diag_embed(-2, 0, 2),
        (X,),
    ),
    "rot90": (lambda g, x: g.rot90(x, -1), lambda x: x.rot90(-1), (X,)),
    "roll": (lambda g, x: g.roll(x, (1, -9), (0, 1)), lambda x: x.roll((1, -9), (0, 1)), (X,)),
    "cross": (
        lambda g, x, y: g.cross(x, y, 0),
        lambda x, y: torch.linalg.cross(x, y, dim=0),
        (values(3, 4), values(3, 1)),
    ),
    **{
        f"cdist_{p}": (
            lambda g, x, y, p=p: g.cdist(x, y, p),
            lambda x, y, p=p: torch.cdist(x, y, p, "donot_use_mm_for_euclid_dist"),
            (values(2, 3, 5), values(4, 5)),
        )
        for p in (0.0, 1.0, 2.0, 3.0, float("inf"))
    },
    "pdist": (lambda g, x: g.pdist(x), lambda x: torch.nn.functional.pdist(x), (X,)),
    "renorm": (lambda g, x: g.renorm(x, 1, 0, 2.0), lambda x: x.renorm(1, 0, 2.0), (X,)),
    **{
        f"embedding_bag_{mode}": (
            lambda g, t, i, o, mode=mode: g.embedding_bag(t, i, o, mode=mode, padding_id=3),
            lambda t, i, o, mode=mode: torch.nn.functional.embedding_bag(
                i, t, o, mode=mode, padding_idx=3
            ),
            (X, BAG, OFFSETS),
        )
        for mode in ("sum", "mean", "max")
    },
    "unique_consecutive": (
        lambda g, x: g.unique_consecutive(x),
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        (X.sort()[0].reshape(-1),),
    ),
    "tril_indices": (
        lambda g, x: g.tril_indices(3, 5, 1),
        lambda x: torch.tril_indices(3, 5, 1),
        (X,),
    ),
}


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session()


@pytest.mark.parametrize("name", CASES)
def test_the_same_as_pytorch(name: str, session: ost.Session) -> None:
    build, theirs, operands = CASES[name]
    g = ost.Graph()
    arrays = {f"x{i}": operand.numpy() for i, operand in enumerate(operands)}
    results = build(g, *(g.input(n, a.shape, a.dtype) for n, a in arrays.items()))
    g.set_outputs(list(results) if isinstance(results, tuple) else [results])
    wanted = theirs(*operands)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, truth in zip(session.compile(g).run(arrays), wanted, strict=True):
        assert mine.shape == tuple(truth.shape)
        np.testing.assert_allclose(mine, truth.numpy(), rtol=1e-5, atol=1e-6)
