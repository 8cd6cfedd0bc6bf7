"""Options of the compiler."""

from __future__ import annotations

from typing import Literal

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
        rowwise_fusion: join reductions along rows with the ops around them.
        product_fusion: fuse matmuls that share their left operand (Q/K/V, gate/up) into one kernel.
        joint_weights: on GPUs, keep a copy of the weights of such matmuls side by side, so that
            cuBLASLt makes one product of them.
        channels_last: store images with their channels last within a graph where that is faster.
        winograd: compute 3x3 float32 convolutions with fewer multiplications where that is faster;
            results differ by rounding (see the page on convolutions).
        in_place: let producers write directly into the output of a concat or a pad.
        narrow_weights: keep weights of 16 and 8 bits that wide in memory and widen them in
            registers.
        byte_pairs: multiply activations by packed weights in pairs of bytes, summed in 16 bits, on
            processors with AVX2 and without dot products of bytes; off, they are widened first.
        prefetch: prefetch the weights of matmuls, which otherwise wait for memory as well as for
            arithmetic.
        bfloat16_dots: multiply by bfloat16 weights with dot product instructions, where the
            processor has them and they are much faster than widening. Float32 rows are rounded to
            bfloat16 for it, sums are taken in pairs, and subnormal numbers count as zero. ``None``:
            in language models only (:mod:`ostinato.llm`).
        amx: multiply bytes by bytes, and if ``True`` or with ``bfloat16_dots`` also bfloat16 by
            bfloat16, in the tile registers of Intel AMX, where the processor has them and the
            system permits their use. Products of bytes are the same; for bfloat16, products at even
            and at odd positions are summed apart, and subnormal numbers count as zero. ``False``:
            neither.
        interleave: compute several vectors of a long function at a time, an instruction of each in
            turn.
        reciprocal_division: divide long rows by one float32 through its reciprocal, corrected to
            the bits of a division, where vectors have 512 bits.
        streaming_stores: write results that no cache can hold past the caches.
        segments: on GPUs, run small kernels that follow one another as one kernel.
        stream_weights: in such a kernel, copy weights into shared memory ahead of their use.
        segment_exchange: in such a kernel, compute short values on every block, or send them in
            packets, where barriers of all blocks would cost more.
        segment_experts: let such a kernel have products by chosen matrices, those of experts, too:
            slower on an H100.
        single_block_segments: let one block run such a kernel where all of it is shorter than the
            barriers of many.
        segment_layers: where the parts of such a kernel repeat, layer by layer, loop over the code
            of one layer, instead of running each part by its record.
        joint_parts: in such a kernel, run short loops of a block that need not wait for each other
            at the same time, multiply the same rows by several matrices as by one, and compute
            values that one loop alone reads where it reads them.
        library_products: on GPUs, leave large matmuls to cuBLASLt where it is installed.
        time_products: choose among the algorithms of that library by timing a few on this GPU, once
            for each product. The answers are stored beside the cache of kernels. Off: the library
            chooses.
        tf32: on GPUs, let that library round float32 to 10 bits of mantissa before it multiplies.
            Sums stay float32; off unless wanted.
        cast_inputs: convert inputs, params and handles of another dtype, as the op ``cast`` would,
            instead of refusing them.
        keep_intermediates: give every intermediate value that is in memory a slot of its own, so
            that a plan's buffers hold it after a run.
        verify: check the graph between passes.
        tune: measure a few tile sizes for each matmul with a weight on this machine, and take the
            fastest. Results are stored beside the cache of kernels.
        tune_seconds: the time limit of measurements in one compile; matmuls beyond it are blocked
            as without tuning, and measured by a later compile.
        stored_programs: load the stored program of an equal graph, compiled before by any process
            with the same cache. Never with ``tune`` or with experts in a file.
        stored_weights: keep the prepacked weights of a large model on disk where they come from
            files such as GGUF ones, and map them instead of packing again.
        specialize: for a model of open sizes. ``"auto"``: compile for the sizes that a run brings
            where they have to be numbers, or are beyond the bounds so far; ``"always"``: compile
            for the sizes of each run, also a graph whose inputs have Variables for sizes;
            ``"never"``: raise instead.
        max_specializations: the most sizes that a graph is compiled for at a time; beyond, the
            least recently used one is dropped, and compiled again when it is needed.
        launch_graphs: on a GPU, launch the kernels of a run as one graph; off, one by one.
        target: ``"host"``, or an x86 level: ``"avx512"``, ``"avx2"``, ``"sse2"``.
    """

    optimize: bool = True
    disabled_passes: frozenset[str] = field(default_factory=frozenset)
    elementwise_fusion: bool = True
    epilogue_fusion: bool = True
    rowwise_fusion: bool = True
    product_fusion: bool = True
    joint_weights: bool = True
    channels_last: bool = True
    winograd: bool = True
    in_place: bool = True
    narrow_weights: bool = True
    byte_pairs: bool = True
    prefetch: bool = True
    bfloat16_dots: bool | None = None
    amx: bool | None = None
    interleave: bool = True
    reciprocal_division: bool = True
    streaming_stores: bool = True
    segments: bool = True
    stream_weights: bool = True
    segment_exchange: bool = True
    segment_experts: bool = False
    single_block_segments: bool = True
    segment_layers: bool = True
    joint_parts: bool = True
    library_products: bool = True
    time_products: bool = True
    tf32: bool = False
    cast_inputs: bool = False
    keep_intermediates: bool = False
    verify: bool = False
    tune: bool = False
    tune_seconds: float = 20.0
    stored_programs: bool = True
    stored_weights: bool = True
    specialize: Literal["auto", "always", "never"] = "auto"
    max_specializations: int = 16
    launch_graphs: bool = True
    target: str = "host"
