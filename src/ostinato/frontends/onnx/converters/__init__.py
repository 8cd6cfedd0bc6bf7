"""How each ONNX op becomes ops of the vocabulary: one converter an op, one file a family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.frontends.onnx.converters import (
    activations,
    attention,
    contraction,
    control,
    creation,
    elementwise,
    indexing,
    normalization,
    recurrent,
    reduction,
    resize,
    shape,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Converter

__all__ = ["CONVERTERS", "FOLDED_BY_CONVERTER", "find_converter"]

_STANDARD: dict[str, Converter] = {
    **activations.CONVERTERS,
    **attention.CONVERTERS,
    **contraction.CONVERTERS,
    **control.CONVERTERS,
    **creation.CONVERTERS,
    **elementwise.CONVERTERS,
    **indexing.CONVERTERS,
    **normalization.CONVERTERS,
    **recurrent.CONVERTERS,
    **reduction.CONVERTERS,
    **resize.CONVERTERS,
    **shape.CONVERTERS,
}

#: By domain and op type. ``SimplifiedLayerNormalization`` is in the default domain by accident:
#: ONNX Runtime's optimizer puts it there.
CONVERTERS: Mapping[str, Mapping[str, Converter]] = {
    "": {**_STANDARD, **normalization.MISPLACED},
    "com.microsoft": {**activations.EXTENSIONS, **normalization.EXTENSIONS},
}

#: Ops whose converters give known results by themselves, or whose operands are not all they read.
FOLDED_BY_CONVERTER = frozenset(
    {"Constant", "ConstantOfShape", "Identity", "If", "NonZero", "Range", "Shape", "Size"}
)


def find_converter(domain: str, op_type: str) -> Converter | None:
    """The converter of an op, if there is one."""
    return CONVERTERS.get(domain, {}).get(op_type)
