"""The stages of the device ``cuda``: those of every device, faults, and compute-sanitizer."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from .stages import Stage, Suites

__all__ = ["SANITIZED", "CudaSuites"]

#: The ops that run under compute-sanitizer: each way in which kernels use threads, and few more.
SANITIZED = "add or sum or softmax or matmul or cumsum or scatter or topk or conv or take"

#: Kernels for groups of warps, which no op of the common cases is large enough for.
_GROUPS = "tests/backends/cuda/runtime/test_group_kernels.py"

_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


class CudaSuites(Suites):
    """See :class:`~tests.conformance.stages.Suites`."""

    def stages(self) -> dict[str, Callable[[], Stage]]:
        return {
            **super().stages(),
            "faults": self.faults,
            "groups": self.groups,
            **{tool: lambda tool=tool: self.sanitizer(tool) for tool in _TOOLS},  # type: ignore[misc]
            **{
                f"{tool}-groups": lambda tool=tool: self.sanitizer(tool, groups=True)  # type: ignore[misc]
                for tool in _TOOLS
            },
        }

    def faults(self) -> Stage:
        """Several contexts and processes, too little memory, kernels that fail."""
        tests = ["tests/backends/cuda/runtime/test_cuda_faults.py"]
        return self.pytest("faults", tests, chosen=False)

    def groups(self) -> Stage:
        """Kernels for groups of warps, of many sizes."""
        return self.pytest("groups", [_GROUPS], chosen=False)

    def sanitizer(self, tool: str, *, groups: bool = False) -> Stage:
        """Some ops under a tool of compute-sanitizer, in one process.

        Args:
            tool: its name.
            groups: whether it watches kernels for groups of warps, instead of the common cases.
        """
        sanitizer = shutil.which("compute-sanitizer")
        if sanitizer is None:
            return Stage(tool, problem="compute-sanitizer is not installed")
        around = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
        if groups:
            return self.pytest(f"{tool}-groups", [_GROUPS], "sample", around, chosen=False)
        tests = ["tests/conformance/test_ops.py"]
        return self.pytest(tool, tests, keyword=f"({SANITIZED}) and float32", around=around)
