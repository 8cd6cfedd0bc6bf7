"""The default context of a device: no recording, no single ops, but buffers and Variables."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.host_context import HostContext


def test_a_device_without_capture() -> None:
    context = HostContext(ost.Device.parse("cuda:7"))
    assert not context.supports_capture
    with pytest.raises(ost.CaptureError, match="CUDA:7 cannot record"):
        context.begin_graph_capture()
    with pytest.raises(ost.CaptureError, match="without a begin"):
        context.end_graph_capture(1)
    assert context.replay_graph(1) is False
    context.reset_graph(1)
    context.reset_all_graphs()
    context.cancel_graph_capture()
    context.set_decode_state(3, 4)
    assert context.decode_state == {"token": 3, "position": 4, "kv_len": 5}
    context.set_dev_state_mode(False)
    with pytest.raises(ost.CaptureError):
        context.set_dev_state_mode(True)
    with pytest.raises(ost.PlanError, match="compiled graphs only"):
        context.encode([])
    buffer = context.upload(np.arange(3))
    np.testing.assert_array_equal(buffer.copyout(), np.arange(3))
