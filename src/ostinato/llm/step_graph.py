"""The graph of a step: rows of all sequences through the model, and a token for each row picked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64, DType
from ostinato.llm.families.builder import BLOCK_TOKENS, Blocks, Builder, State, StepRows
from ostinato.llm.step_sizes import StepSizes, check_limits, input_types
from ostinato.ops.builder import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.graph import Value
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.families.builder import BlockName
    from ostinato.llm.step_sizes import StepLimits
    from ostinato.variables import Dim

__all__ = ["step_graph"]


def step_graph(
    checkpoint: Checkpoint,
    limits: StepLimits,
    kv_dtype: Any = "bfloat16",
    *,
    shared: bool = False,
) -> tuple[Graph, Mapping[str, State]]:
    """The graph of a step, and its states, which each run is given.

    Args:
        checkpoint: the model.
        limits: of its steps.
        kv_dtype: of keys and values in pools.
        shared: whether sequences, blocks and the length of tables are Variables, so that the graph
            is the same for other limits.

    Raises:
        InputError: a limit is no positive number, or beyond the model.
    """
    config = checkpoint.config
    check_limits(limits, config)
    sizes = StepSizes.of_graph(limits, shared=shared)
    rows, picks = sizes.rows, sizes.picks
    g = Graph("step")
    given = {
        name: g.input(name, shape, dtype)
        for name, (shape, dtype) in input_types(sizes, config).items()
    }
    position = g.cast(given["position"], INT64)
    number = g.reshape(g.floor_divide(position, BLOCK_TOKENS), (rows, 1))
    within = g.reshape(g.remainder(position, BLOCK_TOKENS), (rows, 1))

    def blocks_of(kind: BlockName, table: Value, count: Dim) -> Blocks:
        own = g.take(table, given["sequence"], axis=0)
        block = g.cast(g.take_along_axis(own, number, axis=1), INT64)
        place = g.concat([block, within], axis=1)
        return Blocks(kind=kind, count=count, table=table, place=place)

    blocks = near = blocks_of("block", given["table"], sizes.blocks)
    if limits.window_blocks:
        near = blocks_of("window", given["window_table"], sizes.window_blocks)
    builder = Builder(
        g,
        config,
        checkpoint.weights,
        StepRows(
            count=rows,
            position=given["position"],
            sequence=given["sequence"],
            blocks=blocks,
            window_blocks=near,
            context=limits.context,
            sequences=sizes.sequences,
            kv_dtype=DType.parse(kv_dtype),
        ),
    )
    hidden = checkpoint.family.hidden(builder, given["tokens"])
    logits = checkpoint.family.logits(builder, g.take(hidden, given["pick"], axis=0))
    chances = g.log_softmax(logits, axis=1)  # in front of the token, which does not wait for it
    token = _chosen(g, logits, given)
    logprob = g.take_along_axis(chances, g.reshape(token, (picks, 1)), axis=1)
    g.set_outputs({"token": token, "logprob": g.reshape(logprob, (picks,)), "logits": logits})
    return g, builder.states


def _chosen(g: Graph, logits: Value, given: Mapping[str, Value]) -> Value:
    """The token that is chosen for each row of logits."""
    at = g.stack([given["adjust_pick"], given["adjust_token"]], axis=1)
    found = g.gather_nd(logits, at) + given["adjust_bias"]
    factor = given["adjust_repetition"]
    found = g.where(found > 0, found / factor, found * factor) - given["adjust_penalty"]
    adjusted = g.scatter_nd(logits, at, found, unique=True)
    allowed = g.mask_tokens(adjusted, given["allowed"])
    parameters = ("uniform", "temperature", "top_k", "top_p", "min_p")
    return g.sample(allowed, *(given[name] for name in parameters))
