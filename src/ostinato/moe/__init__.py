"""Mixtures of experts: experts in files, and their placement on the device."""

from __future__ import annotations

from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
from ostinato.moe.expert_file import ExpertFile
from ostinato.moe.expert_pool import ExpertPool, MoeResidencyStats
from ostinato.moe.policy import TidePolicy
from ostinato.moe.residency import ResidencyCounters, ResidencyLoop
from ostinato.moe.safetensors import write_safetensors

__all__ = [
    "ExpertFile",
    "ExpertLayer",
    "ExpertPool",
    "ExpertTransfers",
    "MoeResidencyStats",
    "ResidencyCounters",
    "ResidencyLoop",
    "TidePolicy",
    "write_safetensors",
]
