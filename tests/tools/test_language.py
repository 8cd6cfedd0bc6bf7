"""The commands of language models."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from ostinato.llm.quantize import quantize_file
from ostinato.tools.chat import Chat, run_chat
from ostinato.tools.cli import app
from ostinato.tools.output import complete_streams
from tests.llm.text_models import byte_level_bpe, write_text_model
from tests.llm.tiny_llm import write_llm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llm(tmp_path_factory.mktemp("model")))


def invoke(*arguments: str, text: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*arguments], input=text)
    assert result.exit_code == code, result.output
    return result


def generate(folder: str, *arguments: str, text: str = "", code: int = 0) -> Result:
    return invoke("generate", folder, "--context", "128", *arguments, text=text, code=code)


def test_generate_prints_usage_and_timings_as_json(folder: str) -> None:
    found = json.loads(generate(folder, "-p", "ab", "-n", "5", "--seed", "3", "--json").stdout)
    assert found["usage"]["prompt"] == 2
    assert found["seed"] == 3
    assert len(found["tokens"]) == found["usage"]["completion"] <= 5
    assert 0 <= found["timings"]["queued"] <= found["timings"]["total"]


def test_generate_streams_what_it_prints_whole(folder: str) -> None:
    options = ("-n", "9", "--temp", "0")
    whole = generate(folder, "-p", "ab", *options).stdout
    assert generate(folder, *options, "--stream", text="ab").stdout == whole
    assert generate(folder, "-p", "ab", *options, "--draft", "ngrams").stdout == whole


def test_generate_answers_messages(folder: str) -> None:
    options = ("-p", "hi", "--chat", "--system", "be", "-n", "4", "--json")
    found = json.loads(generate(folder, *options).stdout)
    assert found["usage"]["prompt"] == len("system: be\nuser: hi\nassistant: ")
    assert generate(folder, "-p", "hi", "--system", "be", code=2)
    assert generate(folder, "-p", "hi", "--stream", "--json", code=2)


def test_generate_follows_a_schema(folder: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "blue"]}')
    found = generate(folder, "-p", "a", "-n", "20", "--schema", str(schema)).stdout
    assert json.loads(found) in ("red", "blue")
    schema.write_text("{")
    assert (
        "a JSON schema is JSON"
        in generate(folder, "-p", "a", "--schema", str(schema), code=1).stderr
    )


def test_mistakes_are_one_line(folder: str) -> None:
    found = generate(folder, "-p", "ab", "-n", "500", code=1)
    assert found.stderr.startswith("error: a prompt of 2 tokens and max_tokens=500 exceed")
    assert "there is no folder" in invoke("generate", "no/such/model", "-p", "a", code=1).stderr


def test_chat_answers_lines_and_obeys_commands(folder: str, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    lines = ["hi", "/stats", "/seed 5", "/bogus", "/seed x", f"/save {saved}", "", "/exit", "no"]
    found = invoke(
        "chat", folder, "-n", "6", "--system", "be", "--context", "128", text="\n".join(lines)
    )
    assert "prompt: 31 tokens" in found.stderr
    assert "unknown command '/bogus'" in found.stderr
    assert "a seed is a whole number" in found.stderr
    roles = [message["role"] for message in json.loads(saved.read_text())]
    assert roles == ["system", "user", "assistant"]


def test_chat_says_when_the_context_is_full(folder: str) -> None:
    found = invoke("chat", folder, "--context", "64", text=f"{'x' * 80}\n/reset\n/stats\n")
    assert "/reset begins a new one" in found.stderr
    assert "no answer yet" in found.stderr


def test_embed_writes_vectors(folder: str, tmp_path: Path) -> None:
    texts, vectors = tmp_path / "texts", tmp_path / "vectors.npy"
    texts.write_text("one\n\ntwo\n")
    invoke("embed", folder, str(texts), "-o", str(vectors))
    found = np.load(vectors)
    assert found.shape == (2, 64)
    printed = invoke("embed", folder, text="two\n").stdout.split()
    np.testing.assert_allclose([float(number) for number in printed], found[1], rtol=1e-5)
    assert "there are no texts" in invoke("embed", folder, text="\n", code=1).stderr


def test_tokens_shows_pieces_and_the_template(folder: str) -> None:
    found = json.loads(invoke("tokens", folder, "hi", "--json").stdout)
    assert found["pieces"] == ["h", "i"]
    found = json.loads(invoke("tokens", folder, "hi", "--chat", "--json").stdout)
    assert found["rendered"] == "user: hi\nassistant: "
    assert "".join(found["pieces"]) == found["rendered"]
    assert "user: hi" in invoke("tokens", folder, "hi", "--chat").stdout


class Terminal:
    """A program on a pseudo-terminal of its own, as if it were typed at."""

    def __init__(self, command: list[str]) -> None:
        pty = pytest.importorskip("pty")
        self.process, self._terminal = pty.fork()
        if not self.process:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it in what it detaches
            os.execv(command[0], command)  # ends this process or replaces its program
        self.shown, self._read = "", 0

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Read until a text is shown behind the one that was waited for before."""
        end = time.monotonic() + seconds
        while (place := self.shown.find(text, self._read)) < 0:
            ready, _, _ = select.select([self._terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} is not shown: {self.shown[-500:]!r}"
            self.shown += os.read(self._terminal, 1 << 12).decode(errors="replace")
        self._read = place + len(text)

    def wait_for_more(self, seconds: float = 120) -> None:
        """Read until anything is shown behind what was waited for before."""
        if len(self.shown) == self._read:
            ready, _, _ = select.select([self._terminal], [], [], seconds)
            assert ready, f"nothing is shown behind {self.shown[-500:]!r}"
            self.shown += os.read(self._terminal, 1 << 12).decode(errors="replace")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C, again where Python's line editor saw none as it began to wait for keys."""
        for _ in range(60):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                return self.wait_for(text, seconds=2)
        raise AssertionError(f"{text!r} is not shown: {self.shown[-500:]!r}")

    def close(self) -> int:
        """Wait for the end of the program; its exit code."""
        with contextlib.suppress(OSError):  # the terminal is gone with the program
            while os.read(self._terminal, 1 << 12):
                pass
        _, status = os.waitpid(self.process, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


def test_an_interrupt_before_an_answer_does_not_end_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = []

    class Interrupted(Chat):
        def __init__(self, *args: Any) -> None:
            pass

        def take(self, line: str) -> bool:
            taken.append(line)
            if line == "hello":
                raise KeyboardInterrupt
            return line != "/exit"

    lines = iter(["hello", "again", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr("ostinato.tools.chat.Chat", Interrupted)
    run_chat(None, None, {})  # type: ignore[arg-type]
    assert taken == ["hello", "again", "/exit"]
    assert capsys.readouterr().err.endswith("\n")


def test_an_interrupt_ends_the_answer_and_not_the_chat(folder: str) -> None:
    command = [sys.executable, "-m", "ostinato.tools.cli", "chat", folder, "-n", "440"]
    terminal = Terminal([*command, "--temp", "1.5", "--seed", "1", "--threads", "1"])
    terminal.wait_for("/help lists commands; Ctrl-D ends the chat.")
    terminal.wait_for("\r\n> ")
    terminal.interrupt_until("Ctrl-D or /exit ends the chat")
    terminal.wait_for("\r\n> ")
    terminal.type("hello\n")
    terminal.wait_for("hello\r\n")
    terminal.wait_for_more()  # the answer has begun
    terminal.type("\x03")
    terminal.wait_for("\r\n> ")
    terminal.type("/stats\n")
    terminal.wait_for("tokens, seed 1")
    found = re.search(r"answer: (\d+) tokens", terminal.shown)
    assert found is not None
    assert int(found[1]) < 440
    terminal.type("/reset\n")
    terminal.wait_for("\r\n> ")
    terminal.type("\x04")
    assert terminal.close() == 0


def command(folder: str, redirection: str, *arguments: str) -> tuple[str, str]:
    """The output and the errors of a command with other standard streams."""
    program = [sys.executable, "-m", "ostinato.tools.cli", *arguments, folder]
    line = f"{shlex.join(program)} --context 128 -n 4 --temp 0 {redirection}"
    found = subprocess.run(line, shell=True, check=False, capture_output=True, text=True)
    assert "Traceback" not in found.stderr
    return found.stdout, found.stderr


def test_streams_may_be_closed(folder: str) -> None:
    assert "the prompt has no tokens" in command(folder, "<&-", "generate")[1]
    assert command(folder, "<&-", "chat") == ("", "")
    assert command(folder, ">&-", "generate", "-p", "ab") == ("", "")
    assert command(folder, "2>&-", "generate", "-p", "ab")[0]


def test_what_an_encoding_lacks_is_written_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    octets = io.BytesIO()
    stream = io.TextIOWrapper(octets, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    complete_streams()
    stream.write("a é 😀")
    stream.flush()
    assert octets.getvalue() == rb"a \xe9 \U0001f600"


def test_files_that_cannot_be_written_or_read_are_named_once(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent" / "file")
    found = invoke("embed", str(tmp_path), absent, code=1).output
    assert found == f"error: cannot read the texts of {absent!r}: No such file or directory\n"
    source = quantize_file(
        write_text_model(tmp_path / "model", "llama", byte_level_bpe(), {}),
        tmp_path / "source.gguf",
        "q8_0",
    ).path
    found = invoke("quantize", str(source), absent, "--to", "q4_0", code=1).output
    assert found.startswith(f"error: cannot write {absent!r} of {str(source)!r}: No such file")
    assert ".tmp" not in found
