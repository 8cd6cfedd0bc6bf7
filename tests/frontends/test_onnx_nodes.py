"""The ONNX package's node tests, through the reference evaluator."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.numpy_helper import to_array

import ostinato as ost
from ostinato.frontends.onnx.converters import converters
from ostinato.frontends.onnx.dims import element_type
from ostinato.frontends.onnx.structured import tensors_of
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES
from tests.frontends.onnx_cases import node_cases
from tests.frontends.onnx_suite import PASS, expected


@functools.cache
def cases_by_op() -> dict[str, list[Any]]:
    """Cases that pass, by the op they are about; ``"several"`` for those with more than one."""
    groups: dict[str, list[Any]] = defaultdict(list)
    outcomes = expected()
    for case in node_cases():
        if outcomes[case.name] != PASS or has_strings(case):
            continue
        nodes = case.model.graph.node
        key = nodes[0].op_type if len(nodes) == 1 and not nodes[0].domain else "several"
        groups[key].append(case)
    return groups


def has_strings(case: Any) -> bool:
    """Whether an input or output is of strings, which a graph has no place for."""
    values = (*case.model.graph.input, *case.model.graph.output)
    return any(element_type(value.type).elem_type == TensorProto.STRING for value in values)


def load_case(case: Any, inputs: dict[str, Any]) -> ost.Graph:
    """Load a case's model, keeping as many of its inputs for run time as it allows.

    A node test gives everything as an input, also shapes and axes, which real models store. A
    graph's outputs are those of one length of a sequence, which may follow from inputs' contents.
    """
    names = [value.name for value in case.model.graph.input if value.name in inputs]
    lists = [name for name in names if isinstance(inputs[name], list)]
    rest = [name for name in names[1:] if name not in lists]
    listed = any(not value.type.HasField("tensor_type") for value in case.model.graph.output)
    for fixed in () if listed else ([], rest, names[1:]):
        dims = {
            name: None if inputs[name] is None else [np.shape(item) for item in inputs[name]]
            for name in names
            if name not in fixed and (inputs[name] is None or name in lists)
        }
        constants = {name: inputs[name] for name in fixed}
        try:
            return ost.load_onnx(case.model, dims=dims, constants=constants)
        except (ost.UnsupportedOpError, ost.GraphError, ost.ModelFormatError):
            pass
    return ost.load_onnx(case.model, constants={name: inputs[name] for name in names})


def run_case(case: Any) -> None:
    """Load, evaluate, compare with the stored outputs."""
    for stored_inputs, wanted in case.data_sets:
        declared = (value.name for value in case.model.graph.input)
        inputs = dict(zip(declared, map(array_of, stored_inputs), strict=False))
        graph = load_case(case, inputs)
        tensors = {k: v for n, given in inputs.items() for k, v in tensors_of(n, given).items()}
        live = {name: tensors[name] for name in graph.inputs}
        arrays = ost.reference.evaluate(graph, live, {}) if graph.outputs else []
        results = dict(zip(graph.outputs, arrays, strict=True))
        for stored, value in zip(wanted, case.model.graph.output, strict=True):
            for name, right in tensors_of(value.name, array_of(stored)).items():
                compare(results.pop(name), np.asarray(right), value, case)
        assert not results


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


def check(case: Any) -> str:
    """A description of the defect of a case, if it has one."""
    try:
        run_case(case)
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("op_type", [*sorted(converters("")), "several"])
def test_node_cases(op_type: str) -> None:
    failures = [failure for case in cases_by_op().get(op_type, []) if (failure := check(case))]
    assert not failures, "\n".join(failures)


def test_ops_of_other_domains_and_ops_that_the_standard_writes_as_functions() -> None:
    known = {*converters(""), "several"}
    others = [op for op in cases_by_op() if op not in known]
    failures = [failure for op in others for c in cases_by_op()[op] if (failure := check(c))]
    assert not failures, "\n".join(failures)
