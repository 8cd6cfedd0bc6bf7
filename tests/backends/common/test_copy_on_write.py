"""Blocks that several references share until one writes."""

from __future__ import annotations

import gc

from ostinato.backends.common.copy_on_write import CopyOnWriteBlock


def block() -> CopyOnWriteBlock[bytearray]:
    return CopyOnWriteBlock(bytearray(b"abc"), bytearray)


def test_a_block_of_one_reference_is_not_copied() -> None:
    only = block()
    memory = only.memory
    assert not only.unshare()
    assert only.memory is memory


def test_a_shared_block_is_copied_before_a_write() -> None:
    first = block()
    second = first.share()
    assert second.memory is first.memory
    assert second.guard is first.guard
    assert second.unshare()
    second.memory[0:1] = b"x"
    assert (first.memory, second.memory) == (b"abc", b"xbc")
    assert not first.unshare()  # the other has left
    assert not second.unshare()


def test_a_reference_that_is_gone_shares_nothing() -> None:
    first = block()
    second = first.share()
    del second
    gc.collect()
    assert not first.unshare()
