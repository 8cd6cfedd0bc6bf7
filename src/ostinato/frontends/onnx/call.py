"""One node of the model as its converter sees it: operands, typed attributes, the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, overload

from ostinato.errors import ModelFormatError
from ostinato.frontends.onnx.known import (
    Known,
    Leaves,
    Missing,
    OptionalOf,
    SequenceOf,
    Strings,
    Tensor,
)
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from onnx import AttributeProto, GraphProto, TensorProto

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.external import ExternalData
    from ostinato.ir.graph import Value
    from ostinato.ir.types import TensorType
    from ostinato.ops.builder import Graph, NestedGraph
    from ostinato.variables import Dim

__all__ = ["Call", "Converter", "NotSupported", "Result"]

D = TypeVar("D")

#: The result of a converter: the node's first output, or all of them.
Result: TypeAlias = "Tensor | Sequence[Tensor]"
Converter: TypeAlias = "Callable[[Call], Result]"

#: No op takes more sizes, axes or indices than this; a file that does is made to exhaust memory.
_MOST_DIMS = 2**16

# AttributeProto.AttributeType
_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 5, 6, 7, 8
_NAMES = {
    _FLOAT: "a float",
    _INT: "an int",
    _STRING: "a string",
    _TENSOR: "a tensor",
    _GRAPH: "a graph",
    _FLOATS: "a list of floats",
    _INTS: "a list of ints",
    _STRINGS: "a list of strings",
}


class NotSupported(Exception):
    """Raised by a converter for what Ostinato cannot express; the import collects the reasons.

    Attributes:
        dims: the sizes that would have to be numbers, where that is the reason.
        unknown: a value of the graph that would have to be known when the model is loaded.
    """

    def __init__(self, reason: str, dims: Sequence[Dim] = (), unknown: Value | None = None) -> None:
        super().__init__(reason)
        self.dims = dims
        self.unknown = unknown


@dataclass(frozen=True)
class Call:
    """One node, ready for conversion.

    Attributes:
        g: the graph under construction.
        leaves: makes known tensors into values of ``g``.
        op_type: the node's op, within ``domain``.
        domain: the operator domain; the default one is ``""``.
        opset: the version of that domain.
        label: the node's name, or its first output's.
        operands: the inputs; ``None`` where an optional one is left out.
        outputs: the output names; ``""`` where one is not wanted.
        attributes: by name.
        inline: converts a subgraph in place, given tensors for its inputs, and gives its outputs.
        nested: the same within a nested graph of ``g``.
        attempt: gives what a function gives; ``None`` when that collects an error, which is
            forgotten.
        external: where tensors of attributes may keep their data.
    """

    g: Graph
    leaves: Leaves
    op_type: str
    domain: str
    opset: int
    label: str
    operands: tuple[Tensor | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeProto]
    inline: Callable[[GraphProto, Sequence[Tensor]], list[Tensor]]
    nested: Callable[[GraphProto, NestedGraph, Sequence[Tensor]], list[Tensor]]
    attempt: Callable[[Callable[[], Any]], Any]
    external: ExternalData

    # -- failing ----------------------------------------------------------------------------

    def unsupported(self, reason: str) -> NoReturn:
        """Report that the node cannot be expressed, and why."""
        raise NotSupported(reason)

    def needs_number(self, reason: str, *dims: Dim) -> NoReturn:
        """Report that sizes have to be numbers, and why: the graph is then built for those."""
        raise NotSupported(reason, dims)

    def unknown(self, index: int, reason: str) -> NoReturn:
        """Report that the operand at ``index`` would have to be known when the model is loaded."""
        operand = self.operand(index)
        if isinstance(operand, Known):
            raise NotSupported(reason, operand.sizes())
        raise NotSupported(reason, unknown=operand)

    def malformed(self, problem: str) -> NoReturn:
        """Report that the node breaks the rules of its op."""
        raise ModelFormatError(problem)

    # -- operands ---------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether the node has an operand at ``index``."""
        return index < len(self.operands) and self.operands[index] is not None

    def wants(self, index: int) -> bool:
        """Whether the node names an output at ``index``."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def operand(self, index: int) -> Value | Known:
        """The operand at ``index``, known or not."""
        found = self.operands[index] if index < len(self.operands) else None
        if found is None or isinstance(found, Missing):
            self.malformed(f"operand {index} is missing")
        if isinstance(found, SequenceOf | OptionalOf):
            kind = "a sequence" if isinstance(found, SequenceOf) else "an optional"
            self.malformed(f"operand {index} is {kind}, expected a tensor")
        if isinstance(found, Strings):
            self.unsupported(f"its operand {index} holds strings")
        return found

    def sequence(self, index: int) -> SequenceOf:
        """The operand at ``index``, a sequence of tensors."""
        found = self.operands[index] if index < len(self.operands) else None
        if isinstance(found, OptionalOf):
            found = found.item
        if not isinstance(found, SequenceOf):
            self.malformed(f"operand {index} is no sequence")
        return found

    def holds_strings(self, index: int) -> bool:
        """Whether the operand at ``index`` is there, and is known strings."""
        return self.has(index) and isinstance(self.operands[index], Strings)

    def strings(self, index: int) -> np.ndarray[Any, Any]:
        """The elements of an operand of strings."""
        found = self.operands[index] if index < len(self.operands) else None
        if not isinstance(found, Strings):
            self.malformed(f"its operand {index} should hold strings, got {self.type(index)}")
        return found.array

    def value(self, index: int) -> Value:
        """The operand at ``index`` as a value of the graph."""
        return self.as_value(self.operand(index))

    def as_value(self, tensor: Value | Known) -> Value:
        """A tensor as a value of the graph under construction."""
        return self.leaves.value(tensor) if isinstance(tensor, Known) else self.g.local(tensor)

    def floats(self, index: int) -> Value:
        """The operand at ``index``, of an element type with fractions, as a value of the graph."""
        value = self.value(index)
        if not value.dtype.is_float:
            self.malformed(f"expected floats, got {value.type}")
        return value

    def optional(self, index: int) -> Value | None:
        """The operand at ``index`` as a value, or ``None`` when the node leaves it out."""
        return self.value(index) if self.has(index) else None

    def values(self) -> list[Value]:
        """All operands of a variadic op; it has at least one."""
        if not self.operands:
            self.malformed("expected at least one operand")
        return [self.value(i) for i in range(len(self.operands))]

    def known(self, index: int) -> Known | None:
        """The operand at ``index`` when its elements are known."""
        operand = self.operands[index] if index < len(self.operands) else None
        return operand if isinstance(operand, Known) else None

    def type(self, index: int) -> TensorType:
        """The type of the operand at ``index``."""
        return self.operand(index).type

    def alike(self, *indices: int) -> None:
        """Check that the operands at ``indices``, as far as they are there, have one dtype."""
        found = {index: self.dtype(index) for index in indices if self.has(index)}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"operand {index} has {dtype}" for index, dtype in found.items())
            self.malformed(f"operands should have the same element type: {listed}")

    def shape(self, index: int) -> tuple[Dim, ...]:
        """The shape of the operand at ``index``."""
        found = self.operands[index] if index < len(self.operands) else None
        return found.shape if isinstance(found, Strings) else self.operand(index).shape

    def dtype(self, index: int) -> DType:
        """The element type of the operand at ``index``."""
        return self.operand(index).dtype

    def rank(self, index: int) -> int:
        """The number of dims of the operand at ``index``."""
        return len(self.shape(index))

    def dims(self, index: int, what: str) -> tuple[Dim, ...]:
        """The elements of an integer operand, as dims."""
        known = self.known(index)
        if known is None:
            self.unknown(
                index,
                f"its {what} are computed from data; sizes must follow from the inputs' shapes",
            )
        if not known.dtype.is_integer:
            self.malformed(f"its {what} should be integers, got {known.dtype}")
        if known.size > _MOST_DIMS:
            self.malformed(f"its {what} are {known.size} numbers")
        return known.dims()

    def integers(self, index: int, what: str) -> tuple[int, ...]:
        """The elements of an integer operand, none of them symbolic."""
        result: list[int] = []
        for dim in self.dims(index, what):
            if not isinstance(dim, int):
                self.needs_number(f"its {what} depend on {dim}", dim)
            result.append(dim)
        return tuple(result)

    def single(self, index: int, what: str) -> int:
        """The only element of an integer operand, which is not symbolic."""
        found = self.integers(index, what)
        if len(found) != 1:
            self.malformed(f"its {what} should be a single number, got {len(found)}")
        return found[0]

    def scalar(self, index: int, what: str) -> Any:
        """The only element of a known operand, as a Python number."""
        known = self.known(index)
        if known is None or known.symbolic:
            self.unknown(index, f"its {what} is not known when the model is loaded")
        if known.size != 1:
            self.malformed(f"its {what} should be a single number, got shape {known.shape}")
        return known.array.reshape(-1)[0].item()

    # -- attributes -------------------------------------------------------------------------

    @overload
    def integer(self, name: str, default: int) -> int: ...
    @overload
    def integer(self, name: str, default: None) -> int | None: ...
    def integer(self, name: str, default: int | None) -> int | None:
        """An int attribute."""
        found = self._attribute(name, _INT)
        return default if found is None else int(found.i)

    def flag(self, name: str, default: int) -> bool:
        """An int attribute that is 0 or 1."""
        found = self.integer(name, default)
        if found not in (0, 1):
            self.malformed(f"{name} should be 0 or 1, got {found}")
        return bool(found)

    @overload
    def real(self, name: str, default: float) -> float: ...
    @overload
    def real(self, name: str, default: None) -> float | None: ...
    def real(self, name: str, default: float | None) -> float | None:
        """A float attribute."""
        found = self._attribute(name, _FLOAT)
        return default if found is None else float(found.f)

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        found = self._attribute(name, _STRING)
        return default if found is None else found.s.decode("utf-8", "replace")

    def choice(self, name: str, *options: str) -> str:
        """A string attribute that is one of ``options``, the first by default."""
        found = self.text(name, options[0])
        if found not in options:
            self.malformed(f"{name} should be one of {', '.join(options)}, got {found!r}")
        return found

    def integer_list(self, name: str, default: D) -> tuple[int, ...] | D:
        """An attribute that is a list of ints."""
        found = self._attribute(name, _INTS)
        return default if found is None else tuple(found.ints)

    def real_list(self, name: str, default: D) -> tuple[float, ...] | D:
        """An attribute that is a list of floats."""
        found = self._attribute(name, _FLOATS)
        return default if found is None else tuple(found.floats)

    def text_list(self, name: str, default: D) -> tuple[str, ...] | D:
        """An attribute that is a list of strings."""
        found = self._attribute(name, _STRINGS)
        if found is None:
            return default
        return tuple(s.decode("utf-8", "replace") for s in found.strings)

    def tensor(self, name: str) -> TensorProto | None:
        """A tensor attribute."""
        found = self._attribute(name, _TENSOR)
        return None if found is None else found.t

    def graph(self, name: str) -> GraphProto:
        """A subgraph."""
        found = self._attribute(name, _GRAPH)
        if found is None:
            self.malformed(f"the attribute {name!r} is missing")
        return found.g

    def required(self, name: str) -> int:
        """An int attribute without a default."""
        value = self.integer(name, None)
        if value is None:
            self.malformed(f"the attribute {name!r} is missing")
        return value

    def axes(self, index: int = 1) -> tuple[int, ...] | None:
        """The ``axes``, which older operator sets give as an attribute and newer as an operand."""
        if self.has(index):
            return self.integers(index, "axes")
        return self.integer_list("axes", None)

    def _attribute(self, name: str, type_: int) -> AttributeProto | None:
        found = self.attributes.get(name)
        if found is None:
            return None
        if found.type != type_:
            self.malformed(f"the attribute {name!r} should be {_NAMES[type_]}")
        return found
