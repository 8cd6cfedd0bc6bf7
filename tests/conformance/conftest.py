"""Fixtures of the suite: graphs that are compiled ahead."""

from __future__ import annotations

from .build import build_cases

__all__ = ["build_cases"]
