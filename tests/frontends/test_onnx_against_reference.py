"""Ops that are spelled out in others, at odd sizes, against the evaluator of the ``onnx`` package.

Where ONNX Runtime has a kernel and the two agree, the suite of the package says so already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import ostinato as ost
from ostinato.frontends.onnx import backend
from tests.pairwise import pairwise

RNG = np.random.default_rng(0)
UNOPTIMISED = ost.CompileOptions(optimize=False)


def draw(*shape: int, dtype: str = "float32") -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def model(op_type: str, operands: list[Any], outputs: int = 1, opset: int = 22, **attributes: Any):
    """A model of one node; operands that are ``None`` are left out."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(operands)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, operands, strict=True)
        if a is not None
    ]
    empty = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "g", inputs, empty)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def ours(
    op_type: str, *operands: Any, outputs: int = 1, plain: bool = True, **arguments: Any
) -> list[Any]:
    """The results, which unoptimised code agrees with; with ``plain`` off, that is not compiled."""
    proto = model(op_type, list(operands), outputs, **arguments)
    given = [a for a in operands if a is not None]
    results = backend.prepare(proto).run(given)
    if plain:
        other = backend.prepare(proto, options=UNOPTIMISED).run(given)
        for a, b in zip(results, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return list(results)


def check(
    op_type: str,
    *operands: Any,
    outputs: int = 1,
    rtol: float = 1e-4,
    plain: bool = True,
    **arguments: Any,
) -> None:
    """Compare all outputs of a node; ``plain`` as for :func:`ours`."""
    proto = model(op_type, list(operands), outputs, **arguments)
    feeds = {f"x{i}": a for i, a in enumerate(operands) if a is not None}
    expected = ReferenceEvaluator(proto).run(None, feeds)
    for mine, theirs in zip(
        ours(op_type, *operands, outputs=outputs, plain=plain, **arguments), expected, strict=True
    ):
        theirs = np.asarray(theirs)  # noqa: PLW2901
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol)


# -- losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "reduction", "weighted", "ignored"),
    pairwise([(1, 2), (3, 4, 1, 5)], ["none", "sum", "mean"], [False, True], [None, 1, -100]),
)
def test_losses(shape, reduction, weighted, ignored) -> None:
    classes = RNG.integers(0, shape[1], (shape[0], *shape[2:]))
    if ignored is not None:
        classes.reshape(-1)[::3] = ignored
    extra = [RNG.random(shape[1]).astype(np.float32)] if weighted else []
    flags: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        flags["ignore_index"] = ignored
    x = draw(*shape)
    if reduction == "mean" and classes.size == 1 and ignored is not None:
        classes[...] = 0  # of nothing but ignored classes there is no mean
    plain = reduction == "mean"
    check("NegativeLogLikelihoodLoss", x, classes, *extra, plain=plain, **flags)
    check("SoftmaxCrossEntropyLoss", x, classes, *extra, outputs=2, plain=plain, **flags)


# -- sampling --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "mode", "padding", "aligned"),
    pairwise(
        [((5, 7), (3, 2)), ((4, 3, 2), (2, 1, 3))],
        ["linear", "nearest", "cubic"],
        ["zeros", "border", "reflection"],
        [0, 1],
    ),
)
def test_grid_sample(shape, mode, padding, aligned) -> None:
    size, points = shape
    grid = RNG.uniform(-1.6, 1.6, (2, *points, len(size))).astype(np.float32)
    flags = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    images = 2 if len(size) == 2 else 1  # the evaluator takes half a second for one in 3-D
    plain = aligned == (padding == "border")
    check("GridSample", draw(images, 3, *size), grid[:images], rtol=1e-3, plain=plain, **flags)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_roi_align(mode, transform, samples) -> None:
    regions = np.float32([[0, 0, 6, 4], [1.5, 0.5, 9, 8], [-2, -1, 3, 3], [4, 4, 4.5, 4.5]])
    check(
        "RoiAlign",
        draw(2, 3, 7, 9),
        regions,
        ints(0, 1, 1, 0),
        mode=mode,
        output_height=3,
        output_width=2,
        sampling_ratio=samples,
        spatial_scale=0.8,
        coordinate_transformation_mode=transform,
        plain=samples == 2,
    )


@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
def test_roi_align_with_samples_by_size(transform) -> None:
    regions = np.float32([[0, 0, 6, 4], [1.5, 0.5, 9, 8], [-2, -1, 30, 25], [4, 4, 4.5, 4.5]])
    check(
        "RoiAlign",
        draw(2, 3, 7, 9),
        regions,
        ints(0, 1, 1, 0),
        output_height=3,
        output_width=2,
        coordinate_transformation_mode=transform,
    )


def test_max_roi_pool() -> None:
    x = draw(2, 3, 9, 11)
    regions = np.float32([[0, 0, 0, 5, 7], [1, 2, 3, 10, 8], [0, 4, 4, 4, 4]])
    (result,) = ours("MaxRoiPool", x, regions, pooled_shape=[3, 2])
    for row, (batch, x1, y1, x2, y2) in enumerate(regions.astype(int)):
        height, width = y2 - y1 + 1, x2 - x1 + 1
        for i in range(3):
            for j in range(2):
                top, bottom = y1 + i * height // 3, y1 + -(-(i + 1) * height // 3)
                left, right = x1 + j * width // 2, x1 + -(-(j + 1) * width // 2)
                part = x[batch, :, top:bottom, left:right]
                np.testing.assert_array_equal(result[row, :, i, j], part.max(axis=(1, 2)))


@pytest.mark.parametrize(("groups", "fields"), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_deform_conv(groups, fields, masked) -> None:
    x, w = draw(2, 4, 6, 5), draw(6, 4 // groups, 3, 2)
    strides, pads, dilations = [1, 2], [1, 0, 1, 1], [1, 1]
    out = (6 + 2 - 3 + 1, (5 + 1 - 2) // 2 + 1)
    offset = draw(2, fields * 6 * 2, *out)
    mask = [RNG.random((2, fields * 6, *out)).astype(np.float32)] if masked else [None]
    flags = {"strides": strides, "pads": pads, "dilations": dilations, "group": groups}
    check("DeformConv", x, w, offset, draw(6), *mask, offset_group=fields, rtol=1e-3, **flags)


# -- patches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "block", "flags"),
    [
        ((5, 5), (1, 5), {}),
        ((6, 7), (2, 3), {"strides": [2, 3], "pads": [0, 1, 0, 1]}),
        ((5, 5), (2, 2), {"dilations": [2, 1], "pads": [1, 0, 1, 0]}),
        ((4, 5, 6), (1, 2, 3), {"strides": [1, 2, 2]}),
        ((9,), (4,), {"strides": [3]}),
    ],
)
def test_col2im(image, block, flags) -> None:
    ndim = len(image)
    pads, steps = flags.get("pads", [0] * 2 * ndim), flags.get("strides", [1] * ndim)
    spread = flags.get("dilations", [1] * ndim)
    counts = [
        (image[i] + pads[i] + pads[i + ndim] - spread[i] * (block[i] - 1) - 1) // steps[i] + 1
        for i in range(ndim)
    ]
    x = draw(2, 3 * int(np.prod(block)), int(np.prod(counts)))
    check("Col2Im", x, ints(*image), ints(*block), **flags)


@pytest.mark.parametrize("target", [(3, 9), (5, 7), (8, 1), (2, 10)])
def test_center_crop_pad(target) -> None:
    check("CenterCropPad", draw(5, 7), ints(*target))
    check("CenterCropPad", draw(5, 4, 7), ints(*target), axes=[-3, 2])


# -- pools -----------------------------------------------------------------------------------------

POOLS = [
    ((1, 2, 7), {"kernel_shape": [3], "strides": [2]}),
    ((2, 3, 7, 5), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
    (
        (1, 1, 9, 8),
        {"kernel_shape": [2, 3], "dilations": [2, 2], "ceil_mode": 1, "strides": [2, 3]},
    ),
    ((1, 2, 5, 6), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 4, 5, 3), {"kernel_shape": [2, 2, 2]}),
]


@pytest.mark.parametrize(("shape", "flags"), POOLS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_lp_pool(shape, flags, order) -> None:
    x = draw(*shape)
    (result,) = ours("LpPool", x, p=order, **flags)
    powers = np.abs(x) ** order
    widths = {"count_include_pad": 1, **flags}
    if flags.get("ceil_mode"):
        return  # a mean over an overhanging window is of fewer elements
    (mean,) = ours("AveragePool", powers, **widths)
    total = mean * np.prod(flags["kernel_shape"])
    np.testing.assert_allclose(result, total ** (1 / order), rtol=1e-3)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_global_lp_pool(order) -> None:
    x = draw(2, 3, 5, 7)
    (result,) = ours("GlobalLpPool", x, p=order)
    expected = (np.abs(x) ** order).sum((2, 3), keepdims=True) ** (1 / order)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


@pytest.mark.parametrize(("shape", "flags"), POOLS)
@pytest.mark.parametrize("storage", [0, 1])
def test_positions_of_maxima(shape, flags, storage) -> None:
    """Each position holds the maximum; of equal elements it is the first."""
    x = RNG.integers(-3, 3, shape).astype(np.float32)
    values, places = ours(
        "MaxPool", x, outputs=2, storage_order=storage, plain=storage == 1, **flags
    )
    order = (0, 1, *range(x.ndim - 1, 1, -1)) if storage else tuple(range(x.ndim))
    flat = x.transpose(order).reshape(-1)
    np.testing.assert_array_equal(flat[places], values)
    plane = int(np.prod(shape[2:]))
    channel = np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], *(1,) * (x.ndim - 2))
    np.testing.assert_array_equal(places // plane, np.broadcast_to(channel, places.shape))


def test_pools_of_infinities_have_positions_within() -> None:
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    _, places = ours("MaxPool", x, outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert places.min() == 0
    assert places[0, 0, 0, 0] == 0


def test_unpooling_undoes_pooling() -> None:
    x = draw(2, 3, 6, 8)
    flags = {"kernel_shape": [2, 2], "strides": [2, 2]}
    values, places = ours("MaxPool", x, outputs=2, **flags)
    (result,) = ours("MaxUnpool", values, places, **flags)
    expected = np.zeros_like(x).reshape(-1)
    expected[places.reshape(-1)] = values.reshape(-1)
    np.testing.assert_array_equal(result, expected.reshape(x.shape))


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 7, 97, 130])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_dft(length, parts, inverse) -> None:
    x = draw(2, length, 3, parts, dtype="float64")
    (result,) = ours("DFT", x, None, np.array(1), inverse=inverse, plain=parts == 2)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    expected = (np.fft.ifft if inverse else np.fft.fft)(signal, axis=1)
    np.testing.assert_allclose(result[..., 0] + 1j * result[..., 1], expected, atol=1e-10)


@pytest.mark.parametrize("length", [None, 5, 8, 12])
def test_dft_of_other_lengths(length) -> None:
    x = draw(3, 8, 1, dtype="float64")
    extra = [] if length is None else [np.array(length)]
    (result,) = ours("DFT", x, *extra, onesided=1)
    expected = np.fft.rfft(x[..., 0], n=length, axis=1)
    np.testing.assert_allclose(result[..., 0] + 1j * result[..., 1], expected, atol=1e-10)
    (again,) = ours("DFT", result, *extra, onesided=1, inverse=1)
    wanted = np.fft.irfft(expected, n=length, axis=1)
    np.testing.assert_allclose(again[..., 0], wanted, atol=1e-10)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize(("length", "size", "step"), [(20, 8, 3), (7, 7, 1), (50, 16, 16)])
def test_stft(length, size, step, onesided) -> None:
    x, window = draw(2, length, 1), np.hanning(size).astype(np.float32)
    check("STFT", x, np.array(step), window, np.array(size), onesided=onesided, rtol=1e-3)


@pytest.mark.parametrize("sizes", [(5, 16, 8000), (1, 64, 16000), (20, 256, 44100)])
def test_mel_weights(sizes) -> None:
    check("MelWeightMatrix", *map(np.array, sizes), np.float32(20), np.float32(sizes[2] / 2.5))


# -- linear algebra, sequences ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, pytest.param(16, marks=pytest.mark.slow)])
def test_determinants(size) -> None:
    x = draw(3, size, size, dtype="float64")
    check("Det", x, rtol=1e-9)
    singular = x.copy()
    singular[0, -1] = singular[0, 0]
    singular[1] = 0
    (result,) = ours("Det", singular)
    np.testing.assert_allclose(result, np.linalg.det(singular), atol=1e-9)
    check("Det", x[0], rtol=1e-9)


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence(time, batch) -> None:
    x = draw(5, 3, 2) if time == 0 else draw(3, 5, 2)
    check("ReverseSequence", x, ints(5, 1, 3), time_axis=time, batch_axis=batch)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode) -> None:
    first = ints(2, 0) if mode == "linear" else ints(4, 1)
    check("TensorScatter", draw(2, 3, 5, 4), draw(2, 3, 2, 4), first, mode=mode, opset=24)
    check("TensorScatter", draw(2, 3, 5, 4), draw(2, 3, 2, 4), mode=mode, opset=24)


@pytest.mark.parametrize("fill", [2.5, -np.inf])
def test_padding_with_a_number_of_the_run(fill) -> None:
    x, pads = draw(2, 3), ints(1, 0, 0, 2)
    proto = model("Pad", [x, pads, np.float32(fill)])
    graph = ost.load_onnx(proto, constants={"x1": pads})
    (result,) = ost.Session("cpu").compile(graph).run({"x0": x, "x2": np.array(fill, np.float32)})
    expected = np.pad(x, [(1, 0), (0, 2)], constant_values=fill)
    np.testing.assert_array_equal(result, expected)


# -- strings ---------------------------------------------------------------------------------------


def texts(*items: str) -> Any:
    return np.array(items, object)


def string_run(nodes: list[Any], **inputs: Any) -> Any:
    declared = [
        helper.make_tensor_value_info(
            n, 8 if a.dtype == object else helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )
        for n, a in inputs.items()
    ]
    graph = helper.make_graph(nodes, "g", declared, [helper.make_empty_tensor_value_info("y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return backend.prepare(proto).run(inputs)[0]


def test_strings_are_moved() -> None:
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["c"], axis=0),
        helper.make_node("Gather", ["c", "i"], ["d"]),
        helper.make_node("Constant", [], ["s"], value_ints=[2, 2]),
        helper.make_node("Reshape", ["d", "s"], ["e"]),
        helper.make_node("Transpose", ["e"], ["y"]),
    ]
    given = {"a": texts("p", "q"), "b": texts("r"), "i": ints(2, 0, 1, 2)}
    expected = np.array([["r", "q"], ["p", "r"]], object)
    np.testing.assert_array_equal(string_run(nodes, **given), expected)


def test_numbers_and_strings_become_each_other() -> None:
    printed = [helper.make_node("Cast", ["x"], ["y"], to=8)]
    result = string_run(printed, x=np.float32([1.5, np.nan, np.inf, -2]))
    assert result.tolist() == ["1.5", "NaN", "INF", "-2.0"]
    parsed = [helper.make_node("Cast", ["x"], ["y"], to=1)]
    np.testing.assert_array_equal(
        string_run(parsed, x=texts("1.5", "-INF", "3e2")), np.float32([1.5, -np.inf, 300])
    )
    whole = [helper.make_node("Cast", ["x"], ["y"], to=7)]
    np.testing.assert_array_equal(string_run(whole, x=texts("12", "-3")), [12, -3])
    with pytest.raises(ost.ModelFormatError, match="it reads a number"):
        string_run(whole, x=texts("twelve"))


def test_strings_need_the_caller_s_values() -> None:
    node = helper.make_node("StringConcat", ["a", "a"], ["y"])
    info = helper.make_tensor_value_info("a", 8, [2])
    graph = helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info("y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    with pytest.raises(ost.UnsupportedOpError, match=r"\['a'\] have string elements; give"):
        ost.load_onnx(proto)
    with pytest.raises(ost.UnsupportedOpError, match="backend"):
        ost.load_onnx(proto, constants={"a": texts("p", "q")})


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 3])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 3)])
def test_counts_of_n_grams(mode, skips, lengths) -> None:
    x = RNG.integers(1, 5, (3, 11))
    check(
        "TfIdfVectorizer",
        x,
        mode=mode,
        min_gram_length=lengths[0],
        max_gram_length=lengths[1],
        max_skip_count=skips,
        ngram_counts=[0, 3, 9][: lengths[1]],
        ngram_indexes=[0, 2, 1, 5, 4, 3, 6][: (3, 6, 7)[lengths[1] - 1]],
        pool_int64s=[1, 2, 3, 1, 2, 2, 2, 4, 3, 1, 2, 3][: (3, 9, 12)[lengths[1] - 1]],
        weights=[0.5, 1.5, 2.0, 3.0, 0.25, 4.0, 1.0][: (3, 6, 7)[lengths[1] - 1]],
    )
