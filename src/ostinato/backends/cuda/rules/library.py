"""Matmuls that a library computes: those whose operands and result are matrices in memory.

The library takes matrices by columns. Where the columns of the result are next to one another in
memory, what it computes is the transpose: ``Dᵀ = Bᵀ · Aᵀ``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ostinato.backends.cuda.abi import is_guarded
from ostinato.backends.cuda.product import Matrix, Product
from ostinato.backends.cuda.rules.matmul import bring_weight_into_memory
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, UINT8
from ostinato.ir.leaves import CONSTANT, PARAM
from ostinato.ir.types import TensorType
from ostinato.lower.fusion.regions import Region
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nodes import Accumulator, Apply, Load, extent_of
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.lower.rules.matmul_spec import matmul_spec
from ostinato.records import dataclass
from ostinato.variables import coefficient, recombine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Arg, Scalar, Store
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Dim, Symbol

__all__ = [
    "LIBRARY",
    "MATMULS",
    "LibraryProduct",
    "LibraryRules",
    "LibrarySettings",
    "Operand",
    "adds_bias",
    "bring_into_memory",
    "library_kernel",
    "stored_strides",
    "strides_of",
    "suits",
]

#: The library's name in reports.
LIBRARY = "cuBLASLt"

MATMULS = ("matmul", "widening_matmul", "integer_matmul")
"""The ops that the library computes where it is faster."""

#: By dtype of the operands: the operations from which on a product is faster than by the device's
#: own kernels, an epilogue of its own included.
_LEAST_WORK: dict[DType, int] = {
    FLOAT16: 100_000_000,
    BFLOAT16: 100_000_000,
    FLOAT32: 10_000_000,
    FLOAT64: 1_000_000,
    INT8: 100_000_000,
}

#: The dtypes of results to which the library adds a bias.
_WITH_BIAS = (FLOAT16, BFLOAT16)

#: Rows up to which the device's own kernels are faster.
_FEW_ROWS = 16

#: Bytes that every argument of a kernel is a multiple of.
_ALIGNMENT = 16

#: Sizes of products of bytes are multiples of this.
_BYTES = 16

#: Parts of a sum that there is room for, and the most bytes of a workspace.
_PARTS, _MOST_WORKSPACE = 16, 32 << 20


@dataclass(frozen=True)
class LibrarySettings:
    """The use that is made of the library.

    Attributes:
        tf32: round float32 to 10 bits of mantissa before multiplying.
        timed: time a few algorithms for each product.
        float8: multiply 8-bit floats.
        row_scales: scale these by rows and columns, too.
        joint: multiply the same rows by copies of several weights side by side.
    """

    tf32: bool = False
    timed: bool = True
    float8: bool = False
    row_scales: bool = False
    joint: bool = True


class Operand(NamedTuple):
    """An argument of a product, its matrices stored from ``offset`` bytes on."""

    position: int
    offset: int


@dataclass(frozen=True, eq=False)
class LibraryProduct(Kernel):
    """A matmul that a library computes.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        product: what it computes.
        operands: the library's A, B and D, the workspace, the bias and the scales, if any.
        variables: none: all sizes are numbers.
    """

    args: tuple[Arg, ...]
    product: Product
    operands: tuple[Operand, ...]
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "library"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{LIBRARY}: {self.product}")
        text.head(self.args)
        scales = ("scale of a", "scale of b")
        names = ("a", "b", "d", "workspace", *(scales if self.product.scales else ("bias",)))
        for name, operand in zip(names, self.operands, strict=False):
            text.line(1, f"{name}: b{operand.position} + {operand.offset} bytes")
        text.line(1, repr(tuple(self.product)))

    def arguments(self, places: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """The places of a launch's arguments.

        Args:
            places: slot and offset of each of the kernel's arguments.
        """
        return tuple(
            (places[operand.position][0], places[operand.position][1] + operand.offset)
            for operand in self.operands
        )


class LibraryRules:
    """The rules for matmuls that a library computes.

    Args:
        settings: how.
        otherwise: lowers a region whose matrices are not as the library takes them.
        spared: matmuls that are not for the library.
    """

    def __init__(
        self,
        settings: LibrarySettings,
        otherwise: Callable[[ProgramBuilder, Region, Node], None],
        spared: Collection[Node] = (),
    ) -> None:
        self._settings = settings
        self._otherwise = otherwise
        self._spared = spared

    def takes(self, node: Node) -> bool:
        """Whether a node is a matmul for the library."""
        return suits(node) and node not in self._spared

    def matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul."""
        bring_weight_into_memory(lowering, region, root)
        found = None
        whole = region.members == [root] or _bias_of(region) is not None
        if whole and self.takes(root) and not is_guarded(lowering.variables):
            found = _Matmul(lowering, region, root)
        if found is None or not found.lower(self._settings):
            self._otherwise(lowering, region, root)

    def horizontally(self, lowering: ProgramBuilder, regions: Sequence[Region]) -> None:
        """Lower matmuls of the same rows as one, by weights side by side."""
        roots = [root for region in regions for root in region.roots]
        targets = [_plain_target(lowering, region) for region in regions]
        biases = [_bias_of(region) for region in regions]
        alone = all(region.members == list(region.roots) for region in regions)
        able = len(regions) == len(roots) > 1 and (alone or None not in biases)
        able = able and not lowering.nested and None not in targets
        if not able or not _Joint(lowering, regions).lower(self._settings):
            for region, root in zip(regions, roots, strict=True):
                self.matmul(lowering, region, root)


def suits(node: Node) -> bool:
    """Whether a library is faster than the device's own kernels, to all that its types say."""
    if node.op.name not in MATMULS:
        return False
    (a, b), (out,) = node.inputs, node.outputs
    least = _LEAST_WORK.get(a.dtype)
    integers = node.op.name == "integer_matmul"
    if b.dtype != a.dtype or least is None or integers != (out.dtype == INT32):
        return False
    shapes = (*a.shape, *b.shape, *out.shape)
    if not all(isinstance(size, int) and size > 0 for size in shapes):
        return False
    spec = matmul_spec(node)
    rows, columns, depth = _number(spec.m), _number(spec.n), _number(spec.depth)
    if a.dtype == INT8 and any(size % _BYTES for size in (rows, columns, depth)):
        return False
    work = 2 * math.prod(map(_number, spec.batch)) * rows * columns * depth
    return rows > _FEW_ROWS and columns > 1 and work >= least


def adds_bias(root: Node, reader: Node) -> bool:
    """Whether a library adds what a reader adds to a matmul: a param or constant, by column."""
    if reader.op.name != "add" or root.outputs[0].dtype not in _WITH_BIAS:
        return False
    if root.op.name == "scaled_matmul":
        return False
    return _bias_among(root, reader) is not None and reader.outputs[0].type == root.outputs[0].type


def _bias_among(root: Node, reader: Node) -> Value | None:
    """The operand of an addition that is a bias of a matmul, the other operand."""
    (out,) = root.outputs
    others = [value for value in reader.inputs if value is not out]
    if len(others) != 1:
        return None
    (bias,) = others
    fits = bias.shape == out.shape[-1:] and bias.dtype == out.dtype
    return bias if fits and bias.node.op in (PARAM, CONSTANT) else None


def _bias_of(region: Region) -> Value | None:
    """The bias of a region that is a matmul and its addition."""
    if len(region.members) != 2 or len(region.roots) != 1 or region.members[0] not in region.roots:
        return None
    root, reader = region.members
    return _bias_among(root, reader) if adds_bias(root, reader) else None


class _Strides(NamedTuple):
    """The place of a matrix in memory, or of a batch of them.

    Attributes:
        position: of the argument.
        offset: the first element.
        batch, row, column: elements from one matrix, row and column to the next.
    """

    position: int
    offset: int
    batch: int
    row: int
    column: int

    @property
    def transpose(self) -> _Strides:
        """The same matrix with its rows as columns."""
        return self._replace(row=self.column, column=self.row)


class _Sizes(NamedTuple):
    """The sizes of a matmul: the number of matrices, rows, columns and products of a sum."""

    batch: int
    m: int
    n: int
    k: int


def _described(
    dtypes: tuple[DType, DType],
    sizes: _Sizes,
    a: _Strides,
    b: _Strides,
    d: _Strides,
    settings: LibrarySettings,
    bias: Operand | None = None,
) -> tuple[Product, tuple[Operand, ...]] | None:
    """The library's product for a matmul, and its A, B and D; ``None``: it has none.

    Args:
        dtypes: of the operands and of the result.
        sizes: of the matmul.
        a, b, d: the matmul's operands and its result.
        settings: how it is to be computed.
        bias: of the columns of the result.
    """
    dtype, result = dtypes
    if bias is not None and d.column != 1:
        return None
    if d.column != 1:  # then it is not the transpose that is stored by columns
        sizes = sizes._replace(m=sizes.n, n=sizes.m)
        a, b, d = b.transpose, a.transpose, d.transpose
    left = _by_columns(b.transpose, sizes.n, sizes.k, dtype)
    right = _by_columns(a.transpose, sizes.k, sizes.m, dtype)
    target = _by_columns(d.transpose, sizes.n, sizes.m, result)
    if left is None or right is None or target is None or target[1]:
        return None
    if dtype == INT8 and not (left[1] and not right[1]):
        return None
    batch, m, n, _ = sizes
    workspace = min(_MOST_WORKSPACE, _rounded(_PARTS * batch * m * n * result.accumulator.itemsize))
    product = Product(
        dtype.name,
        result.name,
        left[0],
        right[0],
        target[0],
        (left[1], right[1]),
        batch,
        workspace,
        tf32=settings.tf32 and dtype == FLOAT32,
        timed=settings.timed,
        bias=bias is not None,
    )
    return product, (
        Operand(b.position, b.offset * dtype.itemsize),
        Operand(a.position, a.offset * dtype.itemsize),
        Operand(d.position, d.offset * result.itemsize),
        *(() if bias is None else (bias,)),
    )


def _by_columns(
    matrix: _Strides, rows: int, columns: int, dtype: DType
) -> tuple[Matrix, bool] | None:
    """A matrix as it is stored by columns, and whether that is its transpose."""
    alignment = math.gcd(_ALIGNMENT, matrix.offset * dtype.itemsize)
    for transposed in (False, True):
        if transposed:
            matrix, rows, columns = matrix.transpose, columns, rows
        pitch = matrix.column if columns > 1 else rows
        if (matrix.row == 1 or rows == 1) and pitch >= rows:
            return Matrix(rows, columns, pitch, matrix.batch, alignment), transposed
    return None


class _Matmul:
    """A matmul of a region of its own, and its operands in memory."""

    def __init__(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        self._lowering = lowering
        self._region = region
        self._spec = matmul_spec(root)

    def lower(self, settings: LibrarySettings) -> bool:
        """Append the call; nothing where the library does not take the matrices as they are."""
        lowering, spec = self._lowering, self._spec
        for value in (spec.a, spec.b):
            if not lowering.nested:
                bring_into_memory(lowering, self._region, value)
        build = lowering.builder(self._region)
        at = spec.axes(build)
        (m,), (n,), (k,) = map(symbols_of, ([at.m], [at.n], at.k))
        batch = symbols_of(at.batch)
        a = strides_of(spec.left(build, at), batch, m, k)
        group = spec.group_of(at.batch)
        b = strides_of(build.at(spec.b, spec.b_at(group, at.k, at.n)), batch, k, n)
        outputs = lowering.region_outputs(self._region)
        result = spec.out_at(at.batch, at.m, at.n)
        stores = spec.stores(build, Accumulator(spec.acc), result, outputs)
        added = _bias_of(self._region)
        d = None
        if len(stores) == 1:
            (store,) = stores
            if added is None:
                d = stored_strides(store, batch, m, n)
            elif not (store.bindings or store.conditions) and store.update == "set":
                d = _steps(store.buffer, store.index, batch, m, n)
        if a is None or b is None or d is None:
            return False
        bias = None if added is None else _vector(build, added)
        count = math.prod(_number(extent_of(symbol)) for symbol in batch)
        sizes = _Sizes(count, _number(spec.m), _number(spec.n), _number(spec.k[0]))
        dtypes = spec.a.dtype, spec.node.outputs[0].dtype
        found = _described(dtypes, sizes, a, b, d, settings, bias)
        if found is None:
            return False
        kernel = library_kernel(build, *found)
        lowering.call(self._region, build, kernel, outputs, LIBRARY)
        return True


class _Joint:
    """Matmuls of the same rows as one: their weights, and their results, side by side."""

    def __init__(self, lowering: ProgramBuilder, regions: Sequence[Region]) -> None:
        self._lowering = lowering
        self._regions = regions
        self._roots = roots = [root for region in regions for root in region.roots]
        self._columns = sum(_number(root.outputs[0].shape[-1]) for root in roots)

    def lower(self, settings: LibrarySettings) -> bool:
        """Append the call; nothing where the library does not take the matrices as they are."""
        lowering, roots = self._lowering, self._roots
        spec, (out,), weight = matmul_spec(roots[0]), roots[0].outputs, roots[0].inputs[1]
        members = [node for each in self._regions for node in each.members]
        region = Region(members, 0, roots=tuple(roots))
        bring_into_memory(lowering, region, spec.a)
        build = lowering.builder(region)
        at = spec.axes(build)
        (m,), (k,) = map(symbols_of, ([at.m], at.k))
        a = strides_of(spec.left(build, at), (), m, k)
        rows, depth, columns = _number(spec.m), _number(spec.k[0]), self._columns
        weights = _side_by_side(weight, columns, f"{weight.node.label}.joint")
        results = _side_by_side(out, columns, f"{out.node.label}.joint")
        read = build.argument(weights, reads=True)
        written = build.argument(results, writes=True)
        b = _Strides(read, 0, 0, columns, 1)
        d = _Strides(written, 0, 0, columns, 1)
        added = [_bias_of(each) for each in self._regions]
        biases = bias = None
        if added[0] is not None:
            biases = _side_by_side(added[0], columns, f"{added[0].node.label}.joint")
            bias = Operand(build.argument(biases, reads=True), 0)
        sizes = _Sizes(1, rows, columns, depth)
        found = None
        if a is not None:
            found = _described((weight.dtype, out.dtype), sizes, a, b, d, settings, bias)
        if found is None:
            return False
        outputs, first = [], 0
        for each, root, own in zip(self._regions, roots, added, strict=True):
            (value,) = each.members[-1].outputs
            lowering.copy_into(root.inputs[1], _part(root.inputs[1], weights, first, columns))
            if own is not None and biases is not None:
                lowering.copy_into(own, _part(own, biases, first, columns))
            outputs.append((value, _part(value, results, first, columns)))
            first += _number(value.shape[-1])
        lowering.call(region, build, library_kernel(build, *found), outputs, LIBRARY)
        return True


def bring_into_memory(lowering: ProgramBuilder, region: Region, value: Value) -> None:
    """Store an operand that would be computed, or taken apart, element by element."""
    build = lowering.builder(region)
    element = build.at(value, build.axes(value.shape))
    if not isinstance(element, Load) or element.bindings or not _is_affine(element.index):
        lowering.copy(value)


def _is_affine(index: Dim) -> bool:
    """Whether an index is a number, and a number of times each axis."""
    return isinstance(index, int) or all(len(monomial) == 1 for monomial, _ in index.terms)


def library_kernel(
    build: KernelBuilder, product: Product, operands: tuple[Operand, ...]
) -> LibraryProduct:
    """The kernel of a product, whose workspace is a further argument."""
    type_ = TensorType(UINT8, (product.workspace,))
    workspace = LoweredBuffer(type_, Role.TEMP, "workspace")
    position = build.argument(workspace, reads=True, writes=True)
    places = (*operands[:3], Operand(position, 0), *operands[3:])
    return LibraryProduct(build.args, product, places)


def _vector(build: KernelBuilder, value: Value) -> Operand:
    """The place of a param or a constant."""
    element = build.at(value, build.axes(value.shape))
    assert isinstance(element, Load)
    return Operand(element.buffer, 0)


def strides_of(
    scalar: Scalar, batch: Sequence[Symbol], row: Symbol, column: Symbol
) -> _Strides | None:
    """The place of a matrix whose element is given; ``None``: it is not one in memory."""
    if not isinstance(scalar, Load) or scalar.bindings:
        return None
    return _steps(scalar.buffer, scalar.index, batch, row, column)


def stored_strides(
    store: Store, batch: Sequence[Symbol], row: Symbol, column: Symbol
) -> _Strides | None:
    """The place of a matmul's result; ``None``: it is no matrix, or something is made of it."""
    value = store.value
    if isinstance(value, Apply) and value.op == "cast":
        (value,) = value.operands
    plain = isinstance(value, Accumulator) and store.update == "set" and not store.bindings
    if not plain or store.conditions:
        return None
    return _steps(store.buffer, store.index, batch, row, column)


def _steps(
    position: int, index: Dim, batch: Sequence[Symbol], row: Symbol, column: Symbol
) -> _Strides | None:
    """The strides of an index; ``None``: it is not affine, or its batches are not evenly apart."""
    steps, index = [], recombine(index)
    for symbol in (*batch, row, column):
        parts = coefficient(index, symbol)
        if parts is None or not isinstance(parts[0], int) or parts[0] < 0:
            return None
        steps.append(parts[0])
        index = parts[1]
    *outer, row_step, column_step = steps
    for symbol, step, inner in zip(batch[1:], outer, outer[1:], strict=False):
        if step != inner * _number(extent_of(symbol)):
            return None
    if not isinstance(index, int):
        return None
    return _Strides(position, index, outer[-1] if outer else 0, row_step, column_step)


def _plain_target(lowering: ProgramBuilder, region: Region) -> LoweredBuffer | None:
    """The buffer of a region's only result, if that is memory of a run that may lie anywhere."""
    (value,) = region.members[-1].outputs
    other = any(v in lowering.needed for node in region.members[:-1] for v in node.outputs)
    able = not other and all(map(suits, region.roots)) and not is_guarded(lowering.variables)
    if not able or not lowering.placement.free([value]):
        return None
    target = lowering.placement.target(value)
    return target if target.layout is None and target.home is None else None


def _side_by_side(value: Value, columns: int, label: str) -> LoweredBuffer:
    """Memory for values like this one with other columns beside them."""
    type_ = TensorType(value.dtype, (*value.shape[:-1], columns))
    return LoweredBuffer(type_, Role.TEMP, label)


def _part(value: Value, whole: LoweredBuffer, first: int, columns: int) -> LoweredBuffer:
    """The place of a value within such memory."""
    starts = (0,) * (value.ndim - 1)
    layout = Layout(tuple(range(value.ndim)), (*value.shape[:-1], columns), (*starts, first))
    return LoweredBuffer(value.type, Role.TEMP, value.node.label, layout=layout, home=whole)


def _number(dim: Dim) -> int:
    """A size that is a number."""
    assert isinstance(dim, int)
    return dim


def _rounded(nbytes: int) -> int:
    """A size as a multiple of 256."""
    return -(-nbytes // 256) * 256
