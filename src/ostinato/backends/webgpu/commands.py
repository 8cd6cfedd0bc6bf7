"""Commands for a device, encoded by the native library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Commands", "Launch"]


class Launch(NamedTuple):
    """A pipeline on its buffers: the library's native handles.

    Attributes:
        pipeline: the compiled kernel.
        buffers: the bind group of its storage buffers.
        uniforms: the bind group of offsets and Variables.
        offset: the dynamic offset into the former, as the library takes it.
    """

    pipeline: Any
    buffers: Any
    uniforms: Any
    offset: Any


class Commands:
    """Commands that are being encoded.

    Args:
        native: the module with the native library.
        encoder: its handle.

    Attributes:
        index: the number of the submission, once it was made.
    """

    __slots__ = ("_encoder", "_ffi", "_lib", "index")

    def __init__(self, native: Any, encoder: Any) -> None:
        self._lib, self._ffi = native.lib, native.ffi
        self._encoder = encoder
        self.index = 0

    def launch(
        self,
        launches: Sequence[Launch],
        counts: Sequence[tuple[int, int]],
        times: tuple[Any, int] | None = None,
    ) -> None:
        """Launch kernels one after the other, each on so many workgroups in two dimensions.

        Args:
            launches, counts: of each kernel; without workgroups, it is left out.
            times: a set of queries, and the first of two that take the times before and after.
        """
        lib, null = self._lib, self._ffi.NULL
        described = null
        if times is not None:
            writes = self._ffi.new("WGPUPassTimestampWrites *")
            writes.querySet, writes.beginningOfPassWriteIndex = times[0]._internal, times[1]
            writes.endOfPassWriteIndex = times[1] + 1
            described = self._ffi.new("WGPUComputePassDescriptor *", {"timestampWrites": writes})
        pass_ = lib.wgpuCommandEncoderBeginComputePass(self._encoder, described)
        set_group, dispatch = (
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
        )
        last = None
        for (pipeline, buffers, uniforms, offset), (x, y) in zip(launches, counts, strict=True):
            if x and y:
                if pipeline is not last:
                    lib.wgpuComputePassEncoderSetPipeline(pass_, pipeline)
                    last = pipeline
                set_group(pass_, 0, buffers, 0, null)
                set_group(pass_, 1, uniforms, 1, offset)
                dispatch(pass_, x, y, 1)
        lib.wgpuComputePassEncoderEnd(pass_)
        lib.wgpuComputePassEncoderRelease(pass_)

    def copy(self, target: Any, to: int, source: Any, start: int, nbytes: int) -> None:
        """Copy bytes between two buffers; offsets and size are multiples of 4."""
        self._lib.wgpuCommandEncoderCopyBufferToBuffer(
            self._encoder, source._internal, start, target._internal, to, nbytes
        )

    def clear(self, buffer: Any, offset: int, nbytes: int) -> None:
        """Zero bytes of a buffer; offset and size are multiples of 4."""
        self._lib.wgpuCommandEncoderClearBuffer(self._encoder, buffer._internal, offset, nbytes)

    def resolve(self, queries: Any, count: int, target: Any) -> None:
        """Write times as 64-bit numbers, in the device's ticks."""
        self._lib.wgpuCommandEncoderResolveQuerySet(
            self._encoder, queries._internal, 0, count, target._internal, 0
        )
