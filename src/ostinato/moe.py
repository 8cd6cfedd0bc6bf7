"""Mixtures of experts: residency of experts on the device, and the policies that decide it."""

from __future__ import annotations

from ostinato.backends.experts import ExpertLayer, ExpertTransfers
from ostinato.frontends.expert_file import ExpertFile
from ostinato.frontends.safetensors import write_safetensors
from ostinato.runtime.expert_pool import ExpertPool, MoeResidencyStats, TidePolicy
from ostinato.runtime.residency import ResidencyCounters, ResidencyLoop

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
