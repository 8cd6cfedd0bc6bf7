"""Models of the architectures with random weights, and their ONNX files."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.peers.hugging_face.architectures import ARCHITECTURES, Architecture

__all__ = ["export"]


class _Positional(torch.nn.Module):
    """A model with positional inputs, and its outputs of floats in a tuple."""

    def __init__(self, model: Any, architecture: Architecture) -> None:
        super().__init__()
        self.model = model
        self.names = [operand.name for operand in architecture.inputs]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=True)
        return tuple(_floats(outputs))


class _WithCache(_Positional):
    """A decoder with positional inputs, the last of which are earlier keys and values."""

    def forward(self, ids: Any, mask: Any, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = transformers.DynamicCache(config=self.model.config)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        outputs = self.model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, return_dict=True
        )
        layers = outputs.past_key_values.layers
        return (outputs.logits, *(kept for layer in layers for kept in (layer.keys, layer.values)))


def _floats(outputs: Any) -> list[torch.Tensor]:
    """The tensors of floats in a model's outputs; those of its parts too."""
    if isinstance(outputs, torch.Tensor):
        return [outputs] if outputs.is_floating_point() else []
    if isinstance(outputs, dict):
        outputs = outputs.values()
    elif not isinstance(outputs, (tuple, list)):
        return []
    return [tensor for output in outputs for tensor in _floats(output)]


def _random_model(architecture: Architecture) -> torch.nn.Module:
    """The architecture's model; its weights are so large that each part matters to the result."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(architecture.model_type, **architecture.config)
    head = getattr(transformers, architecture.head)
    model = head.from_config(config) if architecture.head.startswith("Auto") else head(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(torch.randn_like(parameter) / fan_in**0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    kind = _WithCache if architecture.cached else _Positional
    return kind(model.eval(), architecture)


def export(architecture: Architecture, exporter: str, path: Path) -> None:
    """Write the architecture's ONNX file.

    Args:
        architecture: of the table.
        exporter: one of :data:`~tests.peers.hugging_face.results.EXPORTERS`.
        path: of the file.
    """
    model = _random_model(architecture)
    arrays = architecture.arrays(architecture.exported_sizes)
    tensors = tuple(torch.from_numpy(array) for array in arrays.values())
    axes = {
        operand.name: {axis: dim for axis, dim in enumerate(operand.dims) if isinstance(dim, str)}
        for operand in architecture.inputs
    }
    options: dict[str, Any]
    if exporter == "dynamo":
        shapes = tuple(dict.fromkeys(named, torch.export.Dim.DYNAMIC) for named in axes.values())
        given = (*shapes[:2], shapes[2:]) if architecture.cached else (shapes,)
        options = {"dynamo": True, "dynamic_shapes": given, "external_data": False}
    else:
        options = {"dynamo": False, "dynamic_axes": axes}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, tensors, str(path), input_names=list(axes), **options)


def _reason(error: BaseException) -> str:
    """The first line of the error behind an exporter's own."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0]}"


def main(name: str, exporter: str, path: Path, report: Path) -> None:
    """Export one architecture, or write the reason why it can't be to ``report``."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    try:
        export(ARCHITECTURES[name], exporter, path)
    except Exception as error:
        path.unlink(missing_ok=True)
        report.write_text(_reason(error))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
