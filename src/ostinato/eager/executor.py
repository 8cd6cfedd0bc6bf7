"""Eager execution of the vocabulary's ops, without a compiled graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.context import Context
from ostinato.backends.common.decode_state import DECODE_VARIABLES
from ostinato.backends.common.op_signature import OpSignature, Step
from ostinato.backends.device import Device
from ostinato.backends.registry import open_backend
from ostinato.dtypes import BOOL, FLOAT32, INT64, DType
from ostinato.eager.materialize import PlacementCache, materialize
from ostinato.eager.session import GraphSession
from ostinato.errors import InputError, VariableError
from ostinato.ir.leaves import as_numpy, check_shape
from ostinato.ir.types import TensorType
from ostinato.variables import Expr, Symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.encoded import Encoded
    from ostinato.eager.compute_graph import ComputeGraph
    from ostinato.ir.op import Attr, Op
    from ostinato.plan.buffer import Buffer

__all__ = ["GraphExecutor"]

#: Dtypes of Python numbers, unless an array gives another.
_SCALARS: dict[type, DType] = {bool: BOOL, int: INT64, float: FLOAT32}

#: Entries before a cache is emptied: shapes and scalars that change with every step never hit it.
_MAX_ENTRIES = 4096


class GraphExecutor:
    """Encodes ops one by one, in sessions, and runs each session as one submission.

    >>> ex = GraphExecutor("cpu")
    >>> x = ex.buffer(np.arange(4.0))
    >>> with ex.begin() as s:
    ...     y = s.exp(s.neg(x))
    >>> y.copyout().shape
    (4,)

    Args:
        device: a device or its name; or a context, such as :attr:`Session.context`, to share its
            queue and its recordings.
        threads: on the CPU, the number of threads that run an op.

    Raises:
        DeviceUnavailableError: there is no such device.
        InputError: ``threads`` makes no sense, or comes with a context, which has its own.
    """

    def __init__(
        self, device: Device | str | Context = "cpu", *, threads: int | None = None
    ) -> None:

        if isinstance(device, Context):
            if threads is not None:
                raise InputError("a context has its threads; leave threads= out")
            self.context = device
        else:
            self.context = open_backend(Device.parse(device), threads).context
        self._signatures: dict[Any, tuple[OpSignature, tuple[TensorType, ...]]] = {}
        self._scalars: dict[Any, Buffer] = {}
        self._placements = PlacementCache()
        self.sizes: Mapping[str, int] = _DecodeState(self.context)

    @property
    def device(self) -> Device:
        """The device that runs the ops."""
        device: Device = self.context.device
        return device

    # -- memory ------------------------------------------------------------------------------------

    def buffer(self, array: Any) -> Buffer:
        """A buffer of the device with a copy of ``array``.

        Raises:
            InputError: it is no array, or of a dtype that there is none of.
            CaptureError: inside a recording.
        """
        return self.context.upload(array)

    def empty(self, shape: Sequence[int], dtype: Any = FLOAT32) -> Buffer:
        """A buffer of zeros.

        Raises:
            GraphError: shape or dtype makes no sense.
            InputError: the shape has Variables.
            CaptureError: inside a recording.
        """
        dims = check_shape("empty", (shape,) if isinstance(shape, int) else shape)
        if any(isinstance(dim, Expr) for dim in dims):
            raise InputError(f"the shape of a buffer is fixed, got {dims}")
        return self.context.empty(TensorType(DType.parse(dtype), dims))

    # -- sessions ----------------------------------------------------------------------------------

    def begin(self) -> GraphSession:
        """Open a session whose ops are dropped after they have run."""
        return GraphSession(self, recorded=False)

    def begin_recorded(self) -> GraphSession:
        """Open a session that keeps its ops as :attr:`GraphSession.graph`."""
        return GraphSession(self, recorded=True)

    # -- the interface of sessions -----------------------------------------------------------------

    def signature(
        self, op: Op, operands: tuple[TensorType, ...], attrs: dict[str, Attr]
    ) -> tuple[OpSignature, tuple[TensorType, ...]]:
        """The signature of an op and the types of its results, cached.

        Raises:
            GraphError: the operands do not fit.
            VariableError: it mentions Variables other than those of the decode state.
        """
        key: Any = (op, operands, *attrs.items(), *map(_exactly, attrs.values()))
        known = self._signatures.get(key)
        if known is None:
            types = op.result_types(operands, attrs)
            first = len(operands)
            step = Step.of(op, attrs, tuple(range(first)))
            made = OpSignature(operands, (step,), tuple(range(first, first + len(types))))
            _check_variables(made)
            known = (made, types)
            _remember(self._signatures, key, known)
        return known

    def scalar(self, number: Any, dtype: Any) -> Buffer:
        """A buffer with a Python number or a copy of an array.

        Raises:
            GraphError: it is neither, or of an unknown dtype.
        """
        wanted = _SCALARS.get(type(number)) if dtype is None else DType.parse(dtype)
        if type(number) not in _SCALARS:
            return self.context.constant(as_numpy(number, wanted))
        key = (repr(number), wanted)
        buffer = self._scalars.get(key)
        if buffer is None:
            buffer = self.context.constant(as_numpy(number, wanted))
            _remember(self._scalars, key, buffer)
        return buffer

    def encode(self, graph: ComputeGraph) -> Encoded:
        """See :class:`~ostinato.eager.compute_graph.Launcher`.

        Raises:
            UnsupportedOpError: the device has no way to compute an op.
            VariableError: Variables are used outside of dev-state mode, or their bounds disagree.
            PlanError: a buffer was released.
        """
        variables = self._variables(graph)
        signatures = [node.signature for node in graph.nodes]
        compiled_ops = [None if f is None else self.context.compiled_op(f) for f in signatures]
        ops, held = materialize(
            graph, compiled_ops, self.context.storage, self._placements, self.sizes
        )
        fresh = [storage for storage in held if not storage.submitted]
        try:
            for storage in fresh:
                storage.submitted = True
            return self.context.encode(ops, variables)
        except BaseException:
            for storage in fresh:
                storage.submitted = False
            raise

    def run(self, encode: Callable[[], Encoded]) -> int:
        """See :class:`~ostinato.eager.compute_graph.Launcher`."""
        return self.context.run(encode)

    def _variables(self, graph: ComputeGraph) -> tuple[Symbol, ...]:
        """All decode variables, with the bounds that every node agrees to, if any node uses any."""
        bounds: dict[str, tuple[int, int]] = {}
        for node in graph.nodes:
            if (signature := node.signature) is None:
                continue
            for symbol in signature.variables:
                if not self.context.dev_state_mode:
                    raise VariableError(
                        f"{node.name} uses the Variable {symbol.name!r}, whose value is in the "
                        "device's decode state: call context.set_dev_state_mode(True) first"
                    )
                low, high = bounds.get(symbol.name, (symbol.min, symbol.max))
                least = max(symbol.min, signature.least.get(symbol.name, 0))
                bounds[symbol.name] = max(low, least), min(high, symbol.max)
        for name, (low, high) in bounds.items():
            if low > high:
                raise VariableError(f"no value of {name!r} is within the bounds of all its uses")
        if not bounds:
            return ()
        return tuple(Symbol(n, *bounds.get(n, (0, (1 << 63) - 1))) for n in DECODE_VARIABLES)


class _DecodeState(Mapping[str, int]):
    """A live view of the context's decode state, for shapes that depend on it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getitem__(self, name: str) -> int:
        return self._context.decode_state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(DECODE_VARIABLES)

    def __len__(self) -> int:
        return len(DECODE_VARIABLES)


def _check_variables(signature: OpSignature) -> None:
    others = [s.name for s in signature.variables if s.name not in DECODE_VARIABLES]
    if others:
        known = ", ".join(DECODE_VARIABLES)
        raise VariableError(
            f"{signature.name}: nothing gives a value to the Variable {others[0]!r} in a session; "
            f"those that live on the device are {known}"
        )


def _exactly(value: Attr) -> object:
    """A key that differs where Python values compare equal: 0.0 and -0.0, 1 and 1.0."""
    return repr(value) if isinstance(value, float) else type(value)


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= _MAX_ENTRIES:
        known.clear()
    known[key] = value
