"""The native calls on PyTorch's tensors; see ``csrc``."""

from collections.abc import Mapping, Sequence
from typing import Any

class Watch:
    """Entries of dictionaries and tensors, and whether they are as they were.

    Args:
        exchange: the capsule ``torch.Tensor.__dlpack_c_exchange_api__``.
        version: the descriptor of a tensor's version.
        entries: a dictionary, a key, and the object that it holds; with the key ``None``, the
            number of its entries counts instead.
        tensors: a tensor, and whether it records a version.
    """

    def __new__(
        cls,
        exchange: Any,
        version: Any,
        entries: tuple[tuple[Mapping[Any, Any], Any, Any], ...],
        tensors: tuple[tuple[Any, bool], ...],
    ) -> Watch: ...
    def intact(self) -> bool:
        """Whether entries and tensors are as they were."""

    def identical(self) -> bool:
        """Whether entries hold the objects that they held."""

    def take_changed(self) -> list[int]:
        """The positions of tensors that were written; they count as unchanged from now on."""

class PreparedCall:
    """A run on tensors of known shapes.

    Args:
        exchange: the capsule ``torch.Tensor.__dlpack_c_exchange_api__``.
        plain: the classes of tensors that need no care.
        arguments: for each argument ``...`` for a tensor, or the constant that it has to be.
        names: of the keyword arguments, the last ones.
        inputs: for each tensor its dtype, as DLPack's code and bits, and its shape.
        slots: the position of each among the inputs of ``run``.
        outputs: as ``inputs``.
        run: called with the memory of inputs and outputs, and ``variables``.
        variables: of the run.
        watch: has to be intact.
    """

    def __new__(
        cls,
        exchange: Any,
        plain: tuple[type, ...],
        arguments: tuple[Any, ...],
        names: tuple[str, ...],
        inputs: tuple[tuple[tuple[int, int], tuple[int, ...]], ...],
        slots: tuple[int, ...],
        outputs: tuple[tuple[tuple[int, int], tuple[int, ...]], ...],
        run: Any,
        variables: Sequence[Any],
        watch: Watch | None,
    ) -> PreparedCall: ...
    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """The results; ``None``, and nothing has happened, where the arguments are others."""
