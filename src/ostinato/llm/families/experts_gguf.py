"""Experts, as the metadata of GGUF files describes them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ModelFormatError
from ostinato.llm.config import Experts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.fields import Fields

__all__ = ["expert_sizes", "feed_forward"]

#: The functions of scores, by the number in the file; 0 stands for that of the architecture.
_SCORES: Final[Mapping[int, str]] = MappingProxyType({0: "", 1: "softmax", 2: "sigmoid"})


def feed_forward(tensors: Mapping[str, Any], layer: int) -> str:
    """The kind of the feed-forward of a layer, by the tensors that it has."""
    return "experts" if f"blk.{layer}.ffn_gate_inp.weight" in tensors else "dense"


def expert_sizes(
    fields: Fields, tensors: Mapping[str, Any], sizes: Mapping[str, Any], **settings: Any
) -> Experts | None:
    """The sizes of experts; ``None`` of a model without.

    Args:
        fields: of the architecture.
        tensors: of the file, by name.
        sizes: of the model.
        settings: of the architecture, instead of those that are read.
    """
    count = fields.size("expert_count", 0, least=0, most=1 << 16)
    chosen = fields.size("expert_used_count", 0, least=0)
    fields.skip("expert_shared_count", "expert_shared_feed_forward_length")
    if not count:
        return None
    if not 1 <= chosen <= count:
        raise fields.error("expert_used_count", f"1 to the {count} experts", chosen)
    shared = _first(tensors, "ffn_gate_shexp.weight")
    scoring = fields.size("expert_gating_func", 0, least=0)
    softmax_chosen = settings.get("softmax_chosen", False)
    if scoring not in _SCORES and not (scoring == 3 and softmax_chosen):
        raise fields.unsupported("expert_gating_func", "only softmax and sigmoid are computed")
    given: dict[str, Any] = {
        "hidden": fields.size("expert_feed_forward_length", sizes["hidden"]),
        "shared_hidden": 0 if shared is None else shared.sizes[0],
        "shared_gate": _first(tensors, "ffn_gate_inp_shexp.weight") is not None,
        "scores": _SCORES.get(scoring) or settings.pop("default_scores", "softmax"),
        "normalized": fields.flag("expert_weights_norm", True),
        "scale": fields.number("expert_weights_scale", 1.0) or 1.0,
        "correction": _first(tensors, "exp_probs_b.bias") is not None,
        "groups": fields.size("expert_group_count", 1, least=0) or 1,
        "chosen_groups": fields.size("expert_group_used_count", 1, least=0) or 1,
        "bias": _first(tensors, "ffn_gate_inp.bias") is not None,
    }
    settings.pop("default_scores", None)
    found = Experts(count=count, chosen=chosen, **{**given, **settings})
    if found.count % found.groups or found.chosen_groups > found.groups:
        raise fields.error("expert_group_count", f"a divisor of {found.count}", found.groups)
    if found.chosen > found.chosen_groups * (found.count // found.groups):
        raise fields.error("expert_used_count", "at most the experts of chosen groups", chosen)
    return found


def _first(tensors: Mapping[str, Any], name: str) -> Any:
    """The tensor of the first layer that has one of this name."""
    found = [tensor for full, tensor in tensors.items() if full.endswith(f".{name}")]
    if found and len(found[0].sizes) not in (1, 2):
        raise ModelFormatError(f"the tensor {found[0].name!r:.80} is no matrix")
    return found[0] if found else None
