"""Random blocks of packed formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.ops.packed.decoding import packed_format

Array = np.ndarray[Any, Any]

#: Scales that are hard to convert: zeros, subnormals, the greatest, infinities, NaN.
HARD = np.array(
    [
        0x0000,
        0x8000,
        0x0001,
        0x8001,
        0x03FF,
        0x0400,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E00,
        0xFE01,
    ],
    "<u2",
)

#: By format, the bytes of a block at which float16 scales start.
SCALES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "iq4_nl": (0,),
    "mxfp4": (), "nvfp4": (), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2),
    "q6_k": (208,), "iq4_xs": (0,), "tq2_0": (64,), "tq1_0": (52,), "iq1_s": (0,), "iq1_m": (),
    "iq2_xxs": (0,), "iq2_xs": (0,), "iq2_s": (0,), "iq3_xxs": (0,), "iq3_s": (0,),
}  # fmt: skip


def random_blocks(rng: np.random.Generator, name: str, count: int, *, hard: bool = True) -> Array:
    """``count`` blocks of random bytes: uint8 ``[count, bytes]``.

    Args:
        hard: whether some scales are infinite, NaN or subnormal; else all are small numbers.
    """
    form = packed_format(f"gguf:{name}")
    blocks = rng.integers(0, 256, (count, form.nbytes), np.uint8)
    for byte in SCALES[name]:
        if hard:
            some = rng.random(count) < 0.1
            chosen = rng.choice(HARD, int(some.sum()))
            blocks[some, byte : byte + 2] = chosen.view(np.uint8).reshape(-1, 2)
        else:
            scales = rng.uniform(-0.02, 0.02, count).astype("<f2")
            blocks[:, byte : byte + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == "mxfp4" and not hard:
        blocks[:, 0] = rng.integers(115, 125, count)
    return blocks
