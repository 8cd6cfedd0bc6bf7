"""Models of Transformers and torchvision next to eager: a few of each kind, and the list of all.

``python -m tests.peers.torch.models`` compares all of them.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.peers.torch.models.__main__ import models, read_results
from tests.peers.torch.models.one import main


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("hand-written", "bert"),
        ("hand-written", "mixtral"),
        ("hand-written", "whisper"),
        ("hand-written", "convnext"),
        ("compiled", "llama"),
        ("dynamic", "llama"),
        ("small", "apertus"),
        ("vision", "mobilenet_v3_small"),
    ],
)
def test_results_are_those_of_eager(kind: str, name: str) -> None:
    line = main(kind, name)
    assert line[0].isdigit(), line
    assert kind != "compiled" or " 0 eager nodes" in line


def test_results_of_all_models() -> None:
    """None is wrong, and those that fail are few."""
    results = read_results()
    assert results.keys() <= set(models())
    assert not [case for case, line in results.items() if line.startswith("wrong")]
    passed = [case for case, line in results.items() if line[0].isdigit()]
    compiled = [line for (kind, _), line in results.items() if kind == "compiled"]
    assert all(" 0 eager nodes" in line for line in compiled)
    for kind, least in (("hand-written", 86), ("dynamic", 30), ("small", 126), ("vision", 22)):
        assert sum(found == kind for found, _ in passed) >= least
