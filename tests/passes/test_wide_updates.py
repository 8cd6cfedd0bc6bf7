"""Scatters of 16-bit floats accumulate in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("optimize", [True, False])
def test_many_small_updates_are_not_lost(dtype: type, optimize: bool) -> None:
    """In 16 bits, 1 + 1/1024 + 1/1024 + … stays near 1 for ever."""
    g = ost.Graph("drops")
    x = g.input("x", (1,), dtype)
    ids, drops = g.input("ids", (2048,), "int64"), g.input("drops", (2048,), dtype)
    g.set_outputs([g.scatter_add(x, ids, drops), g.scatter_nd(x, ids[:, None], drops, mode="add")])
    given = {
        "x": np.ones(1, dtype),
        "ids": np.zeros(2048, np.int64),
        "drops": np.full(2048, 2.0**-10, dtype),
    }
    options = ost.CompileOptions(optimize=optimize)
    for total in ost.Session("cpu").compile(g, options=options).run(given):
        assert total.dtype == dtype
        assert float(total[0]) == 3.0
