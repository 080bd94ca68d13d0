"""Grids on a Ray cluster. Ray is imported here alone, and only when it is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from . import _bimetal, _trace
from ._bimetal import Error

_FIRST = '{"run":0,'


def rows(
    stack: tuple[str, str],
    axes: Sequence[Sequence[str]],
    trace: Any,
    policy: tuple[Callable[[int], Any], str] | None,
    jobs: int | None,
) -> list[str]:
    """The rows of every combination of settings, one task a run, at most ``jobs`` of them at a time."""
    try:
        import ray
    except ImportError as why:
        raise ImportError("engine='ray' needs Ray, which is not installed: pip install ray") from why

    task = ray.remote(_row)
    # What is large is sent to each machine once.
    trace = None if trace is None else ray.put(trace)
    runs = list(itertools.product(*axes))
    waiting = list(enumerate(runs))[::-1]
    places: dict[Any, int] = {}
    given: dict[int, str] = {}
    try:
        while waiting or places:
            while waiting and len(places) < (jobs or len(runs)):
                run, settings = waiting.pop()
                places[task.remote(stack, list(settings), trace, policy, run)] = run
            done, _ = ray.wait(list(places))
            for ref in done:
                given[places.pop(ref)] = ray.get(ref)
    except ray.exceptions.RayTaskError as why:
        raise getattr(why, "cause", None) or why
    finally:
        for ref in places:
            ray.cancel(ref)
    return [given[run] for run in range(len(runs))]


def _row(
    stack: tuple[str, str],
    settings: list[str],
    trace: Any,
    policy: tuple[Callable[[int], Any], str] | None,
    run: int,
) -> str:
    """One row, made wherever Ray likes: that of a grid of this run alone, with its number in the whole."""
    grid = _bimetal.Grid(_bimetal.StackText.parse(*stack), settings, _trace.taken(trace), policy)
    (row,) = grid.rows([0], 1)
    if not row.startswith(_FIRST):
        raise Error("a row does not begin with its number; please report it")
    return f'{{"run":{run},' + row[len(_FIRST) :]
