"""The table of architectures: configurations with tiny sizes, inputs and dynamic axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["ARCHITECTURES", "Architecture", "Input"]

#: Ids of tokens are drawn from these: all vocabularies have them, and they are no special tokens.
_TOKENS = (5, 60)


@dataclass(frozen=True)
class Input:
    """An input of a model.

    Attributes:
        name: of the keyword of the model's ``forward``.
        kind: ``tokens``, ``mask`` (rows end in zeros), ``boxes`` or ``floats``.
        dims: each a number, or the name of a dynamic axis.
    """

    name: str
    kind: str
    dims: tuple[int | str, ...]

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)

    def array(self, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
        """Random contents of these sizes."""
        shape = self.shape(sizes)
        match self.kind:
            case "tokens":
                return rng.integers(*_TOKENS, shape)
            case "mask":
                lengths = rng.integers(max(1, shape[1] // 2), shape[1] + 1, shape[0])
                lengths[0] = shape[1]
                return (np.arange(shape[1]) < lengths[:, None]).astype(np.int64)
            case "boxes":
                corners = rng.integers(0, 50, (2, *shape[:-1], 2))
                return np.concatenate([corners[0], corners[0] + corners[1]], -1)
            case "floats":
                return rng.standard_normal(shape, np.float32)
        raise ValueError(f"no kind of input: {self.kind!r}")


@dataclass(frozen=True)
class Architecture:
    """A model type of the library, in a tiny size.

    Attributes:
        model_type: its name in the library's configurations.
        config: the sizes of its configuration.
        inputs: of its ``forward``.
        sizes: of the dynamic axes: at the export, then in two runs.
        head: the class that makes the model of a configuration.
        cached: whether the last inputs are keys and values, of layer after layer, that the model
            has computed before; with those of this call, they are outputs too.
    """

    model_type: str
    config: Mapping[str, Any]
    inputs: tuple[Input, ...]
    sizes: tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]]
    head: str = "AutoModel"
    cached: bool = False

    @property
    def name(self) -> str:
        """Its name in the table and in the file of results."""
        return f"{self.model_type}-with-cache" if self.cached else self.model_type

    @property
    def exported_sizes(self) -> Mapping[str, int]:
        return self.sizes[0]

    @property
    def run_sizes(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        return self.sizes[1:]

    def arrays(self, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
        """Inputs of these sizes by name."""
        rng = np.random.default_rng(seed)
        return {operand.name: operand.array(sizes, rng) for operand in self.inputs}


_IDS = Input("input_ids", "tokens", ("batch", "length"))
_MASK = Input("attention_mask", "mask", ("batch", "length"))
_TARGET = (
    Input("decoder_input_ids", "tokens", ("batch", "target")),
    Input("decoder_attention_mask", "mask", ("batch", "target")),
)
_TEXT = (_IDS, _MASK)
_LENGTHS = (
    {"batch": 2, "length": 8},
    {"batch": 1, "length": 6},
    {"batch": 3, "length": 13},
)
_TARGETS = (
    {"batch": 2, "length": 8, "target": 5},
    {"batch": 1, "length": 6, "target": 4},
    {"batch": 3, "length": 13, "target": 7},
)
_BATCHES = ({"batch": 2}, {"batch": 1}, {"batch": 3})
_SAMPLES = (
    {"batch": 2, "samples": 800},
    {"batch": 1, "samples": 640},
    {"batch": 3, "samples": 1003},
)
_AREAS = (
    {"batch": 2, "height": 64, "width": 96},
    {"batch": 1, "height": 96, "width": 64},
    {"batch": 3, "height": 128, "width": 96},
)

#: Names that most configurations share.
_BLOCKS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
WORDS = {**_BLOCKS, "vocab_size": 64, "max_position_embeddings": 66}
GROUPED = {**WORDS, "num_key_value_heads": 2}
_PAIR = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}
PATCHES = {**_BLOCKS, "image_size": 32, "patch_size": 8}
_WAVES = {
    **_BLOCKS,
    "vocab_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 3,
}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}


def _encoder(
    model_type: str, config: Mapping[str, Any] = WORDS, head: str = "AutoModel", **more: Any
) -> Architecture:
    return Architecture(model_type, {**config, **more}, _TEXT, _LENGTHS, head)


def decoder(model_type: str, config: Mapping[str, Any] = WORDS, **more: Any) -> Architecture:
    config = {**config, **more, "use_cache": False}
    return Architecture(model_type, config, _TEXT, _LENGTHS, "AutoModelForCausalLM")


def _with_cache(decoder: Architecture, heads: int, head_dim: int = 8) -> Architecture:
    """A decoder that goes on where it was, with its two layers' keys and values."""
    past = tuple(
        Input(f"past_{kind}_{layer}", "floats", ("batch", heads, "past", head_dim))
        for layer in range(2)
        for kind in ("keys", "values")
    )
    sizes = (
        {"batch": 2, "length": 3, "past": 5, "total": 8},
        {"batch": 1, "length": 1, "past": 7, "total": 8},
        {"batch": 3, "length": 2, "past": 9, "total": 11},
    )
    mask = Input("attention_mask", "mask", ("batch", "total"))
    config = {**decoder.config, "use_cache": True}
    inputs = (_IDS, mask, *past)
    return replace(decoder, config=config, inputs=inputs, sizes=sizes, cached=True)


def _sequences(model_type: str, config: Mapping[str, Any] = _PAIR, **more: Any) -> Architecture:
    config = {**config, **more, "use_cache": False}
    return Architecture(model_type, config, (*_TEXT, *_TARGET), _TARGETS, "AutoModelForSeq2SeqLM")


def image(
    model_type: str, config: Mapping[str, Any] = PATCHES, head: str = "AutoModel", **more: Any
) -> Architecture:
    """An architecture whose images have the size of its configuration."""
    config = {**config, **more}
    side = config["image_size"]
    pixels = Input("pixel_values", "floats", ("batch", 3, side, side))
    return Architecture(model_type, config, (pixels,), _BATCHES, head)


def area(
    model_type: str, config: Mapping[str, Any], head: str = "AutoModel", **more: Any
) -> Architecture:
    """An architecture that takes images of any size."""
    pixels = Input("pixel_values", "floats", ("batch", 3, "height", "width"))
    return Architecture(model_type, {**config, **more}, (pixels,), _AREAS, head)


def _speech(model_type: str, **more: Any) -> Architecture:
    waves = Input("input_values", "floats", ("batch", "samples"))
    return Architecture(model_type, {**_WAVES, **more}, (waves,), _SAMPLES)


def text_and_image(model_type: str) -> Architecture:
    config = {
        "text_config": {**WORDS, "projection_dim": 16, "bos_token_id": 1, "eos_token_id": 2},
        "vision_config": {**PATCHES, "projection_dim": 16},
        "projection_dim": 16,
    }
    pixels = Input("pixel_values", "floats", ("batch", 3, 32, 32))
    return Architecture(model_type, config, (_IDS, pixels, _MASK), _LENGTHS)


_GPT2 = decoder("gpt2", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4})
_LLAMA = decoder("llama", GROUPED)
_MISTRAL = decoder("mistral", GROUPED, sliding_window=4)
_GEMMA2 = decoder("gemma2", GROUPED, head_dim=8, sliding_window=4)

ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        # Text: encoders
        _encoder("bert"),
        _encoder("albert", embedding_size=16),
        _encoder("electra", embedding_size=16),
        _encoder(
            "distilbert",
            {
                "vocab_size": 64,
                "dim": 32,
                "n_layers": 2,
                "n_heads": 4,
                "hidden_dim": 48,
                "max_position_embeddings": 64,
            },
        ),
        _encoder(
            "deberta",
            relative_attention=True,
            max_relative_positions=32,
            pos_att_type=["c2p", "p2c"],
            position_biased_input=False,
            type_vocab_size=0,
        ),
        _encoder(
            "deberta-v2",
            relative_attention=True,
            max_relative_positions=32,
            position_buckets=8,
            pos_att_type=["c2p", "p2c"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            position_biased_input=False,
            type_vocab_size=0,
        ),
        _encoder(
            "squeezebert",
            embedding_size=32,
            q_groups=2,
            k_groups=2,
            v_groups=2,
            post_attention_groups=1,
            intermediate_groups=2,
            output_groups=2,
        ),
        _encoder("roberta", type_vocab_size=1),
        _encoder("xlm-roberta", type_vocab_size=1),
        _encoder("camembert", type_vocab_size=1),
        _encoder("mpnet"),
        _encoder(
            "funnel",
            {
                "vocab_size": 64,
                "block_sizes": [1, 1, 1],
                "num_decoder_layers": 1,
                "d_model": 32,
                "n_head": 4,
                "d_head": 8,
                "d_inner": 48,
            },
            "FunnelModel",  # the automatic choice fails without a checkpoint
        ),
        _encoder("longformer", attention_window=4, max_position_embeddings=80),
        _encoder("big_bird"),
        Architecture("fnet", WORDS, (_IDS,), _LENGTHS),
        _encoder("convbert", embedding_size=16, conv_kernel_size=3, head_ratio=2),
        _encoder(
            "mobilebert",
            embedding_size=32,
            intra_bottleneck_size=16,
            num_feedforward_networks=2,
        ),
        _encoder("modernbert", local_attention=8, global_attn_every_n_layers=2, pad_token_id=0),
        _encoder("roformer", embedding_size=32),
        _encoder("rembert", input_embedding_size=16, output_embedding_size=24),
        _encoder("ibert"),
        _encoder(
            "xlnet", {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
        ),
        Architecture(
            "layoutlm",
            {**WORDS, "max_2d_position_embeddings": 128},
            (_IDS, Input("bbox", "boxes", ("batch", "length", 4)), _MASK),
            _LENGTHS,
        ),
        # Text: decoders
        _GPT2,
        _with_cache(_GPT2, 4),
        decoder(
            "gpt_neo",
            {
                "vocab_size": 64,
                "hidden_size": 32,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 1]],
                "window_size": 4,
                "max_position_embeddings": 64,
            },
        ),
        decoder("gpt_neox", rotary_pct=0.5),
        decoder("gptj", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}, rotary_dim=4),
        decoder("opt", ffn_dim=48, word_embed_proj_dim=32),
        decoder("bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
        _LLAMA,
        _with_cache(_LLAMA, 2),
        _MISTRAL,
        _with_cache(_MISTRAL, 2),
        decoder("qwen2", GROUPED),
        decoder("qwen3", GROUPED, head_dim=8),
        decoder("gemma", GROUPED, head_dim=8),
        _GEMMA2,
        _with_cache(_GEMMA2, 2),
        decoder("phi", GROUPED, partial_rotary_factor=0.5),
        decoder("phi3", GROUPED, pad_token_id=0),
        decoder("falcon", num_kv_heads=4, new_decoder_architecture=False),
        decoder(
            "mixtral",
            GROUPED,
            num_local_experts=4,
            num_experts_per_tok=2,
            experts_implementation="batched_mm",
        ),
        # Text: encoders with decoders
        _sequences(
            "t5",
            {
                "vocab_size": 64,
                "d_model": 32,
                "d_kv": 8,
                "d_ff": 48,
                "num_layers": 2,
                "num_heads": 4,
                "relative_attention_num_buckets": 8,
            },
        ),
        _sequences("bart"),
        _sequences("mbart"),
        _sequences("marian", pad_token_id=0, decoder_start_token_id=1),
        _sequences("pegasus"),
        _sequences("m2m_100"),
        _sequences("blenderbot"),
        # Sound
        Architecture(
            "whisper",
            {
                **{key: value for key, value in _PAIR.items() if key != "max_position_embeddings"},
                "num_mel_bins": 8,
                "max_source_positions": 20,
                "max_target_positions": 32,
                "pad_token_id": 0,
                "use_cache": False,
            },
            (Input("input_features", "floats", ("batch", 8, 40)), *_TARGET),
            (
                {"batch": 2, "target": 5},
                {"batch": 1, "target": 4},
                {"batch": 3, "target": 7},
            ),
            "AutoModelForSpeechSeq2Seq",
        ),
        _speech("wav2vec2"),
        _speech("hubert"),
        _speech("wavlm", num_buckets=16, max_bucket_distance=32),
        _speech("sew", squeeze_factor=2),
        _speech("unispeech"),
        Architecture(
            "audio-spectrogram-transformer",
            {
                **_BLOCKS,
                "max_length": 32,
                "num_mel_bins": 16,
                "patch_size": 8,
                "frequency_stride": 4,
                "time_stride": 4,
            },
            (Input("input_values", "floats", ("batch", 32, 16)),),
            _BATCHES,
        ),
        # Images
        image("vit"),
        image("deit"),
        image("beit", use_relative_position_bias=True, use_absolute_position_embeddings=True),
        area("dinov2", PATCHES),
        area(
            "swin",
            {
                "image_size": 32,
                "patch_size": 2,
                "embed_dim": 16,
                "depths": [1, 2],
                "num_heads": [2, 4],
                "window_size": 4,
            },
        ),
        area("convnext", _STAGES),
        area("convnextv2", _STAGES),
        area("resnet", _STAGES, embedding_size=8),
        area("regnet", _STAGES, embedding_size=8, groups_width=4),
        area("mobilenet_v2", {"depth_multiplier": 0.25}),
        area(
            "mobilevit",
            {
                "image_size": 64,
                "hidden_sizes": [16, 24, 32],
                "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
                "num_attention_heads": 4,
            },
        ),
        area(
            "segformer",
            {
                **_STAGES,
                "num_encoder_blocks": 4,
                "num_attention_heads": [1, 2, 2, 4],
                "decoder_hidden_size": 16,
            },
            "AutoModelForSemanticSegmentation",
        ),
        area("poolformer", {**_STAGES, "mlp_ratio": 2.0}),
        area(
            "yolos",
            {**_BLOCKS, "image_size": [64, 64], "patch_size": 8, "num_detection_tokens": 5},
            "AutoModelForObjectDetection",
        ),
        area(
            "detr",
            {
                **{key: value for key, value in _PAIR.items() if key != "vocab_size"},
                "use_timm_backbone": False,
                "use_pretrained_backbone": False,
                "num_queries": 5,
                "backbone": None,
                "backbone_config": {
                    "model_type": "resnet",
                    **_STAGES,
                    "embedding_size": 8,
                    "out_features": ["stage4"],
                },
            },
            "AutoModelForObjectDetection",
        ),
        # Text and images
        text_and_image("clip"),
        text_and_image("blip"),
    )
}
