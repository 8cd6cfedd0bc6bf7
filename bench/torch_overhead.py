"""The cost of one call through ``torch.compile``, above a backend that does nothing.

Each model is called in turn with a backend that gives ready tensors, with ours, and with ours under
``guard_filter_fn``, which leaves out Dynamo's guards on modules; on one thread. Reported are the
least times, the time of the native run alone, and the rest: what ours takes beside its run and the
idle backend.

    python bench/torch_overhead.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from ostinato.frontends.torch import native
from ostinato.frontends.torch.dynamo import backend

ROUNDS = 1000
CALLS = 10

#: The recipe of the documentation: no guards but those on the tensors that are given.
FILTER = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}


class Perceptron(nn.Module):
    """Two layers of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def models() -> dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]]:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    bert = BertConfig(**sizes, num_hidden_layers=2, vocab_size=100)
    llama = LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=100, use_cache=False)
    ids = {"input_ids": torch.arange(8)[None]}
    return {
        "perceptron": (Perceptron, {"x": torch.randn(1, 64)}),
        "bert, 2 layers": (lambda: BertModel(bert), ids),
        "llama, 2 layers": (lambda: LlamaForCausalLM(llama), ids),
    }


def idle(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """A backend whose graphs give tensors that are ready."""

    def compile_traced(traced: torch.fx.GraphModule, _: list[Any]) -> Any:
        (output,) = traced.graph.find_nodes(op="output")
        ready = [
            torch.zeros(n.meta["val"].shape, dtype=n.meta["val"].dtype) for n in output.args[0]
        ]

        def run(given: list[Any]) -> list[torch.Tensor]:
            given.clear()
            return ready

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return aot_module_simplified(
        module,
        inputs,
        fw_compiler=compile_traced,
        inference_compiler=compile_traced,
        keep_inference_input_mutations=True,
    )


def with_own_code(function: Any) -> Any:
    """A copy of a function in whose cache of Dynamo no other function has entries."""
    code = function.__code__.replace(co_name="call")
    return FunctionType(
        code, function.__globals__, "call", function.__defaults__, function.__closure__
    )


def native_run(compiled: Any) -> Callable[[], object]:
    """The native run of a compiled function's graph alone, on memory that is bound to it."""
    found: list[tuple[native.NativePartition, tuple[Any, ...]]] = []
    call = native.NativePartition.__call__

    def note(self: native.NativePartition, arguments: tuple[Any, ...]) -> Any:
        found.append((self, arguments))
        return call(self, arguments)

    native.NativePartition.__call__ = note  # type: ignore[method-assign]
    try:
        compiled()
    finally:
        native.NativePartition.__call__ = call  # type: ignore[method-assign]
    ((partition, arguments),) = found
    return partition.bound(arguments)


def least(ways: list[Callable[[], object]]) -> list[float]:
    """The least microseconds of a call, for each way; they take turns."""
    best = [float("inf")] * len(ways)
    for _ in range(ROUNDS):
        for number, way in enumerate(ways):
            way()
            start = time.perf_counter()
            for _ in range(CALLS):
                way()
            best[number] = min(best[number], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def measure(make: Callable[[], nn.Module], given: dict[str, Any]) -> dict[str, float]:
    torch._dynamo.reset()
    ways: list[Callable[[], object]] = []
    with torch.no_grad():
        for options, way in ((None, idle), (None, backend), (FILTER, idle), (FILTER, backend)):
            model = make().eval()
            function = with_own_code(lambda model=model: model(**given))
            compiled: Any = torch.compile(
                function, backend=way, options=dict(options) if options else None
            )
            for _ in range(3):
                compiled()
            ways.append(compiled)
            if way is backend and options is None:
                run = native_run(compiled)
        tensors = len([*model.parameters(), *model.buffers()]) + len(given)
        ways.append(lambda: (ways[0](), run()))  # as far from its data as within a call
        nothing, ours, nothing_filtered, ours_filtered, both = least(ways)
    return {
        "tensors": tensors,
        "idle backend": nothing,
        "ours": ours,
        "native run": both - nothing,
        "rest": ours - both,
        "allowed": 6 + 0.03 * tensors,
        "idle backend, filtered guards": nothing_filtered,
        "ours, filtered guards": ours_filtered,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, (make, given) in models().items():
        found[name] = measure(make, given)
        print(name, {key: round(value, 1) for key, value in found[name].items()}, flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
