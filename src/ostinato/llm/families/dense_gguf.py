"""Families of dense decoders, as the metadata of GGUF files describes them."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ModelFormatError
from ostinato.llm.config import Layer, ModelConfig, Norm, Rope, RopeScaling
from ostinato.llm.families.decoder import shapes
from ostinato.llm.families.experts_gguf import expert_sizes, feed_forward
from ostinato.llm.families.naming import (
    changed,
    interleaved_rows,
    join_gate_up,
    join_qkv,
    named,
    take_rows,
)
from ostinato.llm.families.rope import yarn_magnitude
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.fields import Fields
    from ostinato.llm.weights import Stored

__all__ = [
    "block_names",
    "gemma2",
    "gemma3",
    "gguf_names",
    "gpt2",
    "gpt_neox",
    "granite",
    "joint_names",
    "layer_count",
    "llama",
    "neox_names",
    "olmo2",
    "paired_names",
    "phi3",
    "plain",
    "qwen2",
    "qwen3",
    "rms_norm",
    "rope",
    "sizes",
    "smollm3",
    "windows_of",
]

_MOST_LAYERS = 4096

_SCALINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"none": "none", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}
)

#: Tensors of divisors of frequencies.
_FACTORS, _SHORT, _LONG = (
    "rope_freqs.weight",
    "rope_factors_short.weight",
    "rope_factors_long.weight",
)


def sizes(fields: Fields, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a decoder: arguments of :class:`ModelConfig`.

    Args:
        fields: of the architecture.
        tensors: of the file, by name.
    """
    width, heads = fields.size("embedding_length"), fields.size("attention.head_count")
    shared = fields.size("attention.head_count_kv", heads)
    if heads % shared:
        raise fields.error("attention.head_count_kv", f"a divisor of the {heads} heads", shared)
    if "attention.key_length" not in fields and width % heads:
        raise fields.error("embedding_length", f"a multiple of the {heads} heads", width)
    features = fields.size("attention.key_length", width // heads)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.sizes) != 2 or not embedding.sizes[0]:
        raise ModelFormatError("the file lacks a matrix 'token_embd.weight'")
    return {
        "vocabulary": embedding.sizes[0],
        "width": width,
        "heads": heads,
        "kv_heads": shared,
        "head_dim": features,
        "value_dim": fields.size("attention.value_length", features),
        "hidden": fields.size("feed_forward_length"),
        "context": fields.size("context_length"),
        "tied": "output.weight" not in tensors,
    }


def rope(
    fields: Fields, found: Mapping[str, Any], tensors: Mapping[str, Any], *, scaled: bool = True
) -> Rope:
    """The rotary embedding of a model.

    Args:
        fields: of the architecture.
        found: its sizes.
        tensors: of the file, by name.
        scaled: whether scalings are applied.
    """
    features = fields.size("rope.dimension_count", found["head_dim"])
    if features % 2 or features > found["head_dim"]:
        raise fields.error("rope.dimension_count", "an even part of a head", features)
    base = fields.number("rope.freq_base", 10000.0, above=1)
    scaling = _scaling(fields, found["context"], features, tensors)
    return Rope(base=base, features=features, scaling=scaling if scaled else None)


def _scaling(
    fields: Fields, context: int, features: int, tensors: Mapping[str, Any]
) -> RopeScaling | None:
    kind = fields.one_of("rope.scaling.type", _SCALINGS, "none")
    factor = fields.number("rope.scaling.factor", 1.0, above=0)
    original = fields.size("rope.scaling.original_context_length", context)
    attention = fields.number("rope.scaling.attn_factor", 1.0, above=0)
    fields.skip("rope.scale_linear")
    if _SHORT in tensors and _LONG in tensors:
        short, long = (_divisors(tensors[name], features) for name in (_SHORT, _LONG))
        return RopeScaling(
            kind="longrope",
            factor=factor,
            original_context=original,
            magnitude=attention,
            short=short,
            long=long,
        )
    if _FACTORS in tensors:
        return RopeScaling(kind="factors", short=_divisors(tensors[_FACTORS], features))
    if kind == "longrope":
        raise fields.unsupported("rope.scaling.type", f"{_SHORT} and {_LONG} are missing")
    if kind == "linear" and factor != 1:
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_context=original,
            low=fields.number("rope.scaling.yarn_beta_slow", 1.0, above=0),
            high=fields.number("rope.scaling.yarn_beta_fast", 32.0, above=0),
            magnitude=attention * yarn_magnitude(factor),
        )
    return None


def _divisors(tensor: Any, features: int) -> tuple[float, ...]:
    """The divisors of the frequencies, which a tensor has."""
    if tensor.sizes != (features // 2,) or tensor.nbytes != 2 * features:
        raise ModelFormatError(
            f"the tensor {tensor.name!r:.80} has the shape {tensor.sizes}, expected float32 "
            f"({features // 2},)"
        )
    found: tuple[float, ...] = tuple(tensor.read().tolist())
    if not all(0 < divisor < 1e30 for divisor in found):
        raise ModelFormatError(f"the tensor {tensor.name!r:.80} has divisors that are not positive")
    return found


def rms_norm(fields: Fields) -> Norm:
    """The norm of most architectures."""
    return Norm(kind="rms", eps=fields.number("attention.layer_norm_rms_epsilon", above=0))


def _layer_norm(fields: Fields) -> Norm:
    eps = fields.number("attention.layer_norm_epsilon", above=0)
    return Norm(kind="layer", eps=eps, bias=True)


def windows_of(fields: Fields, count: int, window: int, every: int) -> list[int | None]:
    """The window of each layer: of all but every so many, or as the file lists them."""
    name = "attention.sliding_window_pattern"
    sliding = fields.flags(name, count)
    if sliding is None:
        every = fields.size(name, every)
        sliding = [(i + 1) % every != 0 for i in range(count)]
    return [window if slides else None for slides in sliding]


def layer_count(fields: Fields) -> int:
    """The number of layers."""
    count: int = fields.size("block_count", most=_MOST_LAYERS)
    return count


def _has(tensors: Mapping[str, Any], name: str) -> bool:
    """Whether the first layer has a tensor."""
    return f"blk.0.{name}" in tensors


def plain(
    fields: Fields, family: str, architecture: str, tensors: Mapping[str, Any], **changes: Any
) -> ModelConfig:
    """A llama with changes, the arguments of :class:`ModelConfig`."""
    found = sizes(fields, tensors)
    experts = expert_sizes(fields, tensors, found)
    count = layer_count(fields)
    windows = changes.pop("windows", None)
    if windows is None:
        windows = [fields.size("attention.sliding_window", None)] * count
    turned = rope(fields, found, tensors)
    settings: dict[str, Any] = {
        "layers": tuple(
            Layer(feed_forward=feed_forward(tensors, i), window=window, rope=turned)
            for i, window in enumerate(windows)
        ),
        "norm": rms_norm(fields),
        "experts": experts,
        "attention_bias": _has(tensors, "attn_q.bias"),
        "output_bias": _has(tensors, "attn_output.bias"),
        "hidden_bias": _has(tensors, "ffn_down.bias"),
    }
    given = {**found, **settings, **changes}
    return ModelConfig(family=family, architecture=architecture, **given)


def llama(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Llama, and Mistral."""
    return plain(fields, "llama", architecture, tensors)


def qwen2(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Qwen2."""
    return plain(fields, "qwen2", architecture, tensors)


def qwen3(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Qwen3."""
    return plain(fields, "qwen3", architecture, tensors, head_norm="each")


def smollm3(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """SmolLM3, with no rotary embedding in every fourth layer."""
    config = plain(fields, "smollm3", architecture, tensors)
    layers = tuple(
        replace(layer, rope=None) if (i + 1) % 4 == 0 else layer
        for i, layer in enumerate(config.layers)
    )
    return replace(config, layers=layers)


def granite(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Granite."""
    return plain(
        fields,
        "granite",
        architecture,
        tensors,
        attention_scale=fields.number("attention.scale", None),
        embedding_scale=fields.number("embedding_scale", 1.0),
        residual_scale=fields.number("residual_scale", 1.0),
        logit_scale=1 / fields.number("logit_scale", 1.0, above=0),
    )


def olmo2(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """OLMo 2."""
    return plain(
        fields,
        "olmo2",
        architecture,
        tensors,
        pre_norm=False,
        post_norm=True,
        head_norm="all",
    )


def phi3(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Phi-3."""
    return plain(fields, "phi3", architecture, tensors)


def gemma2(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Gemma 2; the largest model has another factor of its scores."""
    count, window = layer_count(fields), fields.size("attention.sliding_window", 4096)
    found = sizes(fields, tensors)
    scalar = found["width"] / found["heads"] if count == 46 else found["head_dim"]
    return plain(
        fields,
        "gemma2",
        architecture,
        tensors,
        windows=windows_of(fields, count, window, 2),
        post_norm=True,
        activation="gelu_tanh",
        attention_scale=scalar**-0.5,
        attention_softcap=fields.number("attn_logit_softcapping", 50.0, above=0),
        logit_softcap=fields.number("final_logit_softcapping", 30.0, above=0),
        embedding_scale=float(found["width"]) ** 0.5,
    )


def gemma3(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Gemma 3; the largest model has another factor of its scores."""
    count, window = layer_count(fields), fields.size("attention.sliding_window", 1024)
    found = sizes(fields, tensors)
    scalar = found["width"] / found["heads"] if count == 62 else found["head_dim"]
    local = rope(fields, found, tensors, scaled=False)
    local = replace(local, base=fields.number("rope.freq_base_swa", 10000.0, above=1))
    config = plain(
        fields,
        "gemma3",
        architecture,
        tensors,
        windows=windows_of(fields, count, window, 6),
        post_norm=True,
        head_norm="each",
        activation="gelu_tanh",
        attention_scale=scalar**-0.5,
        attention_softcap=fields.number("attn_logit_softcapping", None, above=0),
        logit_softcap=fields.number("final_logit_softcapping", None, above=0),
        embedding_scale=float(found["width"]) ** 0.5,
    )
    layers = tuple(
        layer if layer.window is None else replace(layer, rope=local) for layer in config.layers
    )
    return replace(config, layers=layers)


def gpt2(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """GPT-2."""
    found = sizes(fields, tensors)
    return ModelConfig(
        family="gpt2",
        architecture=architecture,
        **found,
        attention_bias=True,
        output_bias=True,
        hidden_bias=True,
        layers=(Layer(),) * layer_count(fields),
        positions=found["context"],
        norm=_layer_norm(fields),
        activation="gelu_tanh",
        gated=False,
    )


def gpt_neox(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """GPT-NeoX."""
    found = sizes(fields, tensors)
    return ModelConfig(
        family="gpt_neox",
        architecture=architecture,
        **found,
        layers=(Layer(rope=rope(fields, found, tensors)),) * layer_count(fields),
        norm=_layer_norm(fields),
        parallel=fields.flag("use_parallel_residual", True),
        activation="gelu",
        gated=False,
        attention_bias=_has(tensors, "attn_qkv.bias"),
        output_bias=_has(tensors, "attn_output.bias"),
        hidden_bias=_has(tensors, "ffn_down.bias"),
    )


# -- names of weights ------------------------------------------------------------------------------

_OUTER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "embedding": "token_embd",
        "positions": "position_embd",
        "norm": "output_norm",
        "head": "output",
    }
)

_INNER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mixer_norm": "attn_norm",
        "mixer_post_norm": "post_attention_norm",
        "hidden_norm": "ffn_norm",
        "hidden_post_norm": "post_ffw_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "sinks": "attn_sinks.weight",
        "router": "ffn_gate_inp",
        "correction": "exp_probs_b.bias",
        "shared_gate": "ffn_gate_inp_shexp",
        **{f"experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
        **{f"shared.{part}": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    }
)

_JOINT: Final[Mapping[str, str]] = MappingProxyType({**_INNER, "q": "attn_qkv", "gate": "ffn_up"})


def gguf_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of most architectures."""
    return block_names(config, {})


def block_names(config: ModelConfig, inner: Mapping[str, str]) -> dict[str, Stored]:
    """The names of most architectures, with others for some parts of layers."""
    places = named(shapes(config), _OUTER, {**_INNER, **inner}, "blk.{}.")
    parts = [f"experts.{part}" for part in ("gate", "up", "down")]
    stacks = partial(replace, transposed=True, summed=-2)
    changed(places, len(config.layers), parts, stacks, kinds=("weight",))
    return places


def paired_names(config: ModelConfig) -> dict[str, Stored]:
    """The same, with rows of queries and keys so that rotating pairs are neighbours."""
    places = gguf_names(config)
    layers = len(config.layers)
    for part, heads in (("q", config.heads), ("k", config.kv_heads)):
        take_rows(places, layers, part, interleaved_rows(heads, config.head_dim))
    return places


def joint_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Phi-3, with joint matrices."""
    places = neox_names(config)
    join_gate_up(places, config)
    return places


def neox_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of GPT-NeoX and GPT-2, with queries, keys and values in one matrix."""
    places = named(shapes(config), _OUTER, _JOINT, "blk.{}.")
    join_qkv(places, config)
    return places
