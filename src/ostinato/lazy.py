"""Modules that are imported when they are first used.

Most of what Ostinato can do, most models do not need, and a process that compiles one model and
runs it once should not have to import the rest. Where a module is of use to few, it is named as
the two kinds of readers need it::

    if TYPE_CHECKING:
        from ostinato.backends.cpu.rules import topk
    else:
        topk = LazyModule("ostinato.backends.cpu.rules.topk")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["LazyModule", "public_attribute"]


class LazyModule:
    """Stands for the module ``name``: the first use of anything in it imports it."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = import_module(self.__name__)
        return getattr(self._module, attribute)


def public_attribute(module: str, name: str) -> Any:
    """An attribute of a module, which is imported.

    Raises:
        ModuleNotFoundError: PyTorch, which the module needs, is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        problem = f"{name!r} needs PyTorch, which is not installed: pip install 'ostinato[torch]'"
        raise ModuleNotFoundError(problem, name="torch") from error
