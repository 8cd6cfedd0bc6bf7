"""Graphs from PyTorch's modules and exported programs. This module imports PyTorch."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram
from torch.fx.experimental import _config as export_config

from ostinato.backends.common.mutex import Mutex
from ostinato.errors import InputError, VariableError
from ostinato.frontends.torch.assembly import build_graph
from ostinato.frontends.torch.caches import register_caches
from ostinato.frontends.torch.deciding_lines import deciding_lines
from ostinato.frontends.torch.decompositions import decomposed
from ostinato.frontends.torch.dynamic_shapes import DynamicShapes
from ostinato.frontends.torch.fx import leaf_trees, read_exported
from ostinato.frontends.torch.importer import UnsupportedNodesError
from ostinato.frontends.torch.weight_sources import weight_source
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.frontends.torch.program import Program
    from ostinato.ir.stored import ParamSource
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

T = TypeVar("T")

#: Held during an export: PyTorch's is not made for several threads.
_EXPORTING = Mutex()

#: Decompositions of decompositions: none goes deeper.
_MOST_ROUNDS = 8

__all__ = [
    "Exported",
    "any_requires_gradient",
    "as_module",
    "check_autocast",
    "check_gradients",
    "export",
    "from_torch",
    "with_decompositions",
]


def from_torch(
    source: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    name: str | None = None,
) -> Graph:
    """Build a graph from a PyTorch module, a function, or an exported program.

    Inputs have the names of the arguments, and within nested ones the path: ``input_ids``,
    ``past_key_values.0.key``. Outputs have the keys of the result, such as ``logits``, or
    ``output_0``, ``output_1``, … What the module writes to a buffer becomes a state of the buffer's
    name, and what it writes to an argument one more output, of the argument's name. Arguments that
    are no tensors are fixed at their values. Weights are read, from PyTorch's memory, when the
    graph is compiled.

    >>> g = ost.from_torch(model, (torch.zeros(1, 3, 224, 224),))

    Args:
        source: a ``torch.nn.Module``, which is converted in the mode that it is in (``eval()`` or
            ``train()``); a function of tensors; or a ``torch.export.ExportedProgram``.
        args, kwargs: example arguments, not for an exported program.
        dynamic_shapes: the sizes that may vary, as ``torch.export.export`` takes them:
            ``torch.export.Dim``, ``Dim.AUTO``, ``Dim.DYNAMIC``, or ``ost.Variable`` in their place.
            All other sizes are those of the examples. A size without an upper bound is open: a run
            may bring any.
        name: the graph's name; by default that of the class.

    Conditions on sizes that the export relies on are checked by each run with new sizes.

    Raises:
        UnsupportedOpError: lists every node that has no equivalent, and why, with the line of the
            source.
        VariableError: a size that is to vary can not, or its bounds are too wide.
        InputError: ``source`` can not be exported, or a weight has no elements.
    """
    return export(source, args, kwargs, dynamic_shapes=dynamic_shapes, name=name).graph()


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported program, ready for conversion.

    Attributes:
        exported: the program as PyTorch has it.
        program: the same as plain data.
        name: of the graph.
        weights: by qualified name, the elements of parameters, buffers and constants.
        tensors: by qualified name, the tensors that the program has as weights.
        dims: by symbol, the caller's dims.
    """

    exported: ExportedProgram
    program: Program
    name: str
    weights: Mapping[str, ParamSource]
    tensors: Mapping[str, torch.Tensor]
    dims: Mapping[str, Dim] = field(default_factory=dict)

    @property
    def out_spec(self) -> Any:
        """The tree of the results."""
        trees = leaf_trees(self.exported)
        assert trees is not None
        return trees[1]

    def graph(self) -> Graph:
        """The graph.

        Raises:
            UnsupportedOpError: lists every node without an equivalent.
        """
        return with_decompositions(self, lambda program: build_graph(program, self.name, self.dims))


def with_decompositions(exported: Exported, build: Callable[[Program], T]) -> T:
    """Apply ``build`` to a program, with ops that have no converter decomposed where needed.

    Raises:
        UnsupportedOpError: lists every node that has no equivalent even so.
    """
    current, program = exported.exported, exported.program
    for _ in range(_MOST_ROUNDS):
        try:
            return build(program)
        except UnsupportedNodesError as error:
            simpler = decomposed(current, error.targets)
            if simpler is None:
                raise
        current = simpler
        program = read_exported(current, exported.name, exported.weights, exported.tensors)
        # The conditions of the export stay: a decomposed program has none of its own.
        program = replace(program, guards=exported.program.guards, names=exported.program.names)
    return build(program)


def export(
    source: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    *,
    dynamic_shapes: Any,
    name: str | None,
) -> Exported:
    """Export a module or a function, or take an exported program, and read it.

    Raises:
        InputError, VariableError, UnsupportedOpError: see :func:`from_torch`.
    """
    if isinstance(source, ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise InputError(
                "an ExportedProgram has its example arguments and dynamic shapes already"
            )
        return _read(source, name or "exported_program")
    check_autocast()
    module, found_name = as_module(source)
    args, kwargs = _checked_arguments(args, kwargs)
    _check_weights(module)
    shapes = DynamicShapes(dynamic_shapes)
    exported = _exported(module, args, kwargs, shapes)
    result = _read(exported, name or found_name)
    variables, names = shapes.dims(result.program, module.forward, args, kwargs)
    program = result.program.renamed(names)
    dims: Mapping[str, Dim] = variables
    return Exported(exported, program, result.name, result.weights, result.tensors, dims)


def _read(exported: ExportedProgram, name: str) -> Exported:
    tensors = {
        key: tensor
        for key, tensor in {**exported.state_dict, **exported.constants}.items()
        if isinstance(tensor, torch.Tensor)
    }
    weights = {key: weight_source(key, tensor) for key, tensor in tensors.items()}
    program = read_exported(exported, name, weights, tensors)
    return Exported(exported, program, name, weights, tensors)


class _Function(torch.nn.Module):  # type: ignore[misc]  # PyTorch's classes are untyped here
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            self.owner = owner  # its weights keep their names
            self.train(owner.training)
        self.forward = _forward_of(function)


def _forward_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls ``function``.

    PyTorch records the lines of frames called ``forward`` alone: that of this one is the line where
    ``function`` begins.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = getattr(function, "__code__", None)
    if code is not None:
        named: Any = forward
        at = code.co_firstlineno - 1
        named.__code__ = named.__code__.replace(co_filename=code.co_filename, co_firstlineno=at)
    try:
        inspect.signature(function)
    except ValueError:  # a built-in function without one
        return forward
    return wraps(function)(forward)


def as_module(source: Any) -> tuple[torch.nn.Module, str]:
    """A module that calls ``source``, and its name.

    Raises:
        InputError: it is none, and no function.
    """
    if isinstance(source, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise InputError(
            "a ScriptModule can not be exported by PyTorch; give the module that it was made from"
        )
    if isinstance(source, torch.nn.Module):
        return source, type(source).__name__
    if callable(source):
        return _Function(source), getattr(source, "__name__", type(source).__name__)
    raise InputError(
        f"expected a torch.nn.Module, a function or an ExportedProgram, got {type(source).__name__}"
    )


def check_autocast() -> None:
    """Check that autocast is off: it would choose dtypes anew in each call.

    Raises:
        InputError: it is on.
    """
    if torch._C._is_any_autocast_enabled():
        raise InputError(
            "autocast is on; use it within the module's forward, or convert the module with to()"
        )


def check_gradients(leaves: Sequence[Any]) -> None:
    """Check that no argument asks for a gradient: results have none.

    Raises:
        InputError: one does.
    """
    if torch.is_grad_enabled() and any_requires_gradient(leaves):
        raise InputError(
            "an argument requires a gradient, and a compiled module is for inference: call it "
            "under torch.no_grad(), give it x.detach(), or train with "
            "torch.compile(backend='ostinato')"
        )


def any_requires_gradient(leaves: Iterable[Any]) -> bool:
    """Whether some argument is a tensor that requires a gradient."""
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _checked_arguments(
    args: Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(args, torch.Tensor) or not isinstance(args, tuple | list):
        raise InputError(
            f"args are a tuple of example arguments, got {type(args).__name__}; of one argument: "
            "(x,)"
        )
    return tuple(args), dict(kwargs or {})


def _check_weights(module: torch.nn.Module) -> None:
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise InputError(f"weight {key!r} has no shape yet: run the module once")
        if tensor.is_meta:
            raise InputError(f"weight {key!r} is on the device 'meta': it has no elements; load it")


def _exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: DynamicShapes
) -> ExportedProgram:
    """The exported program.

    PyTorch takes sizes to be at least 2 unless it is asked to make a guard of each such decision.
    It is asked where no bounds are given: a size of 1 is then allowed unless a decision depends on
    it.
    """
    register_caches()
    careful = shapes.given is not None and not shapes.named
    if careful and hasattr(export_config, "backed_size_oblivious"):
        try:
            return _export_once(module, args, kwargs, shapes, backed_size_oblivious=True)
        except (UserError, RuntimeError, ValueError):  # some models need to know
            pass
    return _export_once(module, args, kwargs, shapes)


def _export_once(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
    **config: bool,
) -> ExportedProgram:
    with ExitStack() as stack:
        stack.enter_context(_EXPORTING)
        stack.enter_context(torch.no_grad())
        if config:
            stack.enter_context(export_config.patch(**config))
        try:
            return torch.export.export(
                module, args, kwargs, dynamic_shapes=shapes.given, strict=False
            )
        except UserError as error:
            if shapes.given is None:
                raise
            lines = "".join(f"\n  decided: {line}" for line in deciding_lines(error))
            raise VariableError(f"dynamic_shapes: {error}{lines}") from error
