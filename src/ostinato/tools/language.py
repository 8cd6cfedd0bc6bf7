"""The commands of language models: ``chat``, ``generate``, ``embed``, ``quantize``, ``tokens``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.tools.output import answer_text, failures, print_json

__all__ = ["add_commands"]

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A folder, a .gguf file, or owner/name[:file-or-quant][@revision]."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="How many threads run the model; by default all."),
]
Context = Annotated[int | None, typer.Option(min=1, help="Most tokens of a prompt and its answer.")]
Weights = Annotated[str, typer.Option(help="keep, bfloat16, int8 or int4.")]
Draft = Annotated[
    str | None, typer.Option(metavar="ngrams|MODEL", help="Speculation, with the same answers.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Download nothing.")]
DeviceName = Annotated[str, typer.Option("--device", help="Where to run; see `ostinato devices`.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", "-n", min=1, help="Most tokens of an answer.")
]
Temperature = Annotated[
    float | None,
    typer.Option("--temp", "--temperature", min=0.0, help="0 takes the most probable token."),
]
TopK = Annotated[int | None, typer.Option(min=0, help="Choose among so many tokens.")]
TopP = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="Choose among tokens with this probability.")
]
MinP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Drop tokens below this part of the best one's."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of the randomness.")]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Texts, one a line; by default from stdin."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write a .npy file, not text.")]
Source = Annotated[Path, typer.Argument(metavar="IN", help="A GGUF file, or a folder.")]
Target = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")]
Schema = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The answer follows this JSON schema.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (chat, generate, embed, quantize, tokens):
        app.command()(command)


def chat(
    model: ModelName,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: MaxTokens = None,
    temp: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    draft: Draft = None,
    context: Context = None,
    weights: Weights = "keep",
    device: DeviceName = "cpu",
    threads: Threads = None,
    offline: Offline = False,
) -> None:
    """Chat with a model in the terminal; Ctrl-C ends an answer, Ctrl-D the chat."""
    with failures(as_json=False):
        from ostinato.tools.chat import run_chat
        from ostinato.tools.language_models import open_model

        fields = _fields(max_tokens, temp, top_k, top_p, min_p, seed)
        loaded = open_model(model, device, threads, weights, context, draft, offline, sequences=1)
        with loaded:
            run_chat(loaded, system, fields)


def generate(
    model: ModelName,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The text; by default, from stdin.")
    ] = None,
    max_tokens: MaxTokens = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print parts as they come.")] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a user's message, not raw text.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="The system message, with --chat.")] = None,
    schema: Schema = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A text that ends the answer. Repeatable.")
    ] = None,
    temp: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    draft: Draft = None,
    context: Context = None,
    weights: Weights = "keep",
    device: DeviceName = "cpu",
    threads: Threads = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Continue a prompt, or answer a message."""
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")
    if stream and json:
        raise typer.BadParameter("--stream and --json exclude each other")
    with failures(as_json=json):
        from ostinato.tools.language_models import Answering, open_model, read_schema, read_text

        fields = _fields(max_tokens, temp, top_k, top_p, min_p, seed)
        if stop:
            fields["stop"] = tuple(stop)
        if schema is not None:
            fields["grammar"] = read_schema(schema)
        text = read_text(prompt)
        loaded = open_model(model, device, threads, weights, context, draft, offline, sequences=1)
        with loaded:
            answering = Answering(loaded, text, chat=chat, system=system, fields=fields)
            if stream:
                answering.stream()
            elif json:
                print_json(answering.report())
            else:
                typer.echo(answer_text(answering.run().text))


def embed(
    model: ModelName,
    files: Files = None,
    output: Output = None,
    kind: Annotated[
        str | None, typer.Option(help="query or passage, for models with prompts for them.")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Keep the first dimensions of each vector.")
    ] = None,
    device: DeviceName = "cpu",
    threads: Threads = None,
    offline: Offline = False,
) -> None:
    """Write a vector for each line of the files."""
    with failures(as_json=False):
        from ostinato.tools.language_models import embed_lines, open_model, read_lines

        lines = read_lines(files or [])
        with open_model(model, device, threads, "keep", None, None, offline, sequences=1) as loaded:
            embed_lines(loaded, lines, output, kind, dimensions)


def quantize(
    source: Source,
    target: Target,
    to: Annotated[str, typer.Option(help="q8_0, q4_0, q4_1, q5_0, q5_1, int8, int4 or bfloat16.")],
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Tensors to keep as they are. Repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a GGUF file or a folder as GGUF, its matrices in another format."""
    with failures(as_json=json):
        from ostinato.tools.language_models import quantize_model, show_quantized

        report = quantize_model(source, target, to, tuple(skip or ()))
        print_json(report) if json else show_quantized(report)


def tokens(
    model: ModelName,
    text: Annotated[str, typer.Argument(help="The text; a user's message with --chat.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="Render the text as a user's message first.")
    ] = False,
    special: Annotated[
        bool, typer.Option("--special", help="Parse names of special tokens in the text.")
    ] = False,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Show the token ids of a text and their pieces, and the rendered template."""
    with failures(as_json=json):
        from ostinato.tools.language_models import show_tokens, tokens_of

        report = tokens_of(model, text, chat=chat, special=special, offline=offline)
        print_json(report) if json else show_tokens(report)


def _fields(
    max_tokens: int | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
) -> dict[str, Any]:
    """The fields of ``Sampling`` that were given."""
    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
    }
    return {name: value for name, value in given.items() if value is not None}
