"""One program of a compiled module: graph, weights, calls. This module imports PyTorch."""

from __future__ import annotations

import operator
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from ostinato.errors import InputError, VariableError
from ostinato.frontends.torch._runtime import PreparedCall
from ostinato.frontends.torch.assembly import checked, chosen_sizes, conditions, mutated_inputs
from ostinato.frontends.torch.call import Complex
from ostinato.frontends.torch.export import any_requires_gradient
from ostinato.frontends.torch.fx import first_names, weight_name
from ostinato.frontends.torch.importer import Importer
from ostinato.frontends.torch.module_weights import EXCHANGE, PLAIN, ModuleWeights
from ostinato.frontends.torch.program import USER_INPUT, TensorMeta
from ostinato.frontends.torch.results import plan_outputs
from ostinato.frontends.torch.symbols import SymbolTable
from ostinato.frontends.torch.tensors import array_of, note_write, tensor_of
from ostinato.ir.binding import solve_dims
from ostinato.ops.builder import Graph
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from ostinato.frontends.torch.export import Exported
    from ostinato.frontends.torch.program import InputSpec, Program
    from ostinato.frontends.torch.results import Finish, Outputs
    from ostinato.runtime.session import Session
    from ostinato.variables import Dim

__all__ = [
    "Arguments",
    "CompiledProgram",
    "OtherWeightsError",
    "PreparedArguments",
]

#: Shapes that one program is prepared for.
_MOST_SHAPES = 64

#: Looked up once: it is called before each run.
_grad_enabled = torch.is_grad_enabled

#: DLPack's code of a kind of numbers, by the kind's letter in NumPy.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class OtherWeightsError(Exception):
    """Raised where weights have other types than those of the compile."""


class Arguments:
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
class PreparedArguments:
    """A call on arguments of known shapes.

    Attributes:
        prepared: the native call.
        names: of the keyword arguments, in the order of the program's.
        spec: the tree of the arguments, where these are nested: the native call takes the leaves.
        lifted: give the weights that are arguments of the native call.
        bare: whether the result is the only tensor that the run makes.
        finish: makes the module's results of the run's, and of the tensors that were given.
        written: the positions, among the tensors that were given, of those that the run writes to.
    """

    prepared: PreparedCall
    names: tuple[str, ...]
    spec: Any
    lifted: tuple[Callable[[], torch.Tensor], ...]
    bare: bool
    finish: Callable[[Sequence[Any], Sequence[Any]], Any]
    written: tuple[int, ...]

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Whether the arguments are the expected ones; and if so, the results."""
        if self.spec is not None:
            leaves, spec = _pytree.tree_flatten((args, kwargs))
            if spec != self.spec:
                return False, None
            args, kwargs = tuple(leaves), {}
        if _grad_enabled() and any_requires_gradient((*args, *kwargs.values())):
            return False, None
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
        named = [kwargs[name] for name in self.names]
        tensors = [leaf for leaf in (*given, *named) if isinstance(leaf, torch.Tensor)]
        for position in self.written:
            note_write(tensors[position])
        return True, self.finish(made, tensors)


class CompiledProgram:
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
    ) -> None:
        self.spec, self._program, self._mode = spec, program, weights
        example = Arguments(leaves)
        self._kinds = example.kinds
        self.described = str(example)
        users = [s for s in program.users() if isinstance(s.meta, TensorMeta)]
        names = {s.target for s in users}
        tensors = {weight_name(name, names): t for name, t in exported.tensors.items()}
        tied = {
            weight_name(name, names): weight_name(first, names)
            for name, first in first_names(exported.tensors).items()
        }
        self._weights = ModuleWeights(module, tensors, tied)
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
        self._shapes: OrderedDict[Any, PreparedArguments | None] = OrderedDict()
        self._finishing: OrderedDict[Any, Callable[[Any, Any], Any]] = OrderedDict()
        order = list(self.compiled.inputs)
        self._slots = tuple(order.index(spec.target) for spec in self._tensors)

    # -- the graph -----------------------------------------------------------------------------

    def _hinted(self, users: Sequence[InputSpec], example: Arguments) -> dict[str, int]:
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
        for symbol in {**program.symbols, **dims}:  # those that data decide, too
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
        elif self._mode == "live" or self._entries:
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
            OtherWeightsError: one has another shape or dtype than that of the compile, or has its
                elements no longer in common with another one.
            InputError: one is gone.
        """
        if self._mode == "frozen" or (self._mode == "checked" and self._watch.intact()):
            return
        if self._current_types() != self._types or not self._weights.still_tied():
            raise OtherWeightsError
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

    def fits(self, shapes: Arguments) -> bool:
        """Whether arguments are of the kinds that the program is for; their sizes aside."""
        if shapes.kinds != self._kinds:
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

    def check(self, shapes: Arguments) -> dict[str, int]:
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

    def run(
        self, leaves: Sequence[Any], finish: Callable[[Sequence[Any], Sequence[Any]], Any]
    ) -> Any:
        """The results for some arguments, by the long way.

        Args:
            leaves: the arguments, flattened.
            finish: of :meth:`finisher`.

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
        return finish(made, given)

    def finisher(self, shapes: Arguments) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
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
        shapes: Arguments,
        leaves: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> PreparedArguments | None:
        """The native call for arguments of these shapes, if there can be one."""
        if EXCHANGE is None or any(leaf is ... for leaf in leaves):
            return None
        flat = [*args, *kwargs.values()]
        plain = len(flat) == len(leaves) and all(map(operator.is_, flat, leaves))
        names = tuple(kwargs) if plain else None
        key = (shapes.shapes, names)
        if key not in self._shapes:
            self._shapes[key] = self._prepared(shapes, leaves, names)
            if len(self._shapes) > _MOST_SHAPES:
                self._shapes.popitem(last=False)
        return self._shapes[key]

    def _prepared(
        self, shapes: Arguments, flat: Sequence[Any], names: tuple[str, ...] | None
    ) -> PreparedArguments | None:
        """The native call.

        Args:
            shapes: of the arguments.
            flat: the leaves of the arguments.
            names: of the last ones, which are given by name; ``None``: arguments are nested.
        """
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
        return PreparedArguments(
            PreparedCall(
                EXCHANGE,
                PLAIN,
                (*[...] * len(self._lifted), *constants),
                names or (),
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
            names or (),
            None if names is not None else self.spec,
            tuple(self._getter(name) for name in self._lifted),
            plain and not written and self._out_spec.is_leaf(),
            self.finisher(shapes),
            written,
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
