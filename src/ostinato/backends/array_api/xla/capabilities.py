"""The ops and dtypes that devices of XLA take."""

from __future__ import annotations

from ostinato.backends.array_api.capabilities import capabilities
from ostinato.dtypes import ALL_DTYPES

__all__ = ["CAPABILITIES"]

CAPABILITIES = capabilities(ALL_DTYPES, native=("attention", "softmax", "log_softmax"))
