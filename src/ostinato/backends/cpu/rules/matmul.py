"""The CPU's rules for matmuls and convolutions, alone and horizontally fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.packed_matmul import (
    OrderedMatmul,
    PackedMatmul,
    pack_operands,
    segment_of,
    tile_sizes,
)
from ostinato.dtypes import BFLOAT16
from ostinato.lazy import LazyModule
from ostinato.lower.fusion.regions import Region
from ostinato.lower.rules.matmul_spec import conv_spec, matmul_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules import (
        amx_gemm,
        bfloat16_gemm,
        int_gemm,
        multi_gemm,
        packed_blocks,
    )
    from ostinato.backends.cpu.rules.kernel import CpuKernel
    from ostinato.backends.cpu.rules.packed_matmul import ChooseTiles
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node
    from ostinato.lower.program_builder import ProgramBuilder
else:
    amx_gemm = LazyModule("ostinato.backends.cpu.rules.amx_gemm")
    bfloat16_gemm = LazyModule("ostinato.backends.cpu.rules.bfloat16_gemm")
    int_gemm = LazyModule("ostinato.backends.cpu.rules.int_gemm")
    multi_gemm = LazyModule("ostinato.backends.cpu.rules.multi_gemm")
    packed_blocks = LazyModule("ostinato.backends.cpu.rules.packed_blocks")

__all__ = ["MatmulRules"]

#: Matmuls of one column are dot products, row by row.
_FLOATS = ("matmul", "widening_matmul")


class MatmulRules:
    """Rules that multiply with packed panels.

    Args:
        registers: what tiles are sized for.
        choose_tiles: gives better tile sizes than the heuristic's; ``None``: the heuristic decides.
    """

    def __init__(self, registers: RegisterFile, choose_tiles: ChooseTiles | None) -> None:
        self.registers = registers
        self.choose_tiles = choose_tiles

    def matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a matmul: a dot product per row where there is one column, else a GEMM."""
        (matmul,) = self._packed([root])
        if matmul.spec.n == 1 and root.op.name in _FLOATS:
            build = lowering.builder(region)
            outputs = lowering.region_outputs(region)
            nest = matmul.spec.loop_nest(build, outputs, lowering.variables)
            lowering.call(region, build, nest, outputs)
        else:
            self._lower(lowering, [(region, [matmul])])

    def convolution(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a convolution as an implicit GEMM."""
        if root.op.name == "integer_conv":
            matmul: PackedMatmul = int_gemm.int_conv(lowering, root)
        else:
            matmul = PackedMatmul(conv_spec(root, lowering.layout(root.inputs[0])))
        self._lower(lowering, [(region, [matmul])])

    def horizontally(self, lowering: ProgramBuilder, regions: Sequence[Region]) -> None:
        """Lower matmuls of the same rows as one kernel; those of one region share its epilogue."""
        packed = iter(self._packed([root for region in regions for root in region.roots]))
        self._lower(
            lowering, [(region, [next(packed) for _ in region.roots]) for region in regions]
        )

    def _packed(self, nodes: Sequence[Node]) -> Sequence[PackedMatmul]:
        """The matmuls of one kernel, all with tile registers or all with vectors."""
        if self.registers.amx_dtypes:
            found = [amx_gemm.amx_matmul(node, self.registers) for node in nodes]
            tiled = [matmul for matmul in found if matmul is not None]
            if len(tiled) == len(nodes):
                return tiled
        return [self._in_vectors(node) for node in nodes]

    def _in_vectors(self, node: Node) -> PackedMatmul:
        match node.op.name:
            case "integer_matmul":
                return int_gemm.int_matmul(node)
            case "blockwise_matmul":
                return int_gemm.blockwise_matmul(node)
            case "packed_block_matmul":
                return packed_blocks.packed_block_matmul(node)
        return self._by_dots(node) or OrderedMatmul(matmul_spec(node))

    def _by_dots(self, node: Node) -> PackedMatmul | None:
        """The matmul by dot products of bfloat16, if it is one of that and they are wanted."""
        wanted = self.registers.bfloat16_dots
        if wanted is None or node.inputs[0].dtype != BFLOAT16 or not wanted():
            return None
        return bfloat16_gemm.bfloat16_matmul(node)

    def _lower(
        self, lowering: ProgramBuilder, segments: Sequence[tuple[Region, Sequence[PackedMatmul]]]
    ) -> None:
        matmuls = [matmul for _, some in segments for matmul in some]
        registers = self.registers
        sizes = tile_sizes(matmuls, registers, self.choose_tiles)
        panels = {m: pack_operands(lowering, m, sizes.tile[1], registers) for m in matmuls}
        whole = Region([node for region, _ in segments for node in region.members], 0)
        build = lowering.builder(whole)
        outputs = [lowering.region_outputs(region) for region, _ in segments]
        made = [
            segment_of(build, some, panels, sizes, results, lowering.variables, registers)
            for (_, some), results in zip(segments, outputs, strict=True)
        ]
        kernel: CpuKernel = made[0][0]
        if len(matmuls) > 1:
            kernel = multi_gemm.multi_gemm(made, build.args, lowering.variables)
        lowering.call(whole, build, kernel, [pair for results in outputs for pair in results])
