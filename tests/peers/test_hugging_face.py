"""Exports of a few Hugging Face architectures: those that are quick, one of each kind.

``python -m tests.peers.hugging_face`` compares all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.peers.hugging_face.architectures import ARCHITECTURES
from tests.peers.hugging_face.comparison import TOLERANCE, compare_architecture
from tests.peers.hugging_face.exporting import export
from tests.peers.hugging_face.results import EXPORTERS, read_results


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("distilbert", "dynamo"),
        ("bert", "torchscript"),
        ("llama", "torchscript"),
        ("bart", "torchscript"),
        ("wav2vec2", "torchscript"),
        ("vit", "torchscript"),
    ],
)
def test_export(tmp_path: Path, name: str, exporter: str) -> None:
    export(ARCHITECTURES[name], exporter, tmp_path / "model.onnx")
    comparison = compare_architecture(ARCHITECTURES[name], tmp_path / "model.onnx")
    assert comparison.difference <= TOLERANCE


def test_every_export_has_a_result() -> None:
    """None of them says that the model is refused, or that a result is wrong."""
    results = read_results()
    assert list(results) == [(name, exporter) for name in ARCHITECTURES for exporter in EXPORTERS]
    ours = {case: text for case, text in results.items() if text.startswith(("refused", "wrong"))}
    assert not ours
