"""Packed weights: their elements, matmuls with them, and tables of them.

``w`` is uint8 ``[rows, bytes]``: each row whole blocks of a format of :data:`FORMATS`, as a GGUF
file holds it; the elements of a row are those along which a matmul sums. Matmuls also take stacks
of matrices, ``[count, rows, bytes]``, each beside its own ``[rows, K]``.

A matmul rounds activations to 8-bit integers, as :mod:`ostinato.ops.quant` does beside 4-bit
weights: each run of as many as a block of weights has elements, by its greatest magnitude. The
products of integers of a group of elements are summed exactly, and count as often as the scales of
both sides say.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT8, UINT16, DType
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.packed.formats import FORMATS, BlockFormat, elements
from ostinato.ops.quant import by_magnitude
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "ACTIVATION_DTYPES",
    "DEQUANTIZE_PACKED",
    "FAMILY",
    "PACKED_BLOCK_MATMUL",
    "PACKED_EMBEDDING",
    "PACKED_MATMUL",
    "DequantizePacked",
    "PackedBlockMatmul",
    "PackedEmbedding",
    "PackedMatmul",
    "bitcast",
    "bits_as_float16",
    "expect_format",
    "matrix_rows",
    "rounded",
]

#: The dtypes that matmuls with packed weights take activations in.
ACTIVATION_DTYPES = (FLOAT32, FLOAT16, BFLOAT16)


class DequantizePacked(Op):
    """The elements of packed blocks, decoded to float32 and converted once. (ONNX, opset 29.)

    Attributes:
        format: of the blocks of ``x``, uint8 of any shape.
        shape: of the result, known numbers.
        dtype: of the result.
    """

    name = "dequantize_packed"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,), form = operands, expect_format(self, attrs)
        shape = attrs.get("shape")
        known = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        self.expect(known, f"shape is a tuple of known sizes, got {shape!r}")
        assert isinstance(shape, tuple)
        dtype = _result_dtype(self, attrs)
        self.expect(x.dtype == UINT8, f"x is uint8, got {x}")
        count = prod(shape)
        self.expect(count % form.size == 0, f"{count} elements are no blocks of {form.size}")
        wanted = count // form.size * form.nbytes
        self.expect(x.size == wanted, f"{count} elements take {wanted} bytes, got {x}")
        return (TensorType(dtype, shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        decoded = self._rule(xp, partial(bits_as_float16, xp), *operands, **attrs)
        return xp.cast(xp.cast(decoded, FLOAT32), attrs["dtype"])  # the oracle's is wider

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return g.cast(self._rule(g, partial(bitcast, g), *operands, **attrs), attrs["dtype"])

    @staticmethod
    def _rule(
        xp: Any, bitcast: Callable[[Any], Any], x: Any, *, format: str, shape: Any, dtype: DType
    ) -> Any:
        return matrix_rows(xp, bitcast, x, FORMATS[format], shape)


class PackedEmbedding(Op):
    """Rows of a packed table, decoded: ``ids [...]`` and ``w [rows, bytes]`` give ``[..., K]``.

    Ids are taken as :meth:`take` takes indices.

    Attributes:
        format: of ``w``.
        dtype: of the result.
    """

    name = "packed_embedding"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        (ids, w), form, dtype = operands, expect_format(self, attrs), _result_dtype(self, attrs)
        self.expect(ids.dtype.is_integer, f"ids are integers, got {ids}")
        self.expect(w.ndim == 2, f"w is uint8 [rows, bytes] of known sizes, got {w}")
        _, depth = _weights(self, w, form)
        return (TensorType(dtype, (*ids.shape, depth)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        decoded = self._rule(xp, partial(bits_as_float16, xp), *operands, **attrs)
        return xp.cast(xp.cast(decoded, FLOAT32), attrs["dtype"])  # the oracle's is wider

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return g.cast(self._rule(g, partial(bitcast, g), *operands, **attrs), attrs["dtype"])

    @staticmethod
    def _rule(
        xp: Any, bitcast: Callable[[Any], Any], ids: Any, w: Any, *, format: str, dtype: DType
    ) -> Any:
        form = FORMATS[format]
        rows = xp.take(w, ids, axis=0)
        depth = w.shape[1] // form.nbytes * form.size
        return matrix_rows(xp, bitcast, rows, form, (*ids.shape, depth))


class PackedBlockMatmul(Op):
    """The matmul of 8-bit integers in blocks with scales and packed weights, in float32.

    ``q [..., K]`` is int8, within -127..127 as rounding by magnitude gives; ``q_scales [..., K /
    size]`` float32, a scale for each block of the format of ``w``. ``q_sums [..., K / group]`` are
    the int32 sums of ``q`` over each group, which kernels would else add up for every weight. The
    result is ``[..., rows of w]``.

    Attributes:
        format: of ``w``.
    """

    name = "packed_block_matmul"
    weight_operands = (3,)
    fuses_horizontally = True
    takes_epilogue = True
    decodes_weights = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 4)
        q, q_scales, q_sums, w = operands
        form = expect_format(self, attrs)
        rows, depth = _weights(self, w, form)
        self.expect(q.dtype == INT8 and q.ndim > 0, f"q is int8 with rows, got {q}")
        _expect_stack(self, q, w)
        self.expect(q.shape[-1] == depth, f"q has rows of {q.shape[-1]}, w of {depth} elements")
        self.expect(depth > 0, "nothing to sum over: w has no elements")
        lead = q.shape[:-1]
        scales = TensorType(FLOAT32, (*lead, depth // form.size))
        self.expect(q_scales == scales, f"q_scales is {scales}, got {q_scales}")
        sums = TensorType(INT32, (*lead, depth // form.group))
        self.expect(q_sums == sums, f"q_sums is {sums}, got {q_sums}")
        return (TensorType(FLOAT32, (*lead, rows)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return self._rule(xp, partial(bits_as_float16, xp), *operands, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return self._rule(g, partial(bitcast, g), *operands, **attrs)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * operands[3].shape[-2] * 2

    @staticmethod
    def _rule(
        xp: Any,
        bitcast: Callable[[Any], Any],
        q: Any,
        q_scales: Any,
        q_sums: Any,
        w: Any,
        *,
        format: str,
    ) -> Any:
        form = FORMATS[format]
        lead, depth, matrices = tuple(q.shape[:-1]), q.shape[-1], tuple(w.shape[:-1])
        blocks = depth // form.size
        parts = xp.reshape(xp.cast(q, FLOAT32), (*lead, blocks, form.size))
        scaled = parts * xp.reshape(q_scales, (*lead, blocks, 1))
        weights = matrix_rows(xp, bitcast, w, form, (*matrices, depth))
        left = xp.reshape(scaled, (*lead, depth))
        return xp.matmul(left, xp.permute_dims(weights, (1, 0) if w.ndim == 2 else (0, 2, 1)))


class PackedMatmul(Op):
    """``x @ W.T`` with packed weights and ``x [..., K]`` rounded to 8 bits: ``[..., rows of w]``.

    Each run of ``x``, as long as a block of ``w``, is rounded by its greatest magnitude. The result
    has the dtype of ``x``. A row does not depend on the others, nor on how many there are. Beside a
    stack of matrices ``[count, rows, bytes]``, ``x`` is ``[count, M, K]``: a part for each.

    Attributes:
        format: of ``w``.
    """

    name = "packed_matmul"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        (x, w), form = operands, expect_format(self, attrs)
        rows, depth = _weights(self, w, form)
        self.expect(
            x.dtype in ACTIVATION_DTYPES, f"x is float32, float16 or bfloat16, got {x.dtype}"
        )
        self.expect(x.ndim > 0, "expected rows, got a scalar")
        _expect_stack(self, x, w)
        self.expect(x.shape[-1] == depth, f"x has rows of {x.shape[-1]}, w of {depth} elements")
        self.expect(depth > 0, "nothing to sum over: w has no elements")
        return (TensorType(x.dtype, (*x.shape[:-1], rows)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return self._rule(xp, partial(PACKED_BLOCK_MATMUL.evaluate, xp), *operands, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        x, w = operands
        result = self._rule(g, g.packed_block_matmul, g.cast(x, FLOAT32), w, **attrs)
        return g.cast(result, x.dtype)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * operands[1].shape[-2] * 2

    @staticmethod
    def _rule(xp: Any, multiply: Callable[..., Any], x: Any, w: Any, *, format: str) -> Any:
        return multiply(*rounded(xp, x, FORMATS[format]), w, format=format)


def rounded(xp: Any, x: Any, form: BlockFormat) -> tuple[Any, Any, Any]:
    """Rows of ``x`` as 8-bit integers, the scale of each block, and the sum of each group."""
    lead, depth = tuple(x.shape[:-1]), x.shape[-1]
    blocks = depth // form.size
    q, scale = by_magnitude(xp, xp.reshape(x, (*lead, blocks, form.size)))
    groups = xp.reshape(xp.cast(q, INT32), (*lead, depth // form.group, form.group))
    sums = xp.sum(groups, axis=-1)
    return xp.reshape(q, (*lead, depth)), xp.reshape(scale, (*lead, blocks)), sums


def matrix_rows(
    xp: Any, bitcast: Callable[[Any], Any], packed: Any, form: BlockFormat, shape: Sequence[Dim]
) -> Any:
    """The elements of ``packed`` in the shape that they are to have."""
    blocks = xp.reshape(packed, (prod(shape) // form.size, form.nbytes))
    return xp.reshape(elements(xp, blocks, form, bitcast), tuple(shape))


def bits_as_float16(xp: Any, bits: Any) -> Any:
    """Bits as float16, of arrays."""
    return xp.bitcast(bits, UINT16, FLOAT16)


def bitcast(g: Any, bits: Any) -> Any:
    """Bits as float16, of values of a graph."""
    return g.bitcast(bits, FLOAT16)


# -- what is checked -------------------------------------------------------------------------------


def expect_format(op: Op, attrs: dict[str, Attr]) -> BlockFormat:
    """The format that the attributes of ``op`` name.

    Raises:
        GraphError: there is none that is computed packed.
    """
    name = attrs.get("format")
    form = FORMATS.get(name) if isinstance(name, str) else None
    listed = ", ".join(name for name, form in FORMATS.items() if form.computed)
    fits = form is not None and form.computed
    op.expect(fits, f"format is one of {listed}, got {name!r:.80}")
    assert form is not None
    return form


def _result_dtype(op: Op, attrs: dict[str, Attr]) -> DType:
    dtype = attrs.get("dtype")
    fits = isinstance(dtype, DType) and dtype.is_float
    op.expect(fits, f"dtype is a float, got {dtype!r}")
    assert isinstance(dtype, DType)
    return dtype


def _weights(op: Op, w: TensorType, form: BlockFormat) -> tuple[int, int]:
    """The rows of packed weights, of each matrix of a stack, and the elements of each."""
    known = [dim for dim in w.shape if isinstance(dim, int)]
    fits = w.dtype == UINT8 and 2 <= w.ndim <= 3 and len(known) == w.ndim
    op.expect(fits, f"w is uint8 [rows, bytes] of known sizes, or a stack of such, got {w}")
    rows, nbytes = known[-2:]
    op.expect(
        nbytes % form.nbytes == 0,
        f"rows of {form.name} are blocks of {form.nbytes} bytes, got {nbytes} bytes",
    )
    return rows, nbytes // form.nbytes * form.size


def _expect_stack(op: Op, x: TensorType, w: TensorType) -> None:
    """Check that there is a matrix of rows for each matrix of a stack."""
    fits = w.ndim == 2 or (x.ndim == 3 and x.shape[0] == w.shape[0])
    op.expect(fits, f"a stack {w} takes [{w.shape[0]}, rows, K], got {x}")


DEQUANTIZE_PACKED, PACKED_EMBEDDING = DequantizePacked(), PackedEmbedding()
PACKED_BLOCK_MATMUL, PACKED_MATMUL = PackedBlockMatmul(), PackedMatmul()
FAMILY: tuple[Op, ...] = (DEQUANTIZE_PACKED, PACKED_EMBEDDING, PACKED_BLOCK_MATMUL, PACKED_MATMUL)
