"""Chat templates: the text that a model reads for a chat, and its token ids."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.templates.messages import (
    check_messages,
    check_tools,
    joined_parts,
    plain_value,
)
from ostinato.llm.templates.sandbox import (
    LimitExceeded,
    Meter,
    compile_template,
    run_template,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

    from ostinato.llm.templates.messages import Message, Tool
    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["ChatTemplate"]

#: Characters of a template: ten times the longest of today.
_LONGEST_SOURCE: Final = 1 << 20

#: Processor time of a template; the longest of today take some milliseconds.
_SECONDS: Final = 1.0

#: Processor time of a template for a chat of one word.
_PROBE_SECONDS: Final = 0.25

#: Characters of a value beyond those of the messages.
_FREE_SIZE: Final = 1 << 20

#: Most values repeat a part of the messages; a few repeat all of them.
_SIZE_FACTOR: Final = 4

#: The name of a template that stands alone, and of the one for chats with tools.
_DEFAULT, _WITH_TOOLS = "default", "tool_use"

#: A content that templates show as it is.
_PROBE: Final = "kestrel7"

#: The end of the message that the model is to continue.
_CONTINUED: Final = "[[end of the message to continue]]"

#: A character for private use, which marks the names of special tokens in messages.
_MARK: Final = "\U000f51a7"


class ChatTemplate:
    """A chat template.

    Args:
        source: of a Jinja template, or of several by name: ``tool_use``, if there is one, is for
            chats with tools, and ``default`` for others.
        tokens: texts of special tokens by their names in templates, such as ``bos_token``.
        clock: the time of ``strftime_now``.

    Attributes:
        sources: of the templates, by name.

    Raises:
        ModelFormatError: no template, or a damaged one.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        tokens: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.sources = {_DEFAULT: source} if isinstance(source, str) else dict(source)
        if not self.sources:
            raise ModelFormatError("the model has no chat template")
        self._codes = {name: _compiled(name, text) for name, text in self.sources.items()}
        self._tokens = dict(tokens or {})
        self._clock = clock

    def __repr__(self) -> str:
        return f"<ChatTemplate {', '.join(self.sources)}>"

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        documents: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The text of a chat.

        Args:
            messages: mappings with ``role`` and ``content``: a text, a list of parts, or ``None``
                where there are ``tool_calls``.
            tools: that the model may call.
            documents: for templates that take them.
            arguments: further variables of the template, such as ``enable_thinking``.
            add_generation_prompt: whether the text ends with the beginning of an answer.
            continue_final_message: whether it ends with the last message's content instead, for
                the model to continue.

        Raises:
            InputError: no such messages, or the template refuses them.
            ModelFormatError: the template takes too long or makes too much.
        """
        plain = check_messages(messages)
        rest = self._variables(tools, documents, arguments)
        return self._text(plain, rest, add_generation_prompt, continue_final_message)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        documents: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The ids of a chat: those of :meth:`render`, with nothing put around them.

        Special tokens are those that the template writes. Their names within messages, tools,
        documents and arguments are text.

        Args:
            tokenizer: of the model.
            messages, tools, documents, arguments, add_generation_prompt, continue_final_message:
                as of :meth:`render`.

        Raises:
            InputError: no such messages, or the template refuses them.
            ModelFormatError: the template takes too long or makes too much.
        """
        plain = check_messages(messages)
        rest = self._variables(tools, documents, arguments)
        names = _special_names(tokenizer)
        given, marked = (_marked(value, names) for value in (plain, rest))
        text = self._text(given, marked, add_generation_prompt, continue_final_message)
        if _MARK not in text:
            return tokenizer.encode(text, special=True)
        ids = []
        for number, part in enumerate(names.split(text)):
            found = tokenizer.id_of(part) if number % 2 else None
            plain_part = part.replace(_MARK, "")
            ids += tokenizer.encode(plain_part) if found is None else [found]
        return ids

    # -- variables -------------------------------------------------------------------------------

    def _variables(
        self,
        tools: Sequence[Tool],
        documents: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        found = {
            "tools": check_tools(tools) or None,
            "documents": plain_value(documents, "documents"),
        }
        for name, value in plain_value(arguments or {}, "template arguments").items():
            if name in {"messages", "add_generation_prompt", *found}:
                raise InputError(f"the template argument {name!r} is an argument of its own")
            found[name] = value
        return found

    def _text(
        self,
        messages: list[dict[str, Any]],
        rest: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        name = _WITH_TOOLS if rest["tools"] and _WITH_TOOLS in self._codes else _DEFAULT
        if name not in self._codes:
            raise InputError(
                f"the model has no default chat template, only {', '.join(self._codes)}"
            )
        if continue_final_message:
            if add_generation_prompt:
                raise InputError(
                    "a text ends either with the last message or with the beginning of an answer: "
                    "continue_final_message and add_generation_prompt exclude each other"
                )
            _mark_end(messages[-1])
        for number, message in enumerate(messages):
            content = message.get("content")
            if isinstance(content, list) and not self._takes_parts:
                message["content"] = joined_parts(content, f"messages[{number}]['content']")
            elif isinstance(content, str) and self._takes_parts_alone:
                message["content"] = [{"type": "text", "text": content}]
        variables = {**rest, "messages": messages, "add_generation_prompt": add_generation_prompt}
        text = self._run(self._codes[name], variables)
        if not continue_final_message:
            return text
        found, end, after = text.rpartition(_CONTINUED)
        if not end:
            raise InputError(
                "the last message can not be continued: the template leaves its content out"
            )
        return found if after.startswith(" ") else found.rstrip()  # as the template trims it

    def _run(self, code: CodeType, variables: Mapping[str, Any], seconds: float = _SECONDS) -> str:
        given = {**self._tokens, **variables}
        free = Meter(seconds, 1 << 40).size_of(given)
        meter = Meter(seconds, _FREE_SIZE + _SIZE_FACTOR * free)
        functions: dict[str, Callable[..., Any]] = {
            "raise_exception": _refuse,
            "strftime_now": self._now,
        }
        try:
            return run_template(code, meter, functions, given)
        except LimitExceeded as error:
            raise ModelFormatError(f"the chat template is stopped: {error}") from None
        except _Refused as error:
            raise InputError(f"the chat template refuses this chat: {error}") from None
        except RecursionError:
            raise ModelFormatError("the chat template calls itself too deep") from None
        except OverflowError as error:
            raise ModelFormatError(f"the chat template is stopped: {error}") from None
        except Exception as error:
            raise InputError(f"the chat template fails for this chat: {error!s:.400}") from None

    def _now(self, form: str) -> str:
        return self._clock().strftime(form)

    # -- kinds of content ------------------------------------------------------------------------

    @cached_property
    def _shown(self) -> tuple[bool, bool]:
        """Whether content is shown as it is: as a text, and as a list of parts."""
        contents = (_PROBE, [{"type": "text", "text": _PROBE}])
        return self._shows(contents[0]), self._shows(contents[1])

    def _shows(self, content: object) -> bool:
        message = {"role": "user", "content": content}
        variables: dict[str, Any] = {"messages": [message], "tools": None, "documents": None}
        code = self._codes.get(_DEFAULT) or next(iter(self._codes.values()))
        try:
            variables["add_generation_prompt"] = False
            text = self._run(code, variables, _PROBE_SECONDS)
        except (InputError, ModelFormatError):
            return False
        return _PROBE in text and not re.search(rf"['\"]text['\"]: ?['\"]{_PROBE}", text)

    @property
    def _takes_parts(self) -> bool:
        return self._shown[1]

    @property
    def _takes_parts_alone(self) -> bool:
        return self._shown == (False, True)


class _Refused(Exception):
    """A call of ``raise_exception``."""


def _refuse(message: object = "") -> None:
    raise _Refused(f"{message!s:.400}")


def _compiled(name: str, source: object) -> CodeType:
    if not isinstance(source, str):
        raise ModelFormatError(f"the chat template {name!r:.40} is no text")
    if len(source) > _LONGEST_SOURCE:
        raise ModelFormatError(
            f"the chat template {name!r:.40} has {len(source):,} characters, more than "
            f"{_LONGEST_SOURCE:,}"
        )
    return compile_template(source)


def _mark_end(message: dict[str, Any]) -> None:
    """Mark the end of a message's content."""
    match message.get("content"):
        case str(content):
            message["content"] = f"{content}{_CONTINUED} "
        case [*parts] if any(part["type"] == "text" for part in parts):
            last = [part for part in parts if part["type"] == "text"][-1]
            last["text"] += f"{_CONTINUED} "
        case _:
            raise InputError("the last message has no text that could be continued")


def _special_names(tokenizer: Tokenizer) -> re.Pattern[str]:
    """An expression for the names of special tokens, the longest first, as a group."""
    pieces = (tokenizer.piece(token) for token in tokenizer.special_tokens)
    names = sorted((piece for piece in pieces if piece), key=lambda name: (-len(name), name))
    return re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")


def _marked(value: Any, names: re.Pattern[str]) -> Any:
    """A copy with a mark after the first character of each name of a special token."""
    match value:
        case str():
            bare = value.replace(_MARK, "")
            return names.sub(lambda name: f"{name[0][:1]}{_MARK}{name[0][1:]}", bare)
        case list():
            return [_marked(item, names) for item in value]
        case dict():
            return {key: _marked(item, names) for key, item in value.items()}
        case _:
            return value
