"""The weights of a module that a compiled graph has packed. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ostinato.errors import InputError
from ostinato.frontends.torch._runtime import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["EXCHANGE", "PLAIN", "ModuleWeights", "SlowWatch", "TrainingModes", "watch_over"]

#: The functions by which C reads and makes tensors; ``None`` in older versions of PyTorch.
EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)

#: The classes of tensors that behave as PyTorch's own.
PLAIN = (torch.Tensor, torch.nn.Parameter)

#: A dictionary, a key, and the object that it has to hold; without a key, the number of entries.
Entry: TypeAlias = "tuple[dict[Any, Any], Any, Any]"

#: The descriptor of a tensor's version.
_VERSION = torch._C.TensorBase._version


class ModuleWeights:
    """Tensors by qualified name: within a module, an exported program, or fixed.

    Args:
        module: whose parameters and buffers they are, if any.
        tensors: by name, the tensors at the time of the export.
        tied: by name, the one that stands for all names of the same elements.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        tensors: Mapping[str, torch.Tensor],
        tied: Mapping[str, str],
    ) -> None:
        self._fixed = dict(tensors)
        self._tied = {name: first for name, first in tied.items() if name != first}
        self._holders = {}
        for name in tensors:
            holder = None if module is None else _holder(module, name.removeprefix("self."))
            if holder is not None:
                self._holders[name] = holder

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor as of now.

        Raises:
            InputError: the module has none of that name any more.
        """
        holder = self._holders.get(name)
        if holder is None:
            return self._fixed[name]
        table, key = holder
        found = table.get(key)
        if not isinstance(found, torch.Tensor):
            raise InputError(f"weight {name!r} was deleted since the module was compiled")
        return found

    def type_of(self, name: str) -> tuple[Any, ...]:
        """The dtype and the shape of a weight."""
        tensor = self[name]
        return tensor.dtype, tuple(tensor.shape), tensor.layout, str(tensor.device)

    def still_tied(self) -> bool:
        """Whether names that had the same elements have them in common as of now."""
        pairs = ((self[name], self[first]) for name, first in self._tied.items())
        return all(a is b or _place(a) == _place(b) for a, b in pairs)

    def watch(self, names: Sequence[str], more: Sequence[Entry]) -> Watch | SlowWatch:
        """A watch over some of the weights, as they are now, and over entries of dictionaries."""
        watched = dict.fromkeys((*names, *self._tied, *self._tied.values()))
        entries = [(*self._holders[name], self[name]) for name in watched if name in self._holders]
        return watch_over([self[name] for name in names], [*entries, *more])


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The elements that a tensor has: those at an address, in an order."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def watch_over(tensors: Sequence[torch.Tensor], entries: Sequence[Entry] = ()) -> Watch | SlowWatch:
    """A watch over tensors, as they are now, and over entries of dictionaries."""
    versioned = [(tensor, not tensor.is_inference()) for tensor in tensors]
    if EXCHANGE is None:
        return SlowWatch(entries, versioned)
    return Watch(EXCHANGE, _VERSION, tuple(entries), tuple(versioned))


class TrainingModes:
    """The structure of a module, and the modes and hooks of its submodules.

    Args:
        module: the module.
    """

    def __init__(self, module: torch.nn.Module | None) -> None:
        modules = [] if module is None else [*module.modules()]
        self._entries: list[Entry] = [(vars(m), "training", m.training) for m in modules]
        for each in modules:
            self._entries += [(each._modules, name, child) for name, child in each._modules.items()]
            for hooks in (each._forward_hooks, each._forward_pre_hooks):
                self._entries += [(hooks, None, len(hooks)), *((hooks, *h) for h in hooks.items())]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Dictionaries, keys, and the objects that they hold while nothing changes."""
        return tuple(self._entries)

    def intact(self) -> bool:
        """Whether nothing has changed."""
        return hold(self._entries)


def hold(entries: Sequence[Entry]) -> bool:
    """Whether dictionaries hold what they held."""
    return all(
        len(table) == value if key is None else table.get(key) is value
        for table, key, value in entries
    )


class SlowWatch:
    """A :class:`Watch` without the functions that C needs."""

    def __init__(
        self,
        entries: Sequence[Entry],
        tensors: Sequence[tuple[torch.Tensor, bool]],
    ) -> None:
        self._entries = entries
        self._tensors = tensors
        self._known = [*self._now()]

    def _now(self) -> Iterator[tuple[Any, ...]]:
        for tensor, versioned in self._tensors:
            yield *_place(tensor), tensor._version if versioned else -1

    def intact(self) -> bool:
        return self.identical() and [*self._now()] == self._known

    def identical(self) -> bool:
        return hold(self._entries)

    def take_changed(self) -> list[int]:
        now = [*self._now()]
        pairs = enumerate(zip(now, self._known, strict=True))
        changed = [position for position, (new, old) in pairs if new != old]
        self._known = now
        return changed


def _holder(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str] | None:
    """The dictionary that holds a parameter or buffer of a module, and its key there."""
    *path, key = name.split(".")
    for part in path:
        child = module._modules.get(part)
        if child is None:
            return None
        module = child
    for table in (module._parameters, module._buffers, vars(module)):
        if isinstance(table.get(key), torch.Tensor):
            return table, key
    return None
