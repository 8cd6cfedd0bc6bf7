"""The order of the layers: a module imports only from its own layer and those below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ostinato

ROOT = Path(ostinato.__file__).parent

#: From the ground up. Modules of one floor may import each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "dtypes", "variables", "symbolic", "once", "lazy"),
    ("ir",),
    ("ops",),
    ("reference",),
    ("passes",),
    ("lower",),
    ("codegen",),
    ("plan",),
    ("backends",),
    ("runtime",),
    ("frontends",),
    ("ostinato", "moe"),  # the package itself, with its public names
    ("tools",),
)

FLOOR = {part: level for level, parts in enumerate(FLOORS) for part in parts}

MODULES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part of the package that a module belongs to, as :data:`FLOORS` names it."""
    name = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "ostinato" if name in ("__init__", "__main__") else name


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a module imports, for type checkers too."""
    package = ("ostinato", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module != "ostinato":
                yield node.lineno, module
                continue
            for alias in node.names:
                part = f".{alias.name}" if alias.name in FLOOR else ""
                yield node.lineno, f"ostinato{part}"


def test_every_module_has_a_floor():
    assert {part_of(path) for path in MODULES} <= FLOOR.keys()


def test_imports_point_down():
    wrong = []
    for path in MODULES:
        level = FLOOR[part_of(path)]
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] == "ostinato" and FLOOR[parts[min(1, len(parts) - 1)]] > level:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def loaded_by(code: str) -> set[str]:
    """Top-level packages in a fresh interpreter after ``code``."""
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


HEAVY = {"llvmlite", "onnx", "onnxruntime", "rich", "typer", "ml_dtypes", "google", "platformdirs"}


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import ostinato", set()),
        ("import ostinato; g = ostinato.Graph(); x = g.input('x', (2,)); g.exp(x) + 1", set()),
        ("import ostinato; ostinato.available_devices(); ostinato.Session", {"platformdirs"}),
        ("import ostinato.tools", set()),
    ],
)
def test_heavy_packages_wait_until_they_are_needed(code, allowed):
    assert not loaded_by(code) & (HEAVY - allowed)
