"""Python's operators on the values of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Operators"]


class Operators:
    """Python's operators, each of which calls the method of the value's graph for an op.

    Values are compared by identity: they are keys of dictionaries everywhere in the compiler.
    Elementwise equality is ``equal(x, y)``.
    """

    __slots__ = ()

    #: An array on the left of an operator leaves it to the value on the right.
    __array_ufunc__ = None

    def _op(self, name: str, *operands: Any) -> Self:
        """The result of an op of the graph, which takes values and what it makes constants of."""
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Self:
        return self._op("getitem", self, key)

    def __add__(self, other: Any) -> Self:
        return self._op("add", self, other)

    def __radd__(self, other: Any) -> Self:
        return self._op("add", other, self)

    def __sub__(self, other: Any) -> Self:
        return self._op("subtract", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._op("subtract", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._op("multiply", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._op("multiply", other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._op("divide", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._op("divide", other, self)

    def __floordiv__(self, other: Any) -> Self:
        return self._op("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._op("floor_divide", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._op("remainder", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._op("remainder", other, self)

    def __pow__(self, other: Any) -> Self:
        return self._op("pow", self, other)

    def __rpow__(self, other: Any) -> Self:
        return self._op("pow", other, self)

    def __matmul__(self, other: Any) -> Self:
        return self._op("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._op("matmul", other, self)

    def __neg__(self) -> Self:
        return self._op("neg", self)

    def __abs__(self) -> Self:
        return self._op("abs", self)

    def __invert__(self) -> Self:
        return self._op("bitwise_invert", self)

    def __and__(self, other: Any) -> Self:
        return self._op("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Self:
        return self._op("bitwise_and", other, self)

    def __or__(self, other: Any) -> Self:
        return self._op("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Self:
        return self._op("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Self:
        return self._op("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Self:
        return self._op("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Self:
        return self._op("bitwise_left_shift", self, other)

    def __rshift__(self, other: Any) -> Self:
        return self._op("bitwise_right_shift", self, other)

    def __lt__(self, other: Any) -> Self:
        return self._op("less", self, other)

    def __le__(self, other: Any) -> Self:
        return self._op("less_equal", self, other)

    def __gt__(self, other: Any) -> Self:
        return self._op("greater", self, other)

    def __ge__(self, other: Any) -> Self:
        return self._op("greater_equal", self, other)
