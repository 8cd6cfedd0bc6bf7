"""The configuration of a language model: one record, whatever file it was read from."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ostinato.records import dataclass

__all__ = [
    "Activation",
    "Experts",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "ModelConfig",
    "Norm",
    "Pooling",
    "Rope",
    "RopeScaling",
]

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu", "swiglu_limited"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """A change of the frequencies of a rotary embedding, for contexts beyond those of training.

    Attributes:
        kind: ``linear`` divides all frequencies by ``factor``. ``dynamic`` raises the base with
            the context. ``llama3`` and ``yarn`` divide the low frequencies and leave the high ones.
            ``longrope`` and ``factors`` divide each frequency by a number of its own.
        factor: of the extension.
        original_context: tokens of a sequence in training.
        low, high: ``llama3``: wavelengths above ``original_context / low`` are stretched, those
            below ``original_context / high`` are not. ``yarn``: the same as numbers of rotations.
        truncate: ``yarn``: round the bounds of the ramp to whole pairs.
        magnitude: the factor of cosines and sines.
        short, long: divisors of the frequencies: ``longrope`` takes ``long`` in contexts beyond
            ``original_context``, else ``short``; ``factors`` takes ``short``.
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope", "factors"]
    factor: float = 1.0
    original_context: int = 0
    low: float = 1.0
    high: float = 1.0
    truncate: bool = True
    magnitude: float = 1.0
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rope:
    """A rotary position embedding.

    Attributes:
        base: of the wavelengths.
        features: how many features of a head rotate, an even number.
        interleaved: pairs are neighbours ``(2 i, 2 i + 1)``, not ``(i, i + features / 2)``.
        scaling: of the frequencies, if any.
    """

    base: float
    features: int
    interleaved: bool = False
    scaling: RopeScaling | None = None


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalisation of rows.

    Attributes:
        kind: ``rms`` divides by the root mean square, ``layer`` subtracts the mean before.
        eps: added to the mean square.
        bias: whether a bias is added.
    """

    kind: Literal["rms", "layer"]
    eps: float
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The parts of a layer that may differ from those of its neighbours.

    Attributes:
        mixer: the part that combines tokens, by its name in
            :data:`ostinato.llm.families.parts.MIXERS`.
        feed_forward: the part that works on each token, by its name in
            :data:`ostinato.llm.families.parts.FEED_FORWARDS`.
        window: how many tokens, its own included, a token attends to; ``None``: all before it.
        rope: the rotary embedding of queries and keys; ``None``: there is none.
    """

    mixer: str = "attention"
    feed_forward: str = "dense"
    window: int | None = None
    rope: Rope | None = None


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts.

    Attributes:
        count: of experts in a layer.
        chosen: how many of them a token takes.
        hidden: features between the matmuls of an expert.
        shared_hidden: the same of the expert that every token takes; 0: there is none.
        shared_gate: whether a gate weighs that expert.
        scores: the function that makes scores of the router's results.
        softmax_chosen: take the softmax of the chosen results alone.
        normalized: divide the weights of the chosen experts by their sum.
        scale: factor of those weights.
        correction: whether a bias is added to the scores for the choice alone.
        groups, chosen_groups: experts are chosen among the best of equal groups.
        bias: whether router and experts have biases.
        limit: a bound of the activations of ``swiglu_limited``.
    """

    count: int
    chosen: int
    hidden: int
    shared_hidden: int = 0
    shared_gate: bool = False
    scores: Literal["softmax", "sigmoid"] = "softmax"
    softmax_chosen: bool = False
    normalized: bool = True
    scale: float = 1.0
    correction: bool = False
    groups: int = 1
    chosen_groups: int = 1
    bias: bool = False
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Attention over keys and values that are projected from a narrow latent vector (MLA).

    Attributes:
        query_rank: width of the latent queries; 0: queries are projected at once.
        rank: width of the latent keys and values.
        plain: features of a head without rotary embedding.
        rotated: features of a head with rotary embedding, which all heads share in keys.
        value: features of a head's values.
    """

    query_rank: int
    rank: int
    plain: int
    rotated: int
    value: int


@dataclass(frozen=True, kw_only=True)
class LinearAttention:
    """A gated delta rule with a short convolution before it.

    Attributes:
        key_heads, value_heads: numbers of heads.
        key_dim, value_dim: features of a head.
        kernel: taps of the convolution.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """The reduction of the rows of a text to one vector.

    Attributes:
        kind: mean of all rows, or the first or the last row.
        normalize: divide by the Euclidean norm.
    """

    kind: Literal["mean", "first", "last"] = "mean"
    normalize: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes and variants of a language model.

    Attributes:
        family: the name of the :class:`~ostinato.llm.families.family.Family` that builds it.
        architecture: the name in the file.
        vocabulary: number of tokens.
        width: features of a token between layers.
        layers: see :class:`Layer`.
        heads, kv_heads: of queries, and of keys and values.
        head_dim: features of a head of queries and keys.
        value_dim: features of a head of values.
        hidden: features between the matmuls of a dense feed-forward.
        context: the most tokens of a sequence.
        norm: of all normalisations of tokens.
        pre_norm: normalise before the mixer and before the feed-forward.
        post_norm: normalise their results before they are added.
        final_norm: normalise before the head.
        embedding_norm: normalise after the embedding.
        head_norm: normalise queries and keys: each head by itself, or all heads at once.
        parallel: mixer and feed-forward read the same rows, and their results are added at once.
        activation: of the feed-forward.
        gated: whether a second matmul is the factor of its activations.
        attention_bias: whether queries, keys and values have biases.
        output_bias: whether the results of attention have one.
        hidden_bias: whether the matmuls of the feed-forward have.
        down_bias: whether the last of these has one, where the others have none.
        head_bias: whether the logits have.
        positions: rows of a table of positions that is added to the embedding; 0: there is none.
            The last ``context`` rows are those of the positions from 0 on.
        attention_scale: factor of the scores; ``None``: one over the root of ``head_dim``.
        attention_softcap, logit_softcap: ``c * tanh(x / c)`` of scores and of logits.
        alibi: exponent of the factors by which an encoder's scores fall with the distance of two
            tokens (ALiBi, arXiv 2108.12409): ``2 ** (-alibi * (h + 1) / heads)`` of head ``h``,
            where the number of heads is a power of two; ``None``: they do not.
        sinks: whether each head has a score that takes weight and adds nothing.
        embedding_scale, residual_scale, logit_scale: factors of embeddings, of the results that
            are added to the rows, and of logits.
        tied: whether the head is the embedding.
        experts, latent, linear: sizes of parts that layers name.
        query_gate: whether queries come with a gate of the attention's results.
        pooling: of an encoder.
        segments: rows of an encoder's table of segments.
        labels: classes of a reranker's or classifier's head; 0: there is none.
        causal: whether a token attends to those before it alone.
    """

    family: str
    architecture: str
    vocabulary: int
    width: int
    layers: tuple[Layer, ...]
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    hidden: int
    context: int
    norm: Norm
    pre_norm: bool = True
    post_norm: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    head_norm: Literal["none", "each", "all"] = "none"
    parallel: bool = False
    activation: Activation = "silu"
    gated: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    hidden_bias: bool = False
    down_bias: bool = False
    head_bias: bool = False
    positions: int = 0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    alibi: float | None = None
    sinks: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    tied: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    linear: LinearAttention | None = None
    query_gate: bool = False
    pooling: Pooling | None = None
    segments: int = 0
    labels: int = 0
    causal: bool = True

    @property
    def longest_window(self) -> int | None:
        """The most tokens that a token attends to in layers with a window; ``None``: no such."""
        return max((w for layer in self.layers if (w := layer.window) is not None), default=None)

    @property
    def mixes_windows(self) -> bool:
        """Whether some layers have a window, and others attend to all tokens before."""
        return len({layer.window is None for layer in self.layers}) > 1
