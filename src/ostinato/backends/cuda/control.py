"""Decisions of control flow, as kernels that leave them in the block of Variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import FAILED, GOES_ON, Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.control import Control, ControlKind
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.variables import Symbol

__all__ = ["CudaControl"]


@dataclass(frozen=True, eq=False)
class CudaControl(Control, CudaKernel):
    """A kernel of one thread that decides whether steps behind it run."""

    prefix: ClassVar[str] = "control"

    @staticmethod
    def of(control: Control, variables: tuple[Symbol, ...]) -> CudaControl:
        """``control`` as a GPU runs it, in a program with these Variables."""
        return CudaControl(
            control.kind,
            control.args,
            control.conditional,
            control.counted,
            control.trips,
            control.counter,
            control.iteration,
            variables,
        )

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(1, 1)

    def source(self, target: CudaTarget) -> str:
        from ostinato.backends.cuda.render.frame import Frame  # only where kernels are rendered

        pointers = [f"const {_POINTED[arg.dtype.name]}* b{i}, " for i, arg in enumerate(self.args)]
        lines = [f'extern "C" __global__ void {self.name}({"".join(pointers)}long long* vars) {{']
        conditions = [f"vars[{FAILED}] == 0"]
        if self.conditional:
            conditions.append("b0[0] != 0")
        if self.kind in (ControlKind.LOOP, ControlKind.END_LOOP):
            first = "0" if self.kind is ControlKind.LOOP else f"vars[{self.counter}] + 1"
            lines.append(f"    const long long iteration = {first};")
            lines.append(f"    vars[{self.counter}] = iteration;")
            if self.trips is not None:
                lines.append(Frame(self).sizes({"trips": self.trips}))
                conditions.append("iteration < trips")
            if self.counted:
                conditions.append(f"iteration < b{len(self.args) - 1}[0]")
        lines.append(f"    vars[{GOES_ON}] = {' && '.join(conditions)};")
        return "\n".join([*_INCLUDES, *lines, "}", ""])


_INCLUDES = ('#include "base.cuh"',)

_POINTED = {"bool": "unsigned char", "int64": "long long"}
