"""The work of the commands of language models."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

from ostinato.errors import InputError
from ostinato.records import field_names
from ostinato.tools.output import answer_text, bytes_text, console, printable, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ostinato.llm import LLM, Generation, Grammar
    from ostinato.llm.quantize import QuantizedFormat

__all__ = [
    "Answering",
    "embed_lines",
    "open_model",
    "quantize_model",
    "read_lines",
    "read_schema",
    "read_text",
    "show_quantized",
    "show_tokens",
    "tokens_of",
]


def open_model(
    name: str,
    device: str,
    threads: int | None,
    weights: str,
    context: int | None,
    draft: str | None,
    offline: bool,
    *,
    sequences: int,
) -> LLM:
    """Load a model, with progress bars on a terminal.

    Raises:
        OstinatoError: see :func:`ostinato.llm.load`.
    """
    from ostinato.llm import NGrams, load

    guesses: LLM | NGrams | None = None
    with _progress() as progress:
        if draft == "ngrams":
            guesses = NGrams()
        elif draft is not None:
            guesses = load(
                draft,
                device=device,
                threads=threads,
                context=context,
                sequences=sequences,
                offline=offline,
                progress=progress,
            )
        return load(
            name,
            device=device,
            threads=threads,
            weights=cast("Literal['keep', 'bfloat16', 'int8', 'int4']", weights),
            context=context,
            sequences=sequences,
            draft=guesses,
            offline=offline,
            progress=progress,
        )


class Answering:
    """One answer of the command ``generate``.

    Args:
        model: a loaded model.
        text: a prompt, or with ``chat`` a user's message.
        chat: whether the model's template is used.
        system: the system message of a chat.
        fields: fields of ``Sampling``.
    """

    def __init__(
        self, model: LLM, text: str, *, chat: bool, system: str | None, fields: Mapping[str, Any]
    ) -> None:
        self._model = model
        self._text = text
        self._chat = chat
        self._messages: list[Any] = [{"role": "system", "content": system}] if system else []
        self._messages.append({"role": "user", "content": text})
        self._fields = fields

    def run(self) -> Generation:
        """The whole answer."""
        if self._chat:
            return self._model.chat(self._messages, **self._fields)
        return self._model.generate(self._text, **self._fields)

    def stream(self) -> None:
        """Print the answer in parts; an interrupt ends it."""
        if self._chat:
            stream = self._model.stream_chat(self._messages, **self._fields)
        else:
            stream = self._model.stream(self._text, **self._fields)
        with stream:
            for delta in stream:
                sys.stdout.write(answer_text(delta.text))
                sys.stdout.flush()
        sys.stdout.write("\n")

    def report(self) -> dict[str, Any]:
        """The whole answer as JSON."""
        answer = self.run()
        return {
            "text": answer.text,
            "reasoning": answer.reasoning,
            "tool_calls": [_record(call) for call in answer.tool_calls],
            "tokens": list(answer.tokens),
            "finish": answer.finish,
            "stop_reason": answer.stop_reason,
            "seed": answer.seed,
            "usage": _record(answer.usage),
            "timings": _record(answer.timings),
        }


def read_text(text: str | None) -> str:
    """A prompt, from stdin where none was given."""
    return sys.stdin.read() if text is None else text


def read_lines(files: Sequence[Path]) -> list[str]:
    """The lines of files, or of stdin, that are not empty.

    Raises:
        InputError: a file cannot be read, or nothing is there.
    """
    try:
        texts = [path.read_text("utf-8") for path in files] if files else [sys.stdin.read()]
    except (OSError, UnicodeDecodeError) as error:
        where = getattr(error, "filename", None)
        raise InputError(f"cannot read the texts{_of(where)}: {_reason(error)}") from error
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError("there are no texts: one a line is expected")
    return lines


def read_schema(path: Path) -> Grammar:
    """The grammar of a JSON schema in a file.

    Raises:
        InputError: it cannot be read, or is no schema.
    """
    from ostinato.llm import Grammar

    try:
        return Grammar.json_schema(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the schema {str(path)!r:.300}: {_reason(error)}") from error


def _reason(error: OSError | UnicodeDecodeError) -> str:
    """An error without the name of its file."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _of(file: object) -> str:
    return "" if file is None else f" of {str(file)!r:.300}"


def embed_lines(
    model: LLM, lines: Sequence[str], output: Path | None, kind: str | None, dimensions: int | None
) -> None:
    """Write the vectors of texts: a ``.npy`` file, or a line of numbers each.

    Raises:
        InputError: the model makes no vectors, or the file cannot be written.
    """
    import numpy as np

    side = cast("Literal['query', 'passage'] | None", kind)
    vectors = model.embed(lines, kind=side, dimensions=dimensions)
    if output is None:
        for vector in vectors:
            sys.stdout.write(" ".join(f"{number:.6g}" for number in vector) + "\n")
        return
    try:
        with output.open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot write {str(output)!r:.300}: {error.strerror}") from error
    sys.stderr.write(f"{len(vectors)} vectors of {vectors.shape[1]} numbers in {output}\n")


def quantize_model(source: Path, target: Path, to: str, skip: tuple[str, ...]) -> dict[str, Any]:
    """Quantise a file; a report of its tensors.

    Raises:
        OstinatoError: see :func:`ostinato.llm.quantize_file`; or a file cannot be read or written.
    """
    from ostinato.llm import quantize_file

    try:
        with _progress() as progress:
            found = quantize_file(
                source, target, cast("QuantizedFormat", to), skip=skip, progress=_counted(progress)
            )
    except OSError as error:
        raise InputError(
            f"cannot write {str(target)!r:.300} of {str(source)!r:.300}: {_reason(error)}"
        ) from error
    return {
        "source": str(source),
        "target": str(target),
        "bytes": target.stat().st_size,
        "tensors": [_record(tensor) for tensor in found.tensors],
    }


def show_quantized(report: Mapping[str, Any]) -> None:
    """Print the formats before and after, with their numbers of tensors."""
    counts: dict[tuple[str, str], list[int]] = {}
    for tensor in report["tensors"]:
        entry = counts.setdefault((tensor["source"], tensor["target"]), [0, 0])
        entry[0] += 1
        entry[1] += tensor["nbytes"]
    rows = [(a, b, count, bytes_text(size)) for (a, b), (count, size) in counts.items()]
    title = f"{report['target']}: {bytes_text(report['bytes'])}"
    console().print(table(title, ("from", "to", "tensors", "bytes"), rows, numbers=(2, 3)))


def tokens_of(name: str, text: str, *, chat: bool, special: bool, offline: bool) -> dict[str, Any]:
    """The ids and pieces of a text, without loading weights.

    Raises:
        OstinatoError: see :func:`ostinato.llm.load`.
    """
    from ostinato.llm.loading import open_tokenizer

    with _progress() as progress:
        tokenizer, template = open_tokenizer(name, offline=offline, progress=progress)
    rendered = None
    if chat:
        if template is None:
            raise InputError(f"{name!r:.200} has no chat template")
        messages: Any = [{"role": "user", "content": text}]
        rendered = template.render(messages)
        ids = template.encode(tokenizer, messages)
    else:
        ids = tokenizer.encode(text, special=special, add_bos=True)
    pieces = [tokenizer.piece(token) or "" for token in ids]
    return {"text": text, "rendered": rendered, "tokens": ids, "pieces": pieces}


def show_tokens(report: Mapping[str, Any]) -> None:
    """Print the rendered template, then a row for each token."""
    out = console()
    if report["rendered"] is not None:
        out.print(printable(report["rendered"]), markup=False)
    rows = list(zip(report["tokens"], report["pieces"], strict=True))
    out.print(table(f"{len(rows)} tokens", ("id", "piece"), rows, numbers=(0,)))


def _record(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in field_names(record)}


def _counted(
    progress: Callable[[str, int, int], None] | None,
) -> Callable[..., None] | None:
    """Progress of a single activity."""
    if progress is None:
        return None
    return lambda *done: progress("quantizing", *done[-2:])


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """Progress bars on stderr, one for each activity; nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=console(stderr=True), transient=True) as bars:

        def update(activity: str, done: int, total: int) -> None:
            if activity not in tasks:
                tasks[activity] = bars.add_task(escape(printable(activity)), total=None)
            bars.update(tasks[activity], completed=done, total=total or None)

        yield update
