"""Sessions and compiled graphs that the tests of this folder share."""

from __future__ import annotations

import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .graphs import B, W, sized_graph, tiny_graph

__all__ = ["compiled", "own", "session", "sized"]


@pytest.fixture(scope="session")
def session(device: str) -> ost.Session:
    return open_session(device, threads=2)


@pytest.fixture(scope="session")
def compiled(session: ost.Session) -> ost.CompiledGraph:
    """The tiny graph, for tests that leave its params alone."""
    return session.compile(tiny_graph(), {"w": W, "b": B})


@pytest.fixture
def own(session: ost.Session) -> ost.CompiledGraph:
    """The tiny graph, for tests that write its params."""
    return session.compile(tiny_graph(), {"w": W, "b": B})


@pytest.fixture(scope="session")
def sized(session: ost.Session) -> ost.CompiledGraph:
    """The graph of symbolic length."""
    return session.compile(sized_graph())
