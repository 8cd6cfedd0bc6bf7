"""The options of compiles of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.options import CompileOptions
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.runtime.session import Session

__all__ = ["model_options"]


def model_options(session: Session, options: CompileOptions | None) -> CompileOptions:
    """The options to compile a model with: the session's unless others are given.

    ``bfloat16_dots`` is on unless it is set: models are trained with activations of bfloat16.
    """
    chosen = session.options if options is None else options
    unset = isinstance(chosen, CompileOptions) and chosen.bfloat16_dots is None
    return replace(chosen, bfloat16_dots=True) if unset else chosen
