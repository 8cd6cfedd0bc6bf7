"""The budget that experts in a file share, and the programs lowered for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.expert_store import ExpertStore
from ostinato.backends.cpu.capabilities import CAPABILITIES
from ostinato.backends.cpu.rules.expert_staging import SelectExperts, StageExperts, element_pieces
from ostinato.backends.cpu.rules.table import CpuLowering, lower_for_cpu
from ostinato.backends.cpu.rules.tiles import RegisterFile
from ostinato.dtypes import BFLOAT16, FLOAT32
from ostinato.ir.stored import MatrixLayout
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.text import kernel_text
from ostinato.passes.pipeline import run_passes

REGISTERS = RegisterFile(vector_bytes=64, count=32)
FEATURES, HIDDEN = 96, 192
EXPERT = 4 * 3 * FEATURES * HIDDEN  # both are whole panels


def rows_of(type_: TensorType) -> MatrixLayout:
    """The layout of matrices that lie row by row."""
    columns = type_.shape[-1]
    assert isinstance(columns, int)
    return MatrixLayout((columns * type_.dtype.itemsize,))


def program(budget: int | None, *, experts: tuple[int, ...] = (8, 8), tokens: Any = 16) -> Any:
    g = ost.Graph("layers")
    x = g.input("x", (tokens, FEATURES))
    for number, count in enumerate(experts):
        wide, narrow = (count, FEATURES, HIDDEN), (count, HIDDEN, FEATURES)
        matrices = [g.param(f"{number}.{i}", s) for i, s in enumerate((wide, wide, narrow))]
        ids = g.input(f"ids{number}", (tokens, min(2, count)), "int64")
        x = x + g.expert_mlp(x, ids, g.full((tokens, min(2, count)), 0.5), *matrices)
    g.set_outputs([x])
    graph, _ = run_passes(g, capabilities=CAPABILITIES)
    store = ExpertStore({n: rows_of(p.type) for n, p in g.params.items()}, budget)
    return lower_for_cpu(graph, CpuLowering(REGISTERS, experts=store))[0]


def places(program: Any) -> list[int]:
    return [layer.slots for layer in program.stored_experts]


def kernels(program: Any, kind: type) -> list[Any]:
    return [call.kernel for call in program.calls if isinstance(call.kernel, kind)]


@pytest.mark.parametrize("budget", [None, 16 * EXPERT])
def test_where_everything_fits_nothing_is_staged(budget):
    lowered = program(budget)
    assert places(lowered) == [8, 8]
    assert not kernels(lowered, StageExperts)
    assert len(kernels(lowered, SelectExperts)) == 2  # places may still be in another order


@pytest.mark.parametrize("experts", [(8, 8), (8, 3), (4, 16, 2), (1, 9)])
def test_no_budget_is_exceeded_and_none_is_left(experts):
    everything = sum(experts) * EXPERT
    single = experts.count(1) * EXPERT
    for budget in range(2 * EXPERT + single, everything, EXPERT // 3):
        lowered = program(budget, experts=experts)
        lasting = sum(m.slots.nbytes for layer in lowered.stored_experts for m in layer.matrices)
        rooms = [
            call.buffers[-1] for call in lowered.calls if isinstance(call.kernel, StageExperts)
        ]
        staged = max((k.count for k in kernels(lowered, StageExperts)), default=0)
        # The matrices into the hidden units are needed together, two thirds of an expert.
        room = staged * EXPERT * 2 // 3
        assert lasting + room <= budget
        assert {buffer.role.value for buffer in rooms} <= {"temp"}
        more = sum(n > p for n, p in zip(experts, places(lowered), strict=True) if n > 1)
        assert lasting + room + more * EXPERT > budget
        chosen = [p for n, p in zip(experts, places(lowered), strict=True) if n > p]
        assert len(set(chosen)) <= 1  # the same for all that could have more


def test_a_budget_for_less_than_one_expert():
    with pytest.raises(ost.InputError, match="one expert takes"):
        program(EXPERT * 2 // 3 - 1)
    assert places(program(EXPERT * 2 // 3)) == [0, 0]


def test_there_are_waves_for_all_that_can_be_called():
    one = program(4 * EXPERT, tokens=1)  # two experts at most
    many = program(4 * EXPERT, tokens=16)
    assert len(kernels(one, SelectExperts)) == 2 * (1 + 2)
    assert len(kernels(many, SelectExperts)) == 2 * (1 + 8)
    assert len(kernels(many, StageExperts)) == 2 * 8 * 3


def test_kernels_as_text():
    lowered = program(4 * EXPERT, tokens=1)
    choosing, fetching = kernels(lowered, SelectExperts)[0], kernels(lowered, StageExperts)[0]
    assert kernel_text(choosing).startswith("select the experts of an offload round\n")
    text = kernel_text(fetching)
    assert text.startswith("stage up to 1 experts\n")
    assert f"in {fetching.packing.pieces} pieces of {fetching.packing.piece_bytes} bytes" in text


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("matrix", "panel"), [((8, 96), 48), ((7, 50), 16), ((4099, 40), 48), ((1, 1), 16)]
)
def test_pieces_cover_a_matrix(matrix, panel, transposed):
    depth, columns = matrix
    panels = -(-columns // panel)
    packed = TensorType(BFLOAT16, (3, panels, depth, panel))
    weight = TensorType(FLOAT32, (3, depth, columns))
    layout = MatrixLayout((4 * (depth if transposed else columns),), transposed=transposed)
    packing = element_pieces(weight, packed, layout)
    assert packing.matrix_bytes == 4 * depth * columns
    assert packing.pieces * packing.piece_bytes >= packing.matrix_bytes
    assert (packing.pieces - 1) * packing.piece_bytes < packing.matrix_bytes
    assert packing.packed_bytes == 2 * panels * depth * panel
    steps = panels if transposed else 1
    assert packing.stride * packing.pieces == packing.packed_bytes // (panels // steps)
    room = packing.rooms[-1]
    assert room % 64 == 0 <= room - packing.piece_bytes


def test_the_store_of_a_matrix_that_is_read_twice():
    """By two layers: both have places of their own for it."""
    g = ost.Graph("twice")
    x = g.input("x", (4, FEATURES))
    w = g.param("w", (8, FEATURES, FEATURES))
    for number in range(2):
        x = g.grouped_matmul(x, w, g.input(f"ids{number}", (4,), "int64"))
    g.set_outputs([x])
    graph, _ = run_passes(g, capabilities=CAPABILITIES)
    nbytes = 4 * FEATURES * FEATURES
    options = CpuLowering(REGISTERS, experts=ExpertStore({"w": rows_of(w.type)}, 8 * nbytes))
    lowered = lower_for_cpu(graph, options)[0]
    assert places(lowered) == [3, 3]
    assert np.unique([m.param for layer in lowered.stored_experts for m in layer.matrices]) == "w"
