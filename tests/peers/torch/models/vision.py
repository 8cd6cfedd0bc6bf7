"""Models of torchvision, whose compiled ops are not needed: they are declared, and never run."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.peers.torch.models.small import randomize

__all__ = ["VISION", "build_vision"]

#: The Makefile's folder for torchvision, outside of the environment: beside a PyTorch without CUDA
#: its import fails, and so would that of transformers, which looks for it.
_FOLDER = Path(sys.prefix) / "vision"

#: By name, the side of its images.
VISION = {
    "alexnet": 96,
    "convnext_tiny": 64,
    "densenet121": 64,
    "efficientnet_b0": 64,
    "efficientnet_v2_s": 64,
    "googlenet": 64,
    "inception_v3": 96,
    "maxvit_t": 224,
    "mnasnet0_5": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_small": 64,
    "regnet_x_400mf": 64,
    "regnet_y_400mf": 64,
    "resnet18": 64,
    "resnext50_32x4d": 64,
    "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64,
    "swin_t": 64,
    "swin_v2_t": 64,
    "vgg11": 64,
    "vit_b_16": 224,
    "wide_resnet50_2": 64,
}

_ROIS = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_GRADIENT = _ROIS.replace("input", "grad", 1)
_MAPPED = _GRADIENT.replace("rois,", "rois, Tensor channel_mapping,")
_ARGMAX = _GRADIENT.replace("rois,", "rois, Tensor argmax,")
_DEFORMED = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask"
)
_BOXES = "Tensor dets, Tensor scores, float iou_threshold"
_OPS = (
    f"nms({_BOXES}) -> Tensor",
    f"qnms({_BOXES}) -> Tensor",
    f"roi_align({_ROIS}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_GRADIENT}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({_ARGMAX}, {_SHAPE}) -> Tensor",
    f"ps_roi_align({_ROIS}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_MAPPED}, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_MAPPED}, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_DEFORMED}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORMED}) -> ({', '.join(['Tensor'] * 5)})",
)


def _declare() -> Any:
    """Declare the ops that torchvision registers at its import, unless they are there."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _OPS:
        name = schema.partition("(")[0]
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    return library


def build_vision(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A model of torchvision and arguments for it."""
    library = _declare()
    sys.path.append(str(_FOLDER))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchvision
    torch.manual_seed(0)
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = torchvision.models.get_model(name, **more).eval()
    model.declared = library  # declarations end with the library
    randomize(model)
    return model, (torch.randn(1, 3, VISION[name], VISION[name]),)
