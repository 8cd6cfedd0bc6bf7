"""The ONNX front end: :func:`load_onnx`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.errors import UnsupportedOpError
from ostinato.frontends.onnx.remembered import remembered_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ops.builder import Graph

__all__ = ["load_onnx"]


def load_onnx(
    source: Any,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str | None = None,
    base_dir: Any = None,
) -> Graph:
    """Import an ONNX model (operator sets 1 to 28).

    Inputs and outputs keep their names. Weights become params that hold the model's values;
    scalars and small integer tensors become constants. What depends on stored tensors alone is
    computed while loading (up to a million elements): a weight that the model rearranges before
    use becomes a param of the rearranged tensor's name. Shape computations are followed too, so
    none of them is left in the graph. An ``If`` whose condition is known takes its branch; one
    that depends on data runs both branches, which must give the same types, and chooses.

    >>> g = ost.load_onnx("encoder.onnx", dims={"batch": 8, "sequence": (1, 128)})

    Args:
        source: a path, the bytes of a model, or an ``onnx.ModelProto``.
        dims: the sizes of dynamic dims, by the model's name of the dim (``{"batch": 8}``) or by
            input (``{"x": (8, 3, 224, 224)}``, ``{"x": {0: 8}}``). A size is an int, a pair of
            bounds ``(1, 128)``, or an ``ost.Variable``. A dynamic dim without a size becomes a
            Variable of its name, bounded by 1 and 512.
        constants: inputs to fix at a value, by name (``{"sampling_rate": 16000}``): they vanish
            from the graph, and whatever depends on them alone is computed while loading.
        name: the graph's name; by default the file's or the model's.
        base_dir: where the model's external data lies, when ``source`` is not a path.

    A file that was loaded before with the same arguments, by any process with the same cache, is
    not parsed again: the cache has the graph's identity, and the nodes are built when they are
    first read. Compiling reads them only if this graph was not compiled before.

    Raises:
        ModelFormatError: the file is damaged, hostile, or newer than this version.
        UnsupportedOpError: lists every node that has no equivalent, and why.
        GraphError: the sizes do not fit a node; it is named.
        VariableError: ``dims`` names what the model does not have, or contradicts it.
        InputError: ``constants`` names no input, or a value does not fit it.
    """
    model = remembered_model(source, dims, constants, name, base_dir)
    if model is not None and (known := model.graph()) is not None:
        return known
    from ostinato.frontends.onnx.reading import read_model

    read = read_model(
        source,
        dims=dims,
        constants=constants or {},
        name=name,
        base_dir=base_dir,
        parted=None if model is None else model.file,
    )
    if read.strings:
        raise UnsupportedOpError(
            f"outputs {list(read.strings)} hold strings, which no graph gives; ONNX's backend "
            "interface, ostinato.frontends.onnx.backend, returns them"
        )
    if model is not None and not read.source.external.used:
        model.keep(read.graph)
    return read.graph
