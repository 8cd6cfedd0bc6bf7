"""Converters against PyTorch: their arguments, and samples of its own for some hundred entries."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ostinato.frontends.torch.converters import converters

pytest.importorskip("expecttest", reason="PyTorch's samples need it")

from tests.peers.torch.op_info import compare_entry, entries

#: One in so many entries is compared; the command compares all.
_STRIDE = 9

#: Overloads that work on lists or numbers of TorchScript, or on names of dims.
_SCRIPT = ("Dict_Tensor", "list_Tensor", "Tensor_list", "sublist", "Dimname")


def overloads(key: str) -> Iterator[Any]:
    """The overloads of tensors that a converter is for."""
    _, name, *overload = key.split(".")
    packet = getattr(torch.ops.aten, name)
    for found in overload or packet.overloads():
        op = getattr(packet, found)
        schema = op._schema
        named_apart = not overload and f"{key}.{found}" in converters()
        script = "Tensor" not in str(schema) or any(word in str(schema) for word in _SCRIPT)
        out = any(argument.is_out for argument in schema.arguments)
        if not (named_apart or script or out):
            yield op


@pytest.mark.parametrize("key", sorted(k for k in converters() if k.startswith("aten.")))
def test_converters_take_the_arguments_of_their_ops(key):
    signature = inspect.signature(converters()[key])
    for op in overloads(key):
        arguments = op._schema.arguments
        positional = [a.name for a in arguments if not a.kwarg_only]
        named = {a.name: None for a in arguments if a.kwarg_only}
        required = [a.name for a in arguments if not a.kwarg_only and not a.has_default_value()]
        needed = {a.name: None for a in arguments if a.kwarg_only and not a.has_default_value()}
        for values, names in ((positional, named), (required, needed)):
            try:
                signature.bind(None, *values, **names)
            except TypeError as error:
                pytest.fail(f"{op._schema}: {error}")


@pytest.mark.parametrize("name", list(entries("float32"))[::_STRIDE])
def test_samples_of_float32_agree(name):
    outcome = compare_entry(entries("float32")[name], "float32", 1)
    assert not outcome.wrong, outcome.reason


@pytest.mark.parametrize("name", list(entries("int64"))[::_STRIDE])
def test_samples_of_int64_agree(name):
    outcome = compare_entry(entries("int64")[name], "int64", 1)
    assert not outcome.wrong, outcome.reason
