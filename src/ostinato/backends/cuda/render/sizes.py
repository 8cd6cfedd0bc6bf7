"""Size steps as CUDA C++: one thread reads a number, checks it and writes the variable block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.indices import Indices, is_wide
from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.backends.common.clike.values import Code
from ostinato.backends.common.clike.writer import Writer
from ostinato.backends.cuda.abi import FAILED, FOUND
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.errors import OstinatoError
from ostinato.variables import Expr, symbols

if TYPE_CHECKING:
    from ostinato.lower.rules.sizes import SizeStep
    from ostinato.variables import Symbol

__all__ = ["source"]


class _NoData:
    """No index of a size step is read from memory."""

    def data(self, symbol: Symbol, scope: Scope) -> Index:
        raise OstinatoError(f"a size mentions {symbol.name!r}, which nothing defines")


def source(step: SizeStep, name: str, code: int) -> str:
    """CUDA C++ with the kernel ``name``, which marks a failure with ``code``."""
    writer, dialect = Writer(1), CudaDialect()
    indices, scope = Indices(Code(writer, dialect), _NoData()), Scope()
    writer.line(f"if (vars[{FAILED}] != 0) return;")
    for position, variable in enumerate(step.variables):
        if variable in symbols(step.limit):
            wide = is_wide(Expr({(variable,): 1}, 0))
            type_ = dialect.index_type(wide)
            scope.symbols[variable] = Index(writer.fresh("n"), wide)
            value = f"({type_})vars[{position}]"
            writer.line(dialect.declare(type_, scope.symbols[variable].text, value))
    limit = indices.as_wide(indices.value(step.limit, scope), True)
    if step.symbol is None:
        writer.line(f"const long long found = {limit};")
        outside = "found < 0"
    else:
        writer.line("const long long found = b0[0];")
        outside = f"found < 0 || found > {limit}"
    with writer.block(f"if ({outside})"):
        writer.line(f"vars[{FAILED}] = {code}LL;")
        writer.line(f"vars[{FOUND}] = found;")
        writer.line("return;")
    if step.symbol is not None:
        writer.line(f"vars[{step.variables.index(step.symbol)}] = found;")
        writer.line("b1[0] = found;")
    types = [dialect.memory_type(arg.dtype) for arg in step.args]
    parameters = [
        f"{'' if arg.writes else 'const '}{type_}* b{number}"
        for number, (arg, type_) in enumerate(zip(step.args, types, strict=True))
    ]
    head = ", ".join([*parameters, "long long* vars"])
    return (
        f'#include "kernel.cuh"\n\nextern "C" __global__ void {name}({head}) {{\n{writer.text}}}\n'
    )
