"""The families of models that are known, those of other packages included."""

from __future__ import annotations

from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.families import (
    decoder,
    dense,
    dense_gguf,
    encoder,
    encoders,
    encoders_gguf,
    mixtures,
    mixtures_gguf,
)
from ostinato.llm.families.family import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["GROUP", "families", "family_of", "gguf_family_of"]

#: The entry points of packages that add families: each is a :class:`Family`.
GROUP = "ostinato.llm.families"

_ROTARY = (".rotary_emb.inv_freq",)


#: Tensors of BERTs' heads that nothing asks for, and of positions.
_BERT_HEADS = (
    "position_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
    "lm_head.bias",
    "lm_head.dense.weight",
    "lm_head.dense.bias",
    "lm_head.layer_norm.weight",
    "lm_head.layer_norm.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
    "cls.predictions.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
)


#: Tensors of the head of a GGUF file that has no classes.
_GGUF_HEADS = ("cls.weight", "cls.bias", "cls.norm.weight")


def _decoder(name: str, *architectures: str, **settings: object) -> Family:
    """A family of decoders whose config is read by the function of its name."""
    chosen: dict[str, object] = {
        "config": getattr(dense, name, None),
        "names": dense.llama_names,
        "shapes": decoder.shapes,
        "hidden": decoder.hidden,
        "logits": decoder.logits,
        "unused": _ROTARY,
        "gguf": (name,),
        "gguf_config": getattr(dense_gguf, name, None),
        "gguf_names": dense_gguf.gguf_names,
        "gguf_unused": ("rope_freqs.weight",),
        **settings,
    }
    return Family(name=name, architectures=architectures, **chosen)  # type: ignore[arg-type]


def _mixture(name: str, *architectures: str, **settings: object) -> Family:
    """A family of decoders with experts, latent or linear attention."""
    chosen: dict[str, object] = {
        "config": getattr(mixtures, name),
        "gguf": (),
        "gguf_config": getattr(mixtures_gguf, name, None),
    }
    return _decoder(name, *architectures, **{**chosen, **settings})


def _encoder(name: str, *architectures: str, **settings: object) -> Family:
    """A family of encoders, most of them BERTs, whose functions have names that begin with its."""
    chosen: dict[str, object] = {
        "config": getattr(encoders, name),
        "names": getattr(encoders, f"{name}_names", None),
        "shapes": encoder.shapes,
        "hidden": encoder.hidden,
        "logits": encoder.logits,
        "prefix": "",
        "embedding": "embeddings.word_embeddings.weight",
        "unused": _BERT_HEADS,
        "gguf": (name.replace("_", "-"),),
        "gguf_config": getattr(encoders_gguf, name, None),
        "gguf_names": getattr(encoders_gguf, f"{name}_gguf_names", None),
        "gguf_unused": _GGUF_HEADS,
        **settings,
    }
    return Family(name=name, architectures=architectures, **chosen)  # type: ignore[arg-type]


_BUILT_IN: tuple[Family, ...] = (
    _decoder("llama", "LlamaForCausalLM", "llama", gguf_names=dense_gguf.paired_names),
    _decoder("mistral", "MistralForCausalLM", "mistral", gguf=(), gguf_written="llama"),
    _decoder("qwen2", "Qwen2ForCausalLM", "qwen2"),
    _decoder("qwen3", "Qwen3ForCausalLM", "qwen3"),
    _decoder("gemma2", "Gemma2ForCausalLM", "gemma2", names=dense.gemma_names),
    _decoder(
        "gemma3",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "gemma3_text",
        names=dense.gemma_names,
    ),
    _decoder(
        "phi3",
        "Phi3ForCausalLM",
        "phi3",
        names=dense.phi3_names,
        gguf_names=dense_gguf.joint_names,
        gguf_unused=("rope_factors_short.weight", "rope_factors_long.weight"),
    ),
    _decoder(
        "gpt2",
        "GPT2LMHeadModel",
        "gpt2",
        names=dense.gpt2_names,
        prefix="transformer.",
        embedding="wte.weight",
        unused=(".attn.bias", ".attn.masked_bias"),
        gguf_names=dense_gguf.neox_names,
    ),
    _decoder(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "gpt_neox",
        names=dense.gpt_neox_names,
        prefix="gpt_neox.",
        embedding="embed_in.weight",
        unused=(".attention.bias", ".attention.masked_bias", *_ROTARY),
        gguf=("gptneox",),
        gguf_names=dense_gguf.neox_names,
    ),
    _decoder("olmo2", "Olmo2ForCausalLM", "olmo2", names=dense.olmo2_names),
    _decoder("granite", "GraniteForCausalLM", "granite", gguf_names=dense_gguf.paired_names),
    _decoder("smollm3", "SmolLM3ForCausalLM", "smollm3", gguf_names=dense_gguf.paired_names),
    _mixture(
        "mixtral",
        "MixtralForCausalLM",
        "mixtral",
        names=mixtures.mixtral_names,
        gguf_written="llama",
    ),
    _mixture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        names=mixtures.qwen3_moe_names,
        gguf=("qwen3moe",),
    ),
    _mixture(
        "gpt_oss",
        "GptOssForCausalLM",
        "gpt_oss",
        names=mixtures.gpt_oss_names,
        gguf=("gpt-oss",),
        gguf_names=mixtures_gguf.gpt_oss_names,
    ),
    _mixture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        names=mixtures.deepseek_names,
        gguf=("deepseek2",),
        gguf_names=mixtures_gguf.deepseek_names,
    ),
    _mixture(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        "qwen3_next",
        names=mixtures.qwen3_next_names,
        gguf=("qwen3next",),
        gguf_names=mixtures_gguf.qwen3_next_names,
    ),
    _encoder(
        "bert",
        "BertModel",
        "BertForMaskedLM",
        "BertForSequenceClassification",
        "bert",
    ),
    _encoder(
        "xlm_roberta",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "xlm-roberta",
        "roberta",
        names=encoders.roberta_names,
        gguf=(),
        gguf_written="bert",
    ),
    _encoder(
        "nomic_bert",
        "NomicBertModel",
        "NomicBertForMaskedLM",
        "NomicBertForSequenceClassification",
        "nomic_bert",
    ),
    _encoder("jina_bert_v2", "JinaBertModel", "JinaBertForMaskedLM"),
    _encoder(
        "modernbert",
        "ModernBertModel",
        "ModernBertForMaskedLM",
        "ModernBertForSequenceClassification",
        "modernbert",
        embedding="embeddings.tok_embeddings.weight",
        unused=("head.dense.weight", "head.norm.weight", "decoder.weight", "decoder.bias"),
        gguf=("modern-bert",),
    ),
)


def families() -> Mapping[str, Family]:
    """All families by name; those of other packages come before ours of the same name.

    Raises:
        InputError: an entry point is no family.
    """
    found = {family.name: family for family in _BUILT_IN}
    for point in entry_points(group=GROUP):
        family = point.load()
        if not isinstance(family, Family):
            raise InputError(f"the entry point {point.value!r} of {GROUP} is no Family")
        found[family.name] = family
    return MappingProxyType(found)


def family_of(architecture: str, source: str) -> Family:
    """The family of an architecture, as ``config.json`` names it.

    Args:
        architecture: the name.
        source: the file, for messages.

    Raises:
        ModelFormatError: it is not known.
    """
    known = [*families().values()]
    for family in reversed(known):
        if architecture in family.architectures:
            return family
    raise _unknown(architecture, source, (family.architectures[0] for family in known))


def gguf_family_of(architecture: str, source: str) -> Family:
    """The family of an architecture, as ``general.architecture`` of a GGUF file names it.

    Args:
        architecture: the name.
        source: the file, for messages.

    Raises:
        ModelFormatError: it is not known.
    """
    known = [*families().values()]
    for family in reversed(known):
        if architecture in family.gguf:
            return family
    raise _unknown(architecture, source, (name for family in known for name in family.gguf))


def _unknown(architecture: str, source: str, known: Iterable[str]) -> ModelFormatError:
    return ModelFormatError(
        f"{source!r} has the architecture {architecture!r:.80}, which is not known; known are "
        f"{', '.join(sorted({*known}))}"
    )
