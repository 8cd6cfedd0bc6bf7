"""The inputs, outputs and params of a compiled graph, and the checks of arrays against them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.decode_state import DECODE_VARIABLES
from ostinato.errors import InputError, VariableError
from ostinato.ir.binding import check_values, solve_dims
from ostinato.ir.deferred_graph import deferred
from ostinato.ir.facts import check_facts
from ostinato.ir.graph_facts import graph_facts
from ostinato.ir.leaves import is_inout
from ostinato.ir.record import Interface
from ostinato.lazy import LazyModule
from ostinato.plan.device_array import may_share_memory
from ostinato.records import dataclass, field
from ostinato.runtime.arrays import (
    Array,
    TensorSpec,
    checked_array,
    checked_mapping,
    converted,
    in_place,
    shape_text,
)
from ostinato.variables import bounds, capacity, data_symbols, evaluate, symbols

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.types import TensorType
    from ostinato.ops import moe
    from ostinato.variables import Dim
else:
    moe = LazyModule("ostinato.ops.moe")

__all__ = ["NO_VALUES", "Live", "Signature", "interface_of"]

#: No values: of the variable block, for a graph that takes none from it.
NO_VALUES: Mapping[str, int] = MappingProxyType({})

#: No Variable has another name in the model.
NO_WORDS: Mapping[str, str] = MappingProxyType({})

#: Combinations of input shapes that are remembered; when there are more, all are forgotten.
_REMEMBERED = 256


@dataclass(frozen=True)
class Live:
    """The values of Variables and the output shapes of one run.

    Attributes:
        variables: the Variables' values, in the graph's order, of data-dependent ones 0; or the
            executable's part that runs, and its own.
        outputs: each output's shape and dtype; where the shape depends on data, the largest one.
        binds: whether the run gives Variables their values.
        data_sized: by position, the declared types of outputs whose shapes depend on data.
        values: of the Variables that are known before the run, by name.
    """

    variables: tuple[Any, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    binds: bool = False
    data_sized: Mapping[int, TensorType] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)

    def fitted(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """The outputs of a run, those of data-dependent shapes cut to what the run gave them.

        Args:
            arrays: an array for each output; their elements in use lie at the start.
            sizes: the values of data-dependent Variables.
        """
        fitted = list(arrays)
        for position, type_ in self.data_sized.items():
            shape = tuple(evaluate(dim, {**self.values, **sizes}) for dim in type_.shape)
            elements = arrays[position].reshape(-1)[: math.prod(shape)]
            fitted[position] = elements.reshape(shape)
        return fitted

    def empty(self) -> list[Array]:
        """Fresh arrays for the outputs."""
        arrays: list[Array] = []
        for shape, dtype in self.outputs:  # a comprehension would take longer than a small graph
            arrays.append(np.empty(shape, dtype))
        return arrays


class Signature:
    """The inputs, params and outputs of a graph, and the checks of arrays against them.

    Inputs are checked twice over. :meth:`check_inputs` is thorough and explains what is wrong.
    :meth:`recognise` is quick and knows only what :meth:`check_inputs` has accepted before: arrays
    that differ from those in their contents alone.

    Attributes:
        inputs, outputs, params, states: specs by name: ``name``, ``shape``, ``dtype``.
        variables: the graph's Variables by name.
        facts: the conditions of the graph on values of its Variables.
        given: the Variables whose values are known before a run.
        written: the inputs whose arrays runs write to.
    """

    #: The names of these inputs, and by Variable, the model's own name for it.
    read: tuple[str, ...] = ()
    words: Mapping[str, str] = NO_WORDS

    def __init__(self, interface: Interface) -> None:
        self.inputs = _specs(interface.inputs)
        self.params = _specs(interface.params)
        self.states = _specs(interface.states)
        self.outputs = _specs(interface.outputs)
        self.variables = interface.variables
        self.given = {name: v for name, v in self.variables.items() if v.bound is None}
        self._data_sized = {
            position: spec.type
            for position, spec in enumerate(self.outputs.values())
            if any(data_symbols(dim) for dim in spec.shape)
        }
        self.resident = tuple(name for name in self.variables if name in DECODE_VARIABLES)
        self._expected = [(name, spec.dtype.numpy) for name, spec in self.inputs.items()]
        self._experts = interface.expert_inputs
        self.facts = interface.facts
        self.written = interface.written
        self._known: dict[tuple[Any, ...], Live] = {}
        # By shapes and the names of Variables that the caller gives: the sizes of a run, where all
        # values give the same.
        self._alike: dict[tuple[Any, ...], Live] = {}
        # The positions of the inputs whose contents sizes depend on; None: there are none. It is
        # looked up in each run, which in the class would take 20 ns longer than in the object.
        self._read: tuple[int, ...] | None = None

    # -- inputs --------------------------------------------------------------------------------

    def recognise(
        self, inputs: object, block: Mapping[str, int] = NO_VALUES
    ) -> tuple[list[Array], Live] | None:
        """The arrays of ``inputs`` in order, when it is plain that all is well; else ``None``.

        It never is where contents matter, which are numbers of experts.
        """
        if (known := self.recognise_sizes(inputs, block)) is not None:
            for array in known[0]:
                if not array.flags.c_contiguous:
                    return None
        return known

    def recognise_sizes(
        self, inputs: object, block: Mapping[str, int] = NO_VALUES, variables: object = None
    ) -> tuple[list[Array], Live] | None:
        """As :meth:`recognise`; whether arrays are contiguous is for the core to see.

        Args:
            inputs: arrays by name; ``None``: there are none.
            block: values of Variables that the device has; none where the caller gives some.
            variables: values of Variables that the caller gives.
        """
        if inputs is None:
            inputs = {}
        if self._experts or type(inputs) is not dict or len(inputs) != len(self._expected):
            return None
        arrays, shapes = [], []
        for name, dtype in self._expected:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype:
                return None
            arrays.append(array)
            shapes.append(array.shape)
        contents = () if self._read is None else self._contents(arrays)
        if variables is None:
            key = _key(shapes, block) if block else tuple(shapes)
            live = self._known.get((*key, *contents) if contents else key)
        else:
            live = self._recognise_values(shapes, variables, contents)
        return None if live is None else (arrays, live)

    def _recognise_values(
        self, shapes: Sequence[tuple[int, ...]], variables: object, contents: tuple[Any, ...]
    ) -> Live | None:
        """The sizes of a run whose caller gives values of Variables, when these are plainly right.

        They need not be those of an earlier run: they differ from step to step.
        """
        if type(variables) is not dict:
            return None
        for name, value in variables.items():
            symbol = self.given.get(name)
            if symbol is None or type(value) is not int or not symbol.min <= value <= symbol.max:
                return None
        alike = None if contents else self._alike.get((*shapes, *variables))
        if alike is not None:
            values = {**alike.values, **variables}
            numbers = tuple([values.get(name, 0) for name in self.variables])
            return Live(numbers, alike.outputs, alike.binds, alike.data_sized, values)
        live = self._known.get((*_key(shapes, NO_VALUES, variables), *contents))
        return live if live is not None or contents else self._recognise_new(shapes, variables)

    def _recognise_new(
        self, shapes: Sequence[tuple[int, ...]], variables: Mapping[str, int]
    ) -> Live | None:
        """The same, of values that are new to these shapes."""
        try:
            live = self.live(shapes, variables=variables)
        except (InputError, VariableError):
            return None
        specs = (*self.inputs.values(), *self.outputs.values())
        sized = {symbol.name for spec in specs for dim in spec.shape for symbol in symbols(dim)}
        if not self.facts and sized.isdisjoint(variables):
            _remember(self._alike, (*shapes, *variables), live)
        return live

    @property
    def reads_contents(self) -> bool:
        """Whether sizes or checks depend on the contents of inputs."""
        return self._read is not None or bool(self._experts)

    def recognise_in_order(self, arrays: Sequence[Any]) -> Live | None:
        """The sizes that arrays in the order of the inputs give, when it is plain that all is well.

        Whether they are contiguous is for the core to see.
        """
        if self._experts or len(arrays) != len(self._expected):
            return None
        shapes = []
        for position, (_, dtype) in enumerate(self._expected):  # zip(strict=...) takes 0.1 µs more
            array = arrays[position]
            if type(array) is not np.ndarray or array.dtype is not dtype:
                return None
            shapes.append(array.shape)
        if self._read is not None:
            shapes += self._contents(arrays)
        return self._known.get(tuple(shapes))

    def check_inputs(
        self,
        inputs: object,
        *,
        cast: bool = False,
        bound: bool = False,
        block: Mapping[str, int] = NO_VALUES,
        variables: Mapping[str, int] = NO_VALUES,
    ) -> tuple[list[Array], Live]:
        """An array for each input, in order; with ``bound``, the callers' own memory.

        Nothing is copied before everything is known to be right: a wrong array may be huge.

        Args:
            inputs: arrays by name.
            cast: convert arrays of another dtype.
            bound: refuse what can not be used in place. Where a size depends on the variable block
                alone, there may be room for more.
            block: values of Variables that the device has.
            variables: values of Variables that the caller gives.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype; or it is the
                number of an expert that there is none of, unless ``bound``: contents may change.
            VariableError: a size is out of its Variable's bounds, sizes contradict each other, or a
                node cannot do with them.
        """
        given = checked_mapping("input", inputs, self.inputs)
        missing = [str(spec) for name, spec in self.inputs.items() if name not in given]
        if missing:
            raise InputError(f"missing inputs: {', '.join(missing)}")
        arrays = []
        for name, spec in self.inputs.items():
            used_in_place = bound or name in self.written
            array = in_place("input", spec, given[name]) if used_in_place else given[name]
            arrays.append(checked_array("input", spec, array, cast=cast and not used_in_place))
            if name in self.written and not arrays[-1].flags.writeable:
                raise InputError(f"input {name!r} is written by the run; the array is read-only")
        shapes = [array.shape for array in arrays]
        used = self.used(shapes, block) if bound else shapes
        live = self.live(used, block, variables, None if self._read is None else arrays)
        if not bound:
            self._check_experts(dict(zip(self.inputs, arrays, strict=True)))
        return [converted(s, a) for s, a in zip(self.inputs.values(), arrays, strict=True)], live

    def _check_experts(self, arrays: Mapping[str, Array]) -> None:
        for name, count in self._experts.items():
            ids = arrays[name]
            outside = ids[(ids < -count) | (ids >= count)]
            if outside.size:
                raise InputError(
                    f"input {name!r} has expert {outside.flat[0]}, which is out of range for "
                    f"{count} experts"
                )

    def check_resident(self, name: str, array: object, *, cast: bool = False) -> Array:
        """A copy of ``array`` that can stay in the place of an input or a state.

        Raises:
            InputError: its shape or dtype differs.
            VariableError: a size is out of its Variable's bounds.
        """
        spec, resident = self._resident(name, array, cast=cast)
        values = solve_dims({name: (spec.shape, resident.shape)}, {})
        check_values({n: self.variables[n] for n in values}, values)
        return resident.copy()

    def _resident(self, name: str, array: object, *, cast: bool) -> tuple[TensorSpec, Array]:
        """The spec of an input or a state, and ``array`` as it can stand in for it."""
        kind, spec = (
            ("input", self.inputs[name]) if name in self.inputs else ("state", self.states[name])
        )
        return spec, converted(spec, checked_array(kind, spec, array, cast=cast))

    def used(
        self, shapes: Sequence[tuple[int, ...]], block: Mapping[str, int]
    ) -> list[tuple[int, ...]]:
        """The parts of bound inputs that are in use, where the variable block settles their size.

        The elements in use lie at the start of an array, without gaps.
        """
        pairs = zip(self.inputs.values(), shapes, strict=True)
        return [_used(spec, shape, block) for spec, shape in pairs]

    def live(
        self,
        shapes: Sequence[tuple[int, ...]],
        block: Mapping[str, int] = NO_VALUES,
        variables: Mapping[str, int] = NO_VALUES,
        arrays: Sequence[Array] | None = None,
    ) -> Live:
        """The values of Variables and the output shapes that follow from inputs of these shapes.

        Args:
            shapes: in the order of the inputs.
            block: values of Variables that the device has.
            variables: values of Variables that the caller gives.
            arrays: the inputs, where the contents of some matter.

        Raises:
            InputError, VariableError: as :meth:`check_inputs`.
        """
        key = (*_key(shapes, block, variables), *self._contents(arrays))
        live = self._known.get(key)
        if live is None:
            live = self._sizes(shapes, arrays, block, variables)
            _remember(self._known, key, live)
        return live

    def _sizes(
        self,
        shapes: Sequence[tuple[int, ...]],
        arrays: Sequence[Array] | None,
        block: Mapping[str, int],
        variables: Mapping[str, int],
    ) -> Live:
        """As :meth:`live`, for sizes that are new."""
        values = self._solve(shapes, block, variables)
        outputs = self.outputs.values()
        return Live(
            tuple(values.get(name, 0) for name in self.variables),
            tuple((_capacity(spec.shape, values), spec.dtype.numpy) for spec in outputs),
            len(self.given) < len(self.variables),
            self._data_sized,
            values,
        )

    def _contents(self, arrays: Sequence[Array] | None) -> tuple[Any, ...]:
        """The contents of the inputs that sizes depend on."""
        return ()

    def _solve(
        self,
        shapes: Sequence[tuple[int, ...]],
        block: Mapping[str, int],
        variables: Mapping[str, int],
    ) -> dict[str, int]:
        """The Variables' values that the shapes of the inputs, the block or the caller give."""
        if not self.given:
            return {}
        specs = self.inputs.values()
        pairs = {s.name: (s.shape, shape) for s, shape in zip(specs, shapes, strict=True)}
        try:
            given_by = "variables=" if variables else "the variable block"
            values = solve_dims(pairs, {**block, **variables}, given_by=given_by)
            check_values({name: self.given[name] for name in values}, values)
        except VariableError as error:
            listed = [
                f"{name!r} {shape_text(declared)} got {actual}"
                for name, (declared, actual) in pairs.items()
                if declared != actual
            ]
            raise VariableError(f"{error}; input {', '.join(listed) or 'shapes: none'}") from None
        self._check_settled(values)
        check_facts(self.facts, values)
        return values

    def _check_settled(self, values: Mapping[str, int]) -> None:
        missing = [name for name in self.given if name not in values]
        if missing:
            advice = (
                "write it with set_decode_state and turn on set_dev_state_mode(True)"
                if set(missing) <= set(self.resident)
                else "give it one: run(inputs, variables={...})"
            )
            raise VariableError(f"no input's shape gives a value to {', '.join(missing)}; {advice}")

    # -- params and outputs ----------------------------------------------------------------------

    def check_params(self, params: object, *, cast: bool = False) -> dict[str, Array]:
        """Arrays for params by name.

        Raises:
            InputError: a param is unknown, or of another shape or dtype.
        """
        given = checked_mapping("param", params, self.params)
        arrays = {n: checked_array("param", self.params[n], a, cast=cast) for n, a in given.items()}
        return {name: converted(self.params[name], array) for name, array in arrays.items()}

    def check_outputs(
        self, out: object, live: Live, block: Mapping[str, int] = NO_VALUES
    ) -> list[Array]:
        """An array for each output, in order: the callers' own memory, to be written.

        Args:
            out: arrays, in order or by name.
            live: the shapes that they are to have.
            block: where a size depends on these Variables alone, there may be room for more.

        Raises:
            InputError: there are too few or too many, or one does not fit or can not be written.
        """
        listed = list(out) if type(out) is list else self._listed_outputs(out)
        if len(listed) != len(self.outputs):
            wanted = ", ".join(map(str, self.outputs.values()))
            raise InputError(f"expected {len(self.outputs)} outputs ({wanted}), got {len(listed)}")
        for i, (shape, dtype) in enumerate(live.outputs):
            array = listed[i]
            plain = type(array) is np.ndarray and array.dtype is dtype and array.shape == shape
            if not plain or not array.flags.c_contiguous or not array.flags.writeable:
                listed[i] = self._examined_output(i, array, shape, block)
        return listed

    def _listed_outputs(self, out: object) -> list[Any]:
        if isinstance(out, Mapping):
            given = checked_mapping("output", out, self.outputs)
            missing = [str(spec) for name, spec in self.outputs.items() if name not in given]
            if missing:
                raise InputError(f"missing outputs: {', '.join(missing)}")
            return [given[name] for name in self.outputs]
        if isinstance(out, Sequence):
            return list(out)
        raise InputError(
            "outputs are given as a list of arrays or as a mapping of names to arrays, got "
            f"{type(out).__name__}"
        )

    def _examined_output(
        self, index: int, given: object, shape: tuple[int, ...], block: Mapping[str, int]
    ) -> Array:
        spec = list(self.outputs.values())[index]
        array = checked_array("output", spec, in_place("output", spec, given))
        if _used(spec, array.shape, block) != shape:
            raise InputError(f"output {spec.name!r} has shape {shape} here, got {array.shape}")
        if not array.flags.writeable:
            raise InputError(f"output {spec.name!r}: the array is read-only")
        return array

    def overlap(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
        """Names a written array that shares memory with another one; empty when none does.

        All arrays are contiguous, so that comparing where they begin and end settles it.
        """
        names = [f"input {n!r}" for n in self.inputs] + [f"output {n!r}" for n in self.outputs]
        arrays = [*inputs, *outputs]
        written = [n in self.written for n in self.inputs] + [True] * len(outputs)
        for i in range(len(arrays)):
            for j in range(i):
                if (written[i] or written[j]) and may_share_memory(arrays[i], arrays[j]):
                    return f"{names[i]} overlaps {names[j]} in memory; give it an array of its own"
        return ""


def _remember(found: dict[tuple[Any, ...], Live], key: tuple[Any, ...], live: Live) -> None:
    if len(found) >= _REMEMBERED:
        found.clear()
    found[key] = live


def _capacity(shape: Sequence[Dim], values: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of an output; where they depend on data, the greatest ones."""
    return tuple(evaluate(capacity(dim), values) for dim in shape)


def _key(
    shapes: Sequence[tuple[int, ...]],
    block: Mapping[str, int],
    variables: Mapping[str, int] = NO_VALUES,
) -> tuple[Any, ...]:
    """The key of all that determines a run's sizes: shapes, and values from elsewhere."""
    if not (block or variables):
        return tuple(shapes)
    return (*shapes, *sorted(block.items()), *sorted(variables.items()))


def _used(spec: TensorSpec, shape: tuple[int, ...], block: Mapping[str, int]) -> tuple[int, ...]:
    """The part of an array's shape that is in use; see :meth:`Signature.used`."""
    return tuple(map(partial(_used_size, block=block), spec.shape, shape))


def _used_size(dim: Dim, size: int, block: Mapping[str, int]) -> int:
    used = symbols(dim)
    if not used or any(s.name not in block for s in used):
        return size
    live = evaluate(dim, block)
    return live if live <= size <= bounds(dim)[1] else size


def _specs(types: Mapping[str, TensorType]) -> Mapping[str, TensorSpec]:
    return MappingProxyType({name: TensorSpec(name, type_) for name, type_ in types.items()})


def interface_of(graph: BaseGraph) -> Interface:
    """The interface of a graph; a deferred graph is not built for that."""
    if (parts := deferred(graph)) is not None:
        return parts.interface
    inouts = {name: value.type for name, value in graph.states.items() if is_inout(value.node)}
    return Interface(
        graph.name,
        {**{name: value.type for name, value in graph.inputs.items()}, **inouts},
        {name: value.type for name, value in graph.params.items()},
        {name: value.type for name, value in graph.states.items() if name not in inouts},
        {name: value.type for name, value in graph.outputs.items()},
        graph.variables,
        _expert_inputs(graph),
        graph_facts(graph),
        frozenset(inouts),
    )


def _expert_inputs(graph: BaseGraph) -> dict[str, int]:
    """The inputs that number experts, and how many experts there are."""
    counts: dict[str, int] = {}
    if not any(value.dtype.is_integer for value in graph.inputs.values()):
        return counts
    for node in graph.nodes:
        if node.op.name in moe.NUMBERED:
            ids, matrices = (node.inputs[i] for i in moe.NUMBERED[node.op.name])
            while ids.node.op.name == "reshape":
                (ids,) = ids.node.inputs
            experts = matrices.shape[0]
            if ids.node.op.name == "input" and isinstance(experts, int):
                counts[ids.name] = min(experts, counts.get(ids.name, experts))
    return counts
