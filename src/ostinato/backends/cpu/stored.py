"""Stored programs, found by the record of their graph."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING

from ostinato.backends.cpu.image import Image
from ostinato.backends.cpu.llvm.toolchain import LinkedCode, TargetSpec
from ostinato.backends.cpu.loader.link import load
from ostinato.cache.fingerprint import entry_key
from ostinato.cache.objects import process_cache
from ostinato.errors import OstinatoError
from ostinato.ir.deferred_graph import deferred
from ostinato.ir.record import GraphRecord
from ostinato.records import field_names

if TYPE_CHECKING:
    from ostinato.backends.cpu.compilation import Compilation
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph

__all__ = ["StoredProgram"]

#: Images with more bytes of constants and states are not stored.
_MOST_BYTES = 16 << 20


class StoredProgram:
    """The program of an equal graph, compiled earlier by this or another process.

    Args:
        graph: the graph; it is not kept alive, since its weights may be large.
        options: of the compile.
        device: the CPU.
    """

    def __init__(self, graph: BaseGraph, options: CompileOptions, device: Device) -> None:
        parts = deferred(graph)
        self._record = GraphRecord.of(graph) if parts is None else parts.record
        self._graph = weakref.ref(graph)
        self._options = options
        self._device = device
        identity = TargetSpec.named(options.target).identity
        self._key = entry_key(
            "compiled graph", graph=self._record.digest, options=_text(options), target=identity
        )

    @functools.cached_property
    def image(self) -> Image | None:
        """The image, read from disk once; ``None`` if there is none."""
        entry = process_cache().read_entry(self._key)
        return None if entry is None else Image.from_entry(entry)

    def keep(self, image: Image) -> None:
        """Store an image for later compiles."""
        held = [len(data) for _, data in image.constants]
        held += [len(state.initial) for state in image.states.values()]
        if sum(held) <= _MOST_BYTES:
            process_cache().write_entry(self._key, image.entry())

    @staticmethod
    def code(image: Image) -> LinkedCode | None:
        """The code of an image's kernels; ``None`` if some of it is no longer in the cache."""
        found = []
        for key, symbols in image.objects:
            data = process_cache().find(key)
            if data is None:
                return None
            found.append((data, symbols))
        return load(found) if found else LinkedCode({}, ())

    @functools.cached_property
    def _compiled(self) -> Compilation:
        from ostinato.backends.cpu.capabilities import lowering_options
        from ostinato.backends.cpu.compilation import compile_graph
        from ostinato.ops.parser import parse_graph

        options = self._options
        graph = parse_graph(self._record.text, self._record.constants)
        lowering = lowering_options(options, TargetSpec.named(options.target))
        built = self._graph() or graph
        compilation = compile_graph(graph, options, lowering, self._device, built=built)
        if self.image is None or not self.image.same_program(compilation.image):
            raise OstinatoError(
                f"graph {graph.name!r} was compiled to another program before, which is a bug of "
                "Ostinato; compile with CompileOptions(stored_programs=False)"
            )
        return compilation

    def compilation(self) -> Compilation:
        """The compilation of the image, repeated at the first call.

        Raises:
            OstinatoError: it gives another program than the image, which is the one that runs.
        """
        return self._compiled


def _text(options: CompileOptions) -> str:
    """Options as text: equal if they are equal."""
    named = {name: getattr(options, name) for name in field_names(options)}
    return repr({name: sorted(v) if isinstance(v, frozenset) else v for name, v in named.items()})
