"""The functions that kernels call, as WGSL, and the choice of those that a kernel needs.

The files beside this one have functions and constants whose results are defined for every operand.
Polynomials of elementary functions and the formats of narrow floats are made from tables.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.backends.common import coefficients as table
from ostinato.dtypes import NARROW_DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType

__all__ = ["declarations", "needed"]

_DECLARATION = re.compile(r"^(?:fn|const|struct|var<private>) (\w+)", re.MULTILINE)
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")

#: Polynomials by the name that functions call them by.
_POLYNOMIALS: dict[str, Sequence[float]] = {
    "EXP": table.EXP_F32,
    "SINH": table.SINH_F32,
    "LOG": table.LOG_F32,
    "SIN": table.SIN_F32,
    "COS": table.COS_F32,
    "ASIN": table.ASIN_F32,
    "ATAN": table.ATAN_F32,
    "ERF": table.ERF_F32,
    "ERFC_BITS": table.ERFC_BITS_F32,
    "NORMAL_BITS": table.NORMAL_BITS_F32,
}

#: Constants that are the sum of two floats.
_SPLITS: dict[str, Sequence[float]] = {
    "LN2": table.LN2_F32,
    "LOG2_E": table.LOG2_E_F32,
    "LOG10_E": table.LOG10_E_F32,
    "LOG10_2": table.LOG10_2_F32,
    "HALF_PI": table.HALF_PI_F32,
}

#: Conversions by instructions, which may take what is subnormal in 16 bits for zero; the others of
#: these names are by integers.
_HALVES = """\
fn float16_bits(x: f32) -> u32 {
    let magnitude = bitcast<u32>(x) & 0x7FFFFFFFu;
    let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
    let small = sign | (bitcast<u32>(float_of(magnitude) + 0.5) - 0x3F000000u);
    return select(pack2x16float(vec2<f32>(x, 0.0)), small, magnitude < 0x38800000u);
}
fn from_float16(code: u32) -> f32 { return pair_of_halves(code).x; }
fn round_float16(x: f32) -> f32 { return from_float16(float16_bits(x) | kept_zero); }
"""


def needed(source: str, *, halves: bool = False) -> str:
    """The declarations that a source mentions, and those that these mention, in a fixed order.

    Args:
        source: WGSL.
        halves: whether instructions convert from and to floats of 16 bits.
    """
    known, found, waiting = declarations(), set[str](), [source]
    if halves:
        known = {**known, **_parts(_HALVES)}
    while waiting:
        for word in set(_WORD.findall(waiting.pop())):
            if word in known and word not in found:
                found.add(word)
                waiting.append(known[word])
    return "\n".join(text for name, text in known.items() if name in found)


@functools.cache
def declarations() -> dict[str, str]:
    """By name, the text of every declaration."""
    declared: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("*.wgsl")):
        declared |= _parts(path.read_text("utf-8"))
    for name, numbers in _SPLITS.items():
        for position, number in enumerate(numbers):
            key = f"TABLE_{name}_{position}"
            declared[key] = f"const {key}: f32 = {number!r}f;\n"
    for name, numbers in _POLYNOMIALS.items():
        declared[f"POLYNOMIAL_{name}"] = _polynomial(f"POLYNOMIAL_{name}", numbers)
    for dtype in NARROW_DTYPES:
        if not dtype.format.is_integer and dtype.format.signed:
            declared |= _parts(_narrow_format(dtype))
    return declared


def _parts(text: str) -> dict[str, str]:
    """A file's declarations, each up to the line that ends it."""
    parts = {}
    for match in _DECLARATION.finditer(text):
        line = text[match.start() : text.index("\n", match.start()) + 1]
        ends = line.rstrip().endswith(("}", ";"))
        rest = text[match.start() :]
        end = len(line) if ends else re.search(r"^[})]\S*\n", rest, re.MULTILINE).end()  # type: ignore[union-attr]
        parts[match[1]] = rest[:end]
    return parts


def _polynomial(name: str, numbers: Sequence[float]) -> str:
    """A function for the polynomial with these coefficients, the lowest power first."""
    result = f"{numbers[-1]!r}f"
    for number in reversed(numbers[:-1]):
        result = f"fma({result}, x, {number!r}f)"
    return f"fn {name}(x: f32) -> f32 {{ return {result}; }}\n"


def _narrow_format(dtype: DType) -> str:
    """The functions that convert a narrow float from and to its bits."""
    form, name = dtype.format, dtype.name
    width = form.exponent + form.mantissa
    magnitudes = (1 << width) - 1
    infinity, nan = form.infinity, form.nan
    if infinity is not None:
        greatest, beyond = infinity - 1, infinity
        quiet = infinity | 1 << (form.mantissa - 1)
    elif nan is not None:
        greatest, beyond, quiet = magnitudes - (nan == magnitudes), nan, nan
    else:
        greatest = beyond = magnitudes
        quiet = 1 << width
    one_zero = form.zero_is_positive
    compared = f"code == {nan}u" if one_zero else f"magnitude >= {nan}u"
    is_nan = "false" if nan is None else compared
    is_infinite = "false" if infinity is None else f"magnitude == {infinity}u"
    implicit, dropped = 1 << form.mantissa, 23 - form.mantissa
    unit = 2.0 ** (1 - form.bias - form.mantissa)
    first_normal = (128 - form.bias) << 23
    offset = (151 - form.bias - form.mantissa) << 23
    quiet_sign = " | sign" if nan is not None and not one_zero else ""
    ends = (
        f"    if ((code & {magnitudes}u) == 0u) {{ sign = 0u; }}\n" if one_zero else ""
    ) + f"    if (is_nan(x)) {{ return {quiet}u{quiet_sign}; }}\n    return code | sign;\n"
    return f"""\
fn from_{name}(code: u32) -> f32 {{
    let magnitude = code & {magnitudes}u;
    let sign = ((code >> {width}u) & 1u) << 31u;
    if ({is_nan}) {{ return float_of(0x7FC00000u | sign); }}
    if ({is_infinite}) {{ return float_of(0x7F800000u | sign); }}
    let small = bitcast<u32>(f32(magnitude) * {unit!r}f);
    let normal = (magnitude << {dropped}u) + {(127 - form.bias) << 23}u;
    return float_of(sign | select(normal, small, magnitude < {implicit}u));
}}
fn {name}_bits(x: f32) -> u32 {{
    let magnitude = bitcast<u32>(x) & 0x7FFFFFFFu;
    var sign = (bitcast<u32>(x) >> 31u) << {width}u;
    var code: u32;
    if (magnitude < {first_normal}u) {{
        // A sum that has no room for the bits beyond the last of a subnormal number.
        code = bitcast<u32>(float_of(magnitude) + float_of({offset}u)) - {offset}u;
    }} else {{
        let rounded = magnitude + ((magnitude >> {dropped}u) & 1u) + {(1 << (dropped - 1)) - 1}u;
        code = (rounded >> {dropped}u) - {(127 - form.bias) << form.mantissa}u;
    }}
    if (code > {greatest}u) {{ code = {beyond}u; }}
{ends}}}
"""
