"""``ost.torch.compile``: a module as a function of tensors that runs a compiled graph.

This module imports PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree

from ostinato.backends.common.mutex import Mutex
from ostinato.errors import InputError, OstinatoError, VariableError
from ostinato.frontends.torch.caches import register_caches
from ostinato.frontends.torch.compiled_program import (
    Arguments,
    CompiledProgram,
    OtherWeightsError,
    PreparedArguments,
)
from ostinato.frontends.torch.export import (
    as_module,
    check_autocast,
    check_gradients,
    export,
    with_decompositions,
)
from ostinato.frontends.torch.module_weights import PLAIN, TrainingModes
from ostinato.runtime.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.options import CompileOptions
    from ostinato.ops.builder import Graph
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["CompiledModule", "compile_module"]

#: Programs that one module keeps, each for a kind of arguments.
_MOST_PROGRAMS = 16

#: Looked up once: it is called before each run.
_autocast_enabled = torch._C._is_any_autocast_enabled

_WEIGHTS = ("checked", "live", "frozen")


def compile_module(
    source: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    device: Any = "cpu",
    threads: int | None = None,
    options: CompileOptions | None = None,
    weights: str = "checked",
) -> CompiledModule:
    """Compile a PyTorch module, to be called like it.

    >>> fast = ost.torch.compile(model, (torch.zeros(1, 3, 224, 224),))
    >>> logits = fast(image)

    The result takes and gives what the module does: the same nested arguments and results, new
    tensors with eager's dtypes, shapes and strides. What the module writes to arguments and buffers
    is written to them, and results that are views of arguments are views of them. Results require
    no gradient: it is for inference.

    Arguments of other shapes, dtypes or strides, other constants, and a module that has changed its
    mode or its structure, compile anew; the programs for the last 16 kinds of arguments are kept.

    Args:
        source, args, kwargs, dynamic_shapes: as for :func:`ostinato.from_torch`. An exported
            program takes the shapes that it was exported for only.
        device, threads, options: as for :class:`ostinato.Session`.
        weights: ``"checked"``: weights are packed, and packed again before a call when one was
            written or replaced; what PyTorch does not count is not seen: writes through ``.data``,
            NumPy or DLPack; call :meth:`CompiledModule.refresh` after those. ``"live"``: each call
            reads the module's own memory, and packs nothing. ``"frozen"``: weights are those of
            the compile.

    Raises:
        UnsupportedOpError: lists every node that has no equivalent, and why.
        VariableError: a size that is to vary can not.
        InputError: ``source`` can not be exported, or an argument makes no sense.
    """
    if weights not in _WEIGHTS:
        raise InputError(f"weights is one of {', '.join(map(repr, _WEIGHTS))}, got {weights!r:.80}")
    session = Session(device, threads=threads, options=options)
    return CompiledModule(source, args, dict(kwargs or {}), dynamic_shapes, session, weights)


class CompiledModule:
    """A module that runs compiled graphs; made by :func:`compile_module`.

    It may be called from many threads.

    Args:
        source, args, kwargs, dynamic_shapes, weights: see :func:`compile_module`.
        session: compiles and runs.
    """

    def __init__(
        self,
        source: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dynamic_shapes: Any,
        session: Session,
        weights: str,
    ) -> None:
        self._source = source
        self._dynamic_shapes = dynamic_shapes
        self._session = session
        self._weights = weights
        self._guard = Mutex()
        self._programs: list[CompiledProgram] = []  # the least recently used first
        self._modes: Any = None
        self._quick: PreparedArguments | None = None
        if isinstance(source, ExportedProgram):
            if args or kwargs:
                raise InputError("an ExportedProgram has its example arguments already")
            example = source.example_inputs
            args, kwargs = example if example is not None else ((), {})
        register_caches()
        _check_leaves(_pytree.tree_leaves((args, kwargs)))
        with self._guard:
            self._remember_modes()
            self._add(args, dict(sorted(kwargs.items())))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the module.

        Raises:
            OstinatoError: the arguments make no sense to it. Nothing has been written.
        """
        quick = self._quick
        if quick is not None and not _autocast_enabled():
            found, results = quick.call(args, kwargs)
            if found:
                return results
        return self._call_slowly(args, kwargs)

    def refresh(self) -> None:
        """Pack all weights again, before the next call."""
        with self._guard:
            self._quick = None
            for program in self._programs:
                program.forget_weights()

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that were compiled, the least recently used first."""
        return tuple(program.graph for program in self._programs)

    @property
    def compiled(self) -> tuple[CompiledGraph, ...]:
        """The compiled graphs, the least recently used first."""
        return tuple(program.compiled for program in self._programs)

    def explain(self) -> str:
        """A report of each compiled graph."""
        return "\n\n".join(graph.explain() for graph in self.compiled)

    def __repr__(self) -> str:
        return f"<CompiledModule of {self._source!r:.60}, {len(self._programs)} programs>"

    # -- programs ------------------------------------------------------------------------------

    def _call_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kwargs = dict(sorted(kwargs.items()))
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        if any(isinstance(leaf, FakeTensor) for leaf in leaves):
            return self._source(*args, **kwargs)  # a part of a module that is traced
        check_autocast()
        register_caches()
        _check_leaves(leaves)
        check_gradients(leaves)
        with self._guard:
            self._quick = None
            if not self._modes.intact():
                self._programs.clear()
                self._remember_modes()
            program, shapes = self._program(args, kwargs, leaves, spec)
            try:
                program.update_weights()
            except OtherWeightsError:
                self._programs.clear()
                program, shapes = self._program(args, kwargs, leaves, spec)
                program.update_weights()
            prepared = program.prepare(shapes, leaves, args, kwargs)
            finish = program.finisher(shapes)
        results = program.run(leaves, finish)
        if prepared is not None:
            self._quick = prepared
        return results

    def _remember_modes(self) -> None:
        module = self._source if isinstance(self._source, torch.nn.Module) else None
        owner = getattr(self._source, "__self__", None)
        if module is None and isinstance(owner, torch.nn.Module):
            module = owner
        self._modes = TrainingModes(module)

    def _program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], spec: Any
    ) -> tuple[CompiledProgram, Arguments]:
        """The program for some arguments, compiled if there is none."""
        shapes = Arguments(leaves)
        failure: OstinatoError | None = None
        for program in self._programs:
            if program.spec == spec and program.fits(shapes):
                try:
                    program.check(shapes)
                except VariableError as error:
                    failure = error
                    continue
                self._programs.remove(program)
                self._programs.append(program)
                return program, shapes
        if isinstance(self._source, ExportedProgram):
            raise failure or InputError(
                "the program was exported for other arguments: "
                + "; ".join(p.described for p in self._programs)
                + f"; got {shapes}"
            )
        try:
            return self._add(args, kwargs), shapes
        except VariableError:
            if failure is None:
                raise
            raise failure from None

    def _add(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledProgram:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        source = self._source
        if isinstance(source, ExportedProgram):
            exported = export(source, (), None, dynamic_shapes=None, name=None)
            module = None
        else:
            module = as_module(source)[0]
            exported = export(source, args, kwargs, dynamic_shapes=self._dynamic_shapes, name=None)
        modes = () if self._weights == "frozen" else self._modes.entries
        program = with_decompositions(
            exported,
            lambda found: CompiledProgram(
                found, exported, module, leaves, spec, self._session, self._weights, modes
            ),
        )
        self._programs = [*self._programs[1 - _MOST_PROGRAMS :], program]
        return program


def _check_leaves(leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in PLAIN:
                raise InputError(
                    f"arguments are plain tensors, got a {type(leaf).__name__}; convert it before"
                )
            if leaf.layout != torch.strided or leaf.device.type != "cpu":
                raise InputError(
                    f"arguments are dense tensors on the CPU, got one of layout {leaf.layout} on "
                    f"{leaf.device}"
                )
