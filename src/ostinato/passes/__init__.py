"""Passes: graph rewrites that preserve semantics. ``pipeline`` lists them in order."""

from ostinato.passes.base import Event, Pass, PassReport
from ostinato.passes.pipeline import OPTIONAL_PASSES, pipeline, run_passes

__all__ = ["OPTIONAL_PASSES", "Event", "Pass", "PassReport", "pipeline", "run_passes"]
