"""Reading of ``.pt2`` files, as ``torch.export.save`` writes them, without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.errors import ModelFormatError, OstinatoError, VariableError
from ostinato.frontends.torch.assembly import build_graph
from ostinato.frontends.torch.program import TensorMeta
from ostinato.frontends.torch.pt2.reading import read_program
from ostinato.variables import Expr, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.frontends.torch.program import Program
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["load_pt2"]


def load_pt2(
    source: Any, *, dims: Mapping[str, Any] | None = None, name: str | None = None
) -> Graph:
    """Import a program that ``torch.export.save`` has written; PyTorch is not needed.

    Inputs, outputs, states and weights are named as :func:`ostinato.from_torch` names them. Nothing
    in the file is unpickled.

    >>> g = ost.load_pt2("encoder.pt2", dims={"input_ids": {1: (1, 128)}})

    Args:
        source: a path, or the bytes of a file.
        dims: the sizes of dynamic dims, by input (``{"x": {0: 8}}``, ``{"x": (8, 3, 224, 224)}``).
            A size is an int, a pair of bounds, or an ``ost.Variable``. A dynamic dim without a size
            becomes a Variable with the bounds of the export.
        name: the graph's name; by default the file's.

    Raises:
        ModelFormatError: the file is damaged, hostile, or newer than this version.
        UnsupportedOpError: lists every node that has no equivalent, and why.
        VariableError: ``dims`` names no input or dynamic dim, or contradicts the export.
        OSError: the file cannot be read.
    """
    program = read_program(source)
    if name is None:
        in_memory = isinstance(source, bytes | bytearray | memoryview)
        name = "pt2" if in_memory else Path(source).stem
    given = _given_dims(program, dims or {})
    try:
        return build_graph(program, name, given)
    except OstinatoError:
        raise
    except Exception as error:  # whatever a converter did not foresee, the file is to blame
        raise ModelFormatError(f"{program.name} is malformed: {error!r}") from error


def _given_dims(program: Program, given: Mapping[str, Any]) -> dict[str, Dim]:
    """The caller's sizes, by symbol of the program."""
    metas = {spec.target: spec.meta for spec in program.users()}
    found: dict[str, Dim] = {}
    for target, sizes in given.items():
        meta = metas.get(target)
        if not isinstance(meta, TensorMeta):
            known = sorted(name for name, m in metas.items() if isinstance(m, TensorMeta))
            raise VariableError(
                f"dims: the program has no input {target!r}; its inputs are {known}"
            )
        for axis, size in _per_axis(target, sizes, len(meta.shape)):
            symbol, where = meta.shape[axis], f"dims: axis {axis} of {target!r}"
            if isinstance(symbol, int):
                if size != symbol:
                    raise VariableError(f"{where} is {symbol} in the export, got {size!r}")
                continue
            if not symbol.isidentifier():
                raise VariableError(f"{where} is {symbol} in the export: it follows from others")
            dim = _dim(where, f"{target}_dim{axis}", size)
            if found.setdefault(symbol, dim) != dim:
                raise VariableError(f"{where} equals another dim, which is {found[symbol]}")
    return found


def _per_axis(target: str, sizes: Any, rank: int) -> Iterator[tuple[int, Any]]:
    listed = sizes.items() if isinstance(sizes, Mapping) else enumerate(sizes)
    if not isinstance(sizes, Mapping) and len(sizes) != rank:
        raise VariableError(f"dims: {target!r} has {rank} dims, got {len(sizes)} sizes")
    for axis, size in listed:
        if not isinstance(axis, int) or not 0 <= axis < rank:
            raise VariableError(f"dims: {target!r} has {rank} dims, none of them is {axis!r}")
        if size is not None:
            yield axis, size


def _dim(where: str, name: str, size: Any) -> Dim:
    if isinstance(size, Expr) or (isinstance(size, int) and not isinstance(size, bool)):
        return size
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(n, int) for n in size):
        return Variable(name, *size)
    raise VariableError(f"{where}: a size is an int, a pair of bounds or a Variable, got {size!r}")
