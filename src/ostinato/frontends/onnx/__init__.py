"""The ONNX front end: :func:`load_onnx`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.errors import UnsupportedOpError
from ostinato.frontends.onnx.remembered import remembered_model
from ostinato.frontends.onnx.specialization import ModelSpecialization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.file_tensors import PartedFile
    from ostinato.frontends.onnx.reading import ModelReader
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
    """Import an ONNX model (operator sets 1 to 29).

    Inputs and outputs keep their names. Weights become params that hold the model's values;
    scalars and small integer tensors become constants. What depends on stored tensors alone is
    computed while loading (up to a million elements): a weight that the model rearranges before
    use becomes a param of the rearranged tensor's name. Shape computations are followed too, so
    none of them is left in the graph. An ``If`` whose condition is known takes its branch; of one
    that depends on data, a run takes one, and both must give the same types. A ``Loop`` is unrolled
    only where it must be: its values change their shapes, or sizes follow from the iteration.

    >>> g = ost.load_onnx("encoder.onnx", dims={"batch": 8, "sequence": (1, 128)})

    Args:
        source: a path, the bytes of a model, or an ``onnx.ModelProto``.
        dims: the sizes of dynamic dims, by the model's name of the dim (``{"batch": 8}``) or by
            input (``{"x": (8, 3, 224, 224)}``, ``{"x": {0: 8}}``). A size is an int, a pair of
            bounds ``(1, 128)``, or an ``ost.Variable``. A dynamic dim without a size is open: it
            becomes a Variable of its name, and a run may bring any size. Where a node needs a
            number, the graph is built for the sizes that a run brings, when it brings them. A
            sequence takes a list of shapes, and its tensors become inputs ``x[0]``, ``x[1]``, …; an
            optional is empty with ``None``.
        constants: inputs to fix at a value, by name (``{"sampling_rate": 16000}``): they vanish
            from the graph, and whatever depends on them alone is computed while loading. A sequence
            is a list of arrays, an empty optional ``None``.
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

    def open_reader(parted: PartedFile | None = None) -> ModelReader:
        from ostinato.frontends.onnx.reading import ModelReader

        return ModelReader(
            source,
            dims=dims,
            constants=constants or {},
            name=name,
            base_dir=base_dir,
            parted=parted,
        )

    model = remembered_model(source, dims, constants, name, base_dir, open_reader)
    if model is not None and (known := model.graph()) is not None:
        return known
    from ostinato.frontends.onnx.symbolic import import_model

    reader = open_reader() if model is None else model.reader()
    imported = import_model(reader)
    graph = imported.graph
    if reader.strings:
        raise UnsupportedOpError(
            f"outputs {list(reader.strings)} hold strings, which no graph gives; ONNX's backend "
            "interface, ostinato.frontends.onnx.backend, returns them"
        )
    if graph.variables or imported.contents:
        graph.specialization = ModelSpecialization(
            lambda: reader,
            model,
            imported.reasons,
            imported.contents,
            reader.open,
            reader.words,
            reader.conditions,
        )
    if model is not None and reader.self_contained:
        model.keep(graph)
    return graph
