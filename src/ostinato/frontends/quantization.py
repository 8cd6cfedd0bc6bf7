"""``ost.quantize``: graphs and models with narrow weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.ir.graph import BaseGraph
from ostinato.passes.quantize import QuantizedGraph, quantize_graph

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["quantize"]


def quantize(
    graph_or_model: Any,
    format: str,
    *,
    group: int = 32,
    min_elements: int = 4096,
    skip: Collection[str] = (),
    **load_options: Any,
) -> QuantizedGraph:
    """Return a new graph in which matmuls read 8-bit, 4-bit or 16-bit weights.

    Every ``matmul`` whose right operand is a param that holds values (or a constant), also through
    transposes, reshapes and casts, becomes a matmul with narrow weights:

    - ``"int8"``: ``quantized_matmul``, a scale per column; params ``NAME.int8`` and ``NAME.scale``;
    - ``"int4"``: ``int4_matmul``, a scale per column and ``group`` rows; params ``NAME.int4`` and
      ``NAME.scale``;
    - ``"float8_e4m3fn"``: ``scaled_matmul`` of ``quantize_rows``, a scale per column and one per
      row of activations; params ``NAME.f8`` and ``NAME.scale``;
    - ``"bfloat16"`` and ``"float16"``: the matmul that it was, of a param ``NAME.bf16`` or
      ``NAME.f16``. Float16 cuts weights off at 65504.

    With the first three, activations are rounded to 8 bits while the graph runs (see
    :mod:`ostinato.ops.quant` and :mod:`ostinato.ops.float8`). A weight that nothing reads any more
    leaves the graph; all other params keep their names and values.

    >>> g = ost.quantize(ost.load_onnx("encoder.onnx"), "int8")
    >>> print(g.quantization())  # what was done, and what was left and why

    Args:
        graph_or_model: a graph, which is not changed, or what ``load_onnx`` takes.
        format: ``"int8"``, ``"int4"``, ``"float8_e4m3fn"``, ``"bfloat16"`` or ``"float16"``.
        group: rows that share a scale in ``"int4"``: 32, 64 or 128.
        min_elements: smaller weights stay as they are.
        skip: names of params, or labels of matmuls, to leave as they are.
        load_options: for ``load_onnx``, where a model is given.

    Raises:
        InputError: no such format or group, or options to load a graph that is loaded.
        OstinatoError: as ``load_onnx``, where a model is given.
    """
    if isinstance(graph_or_model, BaseGraph):
        if load_options:
            raise TypeError(f"a graph takes no {', '.join(load_options)}: it is loaded already")
        graph = graph_or_model
    else:
        from ostinato.frontends.onnx import load_onnx

        graph = load_onnx(graph_or_model, **load_options)
    return quantize_graph(graph, format, group=group, min_elements=min_elements, skip=skip)
