"""Runs, grids of them, and the status of what is mounted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import _bimetal, _trace
from ._bimetal import Error
from ._stack import _POLICY, Stack, _setting, _texts
from ._table import Result, Rows

if TYPE_CHECKING:
    from ._stack import Value


def replay(stack: Stack, trace: Any = None) -> Result:
    """Plays a trace on a stack, in virtual time, and gives what was measured.

    ``trace`` is a path, a generator (``"gen:zipf:pages=1000"``), or requests: a mapping of columns, a structured array of
    NumPy, a data frame of pandas, or anything with Arrow's C stream (a Table or RecordBatch of pyarrow, a data frame of
    Polars). Columns have the names of a CSV's header: ``op``, ``offset`` and ``length``, and if wanted ``time`` (seconds;
    ``time_ms``, ``time_us``, ``time_ns``), ``unit`` and ``flags``. Without it the stack's own trace is played.

    The interpreter's lock is given back while the run goes on; Ctrl-C ends it.

    Raises :class:`bimetal.Error` for what cannot be run, :class:`OSError` for a file that cannot be read, and whatever a
    policy written in Python raises.
    """
    taken = _trace.taken(trace)
    return Result(_bimetal.replay(stack._text, _texts(stack._settings), taken, stack._policy))


def sweep(
    stack: Stack,
    grid: Mapping[str, Value | Sequence[Value]],
    trace: Any = None,
    *,
    engine: Literal["threads", "ray"] = "threads",
    jobs: int | None = None,
) -> Rows:
    """Plays every combination of some settings and gives a row for each run, the last key's values changing fastest.

    ``sweep(stack, {"cache.size": ["16MiB", "64MiB"], "seed": [1, 2, 3]})`` makes the rows that ``bimetal replay --stack
    FILE --set cache.size=16MiB,64MiB --set seed=1,2,3 --out FOLDER`` makes; what was set on the stack counts as set, too.
    ``trace`` is as in :func:`replay`. A run that fails is a row with its ``error``.

    ``engine="threads"`` makes ``jobs`` runs at a time on this machine (as many as there are processors); ``engine="ray"``
    makes them on a Ray cluster, to which ``ray.init`` may have been said, and gives the same rows. Files must be there on
    all of its machines.

    Raises as :func:`replay` does, before anything is run where it can be told before.
    """
    if engine not in ("threads", "ray"):
        raise Error(f"engine: there is no '{engine}'; choose 'threads' or 'ray'")
    if jobs is not None and jobs < 1:
        raise Error("jobs: must be at least 1")
    axes = [(key, [text]) for key, text in stack._settings] + [_axis(key, values) for key, values in grid.items()]
    set_before = {key for key, _ in stack._settings}
    if twice := set_before.intersection(grid):
        raise Error(f"grid: {min(twice)} was set on the stack before; leave it out there or here")
    settings = [f"{key}=" + ",".join(texts) for key, texts in axes]
    runs = _bimetal.Grid(stack._text, settings, _trace.taken(trace), stack._policy)
    if engine == "ray":
        from . import _ray

        each = [[f"{key}={text}" for text in texts] for key, texts in axes]
        return Rows(_ray.rows(stack._source, each, trace, stack._policy, jobs))
    return Rows(runs.rows(list(range(len(runs))), jobs or os.cpu_count() or 1))


def _axis(key: str, values: Any) -> tuple[str, list[str]]:
    """A key and its values, as ``--set`` writes them."""
    if isinstance(values, (str, bool, int, float)) or callable(values):
        values = [values]
    if any(callable(value) for value in values):
        raise TypeError(f"grid: {key}: a policy written in Python is set on the stack: stack.set({_POLICY!r}, ...)")
    return key, [_setting(key, value) for value in values]


def status(place: str | os.PathLike[str]) -> dict[str, Any]:
    """What a mounted file system, or an exported device by its socket, says of itself: ``bimetal status --json``.

    Raises :class:`bimetal.Error` if nothing of bimetal is mounted there or its server is dead, and :class:`OSError` if
    there is no such place.
    """
    told: dict[str, Any] = json.loads(_bimetal.status(os.fspath(place)))
    return told
