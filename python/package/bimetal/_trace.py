"""Traces that are in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import _bimetal
from ._bimetal import Error


def taken(trace: Any) -> str | _bimetal.Requests | None:
    """What is played, as the native half takes it: a path or generator, or requests."""
    if trace is None or isinstance(trace, (str, _bimetal.Requests)):
        return trace
    if isinstance(trace, os.PathLike):
        path = os.fspath(trace)
        return path if isinstance(path, str) else os.fsdecode(path)
    names = getattr(getattr(trace, "dtype", None), "names", None)
    if names:  # a structured array of NumPy
        return _of_columns({name: trace[name] for name in names})
    if isinstance(trace, Mapping):
        return _of_columns(trace)
    if hasattr(trace, "columns") and hasattr(trace, "iloc"):  # a data frame of pandas
        return _of_columns({str(name): trace[name].to_numpy() for name in trace.columns})
    if hasattr(trace, "__arrow_c_stream__"):
        return _bimetal.Requests.of_stream(trace.__arrow_c_stream__())
    raise Error(
        f"trace: a {type(trace).__name__} is no trace; hand over a path, a generator (gen:NAME:option=value), columns by"
        " name, a structured array, a data frame, or a table of Arrow"
    )


def _of_columns(columns: Mapping[str, Any]) -> _bimetal.Requests:
    return _bimetal.Requests.of_columns([_column(str(name), column) for name, column in columns.items()])


def _column(name: str, column: Any) -> tuple[str, str, bytes, list[str]]:
    """A column as name, kind, bytes and words."""
    try:
        import numpy
    except ImportError as why:
        raise ImportError("columns of a trace need NumPy; install it, or hand over a table of Arrow") from why

    values = numpy.asarray(column)
    if values.ndim != 1:
        raise Error(f"trace: column '{name}': has {values.ndim} dimensions; a column has one")
    match values.dtype.kind:
        case "u" | "i":
            return name, "whole", _whole(name, values).astype("<u8").tobytes(), []
        case "f":
            return name, "float", values.astype("<f8").tobytes(), []
        case "m" | "M":
            if numpy.isnat(values).any():
                raise Error(f"trace: column '{name}': has empty cells")
            nanos = values.astype(f"{values.dtype.kind}8[ns]").astype("<i8")
            return name, "nanos", _whole(name, nanos).astype("<u8").tobytes(), []
        case "U" | "S" | "O" | "T":
            return _words(name, values)
        case _:
            raise Error(f"trace: column '{name}': is of type {values.dtype}, which no column of a trace is")


def _whole(name: str, values: Any) -> Any:
    below: Any = (values < 0).nonzero()[0] if values.dtype.kind == "i" else ()
    if len(below):
        raise Error(f"trace: column '{name}': {values[below[0]]} in row {below[0]} is no number from 0 on")
    return values


def _words(name: str, values: Any) -> tuple[str, str, bytes, list[str]]:
    """A column of texts: each word once, and which of them each row has."""
    import numpy

    known: dict[str, int] = {}
    codes = numpy.empty(len(values), dtype="<u4")
    for row, value in enumerate(values.tolist()):
        if isinstance(value, bytes):
            value = value.decode("ascii", "replace")
        if not isinstance(value, str):
            raise Error(f"trace: column '{name}': {value!r} in row {row} is no text")
        codes[row] = known.setdefault(value, len(known))
    return name, "words", codes.tobytes(), list(known)
