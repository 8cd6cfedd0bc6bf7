"""Results of a compiled module: new tensors, views of arguments and of each other, and constants.

This module imports PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ostinato.errors import UnsupportedOpError
from ostinato.frontends.torch.aliasing import Tensor
from ostinato.frontends.torch.call import Complex
from ostinato.frontends.torch.output_strides import OutputStrides
from ostinato.frontends.torch.program import USER_OUTPUT, TensorMeta
from ostinato.records import dataclass
from ostinato.variables import Expr, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.frontends.torch.importer import Importer
    from ostinato.frontends.torch.program import Program, Size
    from ostinato.ir.graph import Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["Finish", "Outputs", "plan_outputs"]

#: Gives a result, from the tensors that the run has made and those that the call was given.
Finish: TypeAlias = "Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Any]"


@dataclass(frozen=True)
class _Constant:
    """A result that is no tensor and always the same."""

    value: Any

    def at(self, values: Mapping[str, int]) -> Finish:
        return lambda made, given: self.value


@dataclass(frozen=True)
class _Number:
    """A size."""

    dim: Dim

    def at(self, values: Mapping[str, int]) -> Finish:
        number = evaluate(self.dim, values)
        return lambda made, given: number


@dataclass(frozen=True)
class _Element:
    """A number that the run computes.

    Attributes:
        position: among the outputs of the graph.
    """

    position: int

    def at(self, values: Mapping[str, int]) -> Finish:
        position = self.position
        return lambda made, given: made[position].item()


@dataclass(frozen=True)
class _New:
    """A new tensor.

    Attributes:
        position: among the outputs of the graph.
        strides: as eager gives them.
    """

    position: int
    strides: OutputStrides

    def at(self, values: Mapping[str, int]) -> Finish:
        position, restore = self.position, self.strides.restore
        if self.strides == OutputStrides() or self.plain:
            return lambda made, given: made[position]
        return lambda made, given: restore(made[position])

    @property
    def plain(self) -> bool:
        """Whether the tensor that the run has made is the result as it is."""
        strides = self.strides
        if strides.order is not None or strides.repeated or strides.copied:
            return False
        if strides.exact is None:
            return True
        shape, wanted = strides.exact
        return bool(torch.empty(shape, device="meta").stride() == wanted)


@dataclass(frozen=True)
class _View:
    """A view of an argument, or of a new tensor that other results share.

    Attributes:
        position: among the tensors of the call, or the outputs of the graph.
        of_argument: which of them.
        shape, strides, offset: of the view; ``None``: the very tensor.
    """

    position: int
    of_argument: bool
    shape: tuple[Dim, ...] | None = None
    strides: tuple[Dim, ...] = ()
    offset: Dim = 0

    def at(self, values: Mapping[str, int]) -> Finish:
        position, of_argument = self.position, self.of_argument
        if self.shape is None:
            return lambda made, given: (given if of_argument else made)[position]
        shape = [evaluate(dim, values) for dim in self.shape]
        strides = [evaluate(dim, values) for dim in self.strides]
        offset = evaluate(self.offset, values)

        def finish(made: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> Any:
            base = (given if of_argument else made)[position].detach()
            return base.as_strided(shape, strides, base.storage_offset() + offset)

        return finish


_Result: TypeAlias = "_Constant | _Number | _Element | _New | _View"


@dataclass(frozen=True)
class Outputs:
    """The results of a module, and the outputs of its graph.

    Attributes:
        results: in order.
        values: the outputs of the graph.
        dtypes: PyTorch's, of each output.
        weights: the further inputs, by name, that results are views of: they follow the tensors of
            a call.
    """

    results: tuple[_Result, ...]
    values: tuple[Value, ...]
    dtypes: tuple[torch.dtype, ...]
    weights: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Whether the results are the outputs of the graph, each as it is, in order."""
        return all(
            isinstance(result, _New) and result.plain and result.position == i
            for i, result in enumerate(self.results)
        ) and not any(dtype.is_complex for dtype in self.dtypes)


def plan_outputs(
    program: Program,
    graph: Graph,
    importer: Importer,
    tensors: Sequence[str],
    hint: Callable[[Size], int],
    dim: Callable[[Size], Dim],
) -> Outputs:
    """Decide for each result of a converted program how a call gives it.

    Args:
        program: the program.
        graph: its graph; outputs are not set yet.
        importer: has converted it.
        tensors: the inputs that are tensors of a call, by name, in its order.
        hint: gives a size of the trace.
        dim: gives the dim that a size stands for.

    Raises:
        UnsupportedOpError: a result is of a kind that no call gives.
    """
    return _Planner(program, graph, importer, tensors, hint, dim).plan()


class _Planner:
    def __init__(
        self,
        program: Program,
        graph: Graph,
        importer: Importer,
        tensors: Sequence[str],
        hint: Callable[[Size], int],
        dim: Callable[[Size], Dim],
    ) -> None:
        self._program, self._graph, self._importer = program, graph, importer
        self._tensors = {name: position for position, name in enumerate(tensors)}
        self._hint, self._dim = hint, dim
        self._values: list[Value] = []
        self._dtypes: list[torch.dtype] = []
        self._shared: dict[int, int | None] = {}

    def plan(self) -> Outputs:
        pairs = zip(self._program.outputs, self._importer.results, strict=True)
        listed = [result for spec, result in pairs if spec.kind == USER_OUTPUT]
        owners = self._owners()
        roots = [id(r.root) for r in listed if isinstance(r, Tensor)]
        shared = {root for root in roots if roots.count(root) > 1 and root not in owners}
        count = len(self._tensors)
        results = tuple(self._result(result, owners, shared) for result in listed)
        weights = tuple([*self._tensors][count:])
        return Outputs(results, tuple(self._values), tuple(self._dtypes), weights)

    def _owners(self) -> dict[int, str]:
        """By the identity of a storage's tensor, the input whose memory holds it after a call."""
        owners = {
            id(leaf.root): name
            for name, leaf in self._importer.leaves.items()
            if isinstance(leaf, Tensor)
        }
        by_target = {spec.target: spec.name for spec in self._program.inputs}
        for spec, result in zip(self._program.outputs, self._importer.results, strict=True):
            name = by_target.get(spec.target, "")
            whole = isinstance(result, Tensor) and result.root is result
            if spec.kind != USER_OUTPUT and whole and name:
                owners.setdefault(id(result), name)
        return owners

    def _result(self, result: Any, owners: Mapping[int, str], shared: set[int]) -> _Result:
        if isinstance(result, Tensor):
            if result.meta is None:  # PyTorch's type of it is that of a number
                return _Element(self._output(result, OutputStrides()))
            owner = owners.get(id(result.root))
            if owner is not None:
                position = self._tensors.setdefault(owner, len(self._tensors))
                view = self._view(result, position, of_argument=True)
                if view is not None:
                    return view
            elif id(result.root) in shared and self._is_dense(result.root):
                position = self._shared_output(result.root)
                view = self._view(result, position, of_argument=False)
                if view is not None:
                    return view
            return self._new(result)
        if isinstance(result, Expr):
            return _Number(result)
        if result is None or isinstance(result, bool | int | float | complex | str):
            return _Constant(result)
        raise UnsupportedOpError(f"a result is a {type(result).__name__}, which no call gives")

    def _view(self, tensor: Tensor, position: int, *, of_argument: bool) -> _View | None:
        """``tensor`` as a view of its root; ``None`` where its position in memory is unknown."""
        if tensor.root is tensor:
            return _View(position, of_argument)
        meta, root = tensor.meta, tensor.root.meta
        if meta is None or root is None or meta.strides is None or meta.offset is None:
            return None
        if root.offset is None or meta.dtype != root.dtype:
            return None
        strides = tuple(map(self._dim, meta.strides))
        offset = self._dim(meta.offset) - self._dim(root.offset)
        return _View(position, of_argument, tuple(map(self._dim, meta.shape)), strides, offset)

    def _is_dense(self, root: Tensor) -> bool:
        """Whether the elements of a tensor lie in C order without gaps."""
        found = self._strides(root.meta)
        return (
            root.meta is not None
            and root.meta.dtype.startswith("complex") is False
            and (found.order is None and not found.repeated and not found.copied)
        )

    def _shared_output(self, root: Tensor) -> int:
        position = self._shared.get(id(root))
        if position is None:
            position = self._shared[id(root)] = self._output(root, OutputStrides())
        return position

    def _new(self, tensor: Tensor) -> _New:
        strides = self._strides(tensor.meta)
        return _New(self._output(tensor, strides), strides)

    def _output(self, tensor: Tensor, strides: OutputStrides) -> int:
        elements = tensor.read()
        if isinstance(elements, Complex):
            value = elements.pairs
            kind = f"complex{2 * 8 * value.dtype.itemsize}"
        else:
            value = strides.in_memory_order(self._graph, elements)
            kind = value.dtype.name
        self._values.append(value)
        self._dtypes.append(getattr(torch, kind))
        return len(self._values) - 1

    def _strides(self, meta: TensorMeta | None) -> OutputStrides:
        if meta is None or meta.strides is None:
            return OutputStrides()
        sizes = (*meta.shape, *meta.strides)
        return OutputStrides.at(
            tuple(map(self._hint, meta.shape)),
            tuple(map(self._hint, meta.strides)),
            fixed=all(isinstance(size, int) for size in sizes),
            is_complex=meta.dtype.startswith("complex"),
        )
