"""Samples of PyTorch's operators through ``torch.compile``, next to eager and ``aot_eager``.

``python -m tests.peers.torch.dynamo_operators [--every N] [--only SUBSTRING]`` runs them all, or
every N-th operator, and lists those on which ``aot_eager`` agrees with eager and ours does not.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten

from ostinato.frontends.torch.dynamo import backend, report
from tests.peers.torch.op_info import RANKED, same_elements

DTYPES = (torch.float32, torch.int64, torch.bool)

#: Operators that are checked otherwise: their results are arbitrary, or a process cannot bear them.
SKIPPED = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_"),
)


@dataclass
class Outcome:
    """One operator with one dtype.

    Attributes:
        name: of both.
        samples: the number of samples that ``aot_eager`` computes as eager does.
        native: the number of those without an eager node.
        wrong: a line for each that differs here.
    """

    name: str
    samples: int = 0
    native: int = 0
    wrong: list[str] | None = None


def operators(every: int = 1, only: str = "") -> Iterator[tuple[Any, torch.dtype]]:
    """Entries of PyTorch's table of operators, with dtypes that they take."""
    entries = [op for op in op_db if only in op.formatted_name and op.name not in SKIPPED]
    for op in entries[::every]:
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                yield op, dtype


def differences(found: Any, wanted: Any) -> str:
    """The first difference of nested results; empty: none."""
    flat, spec = tree_flatten(found)
    expected, wanted_spec = tree_flatten(wanted)
    if spec != wanted_spec:
        return f"the structure {spec} instead of {wanted_spec}"
    for f, w in zip(flat, expected, strict=True):
        if not isinstance(w, torch.Tensor):
            if f != w and not (f != f and w != w):
                return f"{f!r} instead of {w!r}"
            continue
        if (f.dtype, f.shape) != (w.dtype, w.shape):
            return f"{f.dtype}{list(f.shape)} instead of {w.dtype}{list(w.shape)}"
        if f.layout == torch.strided and f.stride() != w.stride():
            return f"strides {f.stride()} instead of {w.stride()} for {list(w.shape)}"
        try:
            torch.testing.assert_close(f, w, equal_nan=True, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    return ""


def _ranks_agree(op: Any, sample: Any, found: Any, wanted: Any) -> bool:
    """Whether results differ in the indices of equal elements alone, of an op that ranks these."""
    if op.name not in RANKED:
        return False
    pairs = zip(tree_flatten(found)[0], tree_flatten(wanted)[0], strict=True)
    return all(
        not differences(f, w) or same_elements(sample.input, f.numpy(), w.numpy()) for f, w in pairs
    )


def computed(compile_with: Any, op: Any, sample: Any) -> tuple[Any, Any, Any]:
    """The results of a sample, its arguments afterwards, and the compiled function."""
    torch._dynamo.reset()
    args, kwargs = cloned((sample.input, *sample.args)), cloned(sample.kwargs)
    function: Any = lambda *a, **k: op(*a, **k)  # noqa: E731
    if compile_with is not None:
        function = torch.compile(function, backend=compile_with, dynamic=False)
    torch.manual_seed(0)
    with torch.no_grad():
        return function(*args, **kwargs), (args, kwargs), function


def cloned(arguments: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda a: a.detach().clone() if isinstance(a, torch.Tensor) else a, arguments
    )


def run(op: Any, dtype: torch.dtype, most: int = 2) -> Outcome:
    """Run the first samples of an operator."""
    outcome = Outcome(f"{op.formatted_name} {str(dtype).removeprefix('torch.')}", wrong=[])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(op.sample_inputs("cpu", dtype)):
            if number == most:
                break
            try:
                wanted, given, _ = computed(None, op, sample)
                peer, peer_given, _ = computed("aot_eager", op, sample)
            except Exception:
                continue  # eager or its peer has no result to compare with
            if differences((peer, peer_given), (wanted, given)):
                continue
            outcome.samples += 1
            try:
                found, after, function = computed(backend, op, sample)
            except Exception as error:
                line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                outcome.wrong.append(f"sample {number}: {line}")
                continue
            difference = differences((found, after), (wanted, given))
            if difference and not _ranks_agree(op, sample, found, wanted):
                outcome.wrong.append(f"sample {number}: {difference}")
                continue
            result = report(function)
            outcome.native += bool(result.native_nodes) and not result.eager_nodes
            if result.failures:
                failed = result.graphs[0].failures[0]
                outcome.wrong.append(f"sample {number}: a call failed: {failed[:200]}")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    samples = native = wrong = 0
    start = time.perf_counter()
    for op, dtype in operators(arguments.every, arguments.only):
        outcome = run(op, dtype)
        samples += outcome.samples
        native += outcome.native
        wrong += len(outcome.wrong or ())
        for line in outcome.wrong or ():
            print(f"{outcome.name}: {line}", flush=True)
    print(
        f"{samples} samples, {native} without an eager node, {wrong} wrong, "
        f"{time.perf_counter() - start:.0f} s"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
