"""Compiled PyTorch modules: :func:`compile`, and :func:`report` on ``torch.compile``.

PyTorch is imported when one of them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.lazy import public_attribute

if TYPE_CHECKING:
    from ostinato.frontends.torch.compiled_module import CompiledModule
    from ostinato.frontends.torch.compiled_module import compile_module as compile
    from ostinato.frontends.torch.dynamo import report

#: Public name -> module that defines it, and its name there.
_HOMES = {
    "CompiledModule": ("ostinato.frontends.torch.compiled_module", "CompiledModule"),
    "compile": ("ostinato.frontends.torch.compiled_module", "compile_module"),
    "report": ("ostinato.frontends.torch.dynamo", "report"),
}

__all__ = ["CompiledModule", "compile", "report"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ostinato.torch' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = public_attribute(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
