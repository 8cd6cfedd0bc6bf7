"""Gradients, statistics and losses as PyTorch has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ostinato import reference  # noqa: E402
from ostinato.ops.builder import Graph  # noqa: E402

F: Any = torch.nn.functional
ATEN: Any = torch.ops.aten


def tensor(*shape: int, seed: int = 3) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(name: str, expected: Any, *arrays: Any, **attrs: Any) -> None:
    """A method of the vocabulary gives what PyTorch does; other arguments are no tensors."""
    g = Graph(name)
    feeds: dict[str, Any] = {}

    def operand(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        array = value.detach().numpy()
        feeds[f"x{len(feeds)}"] = array
        return g.input(f"x{len(feeds) - 1}", array.shape, array.dtype)

    operands = [operand(a) for a in arrays]
    results = getattr(g, name)(*operands, **{k: operand(a) for k, a in attrs.items()})
    wanted = expected if isinstance(expected, tuple) else (expected,)
    g.set_outputs(list(results) if isinstance(results, tuple) else [results])
    for mine, theirs in zip(reference.evaluate(g, feeds), wanted, strict=True):
        if theirs is not None:
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-9, atol=1e-10)


def gradients(function: Callable[..., Any], *leaves: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """The result, a gradient of it, and the gradients of the leaves."""
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    result = function(*leaves)
    grad = tensor(*result.shape, seed=9)
    return result.detach(), grad, torch.autograd.grad(result, leaves, grad)


@pytest.mark.parametrize(
    ("shape", "weight", "stride", "padding", "dilation", "groups"),
    [
        ((2, 4, 9), (6, 4, 3), 2, 1, 1, 1),
        ((2, 4, 7, 8), (6, 2, 3, 2), (2, 3), (1, 0), (1, 2), 2),
        ((1, 3, 8, 8), (3, 1, 3, 3), 3, 2, 1, 3),
        ((2, 2, 4, 5, 6), (3, 2, 2, 2, 2), 2, 1, 1, 1),
    ],
)
def test_conv_backward(
    shape: Sequence[int],
    weight: Sequence[int],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> None:
    conv = getattr(F, f"conv{len(shape) - 2}d")
    x, w, bias = tensor(*shape), tensor(*weight, seed=4), tensor(weight[0])
    _, grad, found = gradients(
        lambda x, w, b: conv(x, w, b, stride, padding, dilation, groups), x, w, bias
    )
    same("conv_backward", found, grad, x, w, stride, padding, dilation, groups)


@pytest.mark.parametrize(
    ("ceil_mode", "include", "divisor"),
    [*itertools.product((False, True), (False, True), (None,)), (True, True, 3)],
)
def test_pools_backward(ceil_mode: bool, include: bool, divisor: int | None) -> None:
    x = tensor(2, 3, 8, 9)
    pool = (3, (2, 3), 1, ceil_mode)
    _, grad, found = gradients(lambda x: F.avg_pool2d(x, *pool, include, divisor), x)
    same("avg_pool_backward", found, grad, (8, 9), *pool, include, divisor)
    _, places = F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil_mode, return_indices=True)
    _, grad, found = gradients(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil_mode), x)
    same("max_pool_backward", found, grad, places, (8, 9))


def test_activations_backward() -> None:
    x = tensor(5, 7)
    for approximate in ("none", "tanh"):
        _, grad, found = gradients(lambda x: F.gelu(x, approximate=approximate), x)  # noqa: B023
        same("gelu_backward", found, grad, x, approximate=approximate)
    _, grad, found = gradients(F.silu, x)
    same("silu_backward", found, grad, x)
    for name in ("softmax", "log_softmax"):
        out, grad, found = gradients(lambda x: getattr(torch, name)(x, 0), x)  # noqa: B023
        same(f"{name}_backward", found, grad, out, axis=0)
    for name in ("sigmoid", "tanh"):
        out, grad, found = gradients(getattr(torch, name), x)
        same(f"{name}_backward", found, grad, out)


def test_norms_and_their_gradients() -> None:
    x, w, b = tensor(3, 4, 5, 6), tensor(5, 6), tensor(5, 6, seed=5)
    out, mean, rstd = torch.native_layer_norm(x, (5, 6), w, b, 1e-5)
    same("native_layer_norm", (out, mean, rstd), x, w, b, eps=1e-5)
    _, grad, found = gradients(lambda x, w, b: F.layer_norm(x, (5, 6), w, b), x, w, b)
    same("layer_norm_backward", found, grad, x, mean, rstd, w, axis=2)
    w, b = tensor(4), tensor(4, seed=5)
    out, mean, rstd = torch.native_group_norm(x, w, b, 3, 4, 30, 2, 1e-5)
    same("native_group_norm", (out, mean, rstd), x, 2, w, b)
    _, grad, found = gradients(lambda x, w, b: F.group_norm(x, 2, w, b), x, w, b)
    same("group_norm_backward", found, grad, x, mean, rstd, 2, w)
    out, mean, rstd = torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    same("batch_norm_training", (out, mean, rstd), x, w, b)
    _, grad, found = gradients(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), x, w, b
    )
    same("batch_norm_backward", found, grad, x, mean, rstd, w)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_attention(causal: bool, masked: str | None) -> None:
    if causal and masked:
        pytest.skip("PyTorch takes one of them")
    q, k, v = tensor(2, 4, 5, 8), tensor(2, 2, 5, 8, seed=4), tensor(2, 2, 5, 8, seed=5)
    mask = None if masked is None else tensor(2, 1, 5, 5, seed=6)
    if masked == "bool":
        mask = mask > -0.5

    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)

    out, grad, found = gradients(attend, q, k, v)
    scores = q @ k.repeat_interleave(2, 1).mT / 8**0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    if masked == "bool":
        scores = scores.masked_fill(~mask, -torch.inf)
    elif masked == "float":
        scores = scores + mask
    sums = scores.logsumexp(-1)
    attrs = {"mask": mask, "causal": causal}
    same("attention", (out, sums), q, k, v, **attrs, return_logsumexp=True)
    same("attention_backward", found, grad, q, k, v, out, sums, **attrs)


def test_embedding_backward() -> None:
    ids, table = torch.tensor([[1, 3, 1], [0, 2, 3]]), tensor(5, 4)
    for padding in (None, 3):
        _, grad, found = gradients(lambda t: F.embedding(ids, t, padding), table)  # noqa: B023
        same("embedding_backward", found, grad, ids, 5, padding)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses(reduction: str) -> None:
    x, y = tensor(4, 5), tensor(4, 5, seed=4)
    for name, attrs in (
        ("l1_loss", {}),
        ("mse_loss", {}),
        ("smooth_l1_loss", {"beta": 0.7}),
        ("smooth_l1_loss", {"beta": 0.0}),
        ("huber_loss", {"delta": 0.6}),
        ("soft_margin_loss", {}),
    ):
        same(name, getattr(F, name)(x, y, reduction=reduction, **attrs), x, y, reduction, **attrs)
    p, t, w = torch.sigmoid(x), torch.sigmoid(y), tensor(5).abs()
    t[0, 0], p[0, 1], p[0, 0] = 0, 1, 0
    truth = F.binary_cross_entropy(p, t, w, reduction=reduction)
    same("binary_cross_entropy", truth, p, t, w, reduction)
    truth = F.binary_cross_entropy_with_logits(x, t, w, reduction=reduction, pos_weight=w + 1)
    same("binary_cross_entropy_with_logits", truth, x, t, w, w + 1, reduction)
    for log_target in (False, True):
        target = t.log() if log_target else t
        target[0, 0] = -1.0 if log_target else 0.0
        truth = F.kl_div(x, target, reduction=reduction, log_target=log_target)
        same("kl_div", truth, x, target, reduction, log_target)
    sign = torch.tensor([1, -1, 1, -1])
    truth = F.cosine_embedding_loss(x, y, sign, 0.1, reduction=reduction)
    same("cosine_embedding_loss", truth, x, y, sign, 0.1, reduction)
    truth = F.margin_ranking_loss(x[:, 0], y[:, 0], sign, 0.1, reduction=reduction)
    same("margin_ranking_loss", truth, x[:, 0], y[:, 0], sign, 0.1, reduction)
    truth = F.hinge_embedding_loss(x[:, 0], sign, 0.9, reduction=reduction)
    same("hinge_embedding_loss", truth, x[:, 0], sign, 0.9, reduction)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3)])
def test_losses_of_classes(shape: Sequence[int], reduction: str) -> None:
    x, weight = tensor(*shape), tensor(5).abs()
    classes = shape[:1] if len(shape) == 1 else (shape[0], *shape[2:])
    count = int(np.prod(classes)) if len(shape) > 1 else 1
    target = (torch.arange(count) * 3 % 5).reshape(classes if len(shape) > 1 else ())
    soft = torch.softmax(tensor(*shape, seed=8), 0 if len(shape) == 1 else 1)
    for ignored, factors in itertools.product((-100, 3), (None, weight)):
        truth = F.nll_loss(x, target, factors, ignore_index=ignored, reduction=reduction)
        same("nll_loss", truth, x, target, factors, reduction, ignored)
        for smoothing in (0.0, 0.2):
            truth = F.cross_entropy(x, target, factors, None, ignored, None, reduction, smoothing)
            same("cross_entropy", truth, x, target, factors, reduction, ignored, smoothing)
            truth = F.cross_entropy(x, soft, factors, None, -100, None, reduction, smoothing)
            same("cross_entropy", truth, x, soft, factors, reduction, label_smoothing=smoothing)
