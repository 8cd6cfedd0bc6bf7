"""The error of Winograd convolutions, next to that of plain float32 sums.

    python -m bench.winograd_error [--scan]

Compiled kernels against float64, over shapes and magnitudes. An error is given in float32 rounding
units of the largest ``|x|`` times the largest sum of ``|w|`` of a filter, which no result exceeds.
``--scan`` compares the points at which tiles of four may be evaluated (NumPy, no kernels).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import ostinato as ost
from ostinato import reference
from ostinato.lower.rules import winograd_transforms

Array = np.ndarray[Any, Any]

#: Channels, filters, extent of the image.
SHAPES = ((16, 64, 56), (64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 14), (192, 192, 4))


def numbers(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Elements of one kind of distribution."""
    if kind == "normal":
        return rng.standard_normal(shape).astype(np.float32)
    if kind == "positive":
        return rng.random(shape).astype(np.float32)
    if kind == "one sign, far from zero":
        return (1000 + rng.random(shape)).astype(np.float32)
    powers = rng.integers(-20, 20, shape)
    return (rng.standard_normal(shape) * 2.0**powers).astype(np.float32)


KINDS = ("normal", "positive", "one sign, far from zero", "of 12 orders of magnitude")


def errors(shape: tuple[int, int, int], kind: str) -> Iterator[float]:
    """The largest error of Winograd's algorithm, then of plain windows."""
    channels, filters, extent = shape
    rng = np.random.default_rng(0)
    graph = ost.Graph("conv")
    x = graph.input("x", (1, channels, extent, extent))
    w = graph.param("w", (filters, channels, 3, 3))
    graph.set_outputs([graph.conv(x, w, padding=1)])
    given = {"x": numbers(kind, rng, (1, channels, extent, extent))}
    weights = {"w": numbers("normal", rng, (filters, channels, 3, 3))}
    (exact,) = reference.evaluate(graph, given, weights)
    unit = np.finfo(np.float32).eps * np.abs(given["x"]).max()
    unit *= np.abs(weights["w"]).sum(axis=(1, 2, 3)).max()
    for winograd in (True, False):
        options = ost.CompileOptions(winograd=winograd)
        (got,) = ost.Session("cpu").compile(graph, weights, options=options).run(given)
        yield float(np.abs(np.asarray(got, np.float64) - exact).max() / unit)


def scan() -> Iterator[tuple[str, float]]:
    """By points, the error of tiles of four relative to the results' size, root mean square."""
    rng = np.random.default_rng(0)
    channels, tiles = 64, 200
    x = rng.standard_normal((tiles, channels, 6, 6)).astype(np.float32)
    w = rng.standard_normal((channels, 3, 3)).astype(np.float32)
    rows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    exact = np.einsum("tcijkl,ckl->tij", rows, w.astype(np.float64))
    eighths = [Fraction(n, 8) for n in range(4, 17)]
    pairs = [(a, b) for a, b in product(eighths, repeat=2) if a <= Fraction(3, 4) and a < b]
    for a, b in [(Fraction(1), Fraction(2)), *pairs]:
        found = winograd_transforms.make_transforms((Fraction(0), a, -a, b, -b), 4)
        down, kernel, up = (
            np.array([[float(c) for c in row] for row in part])
            for part in (found.x, found.w, found.y)
        )
        values = np.einsum("ij,tcjk,lk->tcil", *(down.astype(np.float32), x, down.astype("f4")))
        weights = np.einsum("ij,cjk,lk->cil", kernel, w, kernel).astype(np.float32)
        sums = np.einsum("tcil,cil->til", values, weights, dtype=np.float32)
        got = np.einsum("ij,tjk,lk->til", up.astype("f4"), sums, up.astype("f4"))
        error = np.sqrt(np.mean((got - exact) ** 2) / np.mean(exact**2))
        yield f"0, ±{a}, ±{b}", float(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scan", action="store_true", help="compare points instead")
    if parser.parse_args().scan:
        for points, error in sorted(scan(), key=lambda found: found[1]):
            print(f"{points:<16} {error:.2e}")
        return
    table = Table(
        "channels, filters, extent", "elements", "Winograd", "windows", box=box.SIMPLE_HEAD
    )
    for shape, kind in product(SHAPES, KINDS):
        table.add_row(", ".join(map(str, shape)), kind, *(f"{e:.3f}" for e in errors(shape, kind)))
    Console().print(table)


if __name__ == "__main__":
    main()
