"""A real encoder with narrow weights: the cosines of its embeddings (docs/quantization.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost

Array = np.ndarray[Any, Any]

#: Least cosine between embeddings of the same sentence. ``bench/quantization.py`` measures them:
#: 0.9986, 0.969, 0.99999.
LEAST_COSINE = {"int8": 0.997, "int4": 0.95, "bfloat16": 0.9999}

#: Tokens of "A man is eating food.", "Compilers turn graphs into machine code." and
#: "It rained all day, so the match was called off."
SENTENCES = (
    (101, 1037, 2158, 2003, 5983, 2833, 1012, 102),
    (101, 21624, 2015, 2735, 19287, 2046, 3698, 3642, 1012, 102),
    (101, 2009, 28270, 2035, 2154, 1010, 2061, 1996, 2674, 2001, 2170, 2125, 1012, 102),
)


def embeddings(session: ost.Session, graph: ost.Graph) -> list[Array]:
    compiled = session.compile(graph)
    found = []
    for tokens in SENTENCES:
        ids = np.array([tokens], np.int64)
        found += compiled.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    return found


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


def test_embeddings_stay_near(minilm: Path, session: ost.Session) -> None:
    dims = {"batch": 1, "seq": (1, 32)}
    wide = embeddings(session, ost.load_onnx(minilm, dims=dims))
    for name, least in LEAST_COSINE.items():
        quantized = ost.quantize(minilm, name, dims=dims)
        assert len(quantized.quantized) == 36
        assert {s.why for s in quantized.skipped} == {"no operand is a weight"}
        for expected, actual in zip(wide, embeddings(session, quantized), strict=True):
            cosine = (expected * actual).sum() / np.linalg.norm(expected) / np.linalg.norm(actual)
            assert cosine >= least, f"{name}: {cosine}"
