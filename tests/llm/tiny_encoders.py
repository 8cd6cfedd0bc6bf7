"""Results of transformers for tiny random encoders and rerankers.

``tests/peers/llm/make_encoders.py`` writes them, for the weights of :mod:`tests.llm.tiny_models`;
those of Jina BERT v2 come from ``make_jina.py``, by its definition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EXPECTED_ENCODERS = Path(__file__).parent / "expected_encoders"

#: Families whose results are of texts of the first segment alone.
ONE_SEGMENT = ("jina_bert_v2",)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ExpectedEncoder:
    """Results of transformers for one family.

    Attributes:
        config: ``config.json``.
        shapes: of the tensors, by name.
        results: of a reranker scores ``[seeds, lengths, 1]``; of others the first and the last
            row and the mean of all, ``[seeds, lengths, 3, width]``.
    """

    config: dict[str, Any]
    shapes: dict[str, list[int]]
    results: Array


def stored_encoders() -> list[str]:
    """The families with stored results."""
    return sorted(path.stem for path in EXPECTED_ENCODERS.glob("*.npz"))


def load_encoder(family: str) -> ExpectedEncoder:
    """The stored results of a family."""
    with np.load(EXPECTED_ENCODERS / f"{family}.npz") as stored:
        config, shapes = (json.loads(str(stored[name])) for name in ("config", "shapes"))
        return ExpectedEncoder(config, shapes, stored["results"])


def segments_of(length: int) -> list[int]:
    """The segments of a text: a third, and the rest."""
    return [int(i >= length // 3) for i in range(length)]
