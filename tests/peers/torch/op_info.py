"""Comparison of PyTorch's own samples of every op, ``op_db``, with eager's results.

``python -m tests.peers.torch.op_info`` exports, converts, compiles and runs up to four samples of
each entry (two of int64 and bool), and writes ``op_info.txt``: a line for each entry and dtype with
the samples that agree, those that were exported, and the first reason why others do not.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree

import ostinato as ost

__all__ = [
    "CATEGORIES",
    "DTYPES",
    "RANKED",
    "Outcome",
    "category",
    "compare_entry",
    "entries",
    "same_elements",
]

_FILE = Path(__file__).with_suffix(".txt")

#: Samples of each entry, by dtype.
DTYPES = {"float32": 4, "int64": 2, "bool": 2}

_TOLERANCE = 1e-4
_REASON = 160

#: Names of entries by kind; all others are mainstream.
CATEGORIES = {
    "special functions": r"special\.|polygamma|mvlgamma|lgamma|digamma|igamma|i0$|erfinv|zeta",
    "factorisations": r"linalg\.(?!cross|diagonal|vander|vecdot|norm|vector_norm|matrix_norm|"
    r"matrix_power|multi_dot)|cholesky|lu|qr$|svd|pca|geqrf|ormqr|logdet|pinverse|"
    r"triangular_solve|matrix_exp|inverse|norm\.nuc|svd_lowrank",
    "complex": r"fft|stft|istft|view_as|complex|polar|angle|imag|cdouble|cfloat|chalf",
    "random": r"rand|empty|normal|bernoulli|multinomial|cauchy|exponential|geometric|uniform|"
    r"dropout|rrelu|fractional_max_pool|native_dropout",
    "memory": r"sparse|jiterator|as_strided|resize|hash_tensor",
    "sizes from data": r"nonzero|argwhere|unique|masked_select|bincount|combinations|"
    r"nn.functional.ctc_loss|equal$|allclose|item$|repeat_interleave|cov$|corrcoef",
    "gradients": r"backward",
}


@dataclass
class Outcome:
    """The result of an entry for one dtype.

    Attributes:
        agreed: samples whose results are eager's.
        exported: samples that PyTorch could export.
        wrong: samples with other results, or an error that is not about a missing op.
        reason: the first one why a sample does not agree.
    """

    agreed: int = 0
    exported: int = 0
    wrong: int = 0
    reason: str = ""

    def __str__(self) -> str:
        wrong = f" {self.wrong} WRONG" if self.wrong else ""
        return f"{self.agreed}/{self.exported}{wrong} {self.reason}".strip()


class _Wrong(Exception):
    """A result that is not eager's."""


class _Sample(torch.nn.Module):
    """A module that calls an op with a sample's numbers, and with tensors that it is given."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self._op = op
        leaves, self._tree = _pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        self._fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._given = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self.tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        pairs = zip(self._given, self._fixed, strict=True)
        leaves = [next(rest) if given else fixed for given, fixed in pairs]
        args, kwargs = _pytree.tree_unflatten(leaves, self._tree)
        return self._op(*args, **kwargs)


def entries(dtype: str) -> dict[str, Any]:
    """The entries of ``op_db`` that have a dtype, by name."""
    torch_dtype = getattr(torch, dtype)
    return {
        f"{op.name}.{op.variant_test_name}".rstrip("."): op
        for op in op_db
        if torch_dtype in op.dtypes
    }


def category(name: str) -> str:
    """The kind of an entry."""
    for kind, pattern in CATEGORIES.items():
        if re.search(rf"^(?:\w+\.)*?(?:{pattern})|^(?:{pattern})", name):
            return kind
    return "mainstream"


def compare_entry(op: Any, dtype: str, most: int) -> Outcome:
    """Compare up to ``most`` samples of an entry, spread over all of them."""
    samples = list(op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False))
    if len(samples) > most:
        samples = [samples[round(i * (len(samples) - 1) / max(most - 1, 1))] for i in range(most)]
    outcome = Outcome()
    for sample in samples:
        _compare(op, sample, outcome)
    return outcome


def _compare(op: Any, sample: Any, outcome: Outcome) -> None:
    module = _Sample(op.op, sample)
    fresh = [tensor.clone() for tensor in module.tensors]
    try:
        with torch.no_grad():
            mine = [tensor.clone() for tensor in fresh]
            wanted = module(*mine)
            exported = torch.export.export(module, tuple(fresh), strict=False)
    except Exception:  # some samples show errors, and some ops have no export
        return
    outcome.exported += 1
    try:
        graph = ost.from_torch(exported)
        found = _run(graph, module.tensors)
        leaves = _pytree.tree_leaves(wanted)
        # What the op writes to its arguments are further outputs, of the names of these.
        named = dict(zip(graph.inputs, mine, strict=True))
        leaves += [named[name] for name in graph.outputs if name in named]
        _expect_same(op.name, found, leaves, module.tensors[0] if module.tensors else None)
        outcome.agreed += 1
    except ost.UnsupportedOpError as error:
        lines = str(error).splitlines()
        reason = re.sub(r" at /\S+", "", lines[-1].strip("- "))
        outcome.reason = outcome.reason or reason[:_REASON]
    except Exception as error:  # whatever it is, the entry is wrong
        if isinstance(error, ost.VariableError) and _refused(exported, module.tensors):
            outcome.exported -= 1
            return
        if not outcome.wrong:
            outcome.reason = f"{type(error).__name__}: {error}".splitlines()[0][:_REASON]
        outcome.wrong += 1


def _refused(exported: torch.export.ExportedProgram, tensors: list[torch.Tensor]) -> bool:
    """Whether PyTorch's own run of an exported program breaks an assertion of the export."""
    try:
        exported.module()(*tensors)
    except Exception:
        return True
    return False


def _run(graph: ost.Graph, tensors: list[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    if not graph.outputs:  # every result is a number that is known before
        return []
    given = iter(tensors)
    feeds = {name: _array(next(given)) for name in graph.inputs}
    return list(ost.Session("cpu", threads=1).compile(graph).run(feeds))


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a tensor; complex numbers as pairs, as graphs have them."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if plain.dtype == torch.bfloat16:
        bits = plain.view(torch.int16).numpy()
        return bits.view(ost.dtypes.BFLOAT16.numpy)
    return plain.numpy()


#: Ops whose indices may be any of those of equal elements.
RANKED = ("sort", "argsort", "topk", "kthvalue", "mode", "median", "nanmedian")


def same_elements(
    operand: torch.Tensor, found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]
) -> bool:
    """Whether two arrays are indices of equal elements along an axis."""
    x = _array(operand)
    if found.dtype != np.int64 or x.ndim == 0 or (found.size and found.max() >= max(x.shape)):
        return False
    for axis in range(x.ndim):
        pair = [i if i.ndim == x.ndim else np.expand_dims(i, axis) for i in (found, wanted)]
        others = [[n for a, n in enumerate(array.shape) if a != axis] for array in (x, pair[0])]
        if pair[0].ndim == x.ndim and others[0] == others[1] and found.max() < x.shape[axis]:
            first, second = (np.take_along_axis(x, i, axis) for i in pair)
            if np.array_equal(first, second):
                return True
    return False


def _expect_same(
    name: str,
    found: list[np.ndarray[Any, Any]],
    wanted: list[Any],
    operand: torch.Tensor | None,
) -> None:
    """Check values, dtypes and shapes.

    Raises:
        _Wrong: one differs.
    """
    tensors = [leaf for leaf in wanted if isinstance(leaf, torch.Tensor)]
    if len(found) == len(wanted):
        tensors = [torch.as_tensor(leaf) for leaf in wanted]
    if len(found) != len(tensors):
        raise _Wrong(f"{len(found)} results for {len(tensors)}")
    for result, tensor in zip(found, tensors, strict=True):
        expected = _array(tensor)
        if result.shape != expected.shape or result.dtype != expected.dtype:
            raise _Wrong(
                f"{result.dtype}{list(result.shape)} for {expected.dtype}{list(expected.shape)}"
            )
        if "empty" in name:  # memory as it was found
            continue
        if expected.dtype.kind in "biu":
            same = result == expected
        else:
            wide = (array.astype(np.float64) for array in (result, expected))
            same = np.isclose(*wide, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        if not same.all():
            if operand is not None and name in RANKED and same_elements(operand, result, expected):
                continue
            raise _Wrong(f"{result[~same][:3]} for {expected[~same][:3]}, of {same.size}")


# -- the command ------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.torch.op_info")
    parser.add_argument("names", nargs="*", metavar="ENTRY", help="parts of names; by default, all")
    parser.add_argument("--dtype", choices=DTYPES, help="by default, all")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    tasks = [
        (dtype, name)
        for dtype in DTYPES
        if arguments.dtype in (None, dtype)
        for name in entries(dtype)
        if not arguments.names or any(part in name for part in arguments.names)
    ]
    results = _read()
    with ProcessPoolExecutor(arguments.workers, get_context("spawn"), _quiet) as pool:
        for (dtype, name), outcome in zip(tasks, pool.map(_one, tasks, chunksize=8), strict=True):
            if str(outcome) != results.get((dtype, name)) or outcome.agreed < outcome.exported:
                print(dtype, name, outcome, flush=True)
            results[dtype, name] = str(outcome)
    _FILE.write_text("".join(f"{d} {name} {text}\n" for (d, name), text in results.items()))
    _print_summary(results)


def _quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)


def _one(task: tuple[str, str]) -> Outcome:
    dtype, name = task
    try:
        return compare_entry(entries(dtype)[name], dtype, DTYPES[dtype])
    except Exception as error:  # of the samples themselves
        return Outcome(reason=f"no samples: {error}"[:_REASON])


def _read() -> dict[tuple[str, str], str]:
    if not _FILE.exists():
        return {}
    lines = (line.split(" ", 2) for line in _FILE.read_text().splitlines())
    return {(dtype, name): text for dtype, name, text in lines}


def _print_summary(results: dict[tuple[str, str], str]) -> None:
    agreed: Counter[str] = Counter()
    exported: Counter[str] = Counter()
    wrong = 0
    for (_, name), text in results.items():
        good, _, total = text.split(" ")[0].partition("/")
        agreed[category(name)] += int(good)
        exported[category(name)] += int(total)
        wrong += " WRONG" in text
    for kind in ("mainstream", *CATEGORIES):
        share = 100 * agreed[kind] / max(exported[kind], 1)
        print(f"{kind}: {agreed[kind]} of {exported[kind]} ({share:.1f} %)")
    print(f"in total: {agreed.total()} of {exported.total()}; entries with wrong results: {wrong}")


if __name__ == "__main__":
    sys.exit(main())
