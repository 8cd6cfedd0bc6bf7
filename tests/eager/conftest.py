"""The devices that the tests of this folder run on."""

from __future__ import annotations

from tests.devices.contract import device

__all__ = ["device"]
