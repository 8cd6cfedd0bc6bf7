"""The ONNX package's own backend tests: every node test of every op that has a converter."""

from __future__ import annotations

import functools
import re
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto
from onnx.numpy_helper import to_array

import ostinato as ost
from ostinato.frontends.onnx.converters import converters, find_converter
from ostinato.frontends.onnx.dims import element_type
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Cases of ops with a converter that cannot be expressed, and what the error says.
UNSUPPORTED = {
    "test_batchnorm_epsilon_training_mode": "training mode",
    "test_batchnorm_example_training_mode": "training mode",
    "test_maxpool_with_argmax_2d_precomputed_pads": "positions of the maxima",
    "test_maxpool_with_argmax_2d_precomputed_strides": "positions of the maxima",
    "test_not_2d": "operator set 1, older",
    "test_not_3d": "operator set 1, older",
    "test_not_4d": "operator set 1, older",
    "test_training_dropout": "training mode",
    "test_training_dropout_default": "training mode",
    "test_training_dropout_default_mask": "training mode",
    "test_training_dropout_mask": "training mode",
}


@functools.cache
def node_cases() -> dict[str, Any]:
    """Every node test by name. Collecting them takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for case in load_model_tests(kind="node")}


@functools.cache
def cases_by_op() -> dict[str, list[Any]]:
    """Cases by the op that they are about; ``"several"`` for those with more than one node."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for case in node_cases().values():
        nodes = case.model.graph.node
        key = nodes[0].op_type if len(nodes) == 1 and not nodes[0].domain else "several"
        groups[key].append(case)
    return groups


def load_case(case: Any, inputs: dict[str, Any]) -> ost.Graph:
    """Load a case's model, keeping as many of its inputs for run time as it allows.

    A node test gives everything as an input, also shapes and axes, which real models store.
    """
    names = [value.name for value in case.model.graph.input if value.name in inputs]
    lists = [name for name in names if isinstance(inputs[name], list)]
    for fixed in ([], [name for name in names[1:] if name not in lists], names[1:]):
        dims = {name: _shapes(inputs[name]) for name in names if _is_structured(inputs[name])}
        dims = {name: shapes for name, shapes in dims.items() if name not in fixed}
        constants = {name: inputs[name] for name in fixed}
        try:
            return ost.load_onnx(case.model, dims=dims, constants=constants)
        except (ost.UnsupportedOpError, ost.GraphError, ost.ModelFormatError):
            pass
    return ost.load_onnx(case.model, constants={name: inputs[name] for name in names})


def _is_structured(given: Any) -> bool:
    """Whether an input is a sequence, or an optional that is empty."""
    return given is None or isinstance(given, list)


def _shapes(given: Any) -> Any:
    return None if given is None else [array.shape for array in given]


def flattened(name: str, given: Any) -> dict[str, Any]:
    """The tensors of an input or output, by the names that the graph has for them."""
    if not _is_structured(given):
        return {name: given}
    return {f"{name}[{i}]": array for i, array in enumerate(given or [])}


def run_case(case: Any) -> None:
    """Load, evaluate, compare with the stored outputs."""
    for stored_inputs, expected in case.data_sets:
        declared = (value.name for value in case.model.graph.input)
        inputs = dict(zip(declared, map(array_of, stored_inputs), strict=False))
        graph = load_case(case, inputs)
        tensors = {
            k: v for name, given in inputs.items() for k, v in flattened(name, given).items()
        }
        live = {name: tensors[name] for name in graph.inputs}
        results = dict(zip(graph.outputs, run_outputs(graph, live), strict=True))
        for stored, value in zip(expected, case.model.graph.output, strict=True):
            for name, wanted in flattened(value.name, array_of(stored)).items():
                compare(results.pop(name), np.asarray(wanted), value, case)
        assert not results


def run_outputs(graph: ost.Graph, live: dict[str, Any]) -> list[Any]:
    """The outputs of a graph; a model whose only output is an empty sequence has none."""
    return ost.reference.evaluate(graph, live, {}) if graph.outputs else []


def array_of(stored: Any) -> Any:
    """A stored tensor as an array, in a sequence too."""
    if isinstance(stored, list):
        return [array_of(item) for item in stored]
    return to_array(stored) if isinstance(stored, TensorProto) else stored


def compare(result: Any, wanted: Any, value: Any, case: Any) -> None:
    """Shapes, dtypes and everything but floats exactly; floats as closely as their dtype holds."""
    dtype = ELEMENT_TYPES[element_type(value.type).elem_type].numpy
    assert (result.shape, result.dtype) == (wanted.shape, dtype), value.name
    if dtype.kind in "biu":
        np.testing.assert_array_equal(result, wanted.astype(dtype), err_msg=value.name)
        return
    rtol, atol = (case.rtol, case.atol) if dtype.itemsize > 2 else (1e-2, 1e-2)
    np.testing.assert_allclose(
        result.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol
    )


def expected_refusal(case: Any) -> str | None:
    """Part of the message with which a case must be refused; ``None`` if it must work."""
    graph = case.model.graph
    for value in (*graph.input, *graph.output):
        if element_type(value.type).elem_type not in ELEMENT_TYPES:
            return "elements|casts to"
    missing = {op for op in op_types(graph) if find_converter("", op) is None}
    if missing:
        return "no converter|input"
    return UNSUPPORTED.get(case.name)


def op_types(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from op_types(attribute.g)


def check(case: Any) -> str:
    """A description of the defect of a case; none if it works, or is refused as it must be."""
    refusal = expected_refusal(case)
    try:
        run_case(case)
    except ost.UnsupportedOpError as error:
        if refusal is not None and re.search(refusal, str(error)):
            return ""
        return f"{case.name}: {error}"
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {error}"
    return f"{case.name} works, against expectation" if case.name in UNSUPPORTED else ""


@pytest.mark.parametrize("op_type", [*sorted(converters("")), "several"])
def test_node_cases(op_type: str) -> None:
    failures = [failure for case in cases_by_op().get(op_type, []) if (failure := check(case))]
    assert not failures, "\n".join(failures)


def test_ops_without_a_converter_are_refused() -> None:
    """Unless the standard defines them as a function of ops that have one."""
    known = {*converters(""), "several"}
    others = [op for op in cases_by_op() if op not in known]
    failures = [failure for op in others for c in cases_by_op()[op] if (failure := check(c))]
    assert not failures, "\n".join(failures)
