"""The base class of ops: one class holds all the rules of one op."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from ostinato.errors import GraphError
from ostinato.variables import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ostinato.ir.facts import Fact
    from ostinato.ir.types import TensorType
    from ostinato.variables import Dim

__all__ = ["Attr", "Op"]

#: The types of attributes: bool, int, float, str, DType, a Dim, None, or a tuple of those; or a
#: nested graph, which is not changed once a node has it.
Attr: TypeAlias = Any


class Op(ABC):
    """One operation of the vocabulary. Instances carry no state: a node's attributes are its own.

    Attributes:
        name: the canonical name in the IR and in the text form.
        weight_operands: positions of the operands that are usually weights, which kernels may
            bring into a form of their own, element by element, before they use them.
        fuses_horizontally: whether nodes with the same other operands may share a kernel.
        takes_epilogue: whether elementwise readers may be computed where the result is stored.
        writes_subviews: whether a kernel can store the result within a larger one.
        reads_once: whether a kernel reads each element of its operands about once, in whatever
            order, so that it may as well compute them.
        updates_operand: whether the first result is the first operand with some elements changed.
        reduces: whether the result is made of all elements along the axes ``axis``.
        binds_size: whether it gives the data-dependent Variable ``size``, an attribute, its value.
        takes_narrow: whether operands may be of narrow dtypes: the op moves or converts elements.
        decodes_weights: whether a decomposition decodes packed weights to float32, in memory.
    """

    name: ClassVar[str]
    weight_operands: ClassVar[tuple[int, ...]] = ()
    fuses_horizontally: ClassVar[bool] = False
    takes_epilogue: ClassVar[bool] = False
    writes_subviews: ClassVar[bool] = False
    reads_once: ClassVar[bool] = False
    updates_operand: ClassVar[bool] = False
    reduces: ClassVar[bool] = False
    binds_size: ClassVar[bool] = False
    takes_narrow: ClassVar[bool] = False
    decodes_weights: ClassVar[bool] = False
    _instance: ClassVar[Op]

    def __new__(cls) -> Self:
        """The one instance of the class: ops are compared by identity, in unpickled graphs too."""
        if "_instance" not in cls.__dict__:
            cls._instance = super().__new__(cls)
        instance: Self = cls.__dict__["_instance"]
        return instance

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        """Test subclasses by their own declaration, faster than an ABC's test of each subclass."""
        return cls in other.__mro__

    @abstractmethod
    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        """The types of the results.

        Raises:
            GraphError: the operands or attributes do not fit; the message says what was expected
                (the caller adds the op's name, the operands and the source line).
        """

    def result_types(
        self, operands: Sequence[TensorType], attrs: dict[str, Attr]
    ) -> tuple[TensorType, ...]:
        """The types of the results, after the checks that all ops share.

        Raises:
            GraphError: as :meth:`infer`; or the op computes, and an operand is of a narrow dtype.
        """
        if not self.takes_narrow:
            for type_ in operands:
                self.expect(
                    not type_.dtype.is_narrow,
                    f"{type_.dtype} is stored and converted, not computed with; cast it first",
                )
        return self.infer(*operands, **attrs)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Iterable[Fact]:
        """The conditions on sizes that the op relies on; :meth:`infer` has accepted the operands.

        A rule for fixed and symbolic sizes alike: :meth:`infer` refuses what breaks a fact in any
        case (:meth:`expect_facts`), and a run what breaks one at its sizes.
        """
        return ()

    def expect_facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> None:
        """Raise :class:`GraphError` where no value of the Variables makes a fact true."""
        for fact in self.facts(operands, attrs):
            self.expect(not fact.impossible, fact.problem)

    @abstractmethod
    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        """The results, computed with the array namespace ``xp``: an array, or a tuple of them.

        The rule never mutates an array and never names NumPy, so that it serves the oracle, the
        array-namespace backends and (for elementwise ops) the code generators alike. Those have no
        operator ``**``: elementwise rules call ``xp.pow``.
        """

    def decompose(self, g: Any, operands: Sequence[Any], attrs: dict[str, Attr]) -> Any:
        """The same computation in simpler ops, built on the graph ``g``; ``None``: a primitive.

        As :meth:`evaluate` names no namespace of arrays, this names no class of graphs: ``g`` has
        the methods of the vocabulary, and the operands and results are its values.
        """
        return None

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Any:
        """Floating point operations, as a dim; zero for pure data movement."""
        return 0

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @staticmethod
    def expect(condition: bool, message: str) -> None:
        """Raise :class:`GraphError` with ``message`` unless ``condition`` holds."""
        if not condition:
            raise GraphError(message)

    @staticmethod
    def expect_equal(a: Dim, b: Dim, message: str) -> None:
        """Raise :class:`GraphError` with ``message`` unless two sizes are equal at all times."""
        if a != b:
            raise GraphError.of(message, Requirement(a - b, equal=True))

    @classmethod
    def expect_count(
        cls, operands: Sequence[TensorType], least: int, most: int | None = None
    ) -> None:
        """Raise :class:`GraphError` unless there are ``least`` to ``most`` operands."""
        most = least if most is None else most
        if not least <= len(operands) <= most:
            span = str(least) if least == most else f"{least} to {most}"
            raise GraphError(f"{cls.name} takes {span} operands, got {len(operands)}")
