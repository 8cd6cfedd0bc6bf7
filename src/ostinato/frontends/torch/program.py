"""A program of ATen ops as plain data: the form between PyTorch's graphs and ours.

Exported programs, graphs of Dynamo and ``.pt2`` files are all read into it; converters know
nothing else. Nothing here needs PyTorch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.stored import ParamSource

__all__ = [
    "BUFFER",
    "BUFFER_MUTATION",
    "CONSTANT",
    "INOUT",
    "INPUT_MUTATION",
    "PARAMETER",
    "USER_INPUT",
    "USER_OUTPUT",
    "Argument",
    "InputSpec",
    "Named",
    "OutputSpec",
    "Program",
    "ProgramNode",
    "Ref",
    "ScalarMeta",
    "Size",
    "TensorMeta",
    "source_line",
]

#: A size: a number, or an expression over the program's symbols as SymPy prints it.
Size: TypeAlias = "int | str"

#: Kinds of :class:`InputSpec`; the program writes to the caller's memory of an in-out input.
USER_INPUT, PARAMETER, BUFFER, CONSTANT = "user_input", "parameter", "buffer", "constant"
INOUT = "inout"

#: Kinds of :class:`OutputSpec`.
USER_OUTPUT, BUFFER_MUTATION, INPUT_MUTATION = "user_output", "buffer_mutation", "input_mutation"


class Ref(NamedTuple):
    """The result of a node or an input of the program, by name."""

    name: str


class Named(NamedTuple):
    """An argument that PyTorch has a name for: a dtype, a layout, a memory format, a device.

    Attributes:
        kind: ``"dtype"``, ``"layout"``, ``"memory_format"`` or ``"device"``.
        name: without ``torch.``, such as ``"float32"`` or ``"channels_last"``.
    """

    kind: str
    name: str


@dataclass(frozen=True)
class TensorMeta:
    """The type of a tensor as PyTorch gives it.

    Attributes:
        dtype: PyTorch's name of the element type, such as ``"float32"`` or ``"complex64"``.
        shape: its sizes.
        strides: elements from one position to the next, by axis; ``None`` where unknown.
        device: such as ``"cpu"`` or ``"cuda:0"``.
        offset: elements before its first one in the memory that it shares; ``None`` where unknown.
    """

    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None = None
    device: str = "cpu"
    offset: Size | None = None


@dataclass(frozen=True)
class ScalarMeta:
    """The type of a number that is no tensor, and its value as far as it is known.

    Attributes:
        kind: ``"int"``, ``"float"`` or ``"bool"``.
        value: a number, or an expression as SymPy prints it.
    """

    kind: str
    value: Any


#: The argument of a node: numbers, words, results of other nodes, nested programs, or lists.
Argument: TypeAlias = (
    "Ref | Named | Program | int | float | complex | bool | str | tuple[Argument, ...] | None"
)


@dataclass(frozen=True)
class ProgramNode:
    """One op.

    Attributes:
        name: unique in its program.
        target: the op, such as ``"aten.add.Tensor"``, ``"_operator.add"``, ``"higher_order.cond"``.
        args: by position.
        kwargs: by name.
        results: the names that its results have: one that stands for all of them, or, where
            ``unpacked``, one for each.
        metas: the types of its results.
        unpacked: whether each result has a name of its own.
        where: the line of the user's source and the module that it stands in, for messages.
    """

    name: str
    target: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    results: tuple[str, ...]
    metas: tuple[TensorMeta | ScalarMeta | None, ...]
    unpacked: bool = False
    where: str = ""


@dataclass(frozen=True)
class InputSpec:
    """An input of a program.

    Attributes:
        name: as nodes refer to it.
        kind: :data:`USER_INPUT`, :data:`PARAMETER`, :data:`BUFFER`, :data:`CONSTANT` or
            :data:`INOUT`.
        meta: its type; ``None`` for an input that is no number.
        target: of a weight, its qualified name within the module; of a user's input, the name that
            its graph gives it.
        value: of a user's input that is fixed, what it is.
    """

    name: str
    kind: str
    meta: TensorMeta | ScalarMeta | None
    target: str
    value: Any = None


@dataclass(frozen=True)
class OutputSpec:
    """An output of a program.

    Attributes:
        argument: a result, or a fixed number, or ``None``.
        kind: :data:`USER_OUTPUT`, :data:`BUFFER_MUTATION` or :data:`INPUT_MUTATION`.
        target: of a mutation, the ``target`` of the input that takes the value; of a user's
            output, its name in the graph.
    """

    argument: Argument
    kind: str
    target: str


@dataclass(frozen=True)
class Program:
    """A program of ATen ops.

    Attributes:
        name: for messages.
        inputs: in the order of the placeholders.
        nodes: each after those that it reads.
        outputs: in order.
        symbols: by the name of a size's symbol, its bounds; no upper one is ``None``.
        weights: by the ``target`` of an input, its elements.
        guards: conditions on the shapes of the user's inputs, in Python as PyTorch writes them.
        names: by symbol, the user's name for it.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    nodes: tuple[ProgramNode, ...]
    outputs: tuple[OutputSpec, ...]
    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    weights: Mapping[str, ParamSource] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Program:
        """The same program, with the user's names for symbols."""
        return replace(self, names=names)

    def users(self) -> Sequence[InputSpec]:
        """The inputs that a caller gives."""
        return [spec for spec in self.inputs if spec.kind == USER_INPUT]


def source_line(trace: str) -> str:
    """The last line of the user's source in a stack trace, as ``file:line``; empty without one."""
    found: list[tuple[str, str]] = re.findall(r'File "([^"]+)", line (\d+)', trace)
    return ":".join(found[-1]) if found else ""
