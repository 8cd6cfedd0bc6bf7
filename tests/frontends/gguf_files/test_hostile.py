"""Hostile GGUF files: an error that says what is wrong and where, and nothing allocated for it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.frontends.gguf import GGUFFile

from .files import File, Tensor, string, uint

HUGE = (1 << 64) - 1
ARRAY, STRING, FLOATS = 9, 8, b"\0" * 16


def deep(levels: int) -> bytes:
    """Arrays within arrays, each of one."""
    return (uint(ARRAY, 4) + uint(1, 8)) * (levels - 1) + uint(0, 4) + uint(0, 8)


def aligned(value: bytes, kind: int = 4) -> File:
    return File([("general.alignment", kind, value)], [Tensor()], FLOATS)


FILES: dict[str, File] = {
    "does not start with 'GGUF'": File(magic=b"GGUf"),
    "has version 1": File(version=uint(1, 4)),
    "has version 4": File(version=uint(4, 4)),
    "is big-endian": File(version=uint(3, 4)[::-1]),
    "the version would be 4 bytes of the 2 left": File(cut=6),
    "tensors do not fit in the": File(counts=(HUGE, 0)),
    "2 tensors do not fit in the 8 bytes left": File(counts=(2, 0)),
    "entries of metadata do not fit": File(counts=(0, 1 << 40)),
    "a key would be 18,446,744,073,709,551,615 bytes": File([("k" * 40, 0, b"\0")], counts=(0, 1)),
    "a key is no UTF-8": File([(b"\xff", 0, b"\0")]),
    "the key 'k' occurs twice": File([("k", 0, b"\0"), ("k", 0, b"\0")]),
    "'k' has the type 13": File([("k", 13, b"\0" * 8)]),
    "'k' has a bool that is neither 0 nor 1": File([("k", 7, b"\2")]),
    "'k' would be 8 bytes of the 4 left": File([("k", 12, b"\0" * 4)]),
    "1,099,511,627,776 elements of 'k' do not fit": File(
        [("k", ARRAY, uint(4, 4) + uint(1 << 40, 8))]
    ),
    "strings of 'k' do not fit": File([("k", ARRAY, uint(STRING, 4) + uint(HUGE, 8))]),
    "arrays of 'k' do not fit": File([("k", ARRAY, uint(ARRAY, 4) + uint(1 << 62, 8))]),
    "'k' has arrays more than 4 deep": File([("k", ARRAY, deep(5))]),
    "'k' would be 9 bytes of the 0 left": File([("k", STRING, uint(9, 8))]),
    "a power of two up to 1,048,576, got 0": aligned(uint(0, 4)),
    "a power of two up to 1,048,576, got 48": aligned(uint(48, 4)),
    "a power of two up to 1,048,576, got 2097152": aligned(uint(1 << 21, 4)),
    "a power of two up to 1,048,576, got -32": aligned(uint((1 << 32) - 32, 4), 5),
    "a power of two up to 1,048,576, got '32'": aligned(string("32"), STRING),
    "a power of two up to 1,048,576, got True": aligned(b"\1", 7),
    "two tensors are named 't'": File(tensors=[Tensor(), Tensor()], data=FLOATS),
    "tensor 't' has 9 dimensions": File(tensors=[Tensor(dims=(1,) * 9)], data=FLOATS),
    "tensor 't' has the type 4,": File(tensors=[Tensor(type=4)], data=FLOATS),
    "tensor 't' has the type 4294967295,": File(tensors=[Tensor(type=0xFFFFFFFF)], data=FLOATS),
    "rows of 33 elements, which are no blocks of 32 as q4_0": File(
        tensors=[Tensor(dims=(33,), type=2)], data=FLOATS
    ),
    "rows of 1 elements, which are no blocks of 256 as q4_k": File(
        tensors=[Tensor(dims=(), type=12)], data=FLOATS
    ),
    "sizes beyond those of any file": File(tensors=[Tensor(dims=(HUGE,) * 8)], data=FLOATS),
    "beyond those of any file: [0, 18446744073709551615]": File(
        tensors=[Tensor(dims=(0, HUGE))], data=FLOATS
    ),
    "tensor 't', 20 bytes at 0 of the data, ends beyond the 16 bytes": File(
        tensors=[Tensor(dims=(5,))], data=FLOATS
    ),
    "4,398,046,511,104 bytes at 0": File(tensors=[Tensor(dims=(1 << 20, 1 << 20))], data=FLOATS),
    "16 bytes at 18,446,744,073,709,551,584 of": File(
        tensors=[Tensor(offset=HUGE - 31)], data=FLOATS
    ),
    "the offset 4 of tensor 't' is no multiple of 32": File(
        tensors=[Tensor(dims=(1,), offset=4)], data=FLOATS
    ),
    "tensors 't' and 'u' overlap": File(
        tensors=[Tensor("u", (1,), offset=32), Tensor(dims=(9,))], data=b"\0" * 64
    ),
    "ends beyond the 0 bytes": File(tensors=[Tensor()]),
}


@pytest.mark.parametrize("message", FILES)
def test_refused(message: str, tmp_path: Path) -> None:
    octets = FILES[message].octets()
    if message.startswith("a key would be"):
        octets = octets[:24] + uint(HUGE, 8) + octets[32:]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(octets)
    tracemalloc.start()
    try:
        with pytest.raises(ost.ModelFormatError) as caught:
            GGUFFile(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert message in text
    assert "'hostile.gguf'" in text
    assert "at byte" in text
    assert peak < 1 << 20


def test_an_empty_file_and_none(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"")
    with pytest.raises(ost.ModelFormatError, match=r"'empty.gguf' is empty"):
        GGUFFile(path)
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "none.gguf")


def test_every_prefix_of_a_file(tmp_path: Path) -> None:
    whole = File([("k", STRING, string("value"))], [Tensor()], FLOATS).octets()
    path = tmp_path / "cut.gguf"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ost.ModelFormatError):
            GGUFFile(path)
