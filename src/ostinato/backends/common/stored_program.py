"""Stored programs, found by the record of their graph."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ostinato.cache.fingerprint import entry_key
from ostinato.cache.objects import process_cache
from ostinato.errors import OstinatoError
from ostinato.ir.deferred_graph import deferred
from ostinato.ir.record import GraphRecord
from ostinato.records import field_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.common.program_image import ProgramImage
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph

__all__ = ["CompiledImage", "StoredProgram"]


class CompiledImage(Protocol):
    """A device's compilation of a graph."""

    @property
    def image(self) -> ProgramImage[Any]:
        """The compiled program."""


AnyImage = TypeVar("AnyImage", bound="ProgramImage[Any]")
C = TypeVar("C", bound=CompiledImage)

#: Images with more bytes of constants and states are not stored.
_MOST_BYTES = 16 << 20


class StoredProgram(Generic[AnyImage, C]):
    """The program of an equal graph, compiled earlier by this or another process.

    Args:
        graph: the graph; it is not kept alive, since its weights may be large.
        options: of the compile.
        kind: the device's class of images.
        target: the device and its compiler: equal where the images of one run on the other.
        recompile: compiles a graph that was made of the record; its second argument is the graph
            that the user built, or the same one where that is gone.
        facts: gives what has been measured of the device so far; a program may depend on it.
    """

    def __init__(
        self,
        graph: BaseGraph,
        options: CompileOptions,
        kind: type[AnyImage],
        target: str,
        recompile: Callable[[BaseGraph, BaseGraph], C],
        facts: Callable[[], str] = str,
    ) -> None:
        parts = deferred(graph)
        self._record = GraphRecord.of(graph) if parts is None else parts.record
        self._graph = weakref.ref(graph)
        self._kind = kind
        self._recompile = recompile
        self._parts = {"options": _text(options), "target": target}
        self._facts = facts

    def _key(self) -> str:
        """The key of an image that depends on no more than what has been measured so far."""
        facts = {"facts": found} if (found := self._facts()) else {}
        return entry_key("compiled graph", graph=self._record.digest, **self._parts, **facts)

    @functools.cached_property
    def image(self) -> AnyImage | None:
        """The image, read from disk once; ``None`` if there is none."""
        entry = process_cache().read_entry(self._key())
        return None if entry is None else self._kind.from_entry(entry)

    def keep(self, image: AnyImage) -> None:
        """Store an image for later compiles."""
        held = [len(data) for _, data in image.constants]
        held += [len(state.initial) for state in image.states.values()]
        if sum(held) <= _MOST_BYTES:
            process_cache().write_entry(self._key(), image.entry())

    @functools.cached_property
    def _compiled(self) -> C:
        from ostinato.ops.parser import parse_graph

        graph = parse_graph(self._record.text, self._record.constants)
        compilation = self._recompile(graph, self._graph() or graph)
        if self.image is None or not self.image.same_program(compilation.image):
            raise OstinatoError(
                f"graph {graph.name!r} was compiled to another program before, which is a bug of "
                "Ostinato; compile with CompileOptions(stored_programs=False)"
            )
        return compilation

    def compilation(self) -> C:
        """The compilation of the image, repeated at the first call.

        Raises:
            OstinatoError: it gives another program than the image, which is the one that runs.
        """
        return self._compiled


def _text(options: CompileOptions) -> str:
    """Options as text: equal if they are equal."""
    named = {name: getattr(options, name) for name in field_names(options)}
    return repr({name: sorted(v) if isinstance(v, frozenset) else v for name, v in named.items()})
