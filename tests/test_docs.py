"""Checks of the documentation: its examples run, its lists are complete, its links resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from ostinato.frontends.onnx.converters import converters
from ostinato.tools.cli import app
from tests import device_tables

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/quickstart.md",
        "docs/running.md",
        "docs/plans.md",
        "docs/sessions.md",
        "docs/capture.md",
        "docs/order.md",
        "docs/experts.md",
        "docs/moe.md",
        "docs/quantization.md",
        "docs/quantized-models.md",
        "docs/packed-weights.md",
        "docs/tokens-and-text.md",
        "docs/variables.md",
    ],
)
def test_python_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as one program."""
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(ROOT / name)
    assert blocks
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name} block {number}", "exec"), namespace)


def test_excerpts_are_in_the_files_that_they_name() -> None:
    blocks = python_blocks(ROOT / "docs" / "add-a-device.md")
    assert blocks
    for block in blocks:
        first, excerpt = block.split("\n", 1)
        assert excerpt in (ROOT / first.removeprefix("# ")).read_text(), block


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("https://"):
            assert (path.parent / target).is_file(), target


@pytest.mark.parametrize("path", device_tables.PAGES, ids=lambda path: path.name)
def test_devices_are_as_the_tables_say(path: Path) -> None:
    """``python -m tests.device_tables`` writes them."""
    text = path.read_text()
    assert device_tables.page(text) == text


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(p.name for p in ROOT.glob("docs/*.md"))


@pytest.mark.parametrize("domain", ["", "com.microsoft", "ai.onnx.ml", "ai.onnx.preview.training"])
def test_onnx_operators_are_listed(domain: str) -> None:
    text = (ROOT / "docs" / "onnx.md").read_text()
    (listed,) = re.findall(
        rf"<!-- operators: {domain or 'default'} -->\n(.*?)\n\n", text, re.DOTALL
    )
    assert re.findall(r"`(\w+)`", listed) == sorted(converters(domain))


def test_environment_variables_are_listed() -> None:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.c"), ROOT / "setup.py"]
    used = {name for p in sources for name in re.findall(r"\bOSTINATO_[A-Z_]+\b", p.read_text())}
    listed = re.findall(
        r"^\| `(\w+)`", (ROOT / "docs" / "environment.md").read_text(), re.MULTILINE
    )
    assert sorted(used) == sorted(listed)


def test_commands_and_their_options_are_listed() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"**`{name}`**" in text
        for option in command.params:
            for spelling in option.opts:
                assert not spelling.startswith("--") or spelling in text, (name, spelling)


def test_folders_are_listed() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "ostinato"
    for path in source.iterdir():
        if path.is_dir() and any(path.glob("*.py")):
            assert f"`{path.name}/`" in text
