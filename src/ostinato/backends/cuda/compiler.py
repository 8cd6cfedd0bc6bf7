"""Compilation of kernels by NVRTC to code for one architecture, cached by content.

It works without a GPU: all that it needs are the packages ``cuda-bindings`` and
``nvidia-cuda-nvrtc``.
"""

from __future__ import annotations

import hashlib
import importlib
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ostinato.backends.cpu.host import usable_processors
from ostinato.backends.cuda.disassembly import disassembled
from ostinato.backends.cuda.headers import headers
from ostinato.cache.builds import build_all
from ostinato.cache.fingerprint import object_key
from ostinato.cache.objects import process_cache
from ostinato.errors import DeviceUnavailableError, OstinatoError
from ostinato.lower.loopir.text import kernel_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.base import Progress
    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.cache.objects import ObjectCache

__all__ = ["NvrtcToolchain", "compile_text"]

#: Results are those of the text: no multiplication and addition becomes one instruction, nothing is
#: flushed to zero, divisions and square roots are rounded to nearest.
_OPTIONS = (
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--device-as-default-execution-space",
    "--disable-warnings",
)

#: Architectures with instructions that no later one has, by their general names.
_SPECIFIC = {"sm_90": "sm_90a"}


class NvrtcToolchain:
    """See :class:`~ostinato.backends.cuda.toolchain.Toolchain`: objects are cubins.

    Args:
        target: the GPU to compile for.
        cache: of objects; by default that of the process.
        helpers: how many threads compile besides the calling one; by default one for each processor
            but one.

    Raises:
        DeviceUnavailableError: a package is missing.
    """

    def __init__(
        self, target: CudaTarget, cache: ObjectCache | None = None, helpers: int | None = None
    ) -> None:
        self.target = target
        self._cache = process_cache() if cache is None else cache
        self._helpers = usable_processors() - 1 if helpers is None else helpers
        self._nvrtc = _load()

    @cached_property
    def identity(self) -> str:
        """All that objects depend on besides their sources: the GPU, NVRTC, options and headers."""
        _, major, minor = self._nvrtc.nvrtcVersion()
        made_with = (_SPECIFIC, _OPTIONS)
        digest = hashlib.sha256("\0".join(f"{k}\0{v}" for k, v in headers().items()).encode())
        return f"{self.target.identity} nvrtc {major}.{minor} {made_with} {digest.hexdigest()}"

    def compile(
        self, kernels: Sequence[CudaKernel], progress: Progress | None = None
    ) -> Mapping[str, tuple[bytes, Sequence[str]]]:
        """Objects by the cache's key, each with the symbols of its kernels.

        Raises:
            OstinatoError: a source does not compile: a bug of its renderer.
        """
        by_key: dict[str, tuple[str, CudaKernel]] = {}
        for kernel in kernels:
            text = f"{kernel.name}\n{kernel_text(kernel)}"
            by_key.setdefault(object_key(text, self.identity), (text, kernel))
        found = {key: self._cache.find(key) for key in by_key}
        missing = [key for key, data in found.items() if data is None]
        groups = self._groups({key: by_key[key][0] for key in missing})
        built = build_all(
            self._cache,
            {name: partial(self._build, [by_key[k][1] for k in keys]) for name, keys in groups},
            helpers=self._helpers,
            report=None if progress is None else _counted(progress, groups),
        )
        for name, keys in groups:
            for key in keys:
                found[key] = self._cache.get_or_build(key, partial(built.__getitem__, name))
        return _without_copies(found, {key: kernel.name for key, (_, kernel) in by_key.items()})

    def _groups(self, texts: Mapping[str, str]) -> list[tuple[str, list[str]]]:
        """Keys of kernels that one program compiles, each group with its key.

        Most of NVRTC's time is spent before a program's first kernel, so there are as many programs
        as threads, of about the same length.
        """
        count = min(len(texts), self._helpers + 1)
        groups: list[list[str]] = [[] for _ in range(count)]
        lengths = [0] * count
        for key in sorted(texts, key=lambda key: len(texts[key]), reverse=True):
            shortest = lengths.index(min(lengths))
            groups[shortest].append(key)
            lengths[shortest] += len(texts[key])
        return [
            (keys[0] if len(keys) == 1 else object_key("\n".join(keys), self.identity), keys)
            for keys in groups
        ]

    def assembly(self, kernel: CudaKernel) -> str:
        """The PTX of a kernel; behind it its SASS, where there is a disassembler."""
        text, arch = kernel.source(self.target), self.target.arch
        ptx = compile_text(text, arch, ptx=True).decode()
        sass = disassembled(compile_text(text, arch))
        return ptx if sass is None else f"{ptx}\n{sass}"

    def _build(self, kernels: Sequence[CudaKernel]) -> Callable[[], bytes]:
        """Render kernels, which is Python's work; what is given compiles them, which is NVRTC's."""
        text = "\n".join(kernel.source(self.target) for kernel in kernels)
        return partial(compile_text, text, self.target.arch)


def _counted(
    progress: Progress, groups: Sequence[tuple[str, Sequence[str]]]
) -> Callable[[int], None]:
    """A report of groups as one of kernels."""
    sizes = [len(keys) for _, keys in groups]
    return lambda done: progress(sum(sizes[:done]), sum(sizes))


def _without_copies(
    objects: Mapping[str, bytes | None], names: Mapping[str, str]
) -> dict[str, tuple[bytes, Sequence[str]]]:
    """Each distinct object once, under the first of its keys, with all symbols used from it."""
    keys: dict[bytes, str] = {}
    result: dict[str, tuple[bytes, list[str]]] = {}
    for key, data in objects.items():
        assert data is not None
        first = keys.setdefault(data, key)
        result.setdefault(first, (data, []))[1].append(names[key])
    return dict(result)


def compile_text(text: str, arch: str, *, ptx: bool = False) -> bytes:
    """The cubin, or the PTX, of CUDA C++ with one kernel or several.

    Args:
        text: includes nothing but the headers of this package.
        arch: the architecture, such as ``"sm_90"``.
        ptx: whether text for the driver's compiler is wanted, not code.

    Raises:
        DeviceUnavailableError: a package is missing.
        OstinatoError: the text does not compile; the message has NVRTC's.
    """
    nvrtc, includes = _load(), headers()
    status, program = nvrtc.nvrtcCreateProgram(
        text.encode(),
        b"kernel.cu",
        len(includes),
        [header.encode() for header in includes.values()],
        [name.encode() for name in includes],
    )
    _check(nvrtc, status)
    try:
        real = _SPECIFIC.get(arch, arch)
        virtual = real.replace("sm_", "compute_")
        options = [f"--gpu-architecture={virtual if ptx else real}", *_OPTIONS]
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        if int(status):
            log = _result(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise OstinatoError(f"NVRTC, {arch}: {log.decode(errors='replace')}\n{text}")
        if ptx:
            return _result(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0")
        return _result(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _result(nvrtc: Any, size: Any, get: Any, program: Any) -> bytes:
    """One of the texts that a compilation has made."""
    status, nbytes = size(program)
    _check(nvrtc, status)
    result = bytes(nbytes)
    (status,) = get(program, result)
    _check(nvrtc, status)
    return result


def _check(nvrtc: Any, status: Any) -> None:
    if int(status):
        _, text = nvrtc.nvrtcGetErrorString(status)
        raise OstinatoError(f"NVRTC: {text.decode()}")


def _load() -> Any:
    """The module ``cuda.bindings.nvrtc``, with its library.

    Raises:
        DeviceUnavailableError: a package is missing.
    """
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise DeviceUnavailableError(
            "the CUDA device needs the packages cuda-bindings and nvidia-cuda-nvrtc: "
            f"pip install 'ostinato[cuda]' ({error})"
        ) from error
    return nvrtc
