"""The code of kernels: shaders, and machine code of the processor for what the device lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.common.program_image import ObjectCode
from ostinato.backends.cpu.compiler import CompiledKernel, KernelCompiler, SizeCode
from ostinato.backends.cpu.rules.kernel import CpuKernel, CpuLoopNest
from ostinato.backends.cpu.rules.ordered import distinct_points_in_parallel
from ostinato.backends.webgpu.arguments import Arguments, offset_unit
from ostinato.backends.webgpu.host_steps import linked
from ostinato.backends.webgpu.image import SHADER, HostStep, LaunchStep
from ostinato.backends.webgpu.kernel import Bindings, WebGpuKernel
from ostinato.backends.webgpu.rules.expert_staging import StageExperts
from ostinato.backends.webgpu.sizes import size_text
from ostinato.cache.fingerprint import object_key
from ostinato.cache.objects import process_cache
from ostinato.errors import UnsupportedOpError
from ostinato.lower.control import Control
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.text import kernel_text
from ostinato.lower.rules.sizes import SizeStep
from ostinato.plan.report import and_more
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.backends.cpu.compiler import BuiltinKernel, MachineCode
    from ostinato.backends.cpu.llvm.toolchain import LinkedCode
    from ostinato.backends.webgpu.gpu import Gpu, Pipeline
    from ostinato.backends.webgpu.host_steps import HostKernels, HostProgram
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.types import TensorType
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.variables import Symbol

__all__ = [
    "KernelCode",
    "LoadedCode",
    "Rendered",
    "WebGpuCode",
    "load_image",
    "object_codes",
    "obstacle",
    "rendered",
]

#: Numbers of 32 bits count a tensor's elements from the beginning of its first buffer, in units of
#: at most a word.
_ADDRESSES = 1 << 32


class Rendered(NamedTuple):
    """A rendered kernel.

    Attributes:
        key: the cache's key.
        groups: the number of workgroups, as text.
        iterations: the most iterations of a thread's loops, as text.
        source: WGSL.
    """

    key: str
    groups: str
    iterations: str
    source: str


def rendered(kernel: WebGpuKernel, target: WebGpuTarget, bindings: Bindings) -> Rendered:
    """A kernel for arguments in these buffers, rendered once for all processes."""
    text = f"{kernel_text(kernel)}\n{bindings}"
    key = object_key(text, f"wgsl {target.identity}")

    def build() -> bytes:
        shader = kernel.shader(target, bindings)
        sizes = size_text(shader.groups), size_text(shader.iterations)
        return "\n".join((*sizes, shader.source)).encode()

    return Rendered(key, *process_cache().get_or_build(key, build).decode().split("\n", 2))


def obstacle(kernel: Kernel, target: WebGpuTarget, bindings: Bindings) -> str:
    """The reason for which the CPU runs a kernel of a program; empty: it does not.

    Args:
        kernel: the kernel.
        target: the device.
        bindings: the buffers that its arguments are in.
    """
    if isinstance(kernel, Control | SizeStep | StageExperts):
        return ""
    if not isinstance(kernel, WebGpuKernel):
        return "this device has no kernel for it"
    if found := kernel.obstacle(target):
        return found
    if (count := len(bindings.writable)) > target.bindings:
        return f"it is on {count} buffers, and a kernel of this device on {target.bindings}"
    for arg, parts in zip(kernel.args, bindings.arguments, strict=True):
        if len(parts) > 1 and len(parts) * target.part_bytes // offset_unit(arg) > _ADDRESSES:
            return f"a tensor of it is on {len(parts)} buffers, beyond 32-bit addresses"
    return ""


@dataclass(frozen=True)
class KernelCode:
    """A kernel as it was compiled.

    Attributes:
        kernel: the kernel.
        target: the device.
        host: its code for the processor; ``None``: the device, or the runtime, runs it.
    """

    kernel: Kernel
    target: WebGpuTarget
    host: CompiledKernel | BuiltinKernel | None = None

    @property
    def name(self) -> str:
        """Its name, the same for kernels with the same code."""
        if self.host is not None:
            return f"{self.host.name} on the CPU"
        if isinstance(self.kernel, WebGpuKernel):
            return self.kernel.name
        return kernel_text(self.kernel).split("\n", 1)[0]

    @property
    def source(self) -> str:
        """Its WGSL, each argument in a buffer of its own; or the input of the CPU's compiler."""
        if self.host is not None:
            return self.host.source
        if isinstance(self.kernel, WebGpuKernel):
            return rendered(self.kernel, self.target, Bindings.apart(self.kernel)).source
        return kernel_text(self.kernel)

    @property
    def assembly(self) -> str | None:
        """The processor's code as text; that of the device is its driver's."""
        return None if self.host is None else self.host.assembly

    @property
    def machine_code(self) -> Mapping[str, LinkedCode]:
        """By symbol, the owner of its code for the processor."""
        host = self.host
        return {host.name: host.linked} if isinstance(host, CompiledKernel) else {}

    def step(
        self,
        places: Sequence[tuple[int, int]],
        types: Sequence[TensorType],
        shaders: dict[str, str],
        *,
        aligned: bool = True,
    ) -> LaunchStep | HostStep:
        """The step that runs it.

        Args:
            places: of its arguments.
            types: of these.
            shaders: gets the source of its shader, by the cache's key.
            aligned: see :class:`~ostinato.backends.webgpu.kernel.Bindings`.
        """
        kernel, host = self.kernel, self.host
        if host is not None:
            symbolic = isinstance(host, CompiledKernel)
            extent, _, grain, scratch_bytes, parallel = host.launch
            name = host.name if symbolic else f"{host.name}_kernel"
            launch = (name, not symbolic, (), extent, host.extent_symbol)
            return HostStep(
                tuple(places),
                tuple(size_text(t.size * t.dtype.itemsize) for t in types),
                tuple(arg.writes for arg in kernel.args),
                (*launch, grain, scratch_bytes, parallel),
            )
        assert isinstance(kernel, WebGpuKernel)
        sizes = [t.max_bytes for t in types]
        found = Arguments.of(kernel.args, places, sizes, self.target.part_bytes, aligned=aligned)
        shader = rendered(kernel, self.target, found.bindings)
        shaders[shader.key] = shader.source
        return LaunchStep(
            shader.key,
            tuple(places),
            tuple(map(offset_unit, kernel.args)),
            found.buffers,
            found.first,
            found.bindings.writable,
            shader.groups,
            "" if self.target.iterations is None else shader.iterations,
        )


class WebGpuCode:
    """The kernels of a program.

    Args:
        kernels: each with the buffers that its arguments are in.
        variables: the Variables of the program.
        target: the device.
        nodes: by kernel, the labels of the nodes that it computes, for messages.

    Raises:
        UnsupportedOpError: neither the device nor the CPU can run a kernel.

    Attributes:
        machine_code: of the kernels that the CPU runs; ``None``: there are none.
        reasons: by kernel that the CPU runs, the reason.
    """

    def __init__(
        self,
        kernels: Mapping[Kernel, Bindings],
        variables: tuple[Symbol, ...],
        target: WebGpuTarget,
        nodes: Mapping[Kernel, Sequence[str]] | None = None,
    ) -> None:
        found = {kernel: obstacle(kernel, target, bound) for kernel, bound in kernels.items()}
        self.reasons = {kernel: reason for kernel, reason in found.items() if reason}
        on_host = {}
        for kernel, reason in self.reasons.items():
            named = and_more(() if nodes is None else nodes[kernel])
            on_host[kernel] = _for_cpu(kernel, named, reason)
        self.machine_code: MachineCode | None = None
        if on_host:
            self.machine_code = _compiled([*on_host.values()], variables)
        self._codes = {
            kernel: KernelCode(kernel, target, self._host_code(on_host.get(kernel)))
            for kernel in kernels
        }

    def code(self, kernel: Kernel) -> KernelCode:
        """The code of a kernel."""
        return self._codes[kernel]

    def _host_code(self, kernel: CpuKernel | None) -> CompiledKernel | BuiltinKernel | None:
        if kernel is None:
            return None
        assert self.machine_code is not None
        code = self.machine_code.kernel(kernel)
        assert not isinstance(code, SizeCode)
        return code


def _for_cpu(kernel: Kernel, nodes: str, reason: str) -> CpuKernel:
    """A kernel of a program as the CPU runs it.

    Raises:
        UnsupportedOpError: it was made for the device alone.
    """
    if isinstance(kernel, LoopNest):
        return CpuLoopNest.of(distinct_points_in_parallel(kernel))
    if isinstance(kernel, CpuKernel):
        return kernel
    title = kernel_text(kernel).split("\n", 1)[0]
    raise UnsupportedOpError(
        f"{nodes or title}: this adapter cannot run the kernel, {reason}; compile with "
        "CompileOptions(optimize=False), or use smaller tensors"
    )


def _compiled(kernels: Sequence[CpuKernel], variables: tuple[Symbol, ...]) -> MachineCode:
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec  # LLVM, where it is needed

    return KernelCompiler(TargetSpec.host(), process_cache()).compile(kernels, (), variables)


class LoadedCode:
    """The code of a program, ready to run.

    Args:
        gpu: the device.
        host: runs kernels of the CPU.
        shaders: by key, the source of each shader.
        machine_code: by symbol, the code of a kernel that the CPU runs.
        label: of the shaders, for the driver's messages.
    """

    def __init__(
        self,
        gpu: Gpu,
        host: HostKernels,
        shaders: Mapping[str, str],
        machine_code: Callable[[str], LinkedCode | None],
        label: str = "a kernel",
    ) -> None:
        self.gpu = gpu
        self._host = host
        self._shaders = shaders
        self._machine_code = machine_code
        self._label = label

    def pipeline(self, step: LaunchStep) -> Pipeline:
        """The pipeline of a launch.

        Raises:
            DeviceError: the driver refuses its source, which is a bug of the renderer.
        """
        source = self._shaders[step.code]
        return self.gpu.pipeline(step.code, self._label, source, step.writable)

    def host_program(self, step: HostStep, variables: int) -> HostProgram:
        """The program of a step that the CPU runs."""
        code = self._machine_code(step.launch[0])
        return self._host.program(step, code, variables)


def object_codes(shaders: Iterable[str], machine_code: MachineCode | None) -> list[ObjectCode]:
    """The objects of an image.

    Args:
        shaders: their keys.
        machine_code: of the kernels that the CPU runs.
    """
    objects = [ObjectCode(key, (SHADER,)) for key in shaders]
    if machine_code is not None:
        objects += [ObjectCode(key, tuple(s)) for key, s in machine_code.objects.items()]
    return objects


def load_image(gpu: Gpu, host: HostKernels, objects: Sequence[ObjectCode]) -> LoadedCode | None:
    """The code of a stored program; ``None`` if some of it is no longer in the cache."""
    shaders: dict[str, str] = {}
    native: list[tuple[bytes, Sequence[str]]] = []
    for key, symbols in objects:
        data = process_cache().find(key)
        if data is None:
            return None
        if symbols == (SHADER,):
            shaders[key] = data.decode().split("\n", 2)[2]
        else:
            native.append((data, symbols))
    code = linked(native)
    return LoadedCode(gpu, host, shaders, lambda _: code)
