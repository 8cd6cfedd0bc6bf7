"""Programs that any device stores under the record of their graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ostinato as ost
from ostinato.backends.common import stored_program
from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation
from ostinato.backends.common.stored_program import StoredProgram
from ostinato.backends.options import CompileOptions
from ostinato.cache.objects import ObjectCache


class Step(NamedTuple):
    """A step of a device that has nothing but names."""

    name: str


class Image(ProgramImage[Step]):
    """Its images."""

    __slots__ = ()

    @classmethod
    def step_of(cls, entry: tuple[Any, ...]) -> Step:
        return Step(*entry)


class Compilation(NamedTuple):
    """A compilation that is nothing but its image."""

    image: Image


def image(*names: str) -> Image:
    steps = tuple(map(Step, names))
    prepared = (ProgramPreparation(("w",), steps),)
    return Image((), steps, prepared, (0,) * 6, (), 0, ((0, b"xy"),), {}, {}, (), (), (), {})


def graph() -> ost.Graph:
    g = ost.Graph("stored")
    g.set_outputs([g.neg(g.input("x", (2,)))])
    return g


@pytest.fixture(autouse=True)
def unused_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path)
    monkeypatch.setattr(stored_program, "process_cache", lambda: cache)


def stored(
    target: str = "device a", names: tuple[str, ...] = ("neg",)
) -> StoredProgram[Image, Compilation]:
    def recompile(made: object, built: object) -> Compilation:
        assert built is not None
        return Compilation(image(*names))

    return StoredProgram(graph(), CompileOptions(), Image, target, recompile)


def test_an_equal_graph_finds_the_image() -> None:
    assert stored().image is None
    stored().keep(image("neg"))
    found = stored().image
    assert found == image("neg")
    assert isinstance(found, Image)
    assert isinstance(found.preparations[0].steps[0], Step)


def test_another_target_does_not() -> None:
    stored().keep(image("neg"))
    assert stored("device b").image is None


def test_the_compilation_is_repeated_once_on_request() -> None:
    stored().keep(image("neg"))
    program = stored()
    assert program.compilation() is program.compilation()
    assert program.compilation().image == image("neg")


def test_a_compilation_that_differs_is_refused() -> None:
    stored().keep(image("neg"))
    with pytest.raises(ost.OstinatoError, match="'stored' was compiled to another program"):
        stored(names=("neg", "copy")).compilation()
