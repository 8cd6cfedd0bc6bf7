"""``ost.torch.compile``: a module as a function of tensors that runs a compiled graph.

This module imports PyTorch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree

from ostinato.backends.common.mutex import Mutex
from ostinato.errors import InputError, OstinatoError, VariableError
from ostinato.frontends.torch._runtime import PreparedCall
from ostinato.frontends.torch.assembly import checked, chosen_sizes, conditions, mutated_inputs
from ostinato.frontends.torch.call import Complex
from ostinato.frontends.torch.export import Exported, as_module, export, with_decompositions
from ostinato.frontends.torch.fx import weight_name
from ostinato.frontends.torch.importer import Importer
from ostinato.frontends.torch.module_weights import (
    EXCHANGE,
    PLAIN,
    ModuleWeights,
    TrainingModes,
)
from ostinato.frontends.torch.program import USER_INPUT, TensorMeta
from ostinato.frontends.torch.results import plan_outputs
from ostinato.frontends.torch.symbols import SymbolTable
from ostinato.frontends.torch.tensors import array_of, note_write, tensor_of
from ostinato.ir.binding import solve_dims
from ostinato.ops.builder import Graph
from ostinato.records import dataclass
from ostinato.runtime.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from ostinato.backends.options import CompileOptions
    from ostinato.frontends.torch.program import InputSpec, Program
    from ostinato.frontends.torch.results import Finish, Outputs
    from ostinato.runtime.compiled_graph import CompiledGraph
    from ostinato.variables import Dim

__all__ = ["CompiledModule", "compile_module"]

#: Programs that one module keeps, each for a kind of arguments.
_MOST_PROGRAMS = 16

#: Shapes that one program is prepared for.
_MOST_SHAPES = 64

_WEIGHTS = ("checked", "live", "frozen")

#: DLPack's code of a kind of numbers, by the kind's letter in NumPy.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


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
        self._programs: OrderedDict[Any, _CompiledProgram] = OrderedDict()
        self._modes: Any = None
        self._quick: _PreparedShapes | None = None
        self._autocast = _autocast()
        if isinstance(source, ExportedProgram):
            if args or kwargs:
                raise InputError("an ExportedProgram has its example arguments already")
            example = source.example_inputs
            args, kwargs = example if example is not None else ((), {})
        with self._guard:
            self._remember_modes()
            self._add(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the module.

        Raises:
            OstinatoError: the arguments make no sense to it. Nothing has been written.
        """
        quick = self._quick
        if quick is not None and quick.autocast == _autocast():
            found, results = quick.call(args, kwargs)
            if found:
                return results
        return self._call_slowly(args, kwargs)

    def refresh(self) -> None:
        """Pack all weights again, before the next call."""
        with self._guard:
            self._quick = None
            for program in self._programs.values():
                program.forget_weights()

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that were compiled, the least recently used first."""
        return tuple(program.graph for program in self._programs.values())

    @property
    def compiled(self) -> tuple[CompiledGraph, ...]:
        """The compiled graphs, the least recently used first."""
        return tuple(program.compiled for program in self._programs.values())

    def explain(self) -> str:
        """A report of each compiled graph."""
        return "\n\n".join(graph.explain() for graph in self.compiled)

    def __repr__(self) -> str:
        return f"<CompiledModule of {self._source!r:.60}, {len(self._programs)} programs>"

    # -- programs ------------------------------------------------------------------------------

    def _call_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        with self._guard:
            self._quick = None
            if not self._modes_intact():
                self._programs.clear()
                self._remember_modes()
            program, shapes = self._program(args, kwargs, leaves, spec)
            try:
                program.update_weights()
            except _OtherWeights:
                self._programs.clear()
                program, shapes = self._program(args, kwargs, leaves, spec)
                program.update_weights()
            prepared = program.prepare(shapes, leaves, args, kwargs)
        results = program.run(leaves, shapes)
        if prepared is not None:
            self._quick = prepared
        return results

    def _remember_modes(self) -> None:
        module = self._source if isinstance(self._source, torch.nn.Module) else None
        owner = getattr(self._source, "__self__", None)
        if module is None and isinstance(owner, torch.nn.Module):
            module = owner
        self._modes = TrainingModes(module)

    def _modes_intact(self) -> bool:
        return all(table.get(key) is value for table, key, value in self._modes.entries)

    def _program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], spec: Any
    ) -> tuple[_CompiledProgram, _Shapes]:
        """The program for some arguments, compiled if there is none."""
        shapes = _Shapes(leaves)
        failure: OstinatoError | None = None
        for key, program in self._programs.items():
            if program.spec == spec and program.fits(shapes):
                try:
                    program.check(shapes)
                except VariableError as error:
                    failure = error
                    continue
                self._programs.move_to_end(key)
                return program, shapes
        if isinstance(self._source, ExportedProgram):
            raise failure or InputError(
                "the program was exported for other arguments: "
                + "; ".join(p.described for p in self._programs.values())
                + f"; got {shapes}"
            )
        try:
            return self._add(args, kwargs), shapes
        except VariableError:
            if failure is None:
                raise
            raise failure from None

    def _add(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CompiledProgram:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        _check_leaves(leaves)
        source = self._source
        if isinstance(source, ExportedProgram):
            exported = export(source, (), None, dynamic_shapes=None, name=None)
            module = None
        else:
            module = as_module(source)[0]
            exported = export(source, args, kwargs, dynamic_shapes=self._dynamic_shapes, name=None)
        autocast = _autocast()
        modes = () if self._weights == "frozen" else self._modes.entries
        program = with_decompositions(
            exported,
            lambda found: _CompiledProgram(
                found, exported, module, leaves, spec, self._session, self._weights, modes, autocast
            ),
        )
        self._programs[object()] = program
        while len(self._programs) > _MOST_PROGRAMS:
            self._programs.popitem(last=False)
        return program


class _OtherWeights(Exception):
    """Raised where weights have other types than those of the compile."""


class _Shapes:
    """The kinds of the leaves of some arguments: shapes, strides and dtypes, or constants."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.shapes = tuple(tuple(tensor.shape) for tensor in self.tensors)
        self.kinds = tuple(map(_kind, leaves))

    def __str__(self) -> str:
        listed = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in self.tensors)
        return ", ".join(listed) or "no tensors"


def _kind(leaf: Any) -> Any:
    """The parts of a leaf, the shape aside, that a program is compiled for."""
    if not isinstance(leaf, torch.Tensor):
        return (type(leaf), leaf)
    strides = "contiguous" if leaf.is_contiguous() else tuple(leaf.stride())
    return (torch.Tensor, leaf.dtype, leaf.ndim, str(leaf.device), strides)


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


_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


def _in_place(tensor: torch.Tensor, array: np.ndarray[Any, Any]) -> bool:
    """Whether an array is on the memory of a tensor."""
    return bool(array.ctypes.data == tensor.data_ptr() and tensor.is_contiguous())


def _check_apart(
    written: str, tensor: torch.Tensor, specs: Sequence[InputSpec], given: Sequence[torch.Tensor]
) -> None:
    """Check that a tensor that a call writes to has no memory in common with another one.

    Raises:
        InputError: it has.
    """
    first, last = _extent(tensor)
    for spec, other in zip(specs, given, strict=True):
        begin, end = _extent(other)
        if spec.target != written and begin < last and first < end:
            raise InputError(
                f"the module writes to {written!r}, which has memory in common with "
                f"{spec.target!r}; give it a tensor of its own"
            )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and the one after its last."""
    if not tensor.numel():
        return 0, 0
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in spans)
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size()


@dataclass(frozen=True, eq=False)
class _PreparedShapes:
    """A call on arguments of known shapes.

    Attributes:
        prepared: the native call.
        lifted: the dictionaries and keys of weights that are arguments of the native call.
        bare: whether the result is the only tensor that the run makes.
        finish: makes the module's results of the run's, and of the tensors that were given.
        written: the positions, among the tensors that were given, of those that the run writes to.
        autocast: whether autocast was on.
    """

    prepared: PreparedCall
    lifted: tuple[Callable[[], torch.Tensor], ...]
    bare: bool
    finish: Callable[[Sequence[Any], Sequence[Any]], Any]
    written: tuple[int, ...]
    autocast: bool

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Whether the arguments are the expected ones; and if so, the results."""
        given = args
        if self.lifted:
            given = (*[get() for get in self.lifted], *args)
        try:
            made = self.prepared(given, kwargs)
        except ValueError:  # of memory in common: the long way says what is wrong
            return False, None
        if made is None:
            return False, None
        if self.bare:
            return True, made[0]
        tensors = [leaf for leaf in (*given, *kwargs.values()) if isinstance(leaf, torch.Tensor)]
        for position in self.written:
            note_write(tensors[position])
        return True, self.finish(made, tensors)


class _CompiledProgram:
    """A program of a module, for one kind of arguments.

    Args:
        program: the program.
        exported: the export that it is of.
        module: the module; ``None`` for an exported program.
        leaves: the example arguments, flattened.
        spec: their tree.
        session: compiles.
        weights: ``"checked"``, ``"live"`` or ``"frozen"``.
        modes: dictionaries, keys, and what these have to hold for the program to stay right.
        autocast: whether autocast was on.

    Attributes:
        graph: the graph.
        compiled: the compiled graph.
    """

    def __init__(
        self,
        program: Program,
        exported: Exported,
        module: torch.nn.Module | None,
        leaves: Sequence[Any],
        spec: Any,
        session: Session,
        weights: str,
        modes: Sequence[tuple[dict[str, Any], str, Any]],
        autocast: bool,
    ) -> None:
        self.spec, self._program, self._mode, self._autocast = spec, program, weights, autocast
        example = _Shapes(leaves)
        self._kinds = example.kinds
        self.described = str(example)
        users = [s for s in program.users() if isinstance(s.meta, TensorMeta)]
        names = {s.target for s in users}
        tensors = {weight_name(name, names): t for name, t in exported.tensors.items()}
        self._weights = ModuleWeights(module, tensors)
        self._entries = modes
        self._out_spec = exported.out_spec
        if len(users) != len(example.tensors):
            raise InputError(
                f"the program has {len(users)} tensors as inputs, the arguments have "
                f"{len(example.tensors)}"
            )
        self._written = mutated_inputs(program)
        lifted = [
            spec
            for spec in _first_of_each(program)
            if weights == "live" or spec.target in self._written
        ]
        #: The tensors of a call: weights that are read in place, then those of the arguments.
        self._tensors = [*lifted, *users]
        self._lifted = [spec.target for spec in lifted]
        self._packed = [s.target for s in _first_of_each(program) if s not in lifted]
        self._hints = self._hinted(users, example)
        sizes = chosen_sizes(program, exported.dims, self._hints)
        self.graph, self._outputs = self._convert(sizes.dims)
        self.compiled = session.compile(self.graph)
        self._watch: Any = None
        self._types = self._current_types()
        self._rewatch()
        self._shapes: OrderedDict[Any, _PreparedShapes | None] = OrderedDict()
        self._finishing: OrderedDict[Any, Callable[[Any, Any], Any]] = OrderedDict()
        order = list(self.compiled.inputs)
        self._slots = tuple(order.index(spec.target) for spec in self._tensors)

    # -- the graph -----------------------------------------------------------------------------

    def _hinted(self, users: Sequence[InputSpec], example: _Shapes) -> dict[str, int]:
        """By symbol, its value in the example."""
        found: dict[str, int] = {}
        for spec, shape in zip(users, example.shapes, strict=True):
            assert isinstance(spec.meta, TensorMeta)
            for size, number in zip(spec.meta.shape, shape, strict=True):
                if isinstance(size, str):
                    found.setdefault(size, number)
        return found

    def _convert(self, dims: Mapping[str, Dim]) -> tuple[Graph, Outputs]:
        program = self._program
        graph = Graph(program.name)
        importer = Importer(program, graph, dims, (), self._written, self._lifted)
        importer.run()
        live, traced = SymbolTable(program.symbols), SymbolTable(program.symbols)
        for symbol, dim in dims.items():
            live.define(symbol, dim)
            traced.define(symbol, self._hints.get(symbol, 7))
        names = [spec.name for spec in self._tensors]

        def hint(size: int | str) -> int:
            number = traced.dim(size)
            return number if isinstance(number, int) else 7

        outputs = plan_outputs(program, graph, importer, names, hint, live.dim)
        values = list(outputs.values) or [graph.constant(0)]
        facts = [*conditions(program, dims), *importer.facts]
        values[0] = checked(graph, values[0], facts)
        graph.set_outputs(values)
        for target, result in importer.written.items():
            new = result.pairs if isinstance(result, Complex) else result
            graph.assign(graph.states[target], new)
        return graph, outputs

    # -- weights -------------------------------------------------------------------------------

    def _current_types(self) -> dict[str, tuple[Any, ...]]:
        """The dtypes and shapes of weights."""
        names = self._lifted if self._mode == "live" else self._packed
        return {name: self._weights.type_of(name) for name in names}

    def _rewatch(self) -> None:
        if self._mode == "checked":
            self._watch = self._weights.watch(self._packed, self._entries)
        elif self._entries:
            self._watch = self._weights.watch((), self._entries)

    def forget_weights(self) -> None:
        """Have all weights packed before the next call."""
        if self._current_types() != self._types:
            raise InputError("weights have other shapes or dtypes than those that were compiled")
        self.compiled.set_params(self._arrays(self._packed))
        self._shapes.clear()
        self._rewatch()

    def update_weights(self) -> None:
        """Pack the weights that have changed.

        Raises:
            _OtherWeights: one has another shape or dtype than that of the compile.
            InputError: one is gone.
        """
        if self._mode == "frozen" or (self._mode == "checked" and self._watch.intact()):
            return
        if self._current_types() != self._types:
            raise _OtherWeights
        if self._mode == "live":
            return
        if self._watch.identical():
            changed = [self._packed[position] for position in self._watch.take_changed()]
        else:
            changed = self._packed
        self.compiled.set_params(self._arrays(changed))
        if changed is self._packed:
            self._shapes.clear()  # they hold the former watch
            self._rewatch()

    def _arrays(self, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        return {name: array_of(self._weights[name].cpu()) for name in names}

    # -- arguments -----------------------------------------------------------------------------

    def fits(self, shapes: _Shapes) -> bool:
        """Whether arguments are of the kinds that the program is for; their sizes aside."""
        if shapes.kinds != self._kinds or _autocast() != self._autocast:
            return False
        users = self._tensors[len(self._lifted) :]
        return all(
            len(shape) == len(spec.meta.shape)  # type: ignore[union-attr]
            and all(
                not isinstance(size, int) or size == number
                for size, number in zip(spec.meta.shape, shape, strict=True)  # type: ignore[union-attr]
            )
            for spec, shape in zip(users, shapes.shapes, strict=True)
        )

    def check(self, shapes: _Shapes) -> dict[str, int]:
        """Check sizes; the values of Variables.

        Raises:
            VariableError: they are out of bounds, or contradict each other or a condition of the
                program.
        """
        users = self._tensors[len(self._lifted) :]
        given = {spec.target: shape for spec, shape in zip(users, shapes.shapes, strict=True)}
        given.update((name, tuple(self._weights[name].shape)) for name in self._lifted)
        pairs = {}
        for name, spec in self.compiled.inputs.items():
            full = given[name] if len(given[name]) == len(spec.shape) else (*given[name], 2)
            pairs[name] = (spec.shape, full)
        try:
            self.compiled.prepare_run([full for _, full in pairs.values()])
            return solve_dims(pairs, {})
        except InputError as error:
            raise VariableError(str(error)) from None

    def _given(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        lifted = [self._weights[name] for name in self._lifted]
        return [*lifted, *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]

    # -- calls ---------------------------------------------------------------------------------

    def run(self, leaves: Sequence[Any], shapes: _Shapes) -> Any:
        """The results for some arguments, by the long way.

        Raises:
            OstinatoError: the arguments make no sense. Nothing has been written.
        """
        given = self._given(leaves)
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        copies: list[tuple[torch.Tensor, np.ndarray[Any, Any]]] = []
        for spec, tensor in zip(self._tensors, given, strict=True):
            array = array_of(tensor)
            arrays[spec.target] = array
            if spec.target in self._written:
                if not _in_place(tensor, array):
                    array = arrays[spec.target] = array.copy()
                    copies.append((tensor, array))
                _check_apart(spec.target, tensor, self._tensors, given)
        found = self.compiled.run(arrays)
        dtypes = self._outputs.dtypes
        made = [
            tensor_of(array, dtype) if array.size else _empty(array, dtype)
            for array, dtype in zip(found, dtypes, strict=False)
        ]
        with torch.no_grad():
            for tensor, array in copies:
                tensor.detach().copy_(tensor_of(array, tensor.dtype))
        copied = {id(tensor) for tensor, _ in copies}
        for spec, tensor in zip(self._tensors, given, strict=True):
            if spec.target in self._written and id(tensor) not in copied:
                note_write(tensor)
        return self._finisher(shapes)(made, given)

    def _finisher(self, shapes: _Shapes) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        """Makes the module's results of the run's, for arguments of some shapes."""
        found = self._finishing.get(shapes.shapes)
        if found is None:
            values = self.check(shapes)
            steps: list[Finish] = [result.at(values) for result in self._outputs.results]
            aliased = [self._weight_of(name) for name in self._outputs.weights]
            out_spec = self._out_spec

            def finish(made: Sequence[Any], given: Sequence[Any]) -> Any:
                tensors = [*given, *(get() for get in aliased)] if aliased else given
                return _pytree.tree_unflatten([step(made, tensors) for step in steps], out_spec)

            found = self._finishing[shapes.shapes] = finish
            if len(self._finishing) > _MOST_SHAPES:
                self._finishing.popitem(last=False)
        return found

    def _weight_of(self, name: str) -> Callable[[], torch.Tensor]:
        (target,) = (spec.target for spec in self._program.inputs if spec.name == name)
        return lambda: self._weights[target]

    def prepare(
        self,
        shapes: _Shapes,
        leaves: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _PreparedShapes | None:
        """The native call for arguments of these shapes, if there can be one."""
        flat = [*args, *kwargs.values()]
        if EXCHANGE is None or len(flat) != len(leaves):
            return None
        if any(a is not b for a, b in zip(flat, leaves, strict=True)):
            return None
        key = (shapes.shapes, tuple(kwargs))
        if key not in self._shapes:
            self._shapes[key] = self._prepared(shapes, flat, kwargs)
            if len(self._shapes) > _MOST_SHAPES:
                self._shapes.popitem(last=False)
        return self._shapes[key]

    def _prepared(
        self, shapes: _Shapes, flat: Sequence[Any], kwargs: dict[str, Any]
    ) -> _PreparedShapes | None:
        given = self._given(flat)
        if any(t.is_complex() or not t.is_contiguous() for t in given):
            return None
        if any(dtype.is_complex for dtype in self._outputs.dtypes):
            return None
        ordered: list[Any] = [()] * len(given)
        for slot, tensor in zip(self._slots, given, strict=True):
            ordered[slot] = tuple(tensor.shape)
        run = self.compiled.prepare_run(ordered)
        if run is None or any(0 in shape for shape, _ in run.outputs):
            return None
        inputs = self.compiled.inputs
        targets = [spec.target for spec in self._tensors]
        positions = range(len(self._tensors))
        written = tuple(i for i in positions if self._tensors[i].target in self._written)
        plain = self._outputs.plain and len(self._outputs.results) == 1
        constants = [... if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        assert EXCHANGE is not None
        return _PreparedShapes(
            PreparedCall(
                EXCHANGE,
                PLAIN,
                (*[...] * len(self._lifted), *constants),
                tuple(kwargs),
                tuple(
                    (_dlpack_type(inputs[target].dtype.numpy), tuple(tensor.shape))
                    for target, tensor in zip(targets, given, strict=True)
                ),
                self._slots,
                tuple((_dlpack_type(dtype), shape) for shape, dtype in run.outputs),
                run.run,
                run.variables,
                self._watch,
            ),
            tuple(self._getter(name) for name in self._lifted),
            plain and not written and self._out_spec.is_leaf(),
            self._finisher(shapes),
            written,
            self._autocast,
        )

    def _getter(self, name: str) -> Callable[[], torch.Tensor]:
        return lambda: self._weights[name]


def _empty(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without elements, with the strides that PyTorch gives it."""
    shape = array.shape[:-1] if dtype.is_complex else array.shape
    return torch.empty(shape, dtype=dtype)


def _dlpack_type(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.name == "bfloat16":
        return 4, 16
    return _CODES[dtype.kind], 8 * dtype.itemsize


def _first_of_each(program: Program) -> list[InputSpec]:
    """The weights of a program, each once."""
    found: dict[str, InputSpec] = {}
    for spec in program.inputs:
        if spec.kind != USER_INPUT:
            found.setdefault(spec.target, spec)
    return list(found.values())
