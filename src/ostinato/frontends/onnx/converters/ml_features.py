"""Features of the domain ``ai.onnx.ml``: scaling, encoding, selection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, FLOAT64, INT64
from ostinato.frontends.onnx.known import Strings, as_known, boxed
from ostinato.frontends.onnx.tensors import STRING, read_strings, read_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

    Array = np.ndarray[Any, Any]

__all__ = ["MACHINE_LEARNING", "floats"]


def floats(call: Call, index: int) -> Value:
    """An operand as float32; float64 stays."""
    x = call.value(index)
    return x if x.dtype in (FLOAT32, FLOAT64) else call.g.cast(x, FLOAT32)


def convert_scaler(call: Call) -> Result:
    g, x = call.g, floats(call, 0)
    for name, method in (("offset", g.subtract), ("scale", g.multiply)):
        found = call.real_list(name, ())
        if found:
            x = method(x, g.constant(np.asarray(found), x.dtype))
    return g.cast(x, FLOAT32)


def convert_normalizer(call: Call) -> Result:
    """Rows over their norm; a row of zeros stays."""
    g, x, norm = call.g, _rows(call), call.text("norm", "MAX")
    axis = x.ndim - 1
    if norm == "MAX":
        size = g.max(g.abs(x), axis=axis, keepdims=True)
    elif norm == "L1":
        size = g.sum(g.abs(x), axis=axis, keepdims=True)
    elif norm == "L2":
        size = g.sqrt(g.sum(g.square(x), axis=axis, keepdims=True))
    else:
        call.malformed(f"norm should be MAX, L1 or L2, got {norm!r}")
    return g.cast(g.divide(x, g.where(g.equal(size, 0.0), 1.0, size)), FLOAT32)


def _rows(call: Call) -> Value:
    x = floats(call, 0)
    if x.ndim not in (1, 2):
        call.malformed(f"expected features [C] or [N,C], got {x.type}")
    return x


def convert_imputer(call: Call) -> Result:
    g, x = call.g, call.value(0)
    values: Sequence[float] = call.real_list("imputed_value_floats", ())
    replaced: float = call.real("replaced_value_float", 0.0)
    if not values:
        values = call.integer_list("imputed_value_int64s", ())
        replaced = call.integer("replaced_value_int64", 0)
    if not values:
        call.malformed("its imputed values are missing")
    if np.isnan(replaced):
        missing = g.isnan(x)
    else:
        missing = g.equal(x, g.constant(np.asarray(replaced), x.dtype))
    return g.where(missing, g.constant(np.asarray(values), x.dtype), x)


def convert_binarizer(call: Call) -> Result:
    g, x = call.g, call.value(0)
    return g.cast(g.greater(x, call.real("threshold", 0.0)), x.dtype)


def convert_feature_vectorizer(call: Call) -> Result:
    """Features side by side, each cut or filled with zeros to its declared number."""
    g, sizes = call.g, call.integer_list("inputdimensions", ())
    if len(sizes) != len(call.operands):
        call.malformed(f"{len(sizes)} inputdimensions for {len(call.operands)} inputs")
    parts = []
    for index, wanted in enumerate(sizes):
        x = floats(call, index)
        x = g.expand_dims(x, 1) if x.ndim == 1 else x
        size = x.shape[1]
        if not isinstance(size, int):
            call.unsupported(f"its features depend on a Variable ({size}); fix it with dims=")
        if size > wanted:
            x = g.slice(x, [0], [wanted], axes=[1])
        parts.append(g.pad(x, [(0, 0), (0, max(wanted - size, 0))]))
    return g.cast(parts[0] if len(parts) == 1 else g.concat(parts, axis=1), FLOAT32)


def convert_array_feature_extractor(call: Call) -> Result:
    g, x, indices = call.g, call.value(0), call.value(1)
    picked = g.take(x, g.reshape(indices, (indices.type.size,)), axis=x.ndim - 1)
    return g.expand_dims(picked, 0) if x.ndim == 1 else picked


def convert_one_hot_encoder(call: Call) -> Result:
    """A column for each category; what is in none of them gives zeros."""
    g = call.g
    words = call.text_list("cats_strings", None)
    if words is not None and call.holds_strings(0):
        texts = call.strings(0)
        return as_known((texts[..., None] == np.asarray(words, object)).astype(np.float32))
    categories = call.integer_list("cats_int64s", ())
    if not categories:
        call.malformed("its categories are missing")
    x = call.value(0)
    if not x.dtype.is_integer:
        x = g.cast(x, INT64)
    column = g.constant(np.asarray(categories), INT64)
    return g.cast(g.equal(g.expand_dims(g.cast(x, INT64), x.ndim), column), FLOAT32)


# -- dictionaries ----------------------------------------------------------------------------------


def convert_label_encoder(call: Call) -> Result:
    """Convert ``LabelEncoder``: a key's value, of equal keys the last one's, or the default."""
    keys = _listed(call, "keys")
    if keys is None and "classes_strings" in call.attributes:
        return _encoded_classes(call)
    values = _listed(call, "values")
    if keys is None or values is None or len(keys) != len(values):
        call.malformed("its keys or values are missing, or differ in number")
    default = _default(call, values)
    if call.holds_strings(0):
        table = dict(zip(keys.tolist(), values.tolist(), strict=True))
        found = [table.get(text, default) for text in call.strings(0).reshape(-1)]
        shape = call.strings(0).shape
        if values.dtype == object:
            return Strings(boxed(found, shape))
        return as_known(np.array(found, values.dtype).reshape(shape))
    if values.dtype == object:
        known = call.known(0)
        if known is None:
            call.unknown(0, "its labels are strings, which no graph computes")
        table = dict(zip(keys.tolist(), values.tolist(), strict=True))
        found = [table.get(item, default) for item in known.array.reshape(-1).tolist()]
        return Strings(boxed(found, known.array.shape))
    return _looked_up(call, keys, values, default)


def _looked_up(call: Call, keys: Array, values: Array, default: Any) -> Value:
    """The values of numbers: each is compared with every key."""
    g, x = call.g, call.value(0)
    if keys.dtype == object:
        call.malformed(f"its keys are strings, and its operand is {x.type}")
    last = {"nan" if math.isnan(key) else key: i for i, key in enumerate(keys.tolist())}
    order = np.asarray(list(last.values()), np.int64)
    column, chosen = keys[order], values[order]
    wide = g.expand_dims(x, x.ndim)
    same = g.equal(wide, g.constant(column, x.dtype))
    if keys.dtype.kind == "f" and np.isnan(column).any():
        same = g.logical_or(same, g.logical_and(g.isnan(wide), g.constant(np.isnan(column))))
    at = g.argmax(g.cast(same, INT64), axis=x.ndim)
    found = g.any(same, axis=x.ndim)
    return g.where(found, g.take(g.constant(chosen), at, axis=0), g.constant(default, values.dtype))


def _listed(call: Call, kind: str) -> Array | None:
    """The keys or the values of a ``LabelEncoder``, as an array; strings are objects."""
    texts = call.text_list(f"{kind}_strings", None)
    if texts is not None:
        return boxed(texts, (len(texts),))
    numbers = call.integer_list(f"{kind}_int64s", None)
    if numbers is not None:
        return np.asarray(numbers, np.int64)
    reals = call.real_list(f"{kind}_floats", None)
    if reals is not None:
        return np.asarray(reals, np.float32)
    tensor = call.tensor(f"{kind}_tensor")
    if tensor is None:
        return None
    if tensor.data_type == STRING:
        return read_strings(tensor).reshape(-1)
    return read_tensor(tensor, call.external).reshape(-1)


def _default(call: Call, values: Array) -> Any:
    tensor = call.tensor("default_tensor")
    if tensor is not None:
        if tensor.data_type == STRING:
            return read_strings(tensor).reshape(-1)[0]
        return read_tensor(tensor, call.external).reshape(-1)[0]
    if values.dtype == object:
        return call.text("default_string", "_Unused")
    if values.dtype.kind == "f":
        return values.dtype.type(call.real("default_float", -0.0))
    return values.dtype.type(call.integer("default_int64", -1))


def _encoded_classes(call: Call) -> Result:
    """The first version of ``LabelEncoder``: strings to their positions, or back."""
    words = call.text_list("classes_strings", ())
    return _categories(call, words, range(len(words)))


def convert_category_mapper(call: Call) -> Result:
    words, numbers = call.text_list("cats_strings", ()), call.integer_list("cats_int64s", ())
    if len(words) != len(numbers):
        call.malformed(f"{len(words)} strings for {len(numbers)} numbers")
    return _categories(call, words, numbers)


def _categories(call: Call, words: Sequence[str], numbers: Sequence[int]) -> Result:
    """Strings to numbers, or numbers to strings."""
    if call.holds_strings(0):
        table = dict(zip(words, numbers, strict=True))
        default = call.integer("default_int64", -1)
        texts = call.strings(0)
        found = [table.get(text, default) for text in texts.reshape(-1)]
        return as_known(np.array(found, np.int64).reshape(texts.shape))
    known = call.known(0)
    if known is None:
        call.unknown(0, "its labels are strings, which no graph computes")
    back = dict(zip(numbers, words, strict=True))
    other = call.text("default_string", "_Unused")
    found_words = (back.get(number, other) for number in known.array.reshape(-1).tolist())
    return Strings(boxed(found_words, known.array.shape))


#: Ops of the ``ai.onnx.ml`` domain.
MACHINE_LEARNING: Mapping[str, Converter] = {
    "ArrayFeatureExtractor": convert_array_feature_extractor,
    "Binarizer": convert_binarizer,
    "CategoryMapper": convert_category_mapper,
    "FeatureVectorizer": convert_feature_vectorizer,
    "Imputer": convert_imputer,
    "LabelEncoder": convert_label_encoder,
    "Normalizer": convert_normalizer,
    "OneHotEncoder": convert_one_hot_encoder,
    "Scaler": convert_scaler,
}
