"""Bodies of several kernels as one, whose arguments are ``joint0``, ``joint1``, ..."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.body import Body
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.render.body import SharedArray
    from ostinato.lower.loopir.nodes import Arg

__all__ = ["Section", "aliases", "joined"]


@dataclass(frozen=True)
class Section:
    """A kernel of several.

    Attributes:
        body: its code.
        places: the positions of its arguments among those of all.
        before: statements in front of its own, in the same scope.
        behind: statements behind the scope.
    """

    body: Body
    places: Sequence[int]
    before: Sequence[str] = ()
    behind: Sequence[str] = ()


def joined(
    args: Sequence[Arg],
    sections: Sequence[Section],
    start: Sequence[str] = (),
    arrays: tuple[SharedArray, ...] = (),
) -> Body:
    """The code of all kernels, each in a scope in which its arguments are ``b0``, ``b1``, ...

    Args:
        args: those of the whole.
        sections: the kernels, in order.
        start: statements in front of all.
        arrays: in shared memory.
    """
    types: dict[int, str] = {}
    includes: dict[str, None] = {}
    lines = [f"    {line}" for line in start]
    for section in sections:
        body, places = section.body, section.places
        includes |= dict.fromkeys(body.includes.splitlines())
        for type_, place in zip(body.types(), places, strict=False):
            types[place] = type_.removeprefix("const ") if args[place].writes else type_
        lines.append("    {")
        lines += [f"        {line}" for line in [*aliases(places), *section.before]]
        lines += [f"    {line}" for line in body.text.splitlines()]
        lines += ["    }", *(f"    {line}" for line in section.behind)]
    parameters = [f"{types[place]} joint{place}" for place in range(len(args))]
    return Body(
        "".join(f"{line}\n" for line in includes),
        (*parameters, "const long long* vars"),
        "".join(f"{line}\n" for line in lines),
        SEGMENT_BLOCK,
        arrays,
    )


def aliases(places: Sequence[int]) -> list[str]:
    """Declarations of the arguments of a kernel that is one of several.

    Args:
        places: the positions of its arguments among those of all.
    """
    return [f"const auto b{number} = joint{place};" for number, place in enumerate(places)]
