"""The steps of a program, ready to launch: kernels, products by a library, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.backends.cuda.algorithms import ReadyProduct, ready_product
from ostinato.backends.cuda.product import Product

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.gpu import Gpu, Library
    from ostinato.backends.cuda.image import Step

    #: Addresses by slot.
    Slots: TypeAlias = Sequence[int] | Mapping[int, int]

    #: The launched part of a step: the driver's kernel, or a product by a library.
    _Function: TypeAlias = int | ReadyProduct

__all__ = ["ReadySteps"]


class ReadySteps:
    """Steps, and what launches them.

    Args:
        gpu: has loaded the libraries.
        steps: in order.
        code: the libraries of the kernels, by symbol.
    """

    def __init__(self, gpu: Gpu, steps: Sequence[Step], code: Mapping[str, Library]) -> None:
        self._code = code  # functions are gone with the last reference to their library
        self._steps = tuple(steps)
        self._functions = [_function(gpu, step, code) for step in steps]

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, position: int) -> Step:
        return self._steps[position]

    def launch(
        self,
        driver: Driver,
        slots: Slots,
        variables: int,
        stream: int,
        positions: Iterable[int] | None = None,
    ) -> None:
        """Launch steps.

        Args:
            driver: the driver.
            slots: the addresses of their slots.
            variables: the address of the first Variable.
            stream: takes the work.
            positions: of the steps; all of them by default.
        """
        for position in range(len(self._steps)) if positions is None else positions:
            step, function = self._steps[position], self._functions[position]
            addresses = self.addresses(position, slots)
            if isinstance(function, ReadyProduct):
                function.launch(addresses, stream)
            elif function:
                driver.launch(function, step.launch, [*addresses, variables], stream)
            elif step.nbytes:
                target, source = addresses
                driver.copy(target, source, step.nbytes, stream)

    def addresses(self, position: int, slots: Slots) -> list[int]:
        """The addresses of a step's arguments."""
        return [slots[slot] + offset for slot, offset in self._steps[position].arguments]


def _function(gpu: Gpu, step: Step, code: Mapping[str, Library]) -> _Function:
    """The kernel of a step, or its product; 0 for one without."""
    if step.product:
        return ready_product(gpu, Product.of_entry(step.product))
    return code[step.code].function(step.code, step.launch.shared_bytes) if step.code else 0
