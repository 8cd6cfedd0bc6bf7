"""The order of the layers: a module imports only from its own layer and those below it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato
from ostinato.cache.fingerprint import ABOVE_CODE

ROOT = Path(ostinato.__file__).parent

#: From the ground up. Modules of one floor may import each other, as long as they make no rings.
FLOORS: tuple[tuple[str, ...], ...] = (
    (
        "agreed",
        "errors",
        "dtypes",
        "conversion",
        "variables",
        "symbolic",
        "cache",
        "lazy",
        "records",
    ),
    ("ir",),
    ("ops",),
    ("reference",),
    ("passes",),
    ("lower",),
    ("plan",),
    ("backends",),
    ("eager",),
    ("moe", "runtime"),
    ("frontends",),
    ("llm",),
    ("torch",),
    ("ostinato",),  # the package itself, with its public names
    ("tools",),
)

FLOOR = {part: level for level, parts in enumerate(FLOORS) for part in parts}

MODULES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part of the package that a module belongs to, as :data:`FLOORS` names it."""
    name = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "ostinato" if name in ("__init__", "__main__") else name


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module, inner ones included; expressions have none."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, [])
            if isinstance(inner, list):  # the body of a lambda is an expression
                waiting += inner
                yield from inner


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    nodes = statements(ast.parse(path.read_text()))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a module imports, for type checkers too."""
    package = ("ostinato", *path.relative_to(ROOT).parent.parts)
    for node in import_statements(path):
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


def name_of(path: Path) -> str:
    """The full name of the module at ``path``."""
    parts = ["ostinato", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts).removesuffix(".__init__")


NAMES = {name_of(path): path for path in MODULES}


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a module imports anywhere, for type checkers too."""
    found = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in NAMES else node.module for name in inside}
    return found & NAMES.keys()


def rings(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """The sets of modules that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in graph[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    behind = {name: reached(name) for name in graph}
    found = {frozenset(o for o in behind[n] if n in behind[o]) for n in graph if n in behind[n]}
    return sorted(found, key=sorted)


def test_imports_make_no_rings():
    """Neither at the top of a module, nor within functions, nor for type checkers alone."""
    graph = {name: imported_modules(path) - {name} for name, path in NAMES.items()}
    found = rings(graph)
    assert not found, "\n".join(" ".join(sorted(ring)) for ring in found)


#: A function or a variable with external linkage that C code defines; each begins in column 0.
DEFINITION = re.compile(
    r"^(?!static\b|typedef\b|extern\b)\w[\w \t*]*?\b(\w+)\s*"
    r"(?:\([^;{}]*\)\s*\{|(?:\[\w*\]\s*)*(?:__attribute__.*)?[=;])",
    re.MULTILINE,
)


def native_units(folder: Path) -> dict[str, set[str]]:
    """The units of a folder of C, a ``.c`` file and the header of its name, with those they use.

    A unit uses those whose header it includes, and those that define a function or a variable that
    its code names. So a header that declares what another unit defines is no way round.
    """
    included: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    home: dict[str, str] = {}
    for path in sorted(folder.glob("*.[ch]")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(), flags=re.DOTALL)
        included.setdefault(path.stem, set()).update(re.findall(r'#include "(\w+)\.h"', code))
        code = re.sub(r'"(?:\\.|[^"\\\n])*"', " ", code)
        words = re.sub(r"\(\*\w+\)(?=\()|(?:\.|->)\w+", " ", code)  # not the names of members
        named.setdefault(path.stem, set()).update(re.findall(r"\w+", words))
        if path.suffix == ".c":
            home |= dict.fromkeys(DEFINITION.findall(code), path.stem)
    used = {unit: {home[word] for word in words & home.keys()} for unit, words in named.items()}
    return {unit: (used[unit] | included[unit] & named.keys()) - {unit} for unit in named}


@pytest.mark.parametrize(
    "folder",
    [
        "plan/csrc",
        "backends/cpu/csrc",
        "backends/cuda/csrc",
        "backends/array_api/csrc",
        "frontends/torch/csrc",
    ],
)
def test_native_units_make_no_circles(folder):
    units = native_units(ROOT / folder)
    assert any(units.values())
    found = rings(units)
    assert not found, "\n".join(" ".join(sorted(circle)) for circle in found)


def test_circles_of_native_units_are_found_by_includes_and_by_definitions(tmp_path):
    sources = {
        "low.h": "typedef struct { int (*high)(int); } table; /* has high */\nint low(table t);\n",
        "low.c": '#include "low.h"\n\nint low(table t) {\n    return t.high(1); // not high\n}\n',
        "high.h": '#include "low.h"\n\nextern const char *const names[2];\n',
        "high.c": '#include "high.h"\n\nconst char *const names[2] = {"low", "high"};\n\n'
        "static int own(void) { return 1; }\n\n"
        "int high(int x) { return low((table){high}) + own(); }\n",
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    assert native_units(tmp_path) == {"low": set(), "high": {"low"}}
    assert not rings(native_units(tmp_path))
    for declared in ("int high(int x);\n", "extern const char *const names[2];\n"):
        (tmp_path / "low.h").write_text(sources["low.h"] + declared)
        assert rings(native_units(tmp_path)) == [frozenset({"low", "high"})]


#: Parts of processors and words of single devices, which shared lowering has no use for.
DEVICE_WORDS = re.compile(
    r"(?i)thread|\bpanels?\b|\bcaches?\b|register|vector|\blanes?\b|simd|llvm|cuda"
)


def test_shared_lowering_has_no_word_of_a_device():
    used = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / "lower").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if DEVICE_WORDS.search(line) and "functools" not in line and not line.startswith("@cache")
    ]
    assert not used, "\n".join(used)


def lazy_modules(path: Path) -> Iterator[tuple[str, str]]:
    """Names that stand for a module until it is used, each with the module's."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Name("LazyModule"), [ast.Constant(module)])
            ):
                yield name, module


def test_lazy_modules_are_what_type_checkers_take_them_for():
    found = 0
    for path in MODULES:
        if "LazyModule(" not in path.read_text():
            continue
        imported = {
            (alias.asname or alias.name, f"{node.module}.{alias.name}")
            for node in import_statements(path)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        imported |= {(name, name) for _, name in imports(path)}
        for name, module in lazy_modules(path):
            assert (name, module) in imported, f"{path.relative_to(ROOT)}: {name}"
            assert find_spec(module) is not None, module
            found += 1
    assert found


def modules_after(code: str, cache: Path) -> set[str]:
    """The modules in a fresh interpreter after ``code``, which finds nothing in the cache."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OSTINATO_CACHE_DIR": str(cache)},
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
def test_heavy_packages_wait_until_they_are_needed(code, allowed, tmp_path):
    loaded = {name.partition(".")[0] for name in modules_after(code, tmp_path)}
    assert not loaded & (HEAVY - allowed)


#: Modules that a perceptron does not need, from the model's file to its first output.
OF_NO_USE = {
    "concurrent.futures",
    "importlib.metadata",
    "logging",
    "ml_dtypes",
    "onnx",
    "ostinato.backends.cpu.llvm.attention",
    "ostinato.frontends.onnx.converters.recurrent",
    "ostinato.backends.common.op_encoding",
    "ostinato.backends.common.plan_maker",
    "ostinato.backends.common.routing_log",
    "ostinato.backends.cpu.partial_launch",
    "ostinato.backends.cpu.rules.attention",
    "ostinato.backends.cpu.rules.depthwise",
    "ostinato.backends.cpu.rules.expert_rules",
    "ostinato.backends.cpu.rules.expert_staging",
    "ostinato.backends.cpu.rules.grouped_gemm",
    "ostinato.backends.cpu.rules.int_gemm",
    "ostinato.backends.cpu.rules.multi_gemm",
    "ostinato.backends.cpu.rules.recurrent",
    "ostinato.backends.cpu.rules.topk",
    "ostinato.backends.cpu.rules.winograd",
    "ostinato.lower.extent",
    "ostinato.lower.loopir.traffic",
    "ostinato.lower.rules.winograd_transforms",
    "ostinato.ops.attention",
    "ostinato.ops.convolution",
    "ostinato.ops.einsum",
    "ostinato.ops.moe",
    "ostinato.ops.recurrent",
    "ostinato.passes.recover_attention",
    "ostinato.passes.recover_norms",
    "ostinato.plan.prepared",
    "ostinato.reference",
    "ostinato.moe",
}


def test_a_small_model_imports_what_it_uses(tmp_path):
    file = tmp_path / "model.onnx"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    w = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "model", [x], [y], [w]))
    file.write_bytes(model.SerializeToString())
    code = f"""
import numpy
import ostinato
compiled = ostinato.Session("cpu").compile(ostinato.load_onnx({str(file)!r}))
(y,) = compiled.run({{"x": numpy.ones((1, 8), numpy.float32)}})
assert (y == 8).all()
"""
    loaded = modules_after(code, tmp_path / "cache")
    assert "ostinato.backends.cpu.llvm.gemm" in loaded  # it was compiled, not found
    assert not loaded & OF_NO_USE


def test_no_generator_of_code_imports_what_its_keys_leave_out():
    assert all(FLOOR[part] > FLOOR["backends"] for part in ABOVE_CODE)


def test_dataclasses_are_made_late():
    """The standard library's take long to make, and are for classes with slots."""
    for path in MODULES:
        text = path.read_text()
        if "from dataclasses import dataclass" in text:
            assert "slots=True" in text, path
