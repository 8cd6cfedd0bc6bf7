"""``ostinato inspect``: the contents of a model, and of its compiled form."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ostinato.ir.leaves import Leaf
from ostinato.tools.feeds import make_feeds
from ostinato.tools.models import ModelOptions, load, prepare
from ostinato.tools.output import bytes_text, console, count_text, printable, table
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.graph import BaseGraph, Value
    from ostinato.plan.prepared import KernelCall

__all__ = ["inspect_model", "inspect_support", "show", "show_support"]


def inspect_model(options: ModelOptions, *, compiled: bool, explain: bool) -> dict[str, Any]:
    """The report on a model, as JSON has it.

    A model whose sizes have to be numbers is shown at some that fit.

    Args:
        options: which model.
        compiled: also compile it, and report kernels and memory.
        explain: with that, add the compiler's own report.

    Raises:
        OstinatoError: the model cannot be read or compiled.
    """
    loaded = load(options)
    assumed: dict[str, int] = {}
    if (way := loaded[0].specialization) is not None and way.needed:
        feeds = make_feeds(options, [], 0)
        options, assumed = feeds.options, feeds.assumed
        loaded = load(options)
    report = {"model": str(options.path), "assumed_dims": assumed, **_graph(loaded[0])}
    if compiled:
        prepared = prepare(options, loaded)
        plan = prepared.compiled.plan
        report |= {
            "device": str(prepared.compiled.device),
            "kernels": [_kernel(call) for call in plan.prepared_kernels],
            "preparation": [_kernel(call) for call in plan.preparation],
            "memory": asdict(plan.memory),
            "seconds": prepared.seconds,
        }
        if explain:
            report["explain"] = prepared.compiled.explain()
    return report


def inspect_support(options: ModelOptions) -> dict[str, Any]:
    """The report on the support of a model's nodes, as JSON has it.

    Raises:
        OstinatoError: the model cannot be read.
    """
    import ostinato as ost
    from ostinato.frontends.onnx.support import node_support

    native = ost.Session(options.device, threads=1).capabilities.ops
    nodes = node_support(options.path, native, dims=options.dims, constants=options.constants)
    counts = Counter(node.status for node in nodes)
    return {
        "model": str(options.path),
        "support": dict(counts.most_common()),
        "nodes": [asdict(node) for node in nodes],
    }


def show_support(report: dict[str, Any]) -> None:
    """Print the report on the support of nodes: every node that is not plainly native."""
    out = console()
    counts = ", ".join(f"{count} {status}" for status, count in report["support"].items())
    out.print(printable(f"{len(report['nodes'])} nodes: {counts or 'none'}"), markup=False)
    rows = [
        (node["status"], node["op"], node["name"], node["detail"])
        for status in ("unsupported", "specialised", "rewritten")
        for node in report["nodes"]
        if node["status"] == status
    ]
    if rows:
        columns = ["", "op", "node", "why, or which ops"]
        out.print(table("Nodes that are not native as they are", columns, rows))


def _graph(graph: BaseGraph) -> dict[str, Any]:
    nodes = [node for node in graph.nodes if not isinstance(node.op, Leaf)]
    ops = Counter(node.op.name for node in nodes)
    flops = sum(bounds(n.op.flops([v.type for v in n.inputs], n.attrs))[1] for n in nodes)
    return {
        "graph": graph.name,
        "inputs": _tensors(graph.inputs),
        "outputs": _tensors(graph.outputs),
        "variables": {v.name: [v.min, v.max] for v in graph.variables.values()},
        "nodes": len(nodes),
        "ops": dict(ops.most_common()),
        "params": {
            "tensors": len(graph.params),
            "elements": sum(bounds(v.type.size)[1] for v in graph.params.values()),
            "bytes": sum(v.type.max_bytes for v in graph.params.values()),
        },
        "flops": flops,
    }


def _tensors(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "dtype": str(value.dtype),
            "shape": [d if isinstance(d, int) else str(d) for d in value.shape],
        }
        for name, value in values.items()
    ]


def _kernel(call: KernelCall) -> dict[str, Any]:
    return {
        "name": call.name,
        "nodes": list(call.node_names),
        "flops": bounds(call.flops)[1],
        "bytes": bounds(call.bytes)[1],
    }


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    out = console()
    out.print(f"{printable(report['graph'])}", style="bold", markup=False)
    if report["assumed_dims"]:
        sizes = ", ".join(f"{name}={size}" for name, size in report["assumed_dims"].items())
        out.print(printable(f"for want of --dim: {sizes}"), style="yellow", markup=False)
    if report["variables"]:
        sizes = ", ".join(f"{n} = {low}..{high}" for n, (low, high) in report["variables"].items())
        text = f"sizes that vary: {sizes} (counts below are at the largest)"
        out.print(printable(text), markup=False)
    tensors = [(kind, t) for kind in ("inputs", "outputs") for t in report[kind]]
    rows = [
        (kind.removesuffix("s"), t["name"], t["dtype"], ", ".join(map(str, t["shape"])) or "scalar")
        for kind, t in tensors
    ]
    out.print(table("Tensors", ["", "name", "dtype", "shape"], rows))
    ops = report["ops"].items()
    out.print(table(f"Ops ({report['nodes']} nodes)", ["op", "nodes"], ops, numbers=[1]))
    params = report["params"]
    out.print(
        f"{params['tensors']} params: {count_text(params['elements'])}elements, "
        f"{bytes_text(params['bytes'])};  {count_text(report['flops'])}FLOP a run\n"
    )
    if "kernels" in report:
        _show_plan(report)
    if "explain" in report:
        out.print("Compile report", style="bold")
        out.print(printable(report["explain"]), markup=False)


def _show_plan(report: dict[str, Any]) -> None:
    out = console()
    columns = ["", "kernel", "FLOP", "memory traffic", "nodes"]
    rows = [
        (i, k["name"], count_text(k["flops"]), bytes_text(k["bytes"]), _shortened(k["nodes"]))
        for i, k in enumerate(report["kernels"])
    ]
    title = f"Kernels of a run on {report['device']} ({len(rows)})"
    out.print(table(title, columns, rows, numbers=[0, 2, 3]))
    if report["preparation"]:
        out.print(f"{len(report['preparation'])} more run once per write of a param\n")
    memory = [(n.removesuffix("_bytes"), bytes_text(b)) for n, b in report["memory"].items()]
    out.print(table("Memory", ["", "bytes"], memory, numbers=[1]))
    load_time, compile_time = (report["seconds"][step] for step in ("load", "compile"))
    out.print(f"loaded in {load_time:.2f} s, compiled in {compile_time:.2f} s")


def _shortened(nodes: list[str]) -> str:
    shown = ", ".join(nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more"
