"""The vocabulary: every op as a typed, documented method, shared by graphs and sessions."""

from __future__ import annotations

from ostinato.ops.vocabulary.affine import AffineVocabulary
from ostinato.ops.vocabulary.attention import AttentionVocabulary
from ostinato.ops.vocabulary.binning import BinningVocabulary
from ostinato.ops.vocabulary.core import T, VocabularyCore, located
from ostinato.ops.vocabulary.distances import DistanceVocabulary
from ostinato.ops.vocabulary.elementwise import ElementwiseVocabulary
from ostinato.ops.vocabulary.gradients import GradientVocabulary
from ostinato.ops.vocabulary.images import ImageVocabulary
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.linalg import LinalgVocabulary
from ostinato.ops.vocabulary.losses import LossVocabulary
from ostinato.ops.vocabulary.moe import MoeVocabulary
from ostinato.ops.vocabulary.normalization import NormalizationVocabulary
from ostinato.ops.vocabulary.order import OrderVocabulary
from ostinato.ops.vocabulary.packed_weights import PackedWeightsVocabulary
from ostinato.ops.vocabulary.pooling import PoolingVocabulary
from ostinato.ops.vocabulary.quant import QuantVocabulary
from ostinato.ops.vocabulary.recurrent import RecurrentVocabulary
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.ops.vocabulary.sequence_states import SequenceStateVocabulary
from ostinato.ops.vocabulary.shape import ShapeVocabulary
from ostinato.ops.vocabulary.special import SpecialVocabulary
from ostinato.ops.vocabulary.spectral import SpectralVocabulary
from ostinato.ops.vocabulary.strided import StridedVocabulary
from ostinato.ops.vocabulary.tokens import TokenVocabulary
from ostinato.ops.vocabulary.updates import UpdateVocabulary
from ostinato.ops.vocabulary.windows import WindowVocabulary

__all__ = ["Vocabulary", "VocabularyCore"]


@located
class Vocabulary(
    MoeVocabulary[T],
    AttentionVocabulary[T],
    AffineVocabulary[T],
    LossVocabulary[T],
    GradientVocabulary[T],
    ImageVocabulary[T],
    PoolingVocabulary[T],
    WindowVocabulary[T],
    NormalizationVocabulary[T],
    RecurrentVocabulary[T],
    SequenceStateVocabulary[T],
    QuantVocabulary[T],
    PackedWeightsVocabulary[T],
    SpectralVocabulary[T],
    LinalgVocabulary[T],
    BinningVocabulary[T],
    DistanceVocabulary[T],
    OrderVocabulary[T],
    TokenVocabulary[T],
    UpdateVocabulary[T],
    StridedVocabulary[T],
    ReductionVocabulary[T],
    IndexingVocabulary[T],
    ShapeVocabulary[T],
    SpecialVocabulary[T],
    ElementwiseVocabulary[T],
):
    """All methods that a :class:`~ostinato.Graph` and a session have in common."""
