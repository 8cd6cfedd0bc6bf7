"""Ops of the domain ``com.microsoft``, against ONNX Runtime; those that it has no CPU kernel for,
against NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

RNG = np.random.default_rng(0)


def draw(*shape: int, dtype: str = "float32", scale: float = 1.0) -> Any:
    return (RNG.standard_normal(shape) * scale).astype(dtype)


def model(op_type: str, operands: list[Any], outputs: int, stored: tuple[int, ...], **attributes):
    """A model of one node; operands that are ``None`` are left out."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(operands)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, domain="com.microsoft", **attributes)
    given = {name: a for name, a in zip(names, operands, strict=True) if a is not None}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
        if int(n[1:]) not in stored
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in given.items() if int(n[1:]) in stored]
    empty = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "g", inputs, empty, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def ours(op_type, *operands, outputs=1, stored=(), **attributes) -> list[Any]:
    """Our results, which the oracle agrees with."""
    proto, given = model(op_type, list(operands), outputs, stored, **attributes)
    graph = ost.load_onnx(proto)
    live = {name: a for name, a in given.items() if name in graph.inputs}
    results = ost.Session("cpu").compile(graph).run(live)
    for a, b in zip(results, ost.reference.evaluate(graph, live), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    return list(results)


def check(op_type, *operands, outputs=1, stored=(), rtol=1e-4, **attributes) -> None:
    """Compare all outputs of a node with ONNX Runtime."""
    proto, given = model(op_type, list(operands), outputs, stored, **attributes)
    session = onnxruntime_session(proto, rewrites=False)
    live = {i.name: given[i.name] for i in session.get_inputs()}
    expected = session.run(None, live)
    results = ours(op_type, *operands, outputs=outputs, stored=stored, **attributes)
    for mine, theirs in zip(results, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol)


# -- attention -------------------------------------------------------------------------------------

B, S, T, N, H = 2, 5, 7, 3, 16
D = N * H


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize(
    "mask",
    [None, np.int32([5, 3]), np.int32([5, 4, 1, 0]), "keys", "both"],
    ids=["none", "ends", "starts", "keys", "both"],
)
def test_attention(mask, unidirectional) -> None:
    if isinstance(mask, str):
        mask = np.ones((B, S) if mask == "keys" else (B, S, S), np.int32)
        mask[0, ..., -2:] = 0
    operands = [draw(B, S, D), draw(D, 3 * D, scale=0.2), draw(3 * D), mask]
    check("Attention", *operands, stored=(1, 2), num_heads=N, unidirectional=unidirectional)


def test_attention_with_a_past_or_a_bias() -> None:
    operands = [draw(B, S, D), draw(D, 3 * D, scale=0.2), draw(3 * D), None]
    flags = {"stored": (1, 2), "num_heads": N, "unidirectional": 1}
    check("Attention", *operands, draw(2, B, N, 4, H), outputs=2, **flags)
    check("Attention", *operands, None, draw(1, N, S, S), **flags)


def test_attention_with_other_values() -> None:
    sizes = [D, D, 2 * D]
    operands = [draw(B, S, 9), draw(9, sum(sizes), scale=0.3), draw(sum(sizes))]
    check("Attention", *operands, num_heads=N, qkv_hidden_sizes=sizes, scale=0.3)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(unidirectional) -> None:
    q, k, v = draw(B, S, D), draw(B, S, D), draw(B, S, D)
    flags = {"num_heads": N, "unidirectional": unidirectional}
    check("MultiHeadAttention", q, k, v, **flags)
    check("MultiHeadAttention", q, k, v, draw(3 * D), outputs=3, **flags)
    past = draw(B, N, 4, H), draw(B, N, 4, H)
    check("MultiHeadAttention", q, k, v, None, None, None, *past, outputs=3, **flags)


def test_multi_head_attention_across_sequences() -> None:
    q, k, v = draw(B, S, D), draw(B, T, D), draw(B, T, 2 * D)
    keys = np.ones((B, T), np.int32)
    keys[1, 4:] = 0
    check("MultiHeadAttention", q, k, v, num_heads=N)
    check("MultiHeadAttention", q, k, v, None, keys, num_heads=N)
    check("MultiHeadAttention", q, k, v, None, None, draw(B, N, S, T), num_heads=N, scale=0.2)
    heads = draw(B, N, T, H), draw(B, N, T, H)
    check("MultiHeadAttention", q, *heads, num_heads=N)


def test_multi_head_attention_of_packed_operands() -> None:
    q, k, v = draw(B, S, D), draw(B, T, N, H), draw(B, T, N, H)
    (packed,) = ours("MultiHeadAttention", q, np.stack([k, v], 3), num_heads=N)
    flat = (x.reshape(B, T, D) for x in (k, v))
    (apart,) = ours("MultiHeadAttention", q, *flat, num_heads=N)
    np.testing.assert_allclose(packed, apart, rtol=1e-5, atol=1e-6)
    q, k, v = (draw(B, S, N, H) for _ in range(3))
    flat = (x.reshape(B, S, D) for x in (q, k, v))
    (packed,) = ours("MultiHeadAttention", np.stack([q, k, v], 3), num_heads=N)
    (apart,) = ours("MultiHeadAttention", *flat, num_heads=N)
    np.testing.assert_allclose(packed, apart, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention_of_a_prompt(rotary, window) -> None:
    groups = 1
    lengths, total = np.int32([S - 1, 2]), np.array(S, np.int32)
    operands = [draw(B, S, D), draw(B, S, groups * H), draw(B, S, groups * H), None, None]
    operands += [lengths, total, draw(16, H // 2), draw(16, H // 2)]
    flags = {"num_heads": N, "kv_num_heads": groups, "do_rotary": rotary}
    proto = {"outputs": 3, "stored": (6,), "local_window_size": window, **flags}
    compare_live_rows(operands, proto, lengths + 1)


def compare_live_rows(operands, arguments, lengths) -> None:
    """Rows of padding have no meaning: ONNX Runtime leaves what it likes in them."""
    outputs, stored = arguments.pop("outputs"), arguments.pop("stored")
    proto, given = model("GroupQueryAttention", operands, outputs, stored, **arguments)
    session = onnxruntime_session(proto)
    expected = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})
    results = ours("GroupQueryAttention", *operands, outputs=outputs, stored=stored, **arguments)
    for mine, theirs in zip(results, expected, strict=True):
        assert mine.shape == theirs.shape
        for batch, length in enumerate(lengths):
            a, b = mine[batch], theirs[batch]
            a, b = (a[:length], b[:length]) if a.ndim == 2 else (a[:, :length], b[:, :length])
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("room", [0, 3])
@pytest.mark.parametrize("new", [1, 2])
def test_group_query_attention_with_a_cache(new, room, interleaved) -> None:
    groups, past = 3, 6
    total, batch = past + new, B if new == 1 else 1
    cache = [draw(batch, groups, past + (new + room if room else 0), H) for _ in range(2)]
    operands = [draw(batch, new, n * H) for n in (2 * N, groups, groups)] + cache
    operands += [np.int32([total - 1] * batch), np.array(total, np.int32)]
    operands += [draw(16, H // 2), draw(16, H // 2)]
    flags = {"num_heads": 2 * N, "kv_num_heads": groups, "do_rotary": 1, "softcap": 5.0}
    arguments = {"outputs": 3, "stored": (6,), "rotary_interleaved": interleaved, **flags}
    compare_live_rows(operands, {**arguments, "scale": 0.4}, [total] * batch)


@pytest.mark.parametrize("new", [1, S])
def test_group_query_attention_with_sinks(new) -> None:
    groups, past = 1, 6
    cache = [draw(1, groups, past, H) for _ in range(2)]
    operands = [draw(1, new, n * H) for n in (N, groups, groups)] + cache
    operands += [np.int32([past + new - 1]), np.array(past + new, np.int32)]
    operands += [None] * 4 + [draw(N)]
    flags = {"num_heads": N, "kv_num_heads": groups}
    compare_live_rows(operands, {"outputs": 3, "stored": (6,), **flags}, [past + new])


def test_group_query_attention_of_a_packed_operand() -> None:
    packed = draw(B, S, (4 + 2 * 2) * H)
    operands = [packed, None, None, None, None, np.int32([S - 1] * B), np.array(S, np.int32)]
    check("GroupQueryAttention", *operands, outputs=3, stored=(6,), num_heads=4, kv_num_heads=2)


def test_packed_attention_keeps_sequences_apart() -> None:
    tokens, ends = draw(7, D), np.int32([0, 4, 7])
    weights = draw(D, 3 * D, scale=0.2), draw(3 * D)
    offset = np.zeros((2, 4), np.int32)
    (result,) = ours("PackedAttention", tokens, *weights, offset, ends, num_heads=N)
    for start, end in ((0, 4), (4, 7)):
        (alone,) = ours("Attention", tokens[None, start:end], *weights, num_heads=N)
        np.testing.assert_allclose(result[start:end], alone[0], rtol=1e-4, atol=1e-5)


def test_packed_multi_head_attention_keeps_sequences_apart() -> None:
    q, k, v = (draw(7, D) for _ in range(3))
    ends, offset = np.int32([0, 3, 7]), np.zeros((2, 4), np.int32)
    operands = [q, k, v, None, offset, ends]
    (result,) = ours("PackedMultiHeadAttention", *operands, num_heads=N)
    for start, end in ((0, 3), (3, 7)):
        parts = (x[None, start:end] for x in (q, k, v))
        (alone,) = ours("MultiHeadAttention", *parts, num_heads=N)
        np.testing.assert_allclose(result[start:end], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(B, S, D), (B, N, S, H)])
def test_rotary_embedding(shape, interleaved) -> None:
    tables = draw(16, H // 2), draw(16, H // 2)
    for position in (np.array([3]), np.array([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]])):
        check("RotaryEmbedding", draw(*shape), position, *tables, interleaved=interleaved)
    part = draw(16, 2), draw(16, 2)
    flags = {"rotary_embedding_dim": 4, "num_heads": N}
    check("RotaryEmbedding", draw(*shape), np.array([1]), *part, **flags)


# -- fused ops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(0, 0, 0, 0), (1, 1, 0, 0), (0, 1, 1, 0), (1, 0, 1, 1)])
def test_fused_matmul(flags) -> None:
    a, b = draw(2, 3, 4, 5), draw(2, 3, 5, 6)
    names = ("transA", "transB", "transBatchA", "transBatchB")
    set_ = dict(zip(names, flags, strict=True))
    if set_["transA"]:
        a = a.swapaxes(-1, -2)
    if set_["transBatchA"]:
        a = np.moveaxis(a, 2, 0)
    if set_["transB"]:
        b = b.swapaxes(-1, -2)
    if set_["transBatchB"]:
        b = np.moveaxis(b, 2, 0)
    check("FusedMatMul", np.ascontiguousarray(a), np.ascontiguousarray(b), alpha=0.5, **set_)


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid"])
def test_fused_gemm_and_convolution(activation) -> None:
    params = {"LeakyRelu": [0.1], "HardSigmoid": [0.3, 0.4]}.get(activation, [])
    named = dict(zip(("activation_alpha", "activation_beta"), params, strict=False))
    check("FusedGemm", draw(3, 4), draw(5, 4), draw(5), transB=1, activation=activation, **named)
    x, w, b = draw(1, 3, 7, 9), draw(4, 3, 3, 3), draw(4)
    flags = {"activation": activation, "pads": [1, 1, 1, 1]}
    if params:
        flags["activation_params"] = params
    check("FusedConv", x, w, b, stored=(1, 2), **flags)
    if activation == "Relu":
        check("FusedConv", x, w, b, draw(1, 4, 7, 9), stored=(1, 2), **flags)
        clip = {"activation": "Clip", "activation_params": [-0.5, 0.75]}
        check("FusedConv", x, w, b, stored=(1, 2), **clip)


def test_convolutions_of_images_with_channels_last() -> None:
    x, w, b = draw(2, 7, 9, 3), draw(4, 3, 3, 3), draw(4)
    flags = {"strides": [2, 1], "pads": [1, 0, 1, 2]}
    (first,) = ours("FusedConv", np.moveaxis(x, -1, 1).copy(), w, b, activation="Relu", **flags)
    (last,) = ours("NhwcFusedConv", x, w, b, activation="Relu", **flags)
    np.testing.assert_allclose(np.moveaxis(last, -1, 1), first, rtol=1e-4, atol=1e-5)
    (plain,) = ours("NhwcConv", x, w, b, **flags)
    np.testing.assert_allclose(np.maximum(plain, 0), last, rtol=1e-4, atol=1e-5)


def gelu(x):
    return ost.reference.evaluate(*_single("gelu", x))[0]


def _single(name: str, x):
    g = ost.Graph()
    g.set_outputs([getattr(g, name)(g.input("x", x.shape))])
    return g, {"x": x}


def test_biases_and_activations() -> None:
    x, bias = draw(3, 5, 8), draw(8)
    (split,) = ours("BiasSplitGelu", x, bias)
    total = x + bias
    np.testing.assert_allclose(split, total[..., :4] * gelu(total[..., 4:]), rtol=1e-4, atol=1e-5)
    (added,) = ours("BiasAdd", x, bias, x)
    np.testing.assert_allclose(added, x + bias + x, rtol=1e-5, atol=1e-6)
    (product,) = ours("GemmFastGelu", x, draw(8, 4), draw(4))
    assert product.shape == (3, 5, 4)
    (softmax,) = ours("BiasSoftmax", draw(2, 3, 4, 5), draw(4, 5), axis=3)
    np.testing.assert_allclose(softmax.sum(-1), np.ones((2, 3, 4)), rtol=1e-5)


def test_embed_layer_norm() -> None:
    ids, segments = RNG.integers(0, 11, (B, S), np.int32), RNG.integers(0, 2, (B, S), np.int32)
    tables = draw(11, D), draw(9, D), draw(2, D)
    mask = np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    operands = [ids, segments, *tables, draw(D), draw(D), mask]
    check("EmbedLayerNormalization", *operands, outputs=3, stored=(2, 3, 4), mask_index_type=1)
    operands = [ids, None, *tables[:2], None, draw(D), draw(D)]
    check("EmbedLayerNormalization", *operands, outputs=2, stored=(2, 3), epsilon=1e-5)


def test_group_norm_with_channels_last() -> None:
    x, weight, bias = draw(2, 3, 5, 8), draw(8), draw(8)
    (result,) = ours("GroupNorm", x, weight, bias, groups=4, activation=1)
    grouped = x.reshape(2, 15, 4, 2)
    mean, var = (f(grouped, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    normal = ((grouped - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * weight + bias
    np.testing.assert_allclose(result, normal / (1 + np.exp(-normal)), rtol=1e-4, atol=1e-5)


# -- quantised weights -----------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize(("depth", "columns"), [(64, 9), (70, 5), (33, 1)])
@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits(bits, depth, columns, block, zero) -> None:
    blocks = -(-depth // block)
    packed = RNG.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8)
    scales = (RNG.random((columns, blocks)) * 0.1).astype(np.float32)
    row = -(-blocks * bits // 8)
    points = RNG.integers(0, 256, (columns, row), np.uint8) if zero else None
    flags = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    operands = [draw(3, depth), packed, scales, *([points] if zero else [])]
    check("MatMulNBits", *operands, stored=(1, 2, 3), rtol=1e-3, **flags)


@pytest.mark.parametrize("block", [32, 128])
def test_matmul_nbits_of_rounded_activations(block) -> None:
    """The vocabulary's own 4-bit matmul, close to the exact result."""
    depth, columns = 256, 24
    packed = RNG.integers(0, 256, (columns, depth // block, block // 2), np.uint8)
    scales = (RNG.random((columns, depth // block)) * 0.1).astype(np.float32)
    x = draw(5, depth)
    flags = {"K": depth, "N": columns, "bits": 4, "block_size": block}
    proto, _ = model("MatMulNBits", [x, packed, scales], 1, (1, 2), accuracy_level=4, **flags)
    graph = ost.load_onnx(proto)
    assert "int4_matmul" in {node.op.name for node in graph.nodes}
    (quick,) = ost.Session("cpu").compile(graph).run({"x0": x})
    (exact,) = ours("MatMulNBits", x, packed, scales, stored=(1, 2), **flags)
    assert np.abs(quick - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gather_of_quantised_rows(bits, zero) -> None:
    rows, columns, block = 7, 48, 16
    packed = RNG.integers(0, 256, (rows, columns * bits // 8), np.uint8)
    scales = draw(rows, columns // block)
    count = -(-(columns // block) * bits // 8)
    points = [RNG.integers(0, 256, (rows, count), np.uint8)] if zero else []
    at = np.array([[1, 6], [0, 3]])
    flags = {"bits": bits, "block_size": block}
    check("GatherBlockQuantized", packed, at, scales, *points, stored=(0, 2, 3), **flags)


# -- experts ---------------------------------------------------------------------------------------


def expert_operands(experts: int, depth: int, inner: int, fused: int = 1) -> list[Any]:
    return [
        draw(experts, fused * inner, depth, scale=0.3),
        draw(experts, fused * inner),
        draw(experts, depth, inner, scale=0.3),
        draw(experts, depth),
    ]


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_mixture_of_experts(activation, k, normalize) -> None:
    flags = {"k": k, "activation_type": activation, "normalize_routing_weights": normalize}
    x, router = draw(7, 16), draw(7, 4)
    operands = expert_operands(4, 16, 24)
    check("MoE", x, router, *operands, stored=(2, 3, 4, 5), **flags)


@pytest.mark.parametrize("fusion", [1])
def test_mixture_of_gated_experts(fusion) -> None:
    flags = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": fusion}
    limits = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 2.0}
    operands = expert_operands(4, 16, 24, fused=2)
    check("MoE", draw(7, 16), draw(7, 4), *operands, stored=(2, 3, 4, 5), **flags, **limits)


def test_forms_of_gated_experts_agree() -> None:
    x, router, (up, _, down, _) = draw(5, 8), draw(5, 3), expert_operands(3, 8, 6)
    gate = draw(3, 6, 8, scale=0.3)
    flags = {"k": 2, "activation_type": "swiglu"}
    (apart,) = ours("MoE", x, router, gate, None, down, None, up, **flags)
    joined = np.concatenate([gate, up], axis=1)
    (side,) = ours("MoE", x, router, joined, None, down, swiglu_fusion=2, **flags)
    woven = np.stack([gate, up], axis=2).reshape(3, 12, 8)
    (mixed,) = ours("MoE", x, router, woven, None, down, swiglu_fusion=1, **flags)
    np.testing.assert_allclose(side, apart, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mixed, apart, rtol=1e-5, atol=1e-6)


# -- what is refused -------------------------------------------------------------------------------


def test_what_is_refused_says_why() -> None:
    operands = [draw(B, S, D)] * 3
    shared = [*operands, None, None, None, draw(B, N, S, H), draw(B, N, S, H), np.int32([3])]
    with pytest.raises(ost.UnsupportedOpError, match="shared between past and present"):
        ost.load_onnx(model("MultiHeadAttention", shared, 1, (), num_heads=N)[0])
    with pytest.raises(ost.ModelFormatError, match="does not divide into 5 heads"):
        ost.load_onnx(model("MultiHeadAttention", operands, 1, (), num_heads=5)[0])
