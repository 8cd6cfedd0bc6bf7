"""Products of matrices by a library: their description, and the interface of the library.

The description is plain numbers and names, so it is part of the compiled program's image. The
library of NVIDIA GPUs is :mod:`ostinato.backends.cuda.cublaslt`; tests have another implementation,
on host memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Matrix", "Multiplication", "Product", "ProductLibrary"]


class Matrix(NamedTuple):
    """Matrices in memory, stored by columns.

    Attributes:
        rows, columns: the size of each.
        pitch: elements from one column to the next.
        stride: elements from one matrix of a batch to the next; 0: all are the same.
        alignment: bytes that every address of one is a multiple of.
    """

    rows: int
    columns: int
    pitch: int
    stride: int
    alignment: int


class Product(NamedTuple):
    """``D = op(A) · op(B)`` for each matrix of a batch, ``op`` a transposition or nothing.

    With a bias, each column of the product is added to a vector before it is rounded. With scales,
    8-bit floats are multiplied: what those of A and of B say is a factor of every sum. The
    arguments of a launch are the addresses of A, B, D, the workspace, the bias, if any, and the
    scales of A and of B, if any.

    Attributes:
        dtype: of A, and of B if that has no other.
        result: of D.
        a, b, d: the matrices as they are stored.
        transposed: whether A, and whether B, is transposed before it is multiplied.
        batch: the number of matrices.
        workspace: bytes of memory that an algorithm may use.
        tf32: whether float32 may be rounded to 10 bits of mantissa before it is multiplied.
        timed: whether the fastest algorithm is found by timing a few.
        bias: whether there is a bias, an element of the result's dtype for each row of D.
        right: the dtype of B.
        scales: the float32 scales of A and of B: ``"one"`` each; ``"rows"``, one for each row and
            each column of D; empty: there are none.
    """

    dtype: str
    result: str
    a: Matrix
    b: Matrix
    d: Matrix
    transposed: tuple[bool, bool]
    batch: int
    workspace: int
    tf32: bool = False
    timed: bool = True
    bias: bool = False
    right: str = ""
    scales: str = ""

    @staticmethod
    def of_entry(entry: tuple[Any, ...]) -> Product:
        """A product from the plain tuple that it was written as."""
        found = Product(*entry)
        return found._replace(a=Matrix(*found.a), b=Matrix(*found.b), d=Matrix(*found.d))

    @property
    def dtypes(self) -> tuple[str, str]:
        """The dtypes of A and of B."""
        return self.dtype, self.right or self.dtype

    @property
    def scale_counts(self) -> tuple[int, ...]:
        """The number of scales of A and of B, if there are any."""
        if not self.scales:
            return ()
        return (self.d.rows, self.d.columns) if self.scales == "rows" else (1, 1)

    @property
    def depth(self) -> int:
        """The number of products in a sum."""
        return self.a.rows if self.transposed[0] else self.a.columns

    def __str__(self) -> str:
        a, b = ("T" if transposed else "N" for transposed in self.transposed)
        batch = f"{self.batch} x " if self.batch > 1 else ""
        dtypes = " ".join(dict.fromkeys(self.dtypes))
        return f"{batch}{self.d.rows}x{self.d.columns}x{self.depth} {a}{b} {dtypes}"


class Multiplication(Protocol):
    """A product that a library is ready to compute."""

    def algorithms(self, most: int) -> list[bytes]:
        """Descriptions of the algorithms that can do it, by the library's guess fastest first.

        They hold for this version of the library on this kind of GPU.
        """

    def launch(self, algorithm: bytes, addresses: Sequence[int], stream: int) -> None:
        """Compute it on some memory, by one of the algorithms; see :class:`Product`.

        Raises:
            DriverFailure: the library refuses.
        """


class ProductLibrary(Protocol):
    """A library of matrix products. Calls take place in the calling thread's current context."""

    @property
    def identity(self) -> str:
        """Name and version: all that its algorithms depend on besides the GPU."""

    def multiplication(self, product: Product) -> Multiplication:
        """A product, ready.

        Raises:
            DriverFailure: the library refuses.
        """
