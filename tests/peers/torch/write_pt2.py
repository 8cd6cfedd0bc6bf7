"""Write the ``.pt2`` files that tests without PyTorch read, with inputs and eager's results.

``python -m tests.peers.torch.write_pt2`` writes to ``tests/frontends/torch/data``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

FOLDER = Path(__file__).parents[2] / "frontends" / "torch" / "data"


class Counter(torch.nn.Module):
    """A linear layer, a counter, a buffer outside of the state, and nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("line", torch.arange(3.0), persistent=False)

    def forward(self, x: torch.Tensor, scale: int = 2) -> Any:
        self.count.add_(1)
        y = self.linear(x) + self.count * scale + self.line
        values, indices = torch.topk(y, 2)
        return {"values": values, "indices": indices}, y.view(-1)


class Branches(torch.nn.Module):
    """A branch on data, a tied weight, writes to a view and to an input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 6)
        self.head = torch.nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, memory: torch.Tensor) -> Any:
        hidden = self.embedding(ids)
        hidden = torch.cond(hidden.sum() > 0, torch.sin, torch.cos, (hidden,))
        hidden = hidden.clone()
        hidden[:, 0].mul_(2)
        memory[1:3] = hidden[0]
        return self.head(hidden).softmax(-1), memory.sum()


class Halves(torch.nn.Module):
    """bfloat16 weights, stored transposed, and complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(5, 4).to(torch.bfloat16).t()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        y = (x.to(torch.bfloat16) @ self.weight).float()
        pairs = torch.view_as_complex(y[:, :4].reshape(-1, 2, 2).contiguous())
        return y, torch.view_as_real(pairs * pairs)


def write(name: str, model: torch.nn.Module, args: tuple[Any, ...], shapes: Any = None) -> None:
    """Write one file, and its inputs and results beside it."""
    before = [arg.clone() for arg in args]
    exported = torch.export.export(model, args, dynamic_shapes=shapes)
    torch.export.save(exported, FOLDER / f"{name}.pt2")
    results = _pytree.tree_leaves(model(*args))
    np.savez(
        FOLDER / f"{name}.npz",
        **{f"input_{i}": arg.detach().numpy() for i, arg in enumerate(before)},
        **{f"after_{i}": arg.detach().numpy() for i, arg in enumerate(args)},
        **{f"result_{i}": result.detach().numpy() for i, result in enumerate(results)},
    )


def main() -> None:
    torch.manual_seed(0)
    FOLDER.mkdir(exist_ok=True)
    batch = torch.export.Dim("batch", min=1, max=64)
    write("counter", Counter(), (torch.randn(5, 4),), {"x": {0: batch}})
    ids = torch.tensor([[1, 3], [5, 6]])
    write("branches", Branches(), (ids, torch.zeros(4, 6)))
    write("halves", Halves(), (torch.randn(3, 4),))


if __name__ == "__main__":
    main()
