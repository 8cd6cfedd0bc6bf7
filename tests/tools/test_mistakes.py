"""A user's mistake: one message, the documented exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.tools.cli import main
from ostinato.tools.feeds import load_array

from .conftest import Cli, report

Case = tuple[list[str], str]


def mistaken(cli: Cli, *arguments: object) -> str:
    """The message of a command that fails; ``--json`` says the same on stdout."""
    told = report(cli(*arguments, "--json", code=1))["error"]
    result = cli(*arguments, code=1)
    assert result.stdout == ""
    assert told["message"] in result.stderr
    assert result.stderr.startswith("error: ")
    return f"{told['type']}: {told['message']}"


@pytest.mark.parametrize("command", ["inspect", "run", "bench"])
def test_files_that_are_no_models(cli: Cli, dense: Path, tmp_path: Path, command: str) -> None:
    assert mistaken(cli, command, tmp_path / "no.onnx").startswith("ModelFormatError: cannot read")
    assert mistaken(cli, command, tmp_path).startswith("ModelFormatError: cannot read")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(dense.read_bytes()[:-40])
    assert mistaken(cli, command, damaged).startswith("ModelFormatError")
    damaged.write_bytes(b"")
    assert "empty" in mistaken(cli, command, damaged)


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_unsupported_ops_are_all_listed(cli: Cli, unsupported: Path, command: str) -> None:
    message = mistaken(cli, command, unsupported)
    assert message.startswith("UnsupportedOpError")
    for word in ("ImageDecoder", "first", "second"):
        assert word in message


def test_arrays_that_cannot_be_read(cli: Cli, dense: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"

    def message() -> str:
        return mistaken(cli, "run", dense, "--input", f"x={path}")

    assert "No such file" in message()
    path.mkdir()
    assert "cannot read the array" in message()
    path.rmdir()
    path.write_bytes(b"hello, world")
    assert "cannot read the array" in message()
    path.write_bytes(b"")
    assert "cannot read the array" in message()
    np.save(path, np.ones((3, 4), np.float32))
    path.write_bytes(path.read_bytes()[:-4])
    assert "cannot read the array" in message()
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999, 4), }\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "cannot read the array" in message()
    np.savez(tmp_path / "two.npz", a=np.ones(2), b=np.ones(2))
    (tmp_path / "two.npz").rename(path)
    assert "several arrays" in message()


def test_damaged_arrays(tmp_path: Path) -> None:
    """Damaged bytes give an error of ours or an array, never another exception."""
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 4), np.float32))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole) - 48, 3):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            assert isinstance(load_array(str(path)), np.ndarray)
        except ost.InputError:
            refused += 1
    assert refused > 200
    path.write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ost.InputError, match="cannot read the array"):
        load_array(str(path))


def test_pickles_are_never_opened(cli: Cli, dense: Path, tmp_path: Path) -> None:
    path = tmp_path / "trap.npy"
    trace = tmp_path / "opened"
    np.save(path, np.array([Trap(trace)], dtype=object), allow_pickle=True)
    assert "cannot read the array" in mistaken(cli, "run", dense, "--input", f"x={path}")
    assert not trace.exists()


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_arrays_that_do_not_fit(cli: Cli, dense: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    given = ("--input", f"x={path}")
    np.save(path, np.ones((3, 5), np.float32))
    assert "expected 4 along axis 1, got 5" in mistaken(cli, "run", dense, *given)
    np.save(path, np.ones(4, np.float32))
    assert "shape" in mistaken(cli, "run", dense, *given)
    np.save(path, np.ones((3, 4)))
    assert "float32, got float64" in mistaken(cli, "run", dense, *given)
    cli("run", dense, *given, "--cast")
    assert "rows" in mistaken(cli, "run", dense, *given, "--cast", "--dim", "rows=4..5")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "nope=zeros"], "unknown input 'nope'; the model has 'x', 'ids'"),
        (["--dim", "nope=3"], "no dim and no input called nope"),
        (["--dim", "rows=-3"], "rows"),
        (["--dim", "rows=5..2"], "rows"),
        (["--dim", "x[7]=5"], "2 dims"),
        (["--dim", "x[1]=5"], "is 4"),
        (["--constant", "nope=3"], "no input 'nope'"),
        (["--constant", "ids=3", "--input", "ids=3"], "fixed with --constant"),
        (["--input", "ids=99999999999999999999"], "cannot be filled"),
        (["--device", "warp"], "unknown device"),
        (["--device", "cuda"], "CUDA"),
        (["--target", "z80"], "unknown CPU level"),
        (["--output", "/nonexistent/folder/out.npz"], "cannot write"),
    ],
)
def test_arguments_that_do_not_fit(cli: Cli, dense: Path, arguments: list[str], words: str) -> None:
    assert words in mistaken(cli, "run", dense, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["run"],
        ["run", "m.onnx", "--frobnicate"],
        ["run", "m.onnx", "--input", "x"],
        ["run", "m.onnx", "--input", "=zeros"],
        ["run", "m.onnx", "--input", "x=random:9..1"],
        ["run", "m.onnx", "--input", "x=random:a..b"],
        ["run", "m.onnx", "--dim", "rows"],
        ["run", "m.onnx", "--dim", "rows=many"],
        ["run", "m.onnx", "--dim", "x=2", "--dim", "x[0]=2"],
        ["run", "m.onnx", "--constant", "sr=fast"],
        ["run", "m.onnx", "--threads", "0"],
        ["run", "m.onnx", "--seed", "-1"],
        ["bench", "m.onnx", "--runs", "0"],
        ["bench", "m.onnx", "--vs", "abacus"],
        ["bench", "m.onnx", "--tolerance", "1"],
    ],
)
def test_wrong_usage(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments, code=2)
    assert "Usage" in result.output


def test_onnx_runtime_is_missing(cli: Cli, dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = mistaken(cli, "bench", dense, "--vs", "onnxruntime")
    assert "pip install onnxruntime" in message


def test_out_of_memory(cli: Cli, dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ostinato.tools.run.prepare", exhausted)
    assert "--dim" in mistaken(cli, "run", dense)


def test_a_bug_is_called_one(
    dense: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("ostinato.tools.run.run_model", broken)
    monkeypatch.setattr(sys, "argv", ["ostinato", "run", str(dense)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 70
    told = capsys.readouterr().err
    assert "ZeroDivisionError: boom" in told
    assert "bug in Ostinato" in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk here")
def test_a_full_disk(dense: Path) -> None:
    command = [sys.executable, "-m", "ostinato.tools.cli", "run", str(dense), "--json"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr
