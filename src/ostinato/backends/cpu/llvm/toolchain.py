"""From LLVM IR to executable code: targets, compilation, linking.

Compiling and linking are separate, so that objects can be cached on disk: a fresh process links
what an earlier one compiled. ``llvmlite.binding`` is imported by the functions that need it, since
loading LLVM takes a fifth of a second.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ostinato.backends.cpu.caches import CacheSizes, host_caches
from ostinato.backends.cpu.host import amx_features
from ostinato.backends.cpu.llvm.concurrent import emit_object, run_passes
from ostinato.backends.cpu.llvm.machine import machine
from ostinato.dtypes import BFLOAT16, INT8, UINT8
from ostinato.errors import DeviceUnavailableError, OstinatoError
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llvmlite import ir

    from ostinato.backends.options import CompileOptions
    from ostinato.dtypes import DType

__all__ = ["LEVELS", "LinkedCode", "TargetSpec", "assembly", "compile_module", "link", "optimized"]

LEVELS = ("host", "avx512", "avx2", "sse2")
"""The instruction set levels that :meth:`TargetSpec.named` knows."""

_X86_CPUS = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "sse2": "x86-64"}
_X86_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "sse2": 16}
_PREFER_512_BITS = "-prefer-256-bit"

_PASSES = (
    "always_inliner",
    "sroa",
    "simplify_cfg",
    "instruction_combine",
    "global_dead_code_eliminate",
)
"""Passes that pay on kernels, which arrive as explicit vectors with their loops as they should be.

Softmax, layer norm, matmul and elementwise kernels run as fast as after LLVM's whole O1 pipeline,
in half the compile time (7 instead of 13 ms for bias and tanh, 17 instead of 31 for a softmax).
Without "sroa", accumulators would live on the stack; the code generator itself removes common
subexpressions and hoists constants.
"""


@dataclass(frozen=True)
class TargetSpec:
    """The processor that code is generated for, and the ways of coding that are switched on.

    Attributes:
        triple: LLVM's name of architecture, vendor and system.
        cpu: LLVM's name of the processor or level.
        features: LLVM's comma-separated feature list; part of every cache key.
        vector_bytes: the width of the widest vector register worth using.
        caches: the data caches of a core.
        interleaves: whether long functions of several vectors alternate between their instructions.
        reciprocals: whether long rows are divided by one number through its reciprocal.
        byte_pairs: whether pairs of products of bytes are added in 16 bits, where an instruction
            does.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    caches: CacheSizes = field(default_factory=CacheSizes)
    interleaves: bool = True
    reciprocals: bool = True
    byte_pairs: bool = True

    @staticmethod
    def host() -> TargetSpec:
        """The processor that this process runs on, with everything it offers but AMX."""
        return _host()

    @staticmethod
    def named(level: str, *, amx: bool | None = False) -> TargetSpec:
        """One of :data:`LEVELS`: the host, or an x86 level at or below it.

        Args:
            amx: unless ``False``, ask the system for permission to use AMX; the host has it if that
                is granted.

        Raises:
            DeviceUnavailableError: no such level, or this machine cannot run it.
        """
        if level not in LEVELS:
            raise DeviceUnavailableError(
                f"unknown CPU level {level!r}; the levels are {', '.join(LEVELS)}"
            )
        host = _host()
        if level == "host":
            return host if amx is False else _host_with_amx()
        if not host.triple.startswith("x86_64") or host.vector_bytes < _X86_VECTOR_BYTES[level]:
            raise DeviceUnavailableError(f"this machine ({host.cpu}) cannot run {level} code")
        features = _PREFER_512_BITS if level == "avx512" else ""
        width = _X86_VECTOR_BYTES[level]
        return TargetSpec(host.triple, _X86_CPUS[level], features, width, host.caches)

    @staticmethod
    def of(options: CompileOptions) -> TargetSpec:
        """The target of a compile.

        Raises:
            DeviceUnavailableError: no such level, or this machine cannot run it.
        """
        on = options.optimize
        return replace(
            TargetSpec.named(options.target, amx=options.amx),
            interleaves=on and options.interleave,
            reciprocals=on and options.reciprocal_division,
            byte_pairs=on and options.byte_pairs,
        )

    @property
    def identity(self) -> str:
        """All that makes code for this target differ from code for another: a cache key."""
        compiler = machine()["compiler"]
        processor = f"{self.triple} {self.cpu} {self.features} {self.vector_bytes}"
        ways = ("interleaves", "reciprocals", "byte_pairs")
        without = "".join(f" without {way}" for way in ways if not getattr(self, way))
        return f"{processor} caches {self.caches}{without} {compiler}"

    @property
    def has_half_conversions(self) -> bool:
        """Whether float16 converts in hardware."""
        if not self.triple.startswith("x86"):
            return True
        return "+f16c" in self.features.split(",") or self.cpu in ("x86-64-v3", "x86-64-v4")

    @property
    def converts_double_to_half(self) -> bool:
        """Whether float64 converts to float16 in hardware."""
        return not self.triple.startswith("x86") or "+avx512fp16" in self.features.split(",")

    @property
    def has_byte_dots(self) -> bool:
        """Whether one instruction adds four products of bytes to a 32-bit sum (VNNI)."""
        features = self.features.split(",")
        wanted = "+avx512vnni" if self.vector_bytes == 64 else "+avxvnni"
        return self.triple.startswith("x86") and wanted in features

    @property
    def has_byte_pairs(self) -> bool:
        """Whether one instruction adds two products of bytes in 16 bits (AVX2, without AVX-512)."""
        return self.byte_pairs and self.triple.startswith("x86") and self.vector_bytes == 32

    @property
    def has_byte_look_up(self) -> bool:
        """Whether one instruction looks up the bytes of a register in a table of 16."""
        return self.triple.startswith("x86") and self.vector_bytes >= 32

    @property
    def has_bfloat16_dots(self) -> bool:
        """Whether one instruction adds two products of bfloat16 to a float32 sum (AVX-512 BF16)."""
        return self.has_avx512 and "+avx512bf16" in self.features.split(",")

    @property
    def amx_dtypes(self) -> frozenset[DType]:
        """The dtypes of matrices that AMX multiplies in tiles; empty: there is no AMX."""
        features = self.features.split(",")
        if not self.has_avx512 or "+amx-tile" not in features:
            return frozenset()
        bfloat16 = [BFLOAT16] if "+amx-bf16" in features else []
        return frozenset([*bfloat16, *([INT8, UINT8] if "+amx-int8" in features else [])])

    @property
    def slow_underflow(self) -> bool:
        """Whether a result that is subnormal or vanishes takes more than a hundred cycles.

        Those of x86 processors do, but for AMD's.
        """
        amd = self.cpu.startswith(("znver", "bdver", "btver"))
        return self.triple.startswith("x86") and not amd

    @property
    def has_streaming_stores(self) -> bool:
        """Whether vectors can be stored past the caches, and such stores be fenced."""
        return self.triple.startswith("x86")

    @property
    def has_avx512(self) -> bool:
        """Whether AVX-512 (F, BW, DQ and VL) is there."""
        return self.triple.startswith("x86") and self.vector_bytes == 64

    def lanes(self, itemsize: int) -> int:
        """The number of elements of ``itemsize`` bytes in a vector register."""
        return max(1, self.vector_bytes // itemsize)

    def decorate(self, function: ir.Function) -> None:
        """Gives a function the attributes that make LLVM use this target's full vectors."""
        function.attributes.add("nounwind")
        # Past llvmlite's own check, which knows no string attributes.
        width = f'"prefer-vector-width"="{8 * self.vector_bytes}"'
        set.add(function.attributes, width)


class LinkedCode:
    """Executable code and the addresses of its symbols, valid as long as this object lives."""

    def __init__(self, addresses: Mapping[str, int], owners: Sequence[object]) -> None:
        self._addresses = dict(addresses)
        self._owners = owners

    def address(self, symbol: str) -> int:
        """The address of ``symbol``.

        Raises:
            OstinatoError: nothing of that name was linked.
        """
        try:
            return self._addresses[symbol]
        except KeyError:
            raise OstinatoError(f"no symbol {symbol!r} was linked") from None

    @property
    def addresses(self) -> Mapping[str, int]:
        """All exported symbols."""
        return dict(self._addresses)


def compile_module(module: str | ir.Module, target: TargetSpec) -> bytes:
    """Object code, ready for :func:`link`, of a module or its text.

    Raises:
        OstinatoError: the IR is malformed, which is a bug in its emitter.
    """
    with _workbench(target) as bench:
        return emit_object(bench.machine, bench.optimized(module))


def assembly(module: str | ir.Module, target: TargetSpec) -> str:
    """The assembly text of what :func:`compile_module` encodes."""
    with _workbench(target) as bench:
        text: str = bench.machine.emit_assembly(bench.optimized(module))
        return text


def optimized(module: str | ir.Module, target: TargetSpec) -> str:
    """The IR text after the optimisation passes."""
    with _workbench(target) as bench:
        return str(bench.optimized(module))


def link(objects: Iterable[tuple[bytes, Sequence[str]]]) -> LinkedCode:
    """Makes objects executable; each comes with the symbols wanted from it.

    Twenty objects take about 3 ms. Objects that export a name already taken by another are
    linked apart, so they do not clash; the first one's address stands for the name.

    Raises:
        OstinatoError: an object is damaged or refers to symbols that do not exist.
    """
    import llvmlite.binding as llvm

    machine = _new_target_machine(_host())
    engine = llvm.create_lljit_compiler(machine, use_jit_link=not _is_x86(_host().triple))
    addresses: dict[str, int] = {}
    owners: list[object] = [machine, engine]
    for number, batch in enumerate(_batches(objects)):
        builder = llvm.JITLibraryBuilder().add_current_process()
        for code, names in batch:
            builder.add_object_img(code)
            for name in names:
                builder.export_symbol(name)
        try:
            tracker = builder.link(engine, f"ostinato{number}")
        except RuntimeError as error:
            raise OstinatoError(f"cannot link compiled kernels: {error}") from error
        owners.append(tracker)
        for name in itertools.chain.from_iterable(names for _, names in batch):
            addresses.setdefault(name, tracker[name])
    return LinkedCode(addresses, owners)


def _batches(
    objects: Iterable[tuple[bytes, Sequence[str]]],
) -> list[list[tuple[bytes, Sequence[str]]]]:
    """Objects grouped so that no group holds a symbol twice; repeated objects are dropped."""
    batches: list[tuple[list[tuple[bytes, Sequence[str]]], set[str]]] = []
    seen: set[bytes] = set()
    for code, names in objects:
        if code in seen:
            continue
        seen.add(code)
        for members, taken in batches:
            if taken.isdisjoint(names):
                members.append((code, names))
                taken.update(names)
                break
        else:
            batches.append(([(code, names)], set(names)))
    return [members for members, _ in batches]


class _Workbench:
    """The passes and the target machine that modules are compiled with, one thread at a time.

    Attributes:
        machine: LLVM's description of the target.
    """

    def __init__(self, target: TargetSpec) -> None:
        import llvmlite.binding as llvm

        self.machine = _new_target_machine(target)
        self._target = target
        self._layout = str(self.machine.target_data)
        tuning = llvm.create_pipeline_tuning_options(speed_level=1)
        self._builder = llvm.create_pass_builder(self.machine, tuning)
        self._passes = llvm.create_new_module_pass_manager()
        for name in _PASSES:
            getattr(self._passes, f"add_{name}_pass")()

    def optimized(self, module: str | ir.Module) -> Any:
        """The module, parsed and optimised, in a context of its own."""
        import llvmlite.binding as llvm

        context = llvm.create_context()
        try:
            text = str(module)
            parsed = llvm.parse_assembly(text, context)
            parsed.triple, parsed.data_layout = self._target.triple, self._layout
            _supply_library(parsed, text, self._target, context)
            parsed.verify()
        except RuntimeError as error:
            raise OstinatoError(f"malformed LLVM IR: {error}") from error
        run_passes(self._passes, parsed, self._builder)
        return parsed


def _supply_library(parsed: Any, text: str, target: TargetSpec, context: Any) -> None:
    """Links in what the module calls of :mod:`ostinato.backends.cpu.llvm.target_library`.

    Args:
        text: of the module.
    """
    halves = "half" in text
    converts = halves and not target.has_half_conversions
    narrows = halves and "double" in text and not target.converts_double_to_half
    if "ostinato.scale" not in text and not converts and not narrows:
        return
    import llvmlite.binding as llvm
    from llvmlite import ir

    from ostinato.backends.cpu.llvm import target_library

    library = ir.Module("library")
    declared = [function.name for function in parsed.functions if function.is_declaration]
    target_library.define_scaling(
        library, declared, avx512=target.has_avx512, slow_underflow=target.slow_underflow
    )
    if converts:
        target_library.define_half_conversions(library)
    if narrows:
        target_library.define_half_of_double(library)
    if not library.globals:
        return
    definitions = llvm.parse_assembly(str(library), context)
    definitions.triple, definitions.data_layout = parsed.triple, parsed.data_layout
    parsed.link_in(definitions)


@functools.cache
def _host() -> TargetSpec:
    known = machine()
    triple, features = known["triple"], known["features"]
    if not _is_x86(triple):
        return TargetSpec(triple, known["cpu"], features, 16, host_caches())
    # Without permission, a process cannot use AMX, whatever the processor has.
    flags = [flag for flag in features.split(",") if not flag.startswith("+amx")]
    features = ",".join(flags)
    wide = all(f"+avx512{part}" in flags for part in ("f", "bw", "dq", "vl"))
    if wide:
        features = f"{features},{_PREFER_512_BITS}"
    vector_bytes = 64 if wide else 32 if "+avx2" in flags else 16
    return TargetSpec(triple, known["cpu"], features, vector_bytes, host_caches())


@functools.cache
def _host_with_amx() -> TargetSpec:
    host = _host()
    found = amx_features() if host.has_avx512 else ()
    return replace(host, features=",".join([host.features, *(f"+{name}" for name in found)]))


def _is_x86(triple: str) -> bool:
    return triple.startswith(("x86_64", "i686"))


@contextmanager
def _workbench(target: TargetSpec) -> Iterator[_Workbench]:
    """A workbench, which until the end is this thread's alone."""
    idle = _idle_workbenches(target)
    try:
        bench = idle.pop()
    except IndexError:
        bench = _Workbench(target)
    try:
        yield bench
    finally:
        idle.append(bench)


@functools.cache
def _idle_workbenches(target: TargetSpec) -> deque[_Workbench]:
    """Those made earlier that are not in use now."""
    return deque()


def _new_target_machine(target: TargetSpec) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small", jit=True
    )
