"""How a graph is to be compiled."""

from __future__ import annotations

from ostinato.records import dataclass, field

__all__ = ["CompileOptions"]


@dataclass(frozen=True)
class CompileOptions:
    """Switches of the compiler. Each optimisation can be turned off; results stay the same.

    Attributes:
        optimize: run the optimising passes and fuse; off, each node becomes kernels of its own.
        disabled_passes: names of passes to leave out (see ``ostinato.passes.pipeline``).
        elementwise_fusion: join elementwise nodes into one kernel.
        epilogue_fusion: join elementwise nodes with the matmul or convolution before them.
        rowwise_fusion: join reductions along rows with what surrounds them.
        product_fusion: compute products of the same rows with several weights in one kernel:
            queries, keys and values, a gate and what it lets through.
        channels_last: store images with their channels last within a graph where that is faster.
        winograd: compute 3x3 float32 convolutions with fewer multiplications where that is faster;
            results differ by rounding (see the page on convolutions).
        in_place: write what concatenations and paddings are made of where it stands in them.
        narrow_weights: keep 16-bit weights 16 bits wide in memory and widen them in registers.
        cast_inputs: convert inputs, params and handles of another dtype, as the op ``cast`` would,
            instead of refusing them.
        keep_intermediates: give every intermediate value that is in memory a place of its own, so
            that a plan's buffers hold it after a run.
        verify: check the graph between passes.
        tune: measure a few ways of cutting each matrix product with a weight on this machine, and
            take the fastest. What was found is kept beside the cache of kernels.
        tune_seconds: how long a compile may measure; products beyond it are cut as without tuning,
            and measured by a later compile.
        stored_programs: start from what an equal graph was compiled to before, by any process that
            used the same cache. With ``tune``, and with experts in a file, this never happens.
        target: ``"host"``, or an x86 level: ``"avx512"``, ``"avx2"``, ``"sse2"``.
    """

    optimize: bool = True
    disabled_passes: frozenset[str] = field(default_factory=frozenset)
    elementwise_fusion: bool = True
    epilogue_fusion: bool = True
    rowwise_fusion: bool = True
    product_fusion: bool = True
    channels_last: bool = True
    winograd: bool = True
    in_place: bool = True
    narrow_weights: bool = True
    cast_inputs: bool = False
    keep_intermediates: bool = False
    verify: bool = False
    tune: bool = False
    tune_seconds: float = 20.0
    stored_programs: bool = True
    target: str = "host"
