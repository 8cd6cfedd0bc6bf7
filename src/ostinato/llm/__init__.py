"""Language models: from a folder or a GGUF file to text.

>>> import ostinato as ost
>>> model = ost.llm.load("model.gguf")
>>> model.chat([{"role": "user", "content": "Hello!"}]).text

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.llm.config import ModelConfig
    from ostinato.llm.engine.engine import Engine
    from ostinato.llm.engine.requests import Request, Ticket
    from ostinato.llm.engine.settings import EngineLimits, EngineSettings, EngineStats
    from ostinato.llm.generation import (
        Delta,
        Generation,
        Stream,
        Timings,
        TokenLogprobs,
        ToolCall,
        Usage,
    )
    from ostinato.llm.grammar import Grammar
    from ostinato.llm.loading import load
    from ostinato.llm.memory import Limits
    from ostinato.llm.model import LLM
    from ostinato.llm.quantize import Quantized, quantize_file
    from ostinato.llm.sampling import Sampling
    from ostinato.llm.speculation import NGrams
    from ostinato.llm.tokenizers import Tokenizer

#: Public name -> module that defines it.
_HOMES = {
    "LLM": "model",
    "Delta": "generation",
    "Engine": "engine.engine",
    "EngineLimits": "engine.settings",
    "EngineSettings": "engine.settings",
    "EngineStats": "engine.settings",
    "Generation": "generation",
    "Grammar": "grammar",
    "Limits": "memory",
    "ModelConfig": "config",
    "NGrams": "speculation",
    "Quantized": "quantize",
    "Request": "engine.requests",
    "Sampling": "sampling",
    "Stream": "generation",
    "Ticket": "engine.requests",
    "Timings": "generation",
    "TokenLogprobs": "generation",
    "Tokenizer": "tokenizers",
    "ToolCall": "generation",
    "Usage": "generation",
    "load": "loading",
    "quantize_file": "quantize",
}

__all__ = [
    "LLM",
    "Delta",
    "Engine",
    "EngineLimits",
    "EngineSettings",
    "EngineStats",
    "Generation",
    "Grammar",
    "Limits",
    "ModelConfig",
    "NGrams",
    "Quantized",
    "Request",
    "Sampling",
    "Stream",
    "Ticket",
    "Timings",
    "TokenLogprobs",
    "Tokenizer",
    "ToolCall",
    "Usage",
    "load",
    "quantize_file",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ostinato.llm' has no attribute {name!r}")
    value = getattr(import_module(f"ostinato.llm.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
