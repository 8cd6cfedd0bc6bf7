"""MLX's own ways to compute ops."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.array_api.evaluator import Evaluator, NativeRule
    from ostinato.ir.graph import Node

__all__ = ["HOST_OPS", "RULES"]

#: Ops that MLX has no functions for, and that nothing simpler makes up: the host computes them.
HOST_OPS = frozenset({"non_max_suppression", "searchsorted"})


def _matmul(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    x, y = [evaluator.xp.widened(operand) for operand in operands]
    return evaluator.xp.matmul(x, y)


RULES: Mapping[str, NativeRule] = MappingProxyType({"matmul": _matmul})
