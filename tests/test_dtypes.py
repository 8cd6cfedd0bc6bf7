"""Element types: identity, comparison and parsing, with NumPy too."""

from __future__ import annotations

import copy
import pickle

import pytest

from ostinato.dtypes import ALL_DTYPES, DType


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_each_is_itself_and_no_other(dtype):
    assert [other for other in ALL_DTYPES if other == dtype] == [dtype]
    for copied in (copy.deepcopy(dtype), pickle.loads(pickle.dumps(dtype))):
        assert copied == dtype
        assert hash(copied) == hash(dtype)
    assert DType.parse(dtype.numpy) is DType.parse(dtype.name) is dtype
    assert dtype != dtype.name
    assert dtype != 3


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_numpy_compares_them_with_its_own(dtype):
    for known in ALL_DTYPES:
        same = known is dtype
        assert (dtype == known.numpy) is (known.numpy == dtype) is same
