"""The input arrays of a run: from files, made up, or random."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.ir.binding import check_values, solve_dims
from ostinato.records import dataclass, replace
from ostinato.variables import evaluate, symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ostinato.ir.types import TensorType
    from ostinato.tools.arguments import InputArgument
    from ostinato.tools.models import ModelOptions

__all__ = ["Feeds", "load_array", "make_feeds"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Feeds:
    """Arrays for every input of a model.

    Attributes:
        options: those given, with the size of every dynamic dim that the arrays determine.
        arrays: by name; inputs that the options fix are among them.
        assumed: sizes of the dims that nothing gave one: those at which the model makes sense.
    """

    options: ModelOptions
    arrays: dict[str, Array]
    assumed: dict[str, int]

    @property
    def live(self) -> dict[str, Array]:
        """The arrays of the inputs that are not fixed."""
        return {k: v for k, v in self.arrays.items() if k not in self.options.constants}


def make_feeds(options: ModelOptions, inputs: Sequence[InputArgument], seed: int) -> Feeds:
    """An array for each input of the model; those not mentioned in ``inputs`` are random.

    Random floats are normal, random integers and bools are 0 or 1, unless bounds are given.

    Raises:
        InputError: a file cannot be read or does not fit, or an input does not exist.
        OstinatoError: the model cannot be read.
    """
    from ostinato.frontends.onnx.reading import input_types

    types = input_types(options.path, dims=options.dims)
    sources = {argument.name: argument for argument in inputs}
    for name in sources:
        if name not in types:
            known = ", ".join(map(repr, types)) or "none"
            raise InputError(f"unknown input {name!r}; the model has {known}")
        if name in options.constants:
            raise InputError(f"input {name!r} is fixed with --constant and also given with --input")
    files = {
        name: _readable_as(types[name], load_array(source.value))
        for name, source in sources.items()
        if source.kind == "file"
    }
    sizes = solve_dims({name: (types[name].shape, a.shape) for name, a in files.items()}, {})
    variables = {s.name: s for t in types.values() for dim in t.shape for s in symbols(dim)}
    assumed = _assumed(options, types, files, variables.keys() - sizes)
    sizes.update(assumed)
    check_values(variables, sizes)
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, type_ in types.items():
        shape = tuple(evaluate(dim, sizes) for dim in type_.shape)
        if name in options.constants:
            arrays[name] = _filled(name, options.constants[name], type_, shape)
        elif name in files:
            arrays[name] = files[name]
        else:
            arrays[name] = _made_up(type_, shape, sources.get(name), rng)
    dims = {name: dict(enumerate(array.shape)) for name, array in arrays.items() if array.ndim}
    return Feeds(replace(options, dims=dims), arrays, assumed)


def _assumed(
    options: ModelOptions,
    types: Mapping[str, TensorType],
    files: Mapping[str, Array],
    missing: Collection[str],
) -> dict[str, int]:
    """Sizes for the Variables that nothing gave one, at which the model makes sense."""
    if not missing:
        return {}
    from ostinato.frontends.onnx.support import fitting_sizes

    known = {name: dict(enumerate(a.shape)) for name, a in files.items() if a.ndim}
    constants = {name: value for name, value in options.constants.items() if name in types}
    values = fitting_sizes(options.path, dims={**options.dims, **known}, constants=constants)
    return {name: values.get(name, 1) for name in sorted(missing)}


def load_array(path: str) -> Array:
    """The array of a ``.npy`` file. Pickled objects are refused: they could run code.

    Raises:
        InputError: there is no such file, or it holds no such array.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # on damage that NumPy then stumbles over
            array = np.load(path, allow_pickle=False)
    except Exception as error:  # its parsers let all kinds of exceptions through
        raise InputError(f"cannot read the array {path!r}: {error}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(
            f"{path!r} holds several arrays; an input takes a .npy file, which has one"
        )
    return array


def _readable_as(type_: TensorType, array: Array) -> Array:
    """``array`` as ``type_``'s dtype where NumPy's format has no name for that: bfloat16."""
    wanted = type_.dtype.numpy
    if array.dtype.kind == "V" and wanted.name == "bfloat16" and array.dtype.itemsize == 2:
        return array.view(wanted)
    return array


def _filled(name: str, number: float, type_: TensorType, shape: tuple[int, ...]) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        element = np.asarray(number).astype(type_.dtype.numpy)
    if not type_.dtype.is_float and element.item() != number:
        raise InputError(f"input {name!r} is {type_.dtype} and cannot be filled with {number}")
    return np.full(shape, element)


def _made_up(
    type_: TensorType,
    shape: tuple[int, ...],
    source: InputArgument | None,
    rng: np.random.Generator,
) -> Array:
    dtype = type_.dtype
    if source is not None and source.kind == "fill":
        return _filled(source.name, source.value, type_, shape)
    bounds = source.value if source is not None else None
    if dtype.is_float and bounds is None:
        return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)
    low, high = bounds or (0, 1)
    if dtype.is_float:
        return np.asarray(rng.uniform(low, high, size=shape)).astype(dtype.numpy)
    return np.asarray(rng.integers(low, high, size=shape, endpoint=True)).astype(dtype.numpy)
