"""The rules of layers of experts, between whose kernels the host stages missing experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.expert_rules import ExpertRules
from ostinato.backends.webgpu.rules.expert_staging import StageExperts
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.lower.rules import experts, sums_of_products

if TYPE_CHECKING:
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["WebGpuExpertRules"]


class WebGpuExpertRules(ExpertRules):
    """See :class:`~ostinato.backends.common.expert_rules.ExpertRules`."""

    def expert_mlp(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        operands = self.operands(lowering, root, root.inputs[1])
        experts.lower_expert_mlp(lowering, region, root, operands)

    def grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        operands = self.operands(lowering, root, root.inputs[2])
        sums_of_products.lower_grouped_matmul(lowering, region, root, operands)

    def _staged(
        self, lowering: ProgramBuilder, layer: ResidentLayer, ids: Value, listed: LoweredBuffer
    ) -> LoweredBuffer:
        label = layer.node.label
        places = LoweredBuffer(TensorType(INT64, ids.shape), Role.TEMP, f"{label}.places")
        matrices = [matrix.places for matrix in layer.matrices]
        args = (
            Arg(INT64, reads=True, writes=False),
            Arg(INT64, reads=False, writes=True),
            *(Arg(matrix.type.dtype, reads=True, writes=True) for matrix in matrices),
        )
        stage = StageExperts(args, lowering.variables, ids.type.size, layer)
        lowering.calls.append(Call(stage, (listed, places, *matrices), (label,), "stage experts"))
        return places
