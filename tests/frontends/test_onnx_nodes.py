"""The ONNX package's own backend tests: every node test of every op that has a converter."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.numpy_helper import to_array

import ostinato as ost
from ostinato.frontends.onnx.converters import CONVERTERS
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES

#: Cases of claimed ops that cannot be expressed, by the start of their names, and why.
UNSUPPORTED: dict[str, str] = {}


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
    for fixed in ([], names[1:]):
        try:
            return ost.load_onnx(case.model, constants={name: inputs[name] for name in fixed})
        except (ost.UnsupportedOpError, ost.GraphError):
            pass
    return ost.load_onnx(case.model, constants={name: inputs[name] for name in names})


def run_case(case: Any) -> None:
    """Load, evaluate, compare with the stored outputs."""
    for stored_inputs, expected in case.data_sets:
        declared = (value.name for value in case.model.graph.input)
        arrays = [to_array(a) if isinstance(a, TensorProto) else a for a in stored_inputs]
        inputs = dict(zip(declared, arrays, strict=False))
        graph = load_case(case, inputs)
        live = {name: inputs[name] for name in graph.inputs}
        results = ost.reference.evaluate(graph, live, {})
        outputs = case.model.graph.output
        for result, wanted, value in zip(results, expected, outputs, strict=True):
            wanted = to_array(wanted) if isinstance(wanted, TensorProto) else wanted
            compare(result, np.asarray(wanted), value, case)


def compare(result: Any, wanted: Any, value: Any, case: Any) -> None:
    """Shapes, dtypes and everything but floats exactly; floats as closely as their dtype holds."""
    dtype = ELEMENT_TYPES[value.type.tensor_type.elem_type].numpy
    assert (result.shape, result.dtype) == (wanted.shape, dtype), value.name
    if dtype.kind in "biu":
        np.testing.assert_array_equal(result, wanted.astype(dtype), err_msg=value.name)
        return
    rtol, atol = (case.rtol, case.atol) if dtype.itemsize > 2 else (1e-2, 1e-2)
    np.testing.assert_allclose(
        result.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol
    )


def expected_unsupported(case: Any) -> bool:
    return any(case.name.startswith(prefix) for prefix in UNSUPPORTED)


@pytest.mark.parametrize("op_type", [*sorted(CONVERTERS[""]), "several"])
def test_node_cases(op_type: str) -> None:
    failures = []
    for case in cases_by_op().get(op_type, []):
        if expected_unsupported(case):
            with pytest.raises(ost.UnsupportedOpError):
                run_case(case)
            continue
        try:
            run_case(case)
        except Exception as error:
            failures.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)


def test_ops_without_converter_say_so() -> None:
    for op_type, cases in cases_by_op().items():
        if op_type in CONVERTERS[""] or op_type == "several":
            continue
        for case in cases:
            try:
                run_case(case)  # some have a function body in the standard, and work
            except ost.UnsupportedOpError as error:
                assert op_type in str(error) or "elements" in str(error) or "input" in str(error)
