"""Recurrent networks: ``lstm``, ``gru`` and ``rnn`` with ONNX's layouts, and the scan below them.

The composite ops take a whole layer. They decompose into one matmul for the inputs of all
time steps, and per direction a ``recurrent_scan``: the part that has to go step by step, which a
backend implements as one kernel (or has unrolled, if the number of steps is fixed).

Gates are stacked in ONNX's order: ``iofc`` (input, output, forget, cell) for an LSTM, ``zrh``
(update, reset, hidden) for a GRU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import DType
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "DEFAULT_ACTIVATIONS",
    "DIRECTIONS",
    "FAMILY",
    "GATES",
    "GRU",
    "LSTM",
    "RECURRENT_SCAN",
    "RNN",
    "WEIGHT_PARTS",
    "RecurrentLayer",
    "RecurrentScan",
    "gru_gates",
    "gru_state",
    "next_state",
    "resets_first",
]

#: The number of gates that each kind stacks.
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
#: The optional weights of a scan, and how many gates each stacks.
WEIGHT_PARTS = {"peepholes": 3, "recurrent_bias": 1}
#: The activations of each kind, in ONNX's order: of the gates, the candidate, the cell's output.
DEFAULT_ACTIVATIONS = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}
#: The directions a layer may have, and for each of its scans whether it runs from the end.
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


#: Functions of one number, and of the parameters that follow a name.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "affine": lambda xp, x, alpha, beta: alpha * x + beta,
    "elu": lambda xp, x, alpha: xp.where(x < 0, alpha * xp.expm1(x), x),
    "hard_sigmoid": lambda xp, x, a, b: xp.minimum(xp.maximum(a * x + b, 0.0), 1.0),
    "leaky_relu": lambda xp, x, alpha: xp.where(x < 0, alpha * x, x),
    "relu": lambda xp, x: xp.maximum(x, 0.0),
    "scaled_tanh": lambda xp, x, alpha, beta: alpha * xp.tanh(beta * x),
    "sigmoid": lambda xp, x: 1.0 / (1.0 + xp.exp(-x)),
    "softplus": lambda xp, x: xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x))),
    "softsign": lambda xp, x: x / (1.0 + xp.abs(x)),
    "tanh": lambda xp, x: xp.tanh(x),
    "thresholded_relu": lambda xp, x, alpha: xp.where(x > alpha, x, 0.0),
}

#: Of each activation, the number of its parameters.
PARAMETERS = {name: function.__code__.co_argcount - 2 for name, function in _FUNCTIONS.items()}


def _activation(xp: Any, which: Any, x: Any, clip: float | None) -> Any:
    if clip is not None:
        x = xp.minimum(xp.maximum(x, -clip), clip)
    name, *parameters = (which,) if isinstance(which, str) else which
    return _FUNCTIONS[name](xp, x, *parameters)


def _is_activation(which: Any) -> bool:
    """Whether ``which`` is a name, or a name and its parameters."""
    name, *parameters = which if isinstance(which, tuple) and which else (which,)
    numbers = all(isinstance(p, float) for p in parameters)
    return numbers and isinstance(name, str) and PARAMETERS.get(name) == len(parameters)


class Recurrent(Op):
    """The base of a scan and a layer: names of the given operands, checks of attributes."""

    def named(self, operands: Sequence[Any], attrs: dict[str, Attr]) -> dict[str, Any]:
        """Operands by name: the required ones, then the optional ones that ``given`` lists.

        Raises:
            GraphError: their number differs, or ``given`` lists what does not exist.
        """
        required, optional = self.operand_names(attrs)
        given = attrs["given"]
        self.expect(isinstance(given, tuple), f"given is a tuple of names, got {given!r}")
        in_order = tuple(name for name in optional if name in given)
        self.expect(in_order == given, f"optional operands are {optional} in order, got {given}")
        names = required + given
        self.expect(
            len(operands) == len(names), f"takes {', '.join(names)}, got {len(operands)} operands"
        )
        return dict(zip(names, operands, strict=True))

    def operand_names(self, attrs: dict[str, Attr]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the required and of the optional operands."""
        raise NotImplementedError

    def check_operands(
        self, named: Mapping[str, TensorType], shapes: Mapping[str, tuple[Dim, ...]]
    ) -> None:
        """Raise unless operands have these shapes and one float dtype (lengths: an integer)."""
        dtype = next(iter(named.values())).dtype
        self.expect(dtype.is_float, f"expected floats, got {dtype}; cast them first")
        for name, operand in named.items():
            shape = shapes[name]
            shown = ",".join(map(str, shape))
            self.expect(operand.shape == shape, f"{name} is {operand}, expected shape [{shown}]")
            if name == "sequence_lens":
                self.expect(operand.dtype.is_integer, f"{name} is {operand.dtype}, not an integer")
            else:
                self.expect(operand.dtype == dtype, f"{name} is {operand.dtype}, expected {dtype}")

    def check_attrs(self, kind: str, scans: int, attrs: dict[str, Attr]) -> None:
        """Raise unless the activations and the clip make sense."""
        activations = attrs["activations"]
        expected = len(DEFAULT_ACTIVATIONS[kind]) * scans
        self.expect(isinstance(activations, tuple), f"activations are names, got {activations!r}")
        self.expect(
            len(activations) == expected and all(map(_is_activation, activations)),
            f"activations are {expected} of {', '.join(PARAMETERS)}, with the parameters of each; "
            f"got {activations}",
        )
        clip = attrs["clip"]
        fits = isinstance(clip, int | float) and not isinstance(clip, bool) and clip > 0
        self.expect(clip is None or fits, f"clip is a positive number or None, got {clip!r}")


class RecurrentScan(Recurrent):
    """The recurrent part of one direction of a layer.

    Operands: ``xproj [seq, batch, gates * hidden]``, the inputs' share of the gates with all
    biases that may be added beforehand; ``r [gates * hidden, hidden]``; ``h0 [batch, hidden]``; for
    an LSTM ``c0 [batch, hidden]``; then, as ``given`` lists them, ``recurrent_bias [hidden]`` (of a
    GRU with ``linear_before_reset``), ``peepholes [3 * hidden]`` (for an LSTM; of i, o, f) and
    ``sequence_lens [batch]``.

    Attributes: ``kind``; ``reverse``: start at the last step; ``activations``; ``clip``: bound of
    what enters them, or None (an LSTM's cell enters its output's unbounded, as in ONNX Runtime);
    ``linear_before_reset``; for an LSTM perhaps ``coupled``: the forget gate is what the input gate
    leaves.

    Results: ``y [seq, batch, hidden]`` and ``h [batch, hidden]`` after the last step, and ``c`` for
    an LSTM. Steps at or past a sequence's length give zeros and leave its state as it is, so a
    reverse scan starts at each sequence's own end.
    """

    name = "recurrent_scan"

    def operand_names(self, attrs: dict[str, Attr]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if attrs["kind"] == "lstm":
            return ("xproj", "r", "h0", "c0"), ("peepholes", "sequence_lens")
        if attrs["kind"] == "gru" and attrs["linear_before_reset"]:
            return ("xproj", "r", "h0"), ("recurrent_bias", "sequence_lens")
        return ("xproj", "r", "h0"), ("sequence_lens",)

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        kind = attrs["kind"]
        self.expect(kind in GATES, f"kind is one of {', '.join(GATES)}, got {kind!r}")
        named = self.named(operands, attrs)
        xproj, r = named["xproj"], named["r"]
        self.expect(xproj.ndim == 3, f"xproj is [seq, batch, gates * hidden], got {xproj}")
        self.expect(r.ndim == 2, f"r is [gates * hidden, hidden], got {r}")
        (seq, batch, _), hidden = xproj.shape, r.shape[1]
        self.expect(isinstance(hidden, int), f"the hidden size {hidden} is no int")
        state = (batch, hidden)
        shapes: dict[str, tuple[Dim, ...]] = {
            "xproj": (seq, batch, GATES[kind] * hidden),
            "r": (GATES[kind] * hidden, hidden),
            "h0": state,
            "c0": state,
            "recurrent_bias": (hidden,),
            "peepholes": (3 * hidden,),
            "sequence_lens": (batch,),
        }
        self.check_operands(named, shapes)
        self.check_attrs(kind, 1, attrs)
        last = TensorType(xproj.dtype, state)
        outputs = (TensorType(xproj.dtype, (seq, *state)), last)
        return (*outputs, last) if kind == "lstm" else outputs

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        """Step after step, for backends without a kernel for it; a symbolic ``seq`` needs one."""
        if not isinstance(operands[0].shape[0], int):
            return None
        wide = [g.cast(v, v.dtype.accumulator) for v in operands]
        return tuple(g.cast(v, operands[0].dtype) for v in self.evaluate(g, *wide, **attrs))

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        named = self.named(operands, attrs)
        xproj, lens = named["xproj"], named.get("sequence_lens")
        state = (named["h0"], named["c0"]) if attrs["kind"] == "lstm" else (named["h0"],)
        rows: dict[int, Any] = {}
        steps = range(xproj.shape[0])
        for t in reversed(steps) if attrs["reverse"] else steps:
            new = scan_step(xp, xproj[t], state, named, attrs)
            if lens is None:
                state, rows[t] = new, new[0]
            else:
                live = xp.reshape(lens > t, (-1, 1))
                state = tuple(xp.where(live, n, s) for n, s in zip(new, state, strict=True))
                rows[t] = xp.where(live, new[0], 0.0)
        if not rows:
            return (xproj[:, :, : named["r"].shape[1]], *state)
        y = xp.concat([xp.reshape(rows[t], (1, *rows[t].shape)) for t in steps], axis=0)
        return (y, *state)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        xproj, r = operands[:2]
        return xproj.size * r.shape[1] * 2


def _transposed(xp: Any, matrix: Any) -> Any:
    return xp.permute_dims(matrix, (1, 0))


def _split(x: Any, count: int) -> list[Any]:
    """The ``count`` gates that the last axis of ``x`` stacks."""
    size = x.shape[-1] // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]


def scan_step(
    xp: Any, x: Any, state: tuple[Any, ...], named: Mapping[str, Any], attrs: dict[str, Attr]
) -> tuple[Any, ...]:
    """The state after one step of a ``recurrent_scan``, of the inputs' share ``x`` of all gates."""
    h, gates = state[0], GATES[attrs["kind"]]
    of_x, of_r = _split(x, gates), _split(_transposed(xp, named["r"]), gates)
    if resets_first(attrs):
        update, reset = gru_gates(xp, of_x, [xp.matmul(h, r) for r in of_r[:2]], attrs)
        candidate = of_x[2] + xp.matmul(reset * h, of_r[2])
        return (gru_state(xp, candidate, update, h, attrs),)
    products = [xp.matmul(h, r) for r in of_r]
    weights = {n: _split(named[n], c) for n, c in WEIGHT_PARTS.items() if n in named}
    return next_state(xp, of_x, products, state, weights, attrs)


def next_state(
    xp: Any,
    x: Sequence[Any],
    products: Sequence[Any],
    state: tuple[Any, ...],
    weights: Mapping[str, Sequence[Any]],
    attrs: Mapping[str, Attr],
) -> tuple[Any, ...]:
    """The state after a step of a ``recurrent_scan`` whose attributes are ``attrs``.

    All of it is elementwise, so that code generators apply it to a few columns at a time. Where
    :func:`resets_first` holds, :func:`gru_gates` and :func:`gru_state` take its place.

    Args:
        x: the inputs' share of every gate.
        products: of every gate, the state times its rows of ``r``.
        state: ``(h,)``, or ``(h, c)`` of an LSTM.
        weights: the parts of ``peepholes`` and ``recurrent_bias``, as far as they are given.
    """
    return _CELLS[attrs["kind"]](xp, x, products, state, weights, attrs)


def resets_first(attrs: Mapping[str, Attr]) -> bool:
    """Whether the candidate's matmul has to wait for the reset gate: it takes ``reset * h``."""
    return attrs["kind"] == "gru" and not attrs["linear_before_reset"]


def gru_gates(
    xp: Any, x: Sequence[Any], products: Sequence[Any], attrs: Mapping[str, Attr]
) -> tuple[Any, Any]:
    """The update and the reset gate, the first two gates of a GRU."""
    gate, clip = attrs["activations"][0], attrs["clip"]
    update, reset = (a + b for a, b in zip(x[:2], products[:2], strict=True))
    return _activation(xp, gate, update, clip), _activation(xp, gate, reset, clip)


def gru_state(xp: Any, candidate: Any, update: Any, h: Any, attrs: Mapping[str, Attr]) -> Any:
    """The state after a GRU's step, of what enters the candidate's activation."""
    new = _activation(xp, attrs["activations"][1], candidate, attrs["clip"])
    return (1 - update) * new + update * h


def _lstm_cell(
    xp: Any,
    x: Sequence[Any],
    products: Sequence[Any],
    state: tuple[Any, ...],
    weights: Mapping[str, Sequence[Any]],
    attrs: Mapping[str, Attr],
) -> tuple[Any, ...]:
    _, c = state
    gate, candidate, output = attrs["activations"]
    clip = attrs["clip"]
    i, o, f, new = (a + b for a, b in zip(x, products, strict=True))
    peep_i, peep_o, peep_f = weights.get("peepholes", (None, None, None))
    i = _activation(xp, gate, _peeped(i, peep_i, c), clip)
    f = 1.0 - i if attrs.get("coupled") else _activation(xp, gate, _peeped(f, peep_f, c), clip)
    c = f * c + i * _activation(xp, candidate, new, clip)
    o = _activation(xp, gate, _peeped(o, peep_o, c), clip)
    return o * _activation(xp, output, c, None), c


def _peeped(gate: Any, peephole: Any, c: Any) -> Any:
    return gate if peephole is None else gate + peephole * c


def _gru_cell(
    xp: Any,
    x: Sequence[Any],
    products: Sequence[Any],
    state: tuple[Any, ...],
    weights: Mapping[str, Sequence[Any]],
    attrs: Mapping[str, Attr],
) -> tuple[Any, ...]:
    update, reset = gru_gates(xp, x, products, attrs)
    recurrent = products[2]
    for bias in weights.get("recurrent_bias", ()):
        recurrent = recurrent + bias
    return (gru_state(xp, x[2] + reset * recurrent, update, state[0], attrs),)


def _rnn_cell(
    xp: Any,
    x: Sequence[Any],
    products: Sequence[Any],
    state: tuple[Any, ...],
    weights: Mapping[str, Sequence[Any]],
    attrs: Mapping[str, Attr],
) -> tuple[Any, ...]:
    return (_activation(xp, attrs["activations"][0], x[0] + products[0], attrs["clip"]),)


_CELLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn": _rnn_cell,
}


class RecurrentLayer(Recurrent):
    """A whole layer, in one or both directions, as ONNX's ``LSTM``, ``GRU`` and ``RNN``.

    Operands: ``x [seq, batch, input]``, ``w [dirs, gates * hidden, input]``,
    ``r [dirs, gates * hidden, hidden]``; then, as ``given`` lists them, ``bias
    [dirs, 2 * gates * hidden]`` (of w, then of r), ``h0`` and (LSTM) ``c0 [dirs, batch, hidden]``,
    (LSTM) ``peepholes [dirs, 3 * hidden]`` in the order i, o, f, and ``sequence_lens [batch]``.
    States that are not given start at zero.

    Attributes: ``direction``; ``activations``, direction after direction, each a name or a tuple of
    one and its parameters; ``clip``; for a GRU ``linear_before_reset``, for an LSTM perhaps
    ``coupled``.

    Results: ``y [seq, dirs, batch, hidden]``, ``h [dirs, batch, hidden]``, and ``c`` for an LSTM.
    """

    def operand_names(self, attrs: dict[str, Attr]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        lstm = self.name == "lstm"
        optional = ("bias", "h0", "c0", "peepholes") if lstm else ("bias", "h0")
        return ("x", "w", "r"), (*optional, "sequence_lens")

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        direction = attrs["direction"]
        known = ", ".join(DIRECTIONS)
        self.expect(direction in DIRECTIONS, f"direction is one of {known}, got {direction!r}")
        named = self.named(operands, attrs)
        x, r = named["x"], named["r"]
        self.expect(x.ndim == 3, f"x is [seq, batch, input], got {x}")
        self.expect(r.ndim == 3, f"r is [dirs, gates * hidden, hidden], got {r}")
        (seq, batch, features), hidden = x.shape, r.shape[2]
        scans = len(DIRECTIONS[direction])
        stacked = GATES[self.name] * hidden
        state = (scans, batch, hidden)
        shapes: dict[str, tuple[Dim, ...]] = {
            "x": x.shape,
            "w": (scans, stacked, features),
            "r": (scans, stacked, hidden),
            "bias": (scans, 2 * stacked),
            "h0": state,
            "c0": state,
            "peepholes": (scans, 3 * hidden),
            "sequence_lens": (batch,),
        }
        self.check_operands(named, shapes)
        self.check_attrs(self.name, scans, attrs)
        last = TensorType(x.dtype, state)
        outputs = (TensorType(x.dtype, (seq, *state)), last)
        return (*outputs, last) if self.name == "lstm" else outputs

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return self._build(xp, RECURRENT_SCAN.evaluate, operands, attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        def scan(g: Any, *operands: Value, **attrs: Attr) -> tuple[Value, ...]:
            return g.apply(RECURRENT_SCAN, operands, attrs)  # type: ignore[no-any-return]

        wide = [g.cast(v, v.dtype.accumulator) for v in operands]
        return tuple(g.cast(v, operands[0].dtype) for v in self._build(g, scan, wide, attrs))

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        x, w, r = operands[:3]
        return x.shape[0] * x.shape[1] * (w.size + r.size) * 2

    def _build(
        self, xp: Any, scan: Callable[..., Any], operands: Sequence[Any], attrs: dict[str, Attr]
    ) -> tuple[Any, ...]:
        """The layer on arrays or on a graph ``xp``: every direction's scan, side by side."""
        named = self.named(operands, attrs)
        scans = []
        for index, scan_attrs in enumerate(self._scans(named, attrs)):
            one = {n: v if n in _SHARED else v[index] for n, v in named.items()}
            scans.append(scan(xp, *_scan_operands(xp, one, scan_attrs), **scan_attrs))
        y, *last = zip(*scans, strict=True)
        return (_side_by_side(xp, y, 1), *(_side_by_side(xp, states, 0) for states in last))

    def _scans(self, named: Mapping[str, Any], attrs: dict[str, Attr]) -> Iterator[dict[str, Attr]]:
        """The attributes of every direction's scan."""
        after_reset = bool(attrs.get("linear_before_reset", False))
        per_scan = len(DEFAULT_ACTIVATIONS[self.name])
        has = {**named, "recurrent_bias": 0} if "bias" in named else named
        for index, reverse in enumerate(DIRECTIONS[attrs["direction"]]):
            scan_attrs: dict[str, Attr] = {
                "kind": self.name,
                "reverse": reverse,
                "activations": attrs["activations"][index * per_scan : (index + 1) * per_scan],
                "clip": attrs["clip"],
                "linear_before_reset": after_reset,
            }
            if attrs.get("coupled"):
                scan_attrs["coupled"] = True
            _, optional = RECURRENT_SCAN.operand_names(scan_attrs)
            scan_attrs["given"] = tuple(name for name in optional if name in has)
            yield scan_attrs


#: Operands of a layer that all directions share.
_SHARED = ("x", "sequence_lens")


def _scan_operands(xp: Any, one: Mapping[str, Any], attrs: dict[str, Attr]) -> list[Any]:
    """The operands of a scan with these attributes, from one direction's share of the layer."""
    xproj = xp.matmul(one["x"], _transposed(xp, one["w"]))
    stacked, hidden = one["r"].shape
    recurrent_bias = None
    if "bias" in one:
        of_w, of_r = one["bias"][:stacked], one["bias"][stacked:]
        if attrs["linear_before_reset"]:
            # The reset gate acts after the candidate's recurrent matmul, so on its bias too.
            gates, recurrent_bias = stacked - hidden, of_r[stacked - hidden :]
            of_w = xp.concat([of_w[:gates] + of_r[:gates], of_w[gates:]], axis=0)
        else:
            of_w = of_w + of_r
        xproj = xproj + of_w
    known = {**one, "xproj": xproj, "recurrent_bias": recurrent_bias}
    required, _ = RECURRENT_SCAN.operand_names(attrs)
    if not known.keys() >= set(required):
        zeros = xp.full((xproj.shape[1], hidden), 0.0, DType.parse(xproj.dtype))
        known = {"h0": zeros, "c0": zeros} | known
    return [known[name] for name in (*required, *attrs["given"])]


def _side_by_side(xp: Any, arrays: Sequence[Any], axis: int) -> Any:
    """``arrays`` stacked along a new axis."""
    apart = [xp.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in arrays]
    return xp.concat(apart, axis=axis) if len(apart) > 1 else apart[0]


class Lstm(RecurrentLayer):
    """Long short-term memory, gates ``iofc``."""

    name = "lstm"


class Gru(RecurrentLayer):
    """Gated recurrent unit, gates ``zrh``; see ``linear_before_reset`` in ONNX's ``GRU``."""

    name = "gru"


class Rnn(RecurrentLayer):
    """A plain recurrent layer: ``h = f(x @ w^T + h @ r^T + bias)``."""

    name = "rnn"


RECURRENT_SCAN = RecurrentScan()
LSTM, GRU, RNN = Lstm(), Gru(), Rnn()
FAMILY: tuple[Op, ...] = (RECURRENT_SCAN, LSTM, GRU, RNN)
