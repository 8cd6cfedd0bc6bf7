"""The vocabulary: every op as a typed, documented method, shared by graphs and sessions."""

from __future__ import annotations

from ostinato.ops.vocabulary.core import T, VocabularyCore, located
from ostinato.ops.vocabulary.elementwise import ElementwiseVocabulary
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.ops.vocabulary.shape import ShapeVocabulary

__all__ = ["Vocabulary", "VocabularyCore"]


@located
class Vocabulary(
    IndexingVocabulary[T],
    ReductionVocabulary[T],
    ShapeVocabulary[T],
    ElementwiseVocabulary[T],
):
    """All methods that a :class:`~ostinato.Graph` and a session have in common."""
