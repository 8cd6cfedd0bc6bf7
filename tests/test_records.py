"""Dataclasses with a late ``__init__``, next to the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pytest

import ostinato as ost
from ostinato import records

MAKERS = {"standard": dataclasses, "late": records}


def family(maker: Any) -> dict[str, type]:
    """The same classes, made by one library or the other."""
    dataclass, field = maker.dataclass, maker.field

    @dataclass(frozen=True)
    class Point:
        """A docstring."""

        x: int
        y: int = 2
        kinds: ClassVar[int] = 7

        @cached_property
        def total(self) -> int:
            return self.x + self.y

    @dataclass(frozen=True)
    class Named(Point):
        name: str = "none"
        y: int = 5

    @dataclass
    class Bag:
        things: list[int] = field(default_factory=list)
        hidden: int = field(default_factory=lambda: 3, repr=False)
        only: int = field(default_factory=lambda: 4, kw_only=True)

    @dataclass(frozen=True, eq=False)
    class Identity:
        x: int

    @dataclass(eq=False, kw_only=True)
    class Keywords:
        a: int
        b: int = 1

        def __post_init__(self) -> None:
            self.sum = self.a + self.b

    @dataclass(frozen=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 11

        def __repr__(self) -> str:
            return "mine"

    @dataclass(frozen=True)
    class Nothing:
        pass

    class Heir(Point):
        """Not a dataclass itself."""

    found = {name: value for name, value in locals().items() if isinstance(value, type)}
    for value in found.values():
        value.__qualname__ = value.__name__
    return found


@pytest.fixture(params=MAKERS)
def made(request) -> dict[str, type]:
    return family(MAKERS[request.param])


def test_instances(made):
    assert made["Point"](1) == made["Point"](1, y=2) != made["Point"](1, 3)
    assert repr(made["Point"](1)) == "Point(x=1, y=2)"
    assert repr(made["Named"](1)) == "Named(x=1, y=5, name='none')"
    assert repr(made["Bag"]()) == "Bag(things=[], only=4)"
    assert repr(made["Nothing"]()) == "Nothing()"
    assert made["Point"](1).total == 3
    assert made["Point"].kinds == made["Point"](1).kinds == 7
    assert made["Bag"]().things is not made["Bag"]().things
    assert made["Bag"]([1], 2, only=9).only == 9
    assert made["Keywords"](a=3).sum == 4
    assert made["Heir"](1).y == 2
    assert repr(made["Own"](1)) == "mine"
    assert made["Point"].__doc__ == "A docstring."


def test_what_is_equal_hashes_equal(made):
    assert hash(made["Point"](1)) == hash(made["Point"](1, 2)) == hash((1, 2))
    assert hash(made["Nothing"]()) == hash(())
    assert hash(made["Identity"](1)) != hash(made["Identity"](1))
    assert hash(made["Own"](1)) == 11
    assert made["Own"](1) == made["Own"](2)
    assert made["Identity"](1) != made["Identity"](1)
    assert made["Point"](1, 5) != made["Named"](1)
    assert made["Point"](1) != (1, 2)
    nan = float("nan")
    assert made["Identity"](nan) != made["Identity"](nan)
    same = made["Point"](nan)
    assert same == same
    with pytest.raises(TypeError, match="unhashable"):
        hash(made["Bag"]())


def test_fields_that_are_one_object_are_equal() -> None:
    """As in tuples; from Python 3.13 on, the standard library compares field by field."""
    made, nan = family(records), float("nan")
    assert made["Bag"](nan) == made["Bag"](nan)


@pytest.mark.parametrize(("kind", "name"), [("Point", "x"), ("Point", "z"), ("Named", "name")])
def test_frozen_is_frozen(made, kind, name):
    record = made[kind](1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(record, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}'"):
        delattr(record, name)


def test_wrong_arguments(made):
    for arguments in ((), (1, 2, 3)):
        with pytest.raises(TypeError, match="positional argument"):
            made["Point"](*arguments)
    with pytest.raises(TypeError, match="unexpected keyword"):
        made["Point"](1, z=2)
    with pytest.raises(TypeError, match="positional argument"):
        made["Keywords"](1)


def test_the_standard_library_takes_them(made):
    point, bag = made["Named"](1), made["Bag"]([1], 5)
    assert dataclasses.is_dataclass(point)
    assert [field.name for field in dataclasses.fields(point)] == ["x", "y", "name"]
    assert dataclasses.asdict(bag) == {"things": [1], "hidden": 5, "only": 4}
    assert dataclasses.replace(point, x=9) == made["Named"](9)
    assert copy.deepcopy(bag) == copy.copy(bag) == bag
    assert copy.copy(point) == point


def test_names_and_copies_of_fields():
    made = family(records)
    point, bag = made["Named"](1), made["Bag"]([1], 5)
    assert records.field_names(point) == records.field_names(made["Named"]) == ("x", "y", "name")
    assert records.replace(bag, hidden=6) == made["Bag"]([1], 6)


def test_classes_with_an_init_of_their_own():
    @records.dataclass(frozen=True)
    class Base:
        x: int

    class Heir(Base):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(a + b)

    assert Heir(1, 2).x == 3


def test_defaults_that_could_be_changed_are_refused():
    for maker in MAKERS.values():
        with pytest.raises(ValueError, match="default_factory"):

            @maker.dataclass
            class Wrong:
                things: list[int] = []  # noqa: RUF012


def test_first_instances_at_the_same_time():
    for _ in range(50):
        cls = family(records)["Point"]
        together, made = threading.Barrier(4), []

        def make(cls=cls, together=together, made=made):
            together.wait()
            made.append(cls(1))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(made)) == 1
        assert len(made) == 4


def test_public_classes_are_dataclasses_to_everybody():
    options = dataclasses.replace(ost.CompileOptions(), optimize=False)
    assert not options.optimize
    assert options == ost.CompileOptions(optimize=False)
    assert pickle.loads(pickle.dumps(options)) == options
    assert np.asarray(dataclasses.fields(options)).size == len(dataclasses.asdict(options))
