"""A device of another package: its wheel is built, installed, listed, and passes conformance."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

#: The kind of device that the package registers.
KIND = "plugged"


def python(*arguments: str | Path, site: Path | None = None, **environment: str) -> str:
    """The output of a process of Python; packages in ``site`` are installed."""
    paths = [str(ROOT / "src"), *([] if site is None else [str(site)])]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(project: Path, folder: Path) -> Path:
    """The wheel of a project, built without a network."""
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet")
    python("-m", "pip", "wheel", *options, "--wheel-dir", folder, project)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    for name in ("loops", "plugin"):  # a build leaves files beside its sources
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(HERE / name, folder / name, ignore=ignored)
    return build(folder / "plugin", folder / "wheels")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    options = ("--no-deps", "--no-index", "--quiet")
    python("-m", "pip", "install", *options, "--target", folder, wheel)
    return folder


def devices(site: Path) -> dict[str, Any]:
    report = json.loads(python("-m", "ostinato.tools.cli", "devices", "--json", site=site))
    return {each["kind"]: each for each in report["devices"]} | {"refused": report["refused"]}


def test_the_wheel_has_the_device_and_its_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entries,) = (name for name in names if name.endswith("entry_points.txt"))
        text = archive.read(entries).decode()
    modules = {f"ostinato_loops/{path.name}" for path in (HERE / "loops").glob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    assert f"[ostinato.backends]\n{KIND} = ostinato_loops.backend:LoopsBackend" in text


def test_it_is_listed(site: Path) -> None:
    found = devices(site)
    assert found[KIND] == {
        "kind": KIND,
        "available": True,
        "names": ["PLUGGED:0"],
        "package": "ostinato-loops 1.0",
        "reason": None,
    }
    assert found["refused"] == []
    assert found["cpu"]["available"]


def test_without_it_the_device_is_unknown() -> None:
    code = f"import ostinato as ost; print(ost.is_available({KIND!r}))"
    with pytest.raises(AssertionError, match="unknown device PLUGGED:0"):
        python("-c", code)


def test_a_model_runs_on_it(site: Path) -> None:
    code = f"""
import numpy as np, ostinato as ost
g = ost.Graph()
g.set_outputs([g.softmax(g.input("x", (2, 3)))])
compiled = ost.Session("{KIND}").compile(g)
print(compiled.device, compiled.run({{"x": np.zeros((2, 3), np.float32)}})[0].sum())
"""
    assert python("-c", code, site=site) == "PLUGGED:0 2.0\n"


def test_a_package_that_is_broken_is_named_and_harms_no_other(site: Path, tmp_path: Path) -> None:
    """Another package, whose class cannot be imported, and one that takes the first one's name."""
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    for name, text in {
        "torn-1.0": "[ostinato.backends]\ntorn = torn_package.backend:Backend\n",
        "copy-2.0": f"[ostinato.backends]\n{KIND} = copied.backend:Backend\n",
    }.items():
        folder = broken / f"{name}.dist-info"
        folder.mkdir()
        package, version = name.split("-")
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(text)
    found = devices(broken)
    assert found["cpu"]["available"]
    assert "torn_package" in found["torn"]["reason"]
    assert "torn 1.0" in found["torn"]["reason"]
    assert KIND not in found
    assert {each["package"] for each in found["refused"]} == {"ostinato-loops 1.0", "copy 2.0"}


@pytest.mark.parametrize(
    ("stages", "sample"),
    [
        ("ops,values,contract", 400),
        pytest.param("ops,shapes,values,sizes,graphs,contract", 1, marks=pytest.mark.slow),
    ],
    ids=["sample", "all"],
)
def test_it_passes_conformance(site: Path, stages: str, sample: int, tmp_path: Path) -> None:
    outcome = tmp_path / "outcome.json"
    chosen = ["--device", KIND, "--stages", stages, "--sample", str(sample), "--workers", "1"]
    chosen += ["-k", "not full_hd"]  # its interpreter is too slow for such images
    python("-m", "tests.conformance", *chosen, "--json", outcome, site=site)
    for stage in json.loads(outcome.read_text())["stages"]:
        assert stage["passed"] > 0, stage
        assert not stage["failed"] + stage["refused"], stage
