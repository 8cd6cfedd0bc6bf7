"""Networks from ONNX Runtime's own quantiser next to ONNX Runtime.

ResNet-50, MobileNetV2 and BERT-base by shape, with random weights (times do not depend on them), in
the three forms that the quantiser gives. Both sides run the same file, alternately.

    python -m bench.quantized_networks [--threads 1 2] [--seconds 3] [--only resnet] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench.compare.report import machine
from bench.quantized_models import FORMS, NETWORKS, quantized

import ostinato as ost
from ostinato.tools.timing import Timing, interleave

HEADER = (
    "network     form       activations  threads  Ostinato ms  ONNX Runtime ms  ratio"
    "   largest difference"
)


@dataclass(frozen=True)
class Row:
    """One network in one form.

    Attributes:
        network, form, activations, threads: what ran.
        ours, theirs: seconds of a run.
        difference: largest, relative to the largest result.
    """

    network: str
    form: str
    activations: str
    threads: int
    ours: Timing
    theirs: Timing
    difference: float

    @property
    def ratio(self) -> float:
        """Speed-up over ONNX Runtime, by least times: the machine may be busy."""
        return self.theirs.min / self.ours.min

    def __str__(self) -> str:
        ours, theirs = 1e3 * self.ours.min, 1e3 * self.theirs.min
        return (
            f"{self.network:12}{self.form:11}{self.activations:13}{self.threads:>7}"
            f"{ours:>13.2f}{theirs:>17.2f}{self.ratio:>7.2f}{self.difference:>21.1g}"
        )


def row(
    network: str, form: str, activations: str, model: bytes, threads: int, seconds: float
) -> Row:
    """Time one file on so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    compiled = ost.Session("cpu", threads=threads).compile(ost.load_onnx(model))
    x = np.random.default_rng(2).standard_normal(peer.get_inputs()[0].shape).astype(np.float32)
    calls: dict[str, Any] = {
        "ours": partial(compiled.run, {"x": x}),
        "theirs": partial(peer.run, None, {"x": x}),
    }
    (actual,), (exact,) = (call() for call in calls.values())
    difference = float(np.abs(actual - exact).max() / np.abs(exact).max())
    timings = interleave(calls, seconds=seconds)
    return Row(network, form, activations, threads, **timings, difference=difference)


def rows(networks: list[str], threads: list[int], seconds: float) -> Iterator[Row]:
    """Every network in every form, with either kind of activations where there is a choice."""
    for network in networks:
        wide = NETWORKS[network]()
        for form in FORMS:
            for activations in ("uint8",) if form == "dynamic" else ("uint8", "int8"):
                model = quantized(wide, form, activations=activations)
                for count in threads:
                    yield row(network, form, activations, model, count, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each side of a row")
    parser.add_argument("--only", choices=tuple(NETWORKS), nargs="+", default=list(NETWORKS))
    parser.add_argument("--json", type=Path, help="also write the rows there")
    options = parser.parse_args()
    print(machine(), HEADER, sep="\n")
    found = []
    for each in rows(options.only, options.threads, options.seconds):
        found.append(each)
        print(each, flush=True)
    if options.json:
        written = {"machine": machine(), "rows": [asdict(each) for each in found]}
        options.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
