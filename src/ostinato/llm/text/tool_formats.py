"""Formats of answers by name: those of this package, and those of entry points.

A package adds formats with entry points of the group ``ostinato.llm.tool_formats``: each is a
:class:`ToolFormat`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ostinato.errors import InputError
from ostinato.llm.text.harmony import HARMONY_MARKERS, HarmonyParser
from ostinato.llm.text.json_formats import (
    DeepSeekParser,
    HermesParser,
    LlamaParser,
    MistralParser,
    PlainParser,
)
from ostinato.llm.text.reasoning import ReasoningParser
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.llm.text.parts import AnswerParser

__all__ = ["TOOL_FORMATS", "ToolFormat", "detect_format", "starts_inside_reasoning", "tool_format"]

_GROUP: Final = "ostinato.llm.tool_formats"


@dataclass(frozen=True)
class ToolFormat:
    """A format of answers with calls of tools.

    Attributes:
        name: of the format.
        parser: makes the parser of an answer.
        markers: special tokens that are part of the format: the parser must see them.
        signs: texts in the chat templates of models that answer in it; any of them is enough.
        reasoning: tags around reasoning that comes before the answer; ``None``: the parser has
            rules of its own.
    """

    name: str
    parser: Callable[[], AnswerParser]
    markers: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = ("<think>", "</think>")

    def answer_parser(self, *, reasoning: bool = True, inside: bool = False) -> AnswerParser:
        """The parser of one answer.

        Args:
            reasoning: whether the model may begin with reasoning.
            inside: whether the prompt ends within reasoning.
        """
        if not reasoning or self.reasoning is None:
            return self.parser()
        start, end = self.reasoning
        return ReasoningParser(self.parser(), start=start, end=end, inside=inside)


_FORMATS: Final = (
    ToolFormat("gpt_oss", HarmonyParser, HARMONY_MARKERS, ("<|channel|>",), reasoning=None),
    ToolFormat(
        "deepseek",
        DeepSeekParser,
        (
            DeepSeekParser._CALLS,
            DeepSeekParser._CALLS_END,
            DeepSeekParser._CALL,
            DeepSeekParser._SEPARATOR,
            DeepSeekParser._END,
        ),
        (DeepSeekParser._CALLS,),
    ),
    ToolFormat("hermes", HermesParser, ("<tool_call>", "</tool_call>"), ("<tool_call>",)),
    ToolFormat(
        "mistral",
        MistralParser,
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        ("[TOOL_CALLS]",),
        reasoning=("[THINK]", "[/THINK]"),
    ),
    ToolFormat(
        "llama3",
        LlamaParser,
        ("<|python_tag|>",),
        ("<|python_tag|>", '"parameters": dictionary', '{"name": function name'),
    ),
    ToolFormat("plain", PlainParser),
)

#: Formats of this package by name.
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = MappingProxyType(
    {found.name: found for found in _FORMATS}
)


def tool_format(name: str) -> ToolFormat:
    """The format of a name.

    Raises:
        InputError: there is none; the message lists those that there are.
    """
    found = TOOL_FORMATS.get(name)
    if found is not None:
        return found
    from importlib.metadata import entry_points

    others = {point.name: point for point in entry_points(group=_GROUP)}
    if name not in others:
        known = ", ".join(sorted({*TOOL_FORMATS, *others}))
        raise InputError(f"there is no format of tool calls named {name!r:.80}; known are {known}")
    added = others[name].load()
    if not isinstance(added, ToolFormat):
        raise InputError(
            f"the entry point {name!r} of {_GROUP} is a {type(added).__name__}, not a ToolFormat"
        )
    return added


def detect_format(template: str) -> ToolFormat:
    """The format of a model, by its chat template; ``plain`` if nothing tells.

    Args:
        template: the source of the template.
    """
    for found in TOOL_FORMATS.values():
        if any(sign in template for sign in found.signs):
            return found
    return TOOL_FORMATS["plain"]


def starts_inside_reasoning(prompt: str, form: ToolFormat) -> bool:
    """Whether a rendered prompt ends with the tag before reasoning."""
    return form.reasoning is not None and prompt.rstrip().endswith(form.reasoning[0])
