"""Convert and compare one model: ``python -m tests.peers.torch.models.one KIND NAME``."""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers

from tests.peers.torch.models.comparison import (
    TOLERANCE,
    compare,
    compare_compiled,
    compare_dynamic,
)
from tests.peers.torch.models.small import build_dynamic, build_hand_written, build_small
from tests.peers.torch.models.vision import build_vision


def main(kind: str, name: str) -> str:
    """A line on the result."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    try:
        if kind == "vision":
            model, args = build_vision(name)
        elif kind == "dynamic":
            model, examples, shapes = build_dynamic(name)
        else:
            model, kwargs = (build_small if kind == "small" else build_hand_written)(name)
    except Exception as error:  # the library's, about its own model
        return f"not built: {_line(error)}"
    try:
        if kind == "dynamic":
            result = compare_dynamic(model, examples, shapes)
        else:
            by = compare_compiled if kind == "compiled" else compare
            result = by(model, args, kwargs)
    except Exception as error:
        stage = "" if type(error).__module__.startswith("ostinato") else "not exported: "
        return f"{stage}{_line(error)}"
    return str(result) if result.error <= TOLERANCE else f"wrong: {result}"


def _line(error: BaseException) -> str:
    return " | ".join(f"{type(error).__name__}: {error}".split("\n"))[:280]


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2]))
