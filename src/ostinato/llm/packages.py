"""Packages of the extra ``[llm]``, and the error where one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ostinato.errors import InputError

__all__ = ["required"]


def required(package: str, use: str) -> Any:
    """Import a package.

    Args:
        package: its name.
        use: the thing that needs it, for the message.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise InputError(
            f"{use} needs the package {package}, which is not installed: "
            "pip install 'ostinato[llm]'"
        ) from None
