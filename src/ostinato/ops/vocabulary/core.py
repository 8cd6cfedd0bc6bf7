"""The base of all vocabulary methods: how a method applies an op."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ostinato.dtypes import BOOL, FLOAT32, INT64, DType
from ostinato.errors import GraphError
from ostinato.ir.source_lines import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.ir.op import Attr, Op
    from ostinato.ir.types import TensorType

__all__ = ["T", "VocabularyCore", "located"]

#: The type of operands and results: a graph's ``Value``, or a session's ``Buffer``.
T = TypeVar("T")


C = TypeVar("C", bound=type)


class VocabularyCore(ABC, Generic[T]):
    """The interface that a holder of the vocabulary implements, and the lifting of operands."""

    #: The origin of the current calls, for error messages: a front end's name for a node.
    _label: str = ""

    @abstractmethod
    def apply(self, op: Op, operands: Sequence[T], attrs: dict[str, Attr]) -> tuple[T, ...]:
        """Apply ``op``: append a node, or encode a dispatch."""

    @abstractmethod
    def constant(self, array: Any, dtype: Any = None) -> T:
        """An operand that holds ``array``."""

    @abstractmethod
    def type_of(self, operand: Any) -> TensorType | None:
        """The type of an operand; ``None`` for what is no operand yet (a scalar, an array)."""

    def dtype_of(self, operand: Any) -> DType | None:
        """The dtype of an operand; ``None`` for what is no operand yet (a scalar, an array)."""
        type_ = self.type_of(operand)
        return None if type_ is None else type_.dtype

    def _typed(self, operand: Any) -> tuple[T, TensorType]:
        """One operand, lifted if it is an array or a scalar, together with its type."""
        (lifted,) = self._lift(operand)
        type_ = self.type_of(lifted)
        assert type_ is not None, "what _lift gives is an operand"
        return lifted, type_

    def _one(self, op: Op, *operands: T, **attrs: Attr) -> T:
        return self.apply(op, operands, attrs)[0]

    def _lift(self, *operands: Any) -> tuple[T, ...]:
        """Lift operands of an elementwise op; Python scalars take the dtype of the others."""
        known = [dtype for o in operands if (dtype := self.dtype_of(o)) is not None]
        return tuple(
            o if self.dtype_of(o) is not None else self._lift_one(o, known) for o in operands
        )

    def _lift_one(self, operand: Any, known: Sequence[DType]) -> T:
        if isinstance(operand, bool | int | float) and not isinstance(operand, np.generic):
            with np.errstate(over="ignore"):  # -1e9 with float16 becomes -inf, as meant
                return self.constant(operand, _weak_dtype(operand, known))
        return self.constant(operand)


def located(vocabulary: C, beyond: type = VocabularyCore) -> C:
    """Class decorator: a ``GraphError`` of any public method names the call, operands and line.

    Args:
        vocabulary: the class.
        beyond: a base class whose methods stay as they are.
    """
    methods: dict[str, Any] = {}
    for family in reversed(vocabulary.__mro__):
        methods.update(vars(family))
    for name, method in methods.items():
        public = isinstance(method, FunctionType) and not name.startswith("_")
        if public and not hasattr(beyond, name):
            setattr(vocabulary, name, _located(method))
    return vocabulary


def _located(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: VocabularyCore[Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except GraphError as error:
            shown = [_described(self, a) for a in args]
            shown += [f"{name}={_described(self, a)}" for name, a in kwargs.items()]
            raise locate(error, method.__name__, shown, self._label) from None

    return call


def _described(holder: VocabularyCore[Any], argument: Any) -> str:
    if (type_ := holder.type_of(argument)) is not None:
        return str(type_)
    if isinstance(argument, np.ndarray):
        return f"{argument.dtype}{list(argument.shape)}"
    if isinstance(argument, list | tuple):
        return f"[{', '.join(_described(holder, a) for a in argument[:8])}]"
    text = repr(argument)
    return text if len(text) < 60 else type(argument).__name__


def _weak_dtype(scalar: bool | float, known: Sequence[DType]) -> DType:
    if isinstance(scalar, bool):
        return BOOL
    kinds = [d for d in known if not d.is_bool]
    floats = [d for d in kinds if d.is_float]
    if isinstance(scalar, float):
        return floats[0] if floats else FLOAT32
    dtype = (floats or kinds or [INT64])[0]
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        if not info.min <= scalar <= info.max:
            raise GraphError(f"the Python int {scalar} does not fit {dtype}; cast the array first")
    return dtype
