"""The command line ``ostinato``.

Exit codes: 0 for success; 1 for what the user can mend (a missing or damaged file, an unsupported
op, an input that does not fit), with one message and no traceback; 2 for wrong usage; 3 when
``bench --tolerance`` finds results that differ by more; 70 for a bug in Ostinato.

Modules that do the work are imported by the command that needs them, so that ``--help`` is quick.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from ostinato import __version__
from ostinato.tools.arguments import (
    ConstantArgument,
    DimArgument,
    InputArgument,
    dims_mapping,
    parse_constant,
    parse_dim,
    parse_input,
)
from ostinato.tools.language import add_commands
from ostinato.tools.models import ModelOptions
from ostinato.tools.output import FAILED, complete_streams, failures, print_json

__all__ = ["BUG", "DIFFERENT", "app", "main"]

#: Exit codes besides 0, 1 and 2; see above.
DIFFERENT, BUG = 3, 70

app = typer.Typer(
    name="ostinato",
    help="Run language models, and compile, inspect, run and time ONNX models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]
Dims = Annotated[
    list[DimArgument] | None,
    typer.Option(
        "--dim",
        parser=parse_dim,
        metavar="NAME=SIZE",
        help="The size of a dynamic dim, or bounds: batch=8, seq=1..128, x[0]=8. Repeatable.",
    ),
]
Constants = Annotated[
    list[ConstantArgument] | None,
    typer.Option(
        "--constant",
        parser=parse_constant,
        metavar="NAME=NUMBER",
        help="Fix an input while compiling. Repeatable.",
    ),
]
Inputs = Annotated[
    list[InputArgument] | None,
    typer.Option(
        "--input",
        parser=parse_input,
        metavar="NAME=SOURCE",
        help="A .npy file, random, random:LOW..HIGH, zeros, ones or a number; random unless "
        "said. Repeatable.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of random inputs.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="How many threads run the model; by default all."),
]
DeviceName = Annotated[str, typer.Option("--device", help="Where to run; see `ostinato devices`.")]
Target = Annotated[str, typer.Option(help="Instruction set: host, avx512, avx2 or sse2.")]
Cast = Annotated[bool, typer.Option("--cast", help="Convert inputs of another dtype.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ostinato {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Run language models, and compile, inspect, run and time ONNX models."""


@app.command()
def inspect(
    model: ModelPath,
    dim: Dims = None,
    constant: Constants = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add what was rewritten and fused, and what not.")
    ] = False,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="Stop at the graph.")] = False,
    support: Annotated[
        bool,
        typer.Option(
            "--support",
            help="Show instead, per node, whether it is native, rewritten, specialised or "
            "unsupported, and why.",
        ),
    ] = False,
    device: DeviceName = "cpu",
    threads: Threads = None,
    target: Target = "host",
    json: Json = False,
) -> None:
    """Show inputs, outputs, ops, params and FLOPs, and the kernels and memory of a run."""
    with failures(as_json=json):
        from ostinato.tools.inspect import inspect_model, inspect_support, show, show_support

        options = _options(model, dim, constant, device, threads, target)
        if support:
            found = inspect_support(options)
            print_json(found) if json else show_support(found)
            return
        report = inspect_model(options, compiled=explain or not no_compile, explain=explain)
        print_json(report) if json else show(report)


@app.command()
def run(
    model: ModelPath,
    input: Inputs = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs to this .npz file.")
    ] = None,
    dim: Dims = None,
    constant: Constants = None,
    seed: Seed = 0,
    device: DeviceName = "cpu",
    threads: Threads = None,
    target: Target = "host",
    cast: Cast = False,
    json: Json = False,
) -> None:
    """Run a model once and show its outputs."""
    with failures(as_json=json):
        from ostinato.tools.run import run_model, show

        options = _options(model, dim, constant, device, threads, target, cast=cast)
        report = run_model(options, input or [], seed=seed, output=output)
        print_json(report) if json else show(report)


@app.command()
def bench(
    model: ModelPath,
    vs: Annotated[
        str | None,
        typer.Option(
            "--vs", metavar="RUNTIME", help="Compare with: onnxruntime; with --llm, llama.cpp."
        ),
    ] = None,
    llm: Annotated[
        bool, typer.Option("--llm", help="MODEL is a language model: a GGUF file or a folder.")
    ] = False,
    prompt: Annotated[
        int, typer.Option("-p", min=1, metavar="TOKENS", help="With --llm: tokens of a prompt.")
    ] = 512,
    tokens: Annotated[
        int, typer.Option("-n", min=1, metavar="TOKENS", help="With --llm: tokens of an answer.")
    ] = 128,
    batches: Annotated[
        str, typer.Option("-b", metavar="N,…", help="With --llm: numbers of sequences.")
    ] = "1",
    llama_bench: Annotated[
        str,
        typer.Option(
            "--llama-bench", metavar="PATH", help="With --vs llama.cpp: its program llama-bench."
        ),
    ] = "llama-bench",
    runs: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="How many runs to time.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="How long to time each, without --runs.")
    ] = 2.0,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, help="With --vs: exit with 3 if outputs differ by more than this."),
    ] = None,
    input: Inputs = None,
    dim: Dims = None,
    constant: Constants = None,
    seed: Seed = 0,
    device: DeviceName = "cpu",
    threads: Threads = None,
    target: Target = "host",
    cast: Cast = False,
    json: Json = False,
) -> None:
    """Time runs of a model, alone or alternately with another runtime."""
    peer = "llama.cpp" if llm else "onnxruntime"
    if vs not in (None, peer):
        kind = "language models" if llm else "other models"
        raise typer.BadParameter(f"{vs!r}: the one runtime to compare {kind} with is {peer}")
    if llm:
        with failures(as_json=json):
            from ostinato.tools import bench_llm

            settings = bench_llm.LanguageModelBench(
                path=model,
                prompt=prompt,
                tokens=tokens,
                batches=_batches(batches),
                threads=threads,
                rounds=runs or 3,
                llama_bench=llama_bench if vs else None,
            )
            found = bench_llm.bench_language_model(settings)
            print_json(found) if json else bench_llm.show(found)
        return
    if tolerance is not None and vs is None:
        raise typer.BadParameter("--tolerance needs --vs")
    with failures(as_json=json):
        from ostinato.tools.bench import bench_model, show

        options = _options(model, dim, constant, device, threads, target, cast=cast)
        report = bench_model(options, input or [], seed=seed, versus=vs, runs=runs, seconds=seconds)
        print_json(report) if json else show(report)
        if tolerance is not None and float(report["difference"]["largest"]) > tolerance:
            typer.echo(f"error: the outputs differ by more than {tolerance:g}", err=True)
            raise typer.Exit(DIFFERENT)


@app.command()
def devices(json: Json = False) -> None:
    """List every kind of device, whether it is available here, and if not, why."""
    with failures(as_json=json):
        from ostinato.tools.devices import list_devices, show

        report = list_devices()
        print_json(report) if json else show(report)


def _batches(listed: str) -> tuple[int, ...]:
    """Numbers of sequences, as the option ``-b`` lists them."""
    try:
        return tuple(int(part) for part in listed.split(","))
    except ValueError:
        raise typer.BadParameter(f"{listed!r} is no list of numbers such as 1,2,4") from None


add_commands(app)


def _options(
    path: Path,
    dims: list[DimArgument] | None,
    constants: list[ConstantArgument] | None,
    device: str,
    threads: int | None,
    target: str,
    *,
    cast: bool = False,
) -> ModelOptions:
    fixed = {argument.name: argument.value for argument in constants or []}
    return ModelOptions(path, dims_mapping(dims or []), fixed, device, threads, target, cast)


def main() -> None:
    """The entry point of the command ``ostinato``."""
    complete_streams()
    try:
        app()
    except OSError as error:  # of stdout: a full disk
        typer.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    except Exception:
        traceback.print_exc()
        print(
            "\nThis is a bug in Ostinato; please report it with the lines above.", file=sys.stderr
        )
        sys.exit(BUG)


if __name__ == "__main__":
    main()
