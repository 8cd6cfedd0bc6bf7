"""Fields of ``config.json`` that many families share."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.llm.config import Layer, ModelConfig, Norm, Rope, RopeScaling
from ostinato.llm.families.rope import yarn_magnitude

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.llm.config import Activation
    from ostinato.llm.fields import Fields

__all__ = [
    "ACTIVATIONS",
    "attention_sizes",
    "layer_count",
    "layer_windows",
    "llama_like",
    "rms",
    "rope",
    "rope_parameters",
    "same_windows",
    "used_window",
]

#: By the name in the file.
ACTIVATIONS: Final[Mapping[str, Activation]] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "relu": "relu",
    }
)

_MOST_LAYERS = 4096

_NO_DEFAULTS: Final[Mapping[str, int]] = MappingProxyType({})


def attention_sizes(
    fields: Fields, *, head_dim: int | None = None, defaults: Mapping[str, int] = _NO_DEFAULTS
) -> dict[str, Any]:
    """The sizes of a decoder: arguments of :class:`~ostinato.llm.config.ModelConfig`.

    Args:
        fields: of the file.
        head_dim: of the family where the file has none; ``None``: the width over the heads.
        defaults: other fields of the family that files may lack.
    """

    def size(name: str) -> Any:
        return fields.size(name, defaults[name]) if name in defaults else fields.size(name)

    width, heads = size("hidden_size"), size("num_attention_heads")
    if head_dim is None and width % heads and "head_dim" not in fields:
        raise fields.error("hidden_size", f"a multiple of the {heads} heads", width)
    features = fields.size("head_dim", head_dim or width // heads)
    shared = fields.size("num_key_value_heads", defaults.get("num_key_value_heads", heads))
    if heads % shared:
        raise fields.error("num_key_value_heads", f"a divisor of the {heads} heads", shared)
    return {
        "vocabulary": size("vocab_size"),
        "width": width,
        "heads": heads,
        "kv_heads": shared,
        "head_dim": features,
        "value_dim": features,
        "hidden": size("intermediate_size"),
        "context": size("max_position_embeddings"),
    }


def layer_count(fields: Fields) -> int:
    """The number of layers."""
    count: int = fields.size("num_hidden_layers", most=_MOST_LAYERS)
    return count


def rms(fields: Fields, name: str = "rms_norm_eps", default: float = 1e-6) -> Norm:
    """The norm of a family with RMS norms."""
    return Norm(kind="rms", eps=fields.number(name, default, above=0))


def layer_windows(
    fields: Fields, count: int, window: int | None, sliding: list[bool]
) -> list[int | None]:
    """The window of each layer.

    Args:
        fields: of the file; ``layer_types`` are its own choice of layers.
        count: of layers.
        window: of those that have one.
        sliding: the layers that have one if the file does not say.
    """
    types = fields.words("layer_types", count, ("full_attention", "sliding_attention"))
    if types is not None:
        sliding = [kind == "sliding_attention" for kind in types]
    if window is None and types is not None and any(sliding):
        raise fields.error("layer_types", "of full attention without a window", types)
    return [window if slides else None for slides in sliding]


def same_windows(fields: Fields, count: int, window: int | None) -> list[int | None]:
    """The window of each layer, where all have it unless the file says otherwise."""
    return layer_windows(fields, count, window, [window is not None] * count)


def used_window(fields: Fields) -> int | None:
    """The window of a family whose files say whether there are any."""
    used = fields.flag("use_sliding_window", False)
    window: int | None = fields.size("sliding_window", None) if used else None
    fields.skip("sliding_window")
    return window


def llama_like(
    fields: Fields,
    family: str,
    architecture: str,
    *,
    head_dim: int | None = None,
    rope_base: float = 10000.0,
    rope_partial: float = 1.0,
    windows: Sequence[int | None] | None = None,
    feed_forward: Sequence[str] | None = None,
    **changes: Any,
) -> ModelConfig:
    """A llama with changes.

    Args:
        fields: of the file.
        family, architecture: the names of both.
        head_dim: see :func:`attention_sizes`.
        rope_base, rope_partial: of the family, where the file has none.
        windows: of the layers; by default, none.
        feed_forward: of the layers; by default, dense ones.
        changes: arguments of :class:`~ostinato.llm.config.ModelConfig`.
    """
    sizes, count = attention_sizes(fields, head_dim=head_dim), layer_count(fields)
    turned = rope(fields, sizes["head_dim"], sizes["context"], base=rope_base, partial=rope_partial)
    parts = zip(windows or [None] * count, feed_forward or ["dense"] * count, strict=True)
    settings: dict[str, Any] = {
        "layers": tuple(Layer(feed_forward=part, window=w, rope=turned) for w, part in parts),
        "norm": rms(fields),
    }
    if "activation" not in changes:
        settings["activation"] = fields.one_of("hidden_act", ACTIVATIONS, "silu")
    if "tied" not in changes:
        settings["tied"] = fields.flag("tie_word_embeddings", False)
    given = {**sizes, **settings, **changes}
    return ModelConfig(family=family, architecture=architecture, **given)


def rope_parameters(fields: Fields) -> Fields | None:
    """The fields of the rotary embedding, by either name."""
    own = fields.part("rope_parameters")
    return own if own is not None else fields.part("rope_scaling")


def rope(
    fields: Fields,
    features: int,
    context: int,
    *,
    base: float = 10000.0,
    partial: float = 1.0,
    base_name: str = "rope_theta",
    partial_name: str = "partial_rotary_factor",
    parameters: Fields | None = None,
) -> Rope:
    """The rotary embedding of a model.

    Args:
        fields: of the file.
        features: of a head.
        context: the most tokens of a sequence.
        base, partial: of the family where the file has none.
        base_name, partial_name: their fields in older files.
        parameters: the fields of the embedding; by default, those that the file has for all layers.
    """
    found = rope_parameters(fields) if parameters is None else parameters
    base = fields.number(base_name, base, above=1)
    partial = fields.number(partial_name, partial, above=0)
    fields.skip("original_max_position_embeddings")
    if found is None:
        return Rope(base=base, features=_rotated(fields, features, partial))
    base = found.number("rope_theta", base, above=1)
    partial = found.number("partial_rotary_factor", partial, above=0)
    rotated = _rotated(fields, features, partial)
    found.skip("type" if "rope_type" in found else "")
    kind = found.word("rope_type" if "rope_type" in found else "type", "default")
    scaling = _scaling(fields, found, kind, context, rotated)
    found.finish()
    return Rope(base=base, features=rotated, scaling=scaling)


def _rotated(fields: Fields, features: int, partial: float) -> int:
    rotated = int(features * partial)
    if rotated % 2 or not 0 < rotated <= features:
        raise fields.error("partial_rotary_factor", f"an even part of {features} features", partial)
    return rotated


def _scaling(
    fields: Fields, found: Fields, kind: str, context: int, rotated: int
) -> RopeScaling | None:
    if kind == "default":
        found.skip("factor", "original_max_position_embeddings")
        return None
    above = fields.size("original_max_position_embeddings", context)
    original = found.size("original_max_position_embeddings", above)
    if kind == "linear":
        return RopeScaling(kind="linear", factor=found.number("factor", above=0))
    if kind == "dynamic":
        if rotated < 4:
            raise found.unsupported("rope_type", "it needs 4 rotating features")
        factor = found.number("factor", above=0)
        return RopeScaling(kind="dynamic", factor=factor, original_context=context)
    if kind == "llama3":
        low, high = (found.number(f"{name}_freq_factor", above=0) for name in ("low", "high"))
        if low >= high:
            raise found.error("low_freq_factor", f"below high_freq_factor, {high}", low)
        factor = found.number("factor", above=0)
        return RopeScaling(
            kind="llama3", factor=factor, original_context=original, low=low, high=high
        )
    if kind == "yarn":
        return _yarn(found, context, original)
    if kind in ("longrope", "su"):
        return _longrope(found, context, original, rotated)
    raise found.unsupported(
        "rope_type", "only default, linear, dynamic, llama3, yarn and longrope are computed"
    )


def _yarn(found: Fields, context: int, original: int) -> RopeScaling:
    factor = found.number("factor", context / original, above=0)
    scale, whole = (found.number(name, 0.0) for name in ("mscale", "mscale_all_dim"))
    proposed = yarn_magnitude(factor)
    if scale and whole:
        proposed = yarn_magnitude(factor, scale) / yarn_magnitude(factor, whole)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=original,
        low=found.number("beta_slow", 1.0, above=0),
        high=found.number("beta_fast", 32.0, above=0),
        truncate=found.flag("truncate", True),
        magnitude=found.number("attention_factor", proposed, above=0),
    )


def _longrope(found: Fields, context: int, original: int, rotated: int) -> RopeScaling:
    factor = found.number("factor", context / original, above=0)
    proposed = 1.0
    if factor > 1 and original > 1:
        proposed = math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = (
        found.numbers(f"{name}_factor", count=rotated // 2) for name in ("short", "long")
    )
    for name, divisors in (("short_factor", short), ("long_factor", long)):
        if min(divisors) <= 0:
            raise found.error(name, "a list of positive numbers", min(divisors))
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_context=original,
        magnitude=found.number("attention_factor", proposed, above=0),
        short=short,
        long=long,
    )
