"""16-bit floats are rounded where eager rounds them: results are the same in every bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ostinato as ost

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "a number added": lambda x, y: x + 0.3,
    "subtracted from a number": lambda x, y: 1.7 - x,
    "times a number": lambda x, y: x * 0.1,
    "over a number": lambda x, y: x / 3,
    "alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "a power": lambda x, y: x.abs() ** 1.7,
    "times a tensor without dims": lambda x, y: x * torch.tensor(0.1),
    "a mean": lambda x, y: x.mean(0),
    "a variance": lambda x, y: x.var(-1),
    "a norm": lambda x, y: x.norm(dim=-1),
    "a running sum": lambda x, y: x.cumsum(-1),
    "a sum of exponentials": lambda x, y: x.logsumexp(-1),
    "a sum of products": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "a remainder": lambda x, y: torch.remainder(x, y),
    "a loss": lambda x, y: torch.nn.functional.mse_loss(x, y),
}


class _Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_are_those_of_eager(name, dtype):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 48, generator=generator).to(dtype) for _ in range(2))
    module = _Module(FUNCTIONS[name])
    graph = ost.from_torch(module, (x, y))
    given = dict(zip(("x", "y"), (x, y), strict=True))
    feeds = {key: given[key] for key in graph.inputs}
    (found,) = ost.Session("cpu", threads=1).compile(graph).run(feeds)
    wanted = module(x, y)
    assert found.dtype.itemsize == 2
    np.testing.assert_array_equal(found.astype(np.float32), wanted.float().numpy())
