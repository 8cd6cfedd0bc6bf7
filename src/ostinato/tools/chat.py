"""The terminal chat: messages from lines, answers as they are generated."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ContextError, InputError
from ostinato.tools.output import answer_text, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm import LLM, Generation

__all__ = ["Chat", "run_chat"]

#: Temperature of chats with models whose files propose no sampling parameters.
TEMPERATURE: Final = 0.7

_HELP = """\
/reset        begin a new conversation
/save FILE    write the conversation as JSON
/seed N       use this seed; /seed alone draws one for each answer
/stats        show numbers of the last answer
/help         show this list
/exit         end, as Ctrl-D does
Ctrl-C ends an answer."""


def run_chat(model: LLM, system: str | None, fields: Mapping[str, Any]) -> None:
    """Read messages from stdin until its end, and print answers.

    Raises:
        InputError: the model has no chat template.
    """
    chat = Chat(model, system, fields)
    if sys.stdin.isatty():
        sys.stderr.write("/help lists commands; Ctrl-D ends the chat.\n")
    while True:
        try:
            line = _read_line()
            if line is None or not chat.take(line):
                return
        except KeyboardInterrupt:  # before the answer began
            sys.stderr.write("\n")
        except InputError as error:
            sys.stderr.write(f"error: {printable(str(error))}\n")


class Chat:
    """A conversation in the terminal.

    Args:
        model: with a chat template.
        system: the system message.
        fields: fields of ``Sampling``; ``max_tokens`` is what is left of the context by default.

    Raises:
        InputError: the model has no chat template.
    """

    def __init__(self, model: LLM, system: str | None, fields: Mapping[str, Any]) -> None:
        from ostinato.llm import Sampling

        if model.template is None:
            raise InputError("the model has no chat template; use `ostinato generate`")
        self._model = model
        self._start: list[Any] = [{"role": "system", "content": system}] if system else []
        self._messages = [*self._start]
        proposed = {} if model.defaults != Sampling() else {"temperature": TEMPERATURE}
        self._fields = {**proposed, **fields}
        self._last: Generation | None = None

    def take(self, line: str) -> bool:
        """Answer a message or obey a command; ``False`` for the one that ends the chat.

        Raises:
            InputError: a command is unknown or cannot be carried out.
        """
        text = line.strip()
        if not text:
            return True
        if text.startswith("/"):
            command, _, argument = text.partition(" ")
            return self._obey(command, argument.strip())
        self._answer(text)
        return True

    def _answer(self, text: str) -> None:
        messages = [*self._messages, {"role": "user", "content": text}]
        request = self._model.chat_request(messages)
        left = self._model.limits.context - len(request.prompt)
        if left < 1:
            raise ContextError("the conversation fills the context; /reset begins a new one")
        fields = {"max_tokens": left, **self._fields}
        fields["max_tokens"] = min(fields["max_tokens"], left)
        stream = self._model.stream_chat(messages, **fields)
        try:
            with stream:
                for delta in stream:
                    sys.stdout.write(answer_text(delta.text))
                    sys.stdout.flush()
        except KeyboardInterrupt:
            pass  # the answer ends as it is
        sys.stdout.write("\n")
        sys.stdout.flush()
        self._last = stream.result()
        messages.append({"role": "assistant", "content": self._last.text})
        self._messages = messages

    def _obey(self, command: str, argument: str) -> bool:
        match command:
            case "/exit" | "/quit":
                return False
            case "/reset":
                self._messages = [*self._start]
            case "/save":
                self._save(argument)
            case "/seed":
                self._seed(argument)
            case "/stats":
                sys.stderr.write(self._stats() + "\n")
            case "/help":
                sys.stderr.write(_HELP + "\n")
            case _:
                raise InputError(f"unknown command {command!r:.80}; /help lists all")
        return True

    def _save(self, name: str) -> None:
        if not name:
            raise InputError("/save needs the name of a file")
        try:
            Path(name).write_text(json.dumps(self._messages, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise InputError(f"cannot write {name!r:.300}: {error.strerror}") from error
        sys.stderr.write(f"{len(self._messages)} messages in {name}\n")

    def _seed(self, text: str) -> None:
        if not text:
            self._fields.pop("seed", None)
        elif text.isdecimal():
            self._fields["seed"] = int(text)
        else:
            raise InputError(f"a seed is a whole number, got {text!r:.80}")

    def _stats(self) -> str:
        if self._last is None:
            return "no answer yet"
        usage, timings = self._last.usage, self._last.timings
        decoding = timings.total - timings.first_token
        rate = (usage.completion - 1) / decoding if decoding > 0 else 0.0
        return (
            f"prompt: {usage.prompt} tokens, {usage.cached} of them cached; "
            f"answer: {usage.completion} tokens, seed {self._last.seed}\n"
            f"first token after {timings.first_token:.2f} s, then {rate:.1f} tokens a second"
        )


def _read_line() -> str | None:
    """The next line of stdin; ``None`` at its end. An interrupt empties the line."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            return input(prompt)
        except EOFError:
            return None
        except KeyboardInterrupt:
            sys.stderr.write("\nCtrl-D or /exit ends the chat\n")
