"""Converters from ONNX ops to ops of the vocabulary: one converter an op, one file a family."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.frontends.onnx.call import Converter

__all__ = ["FOLDED_BY_CONVERTER", "converters", "find_converter"]

#: Those that most models need come first: a family is imported when none before it has an op.
_FAMILIES = (
    "elementwise",
    "contraction",
    "casts",
    "pooling",
    "activations",
    "shape",
    "reduction",
    "normalization",
    "indexing",
    "creation",
    "attention",
    "resize",
    "recurrent",
    "quantized",
    "packed_weights",
    "control",
    "sequences",
    "losses",
    "sampling",
    "patches",
    "linalg",
    "signal",
    "random",
    "strings",
)

#: The families that have ops of ONNX Runtime's own.
_EXTENDED = (
    "activations",
    "normalization",
    "contrib_attention",
    "contrib_fusions",
    "contrib_weights",
    "contrib_moe",
    "quantized",
    "quantized_extensions",
)

#: By domain, what a family calls its table of converters, and the families that have one.
_TABLES = {
    "": ("CONVERTERS", _FAMILIES),
    "ai.onnx.ml": ("MACHINE_LEARNING", ("ml_features", "ml_models")),
    "ai.onnx.preview.training": ("TRAINING", ("training",)),
    "com.microsoft": ("EXTENSIONS", _EXTENDED),
}

#: Ops on sequences and optionals, whose converters take them apart while the model is loaded.
_SEQUENCES = (
    "ConcatFromSequence",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
)

#: Ops whose converters give known results by themselves, or whose operands are not all they read;
#: and the one that would make weights wide again, which integer kernels read as they are.
FOLDED_BY_CONVERTER = frozenset(
    {
        "Constant",
        "ConstantOfShape",
        "DequantizeLinear",
        "Dropout",
        "Identity",
        "If",
        "Loop",
        "Multinomial",
        "NonZero",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Range",
        "Scan",
        "Shape",
        "Size",
        *_SEQUENCES,
    }
)


def find_converter(domain: str, op_type: str) -> Converter | None:
    """The converter of an op, if there is one."""
    return next((table[op_type] for table in _tables(domain) if op_type in table), None)


def converters(domain: str) -> dict[str, Converter]:
    """Every converter for ops of a domain, by op type."""
    return {op_type: c for table in _tables(domain) for op_type, c in table.items()}


def _tables(domain: str) -> Iterator[Mapping[str, Converter]]:
    name, families = _TABLES.get(domain, ("", ()))
    for family in families:
        yield getattr(import_module(f"{__name__}.{family}"), name)
