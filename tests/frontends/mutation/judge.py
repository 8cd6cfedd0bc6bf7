"""One case: a mutated model is loaded, compiled and run, and its results are judged."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.numpy_helper import to_array

import ostinato as ost
from ostinato.variables import evaluate
from tests.frontends.mutation.mutators import mutate
from tests.frontends.mutation.seeds import Array, Seed, own_seeds
from tests.frontends.mutation.sites import nodes, tensors

__all__ = ["FINDINGS", "Verdict", "examine"]

#: Outcomes that are defects.
FINDINGS = ("wrong", "internal error", "memory", "crash", "hang")

#: The processor time that one case may take, in seconds.
CPU_SECONDS = 10

#: The memory that one case may add, in bytes.
MOST_MEMORY = 512 << 20

_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial"}
    | {f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")}
)

#: Ops of which the reference evaluator is known to err: it stacks scan outputs of scalars as
#: columns, takes powers of negative numbers for their norms, and rounds depths up.
_MISJUDGED = frozenset({"Loop", "LpNormalization", "OneHot"})

#: Stored numbers from here on may overflow within one evaluator, and not within another.
_HUGE = 1e30

#: Models with more bytes of inputs or of intermediate values are not run.
_LARGEST_RUN = 64 << 20

#: A Python error that no check foresaw, in the message that an import gives it.
_UNFORESEEN = re.compile(r"malformed: (?!UnicodeDecodeError)\w+(Error|Iteration|Exception)\(")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one case.

    Attributes:
        outcome: ``"refused"``, ``"right"``, ``"unjudged"``, ``"large"`` or a defect.
        detail: the error, or the difference.
        model: the seed's name and the mutations.
    """

    outcome: str
    detail: str
    model: str


def examine(number: int, seeds: Sequence[Seed], note: Callable[[str], None]) -> Verdict:
    """Draw the case ``number`` and judge it.

    Args:
        number: the seed of everything random.
        seeds: models to mutate.
        note: called with ``"ours"`` before Ostinato works and ``"judging"`` before others do.
    """
    rng = random.Random(number)
    seed = rng.choice(seeds if rng.random() < 0.6 else own_seeds())
    others = [rng.choice(seeds).model for _ in range(3)]
    model = ModelProto()
    model.CopyFrom(seed.model)
    mutations = mutate(rng, model, others)
    title = f"{seed.name}: {', '.join(mutations)}"
    with tempfile.TemporaryDirectory(prefix="ostinato-mutation-") as folder:
        source = _source(rng, model, Path(folder))
        note("ours")
        before = _memory()
        with _processor_limit():
            outcome, detail, run = _outcome(rng, source, seed)
        added = _memory() - before
        if added > MOST_MEMORY:
            return Verdict("memory", f"{added >> 20} MiB more ({outcome}: {detail})", title)
        if run is None:
            return Verdict(outcome, detail, title)
        note("judging")
        difference = _difference(model, *run)
    if difference is None:
        return Verdict("unjudged", "", title)
    return Verdict("wrong" if difference else "right", difference, title)


# -- Ostinato ------------------------------------------------------------------------------------


def _source(rng: random.Random, model: ModelProto, folder: Path) -> Any:
    """The model as a path, as bytes or as a message."""
    kind = rng.randrange(3)
    if kind == 0:
        return model
    try:
        data = model.SerializeToString()
    except Exception:  # what cannot be written comes as a message
        return model
    if kind == 1:
        return data
    return _file(data, folder)


def _file(data: bytes, folder: Path) -> Path:
    """A folder with the model, data, and ways out of the folder."""
    home = folder / "model"
    (home / "folder").mkdir(parents=True)
    for path in (home / "data.bin", home / "folder" / "data.bin", folder / "data.bin"):
        path.write_bytes(bytes(range(256)))
    with (home / "huge.bin").open("wb") as huge:
        huge.truncate(3 << 30)  # without a block on the disk
    (home / "link.bin").symlink_to(folder / "data.bin")
    (home / "up").symlink_to(folder)
    os.mkfifo(home / "fifo")
    path = home / "model.onnx"
    path.write_bytes(data)
    return path


def _outcome(
    rng: random.Random, source: Any, seed: Seed
) -> tuple[str, str, tuple[Mapping[str, Array], Mapping[str, Array]] | None]:
    """The outcome, the error, and the inputs and outputs of a run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = ost.load_onnx(source)
            options = ost.CompileOptions(optimize=rng.random() < 0.8)
            session = ost.Session("cpu", threads=1 + rng.randrange(2))
            compiled = session.compile(graph, options=options)
            inputs = _inputs(rng, graph, seed)
            if inputs is None:
                return "large", "", None
            outputs = dict(zip(graph.outputs, compiled.run(inputs), strict=True))
    except ost.OstinatoError as error:
        text = f"{type(error).__name__}: {error}"
        return ("internal error" if _UNFORESEEN.search(text) else "refused"), text, None
    except Exception as error:
        if isinstance(error, MemoryError) and str(error).startswith("a run takes up to "):
            return "refused", str(error), None
        return "internal error", "".join(traceback.format_exception(error)[-6:]), None
    return "ran", "", (inputs, outputs)


def _inputs(rng: random.Random, graph: ost.Graph, seed: Seed) -> dict[str, Array] | None:
    """Arrays for a graph's inputs, the seed's own where they fit; ``None``: a run is too large."""
    types = {name: value.type for name, value in graph.inputs.items()}
    sizes = {s.name: _size(rng, s.min, s.max) for s in graph.variables.values()}
    own = {name: seed.inputs[name] for name in types if name in seed.inputs}
    if len(own) == len(types) and all(_fits(own[name], types[name]) for name in types):
        pairs = [
            (d, n) for k, t in types.items() for d, n in zip(t.shape, own[k].shape, strict=True)
        ]
        sizes |= {str(dim): n for dim, n in pairs if not isinstance(dim, int)}
    else:
        own = {}
    if any(_bytes(value.type, sizes) > _LARGEST_RUN for value in graph.values()):
        return None
    if any(prod(max(size, 1) for size in _shape(t, sizes)) > _LARGEST_RUN for t in types.values()):
        return None  # NumPy has no array without elements of such sizes
    numbers = np.random.default_rng(rng.randrange(1 << 32))
    return own or {name: _array(numbers, type_, sizes) for name, type_ in types.items()}


def _bytes(type_: Any, sizes: Mapping[str, int]) -> int:
    return int(evaluate(type_.size, sizes)) * int(type_.dtype.itemsize)


def _array(numbers: np.random.Generator, type_: Any, sizes: Mapping[str, int]) -> Array:
    shape = _shape(type_, sizes)
    floats = type_.dtype.is_float
    drawn = numbers.standard_normal(shape) if floats else numbers.integers(0, 2, size=shape)
    return np.asarray(drawn).astype(type_.dtype.numpy)


def _shape(type_: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(dim, sizes) for dim in type_.shape)


def _size(rng: random.Random, least: int, most: int) -> int:
    return min(max(rng.choice((least, 2, 3, 5)), least), most)


def _fits(array: Array, type_: Any) -> bool:
    return (
        array.dtype == type_.dtype.numpy
        and array.ndim == len(type_.shape)
        and all(
            not isinstance(d, int) or d == n for d, n in zip(type_.shape, array.shape, strict=True)
        )
    )


# -- limits --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _processor_limit() -> Any:
    """End the process by a signal after :data:`CPU_SECONDS` of work, in C as well."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _memory() -> int:
    """The largest resident memory since the call before, in bytes."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # start anew
    return int(found[1]) << 10 if found else 0


# -- judging -------------------------------------------------------------------------------------


def _difference(
    model: ModelProto, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> str | None:
    """The difference from other evaluators; empty: none; ``None``: none of them evaluates it.

    Where the reference evaluator of ``onnx`` differs, ONNX Runtime decides: the reference has
    defects of its own, most of all for models that break rules.
    """
    if _at_will(model, inputs, outputs):
        return None
    answers = []
    huge = _is_huge(model)
    misjudged = any(node.op_type in _MISJUDGED for node in nodes(model))
    for evaluator in (_reference, _onnx_runtime):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                expected = evaluator(model, inputs, list(outputs))
            except Exception:
                continue
            found = _compare(outputs, expected, huge=huge)
        if not found:
            return ""
        promoted = any(
            mine.dtype != np.asarray(other).dtype
            for mine, other in zip(outputs.values(), expected, strict=True)
        )
        if evaluator is _reference and (misjudged or promoted):
            continue  # it promotes as NumPy does
        answers.append(f"{evaluator.__name__[1:]}: {found}")
    return "; ".join(answers) if answers else None


def _at_will(model: ModelProto, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> bool:
    """Whether evaluators may differ.

    That is for random numbers, for floats that an integer does not hold, and for scales and zero
    points that are narrow floats, which the standard does not have.
    """
    found = {node.op_type for node in nodes(model)}
    if found & _RANDOM:
        return True
    fractions = [array for array in inputs.values() if array.dtype.kind not in "biu"]
    if "Pow" in found and fractions and any(a.dtype.kind in "iu" for a in outputs.values()):
        return True
    quantised = found & {"QuantizeLinear", "DequantizeLinear"}
    if quantised and any(array.dtype.itemsize == 1 for array in fractions):
        return True
    wild = any((~(np.abs(array.astype(np.float64)) < 2**15)).any() for array in fractions)
    wild |= any(array.dtype.kind == "u" for array in outputs.values())
    return wild and any(op_type.startswith("Cast") for op_type in found)


def _is_huge(model: ModelProto) -> bool:
    """Whether a stored number is near the largest ones of its type.

    Or infinite, in a model with convolutions, which multiply zeros of the padding or leave them
    out; or with attention, where rows that are masked altogether give zeros.
    """
    decides = any("Conv" in node.op_type or node.op_type == "Softmax" for node in nodes(model))
    for tensor in tensors(model):
        try:
            array = np.abs(to_array(tensor).astype(np.float64))
        except Exception:  # a tensor that breaks rules
            continue
        if ((array > _HUGE) & (np.isfinite(array) | decides)).any():
            return True
    return False


def _reference(model: ModelProto, inputs: Mapping[str, Array], names: list[str]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(names, dict(inputs)))


def _onnx_runtime(model: ModelProto, inputs: Mapping[str, Array], names: list[str]) -> list[Any]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(names, dict(inputs)))


def _compare(outputs: Mapping[str, Array], expected: Sequence[Any], *, huge: bool) -> str:
    """The first difference, in words.

    Args:
        huge: whether only finite numbers count.
    """
    for (name, mine), theirs in zip(outputs.items(), expected, strict=True):
        other = np.asarray(theirs)
        if mine.shape != other.shape or mine.dtype != other.dtype:
            if mine.dtype.kind == "V" and mine.shape == other.shape:
                continue  # bfloat16 and narrower: the reference computes in wider ones
            return f"{name!r} is {mine.dtype}{mine.shape}, expected {other.dtype}{other.shape}"
        if mine.dtype.kind in "biu":
            wrong = mine != other
        else:
            a, b = mine.astype(np.float64), other.astype(np.float64)
            loose = 1e-3 if mine.dtype.itemsize > 2 else 3e-2
            finite = np.abs(b[np.isfinite(b)])
            bound = loose * (np.abs(b) + min(1.0, finite.max() if finite.size else 0.0)) + 1e-6
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            wrong = ~same & ~(np.abs(a - b) <= bound)
            wrong &= np.isfinite(b) | (not huge)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            return f"{name!r}: {wrong.sum()} of {wrong.size} differ, {mine[at]} for {other[at]}"
    return ""
