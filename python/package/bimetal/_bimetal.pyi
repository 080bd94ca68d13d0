"""The native half of bimetal."""

import os
from collections.abc import Callable, Sequence
from typing import Any, final

__all__ = ["Requests", "Grid", "replay", "StackText", "Table", "status", "Error", "__version__"]

__version__: str

class Error(ValueError):
    """What bimetal refuses, or a run that failed: the text says what, where and the remedy."""

@final
class StackText:
    """The text of a stack file that was read and found to be one."""

    @staticmethod
    def parse(name: str, text: str) -> StackText: ...
    @staticmethod
    def read(path: str | os.PathLike[str]) -> StackText: ...
    @property
    def name(self) -> str: ...
    def config(self, settings: Sequence[str]) -> str: ...

@final
class Requests:
    """Requests in memory, to be played any number of times."""

    @staticmethod
    def of_columns(columns: Sequence[tuple[str, str, bytes, Sequence[str]]]) -> Requests: ...
    @staticmethod
    def of_stream(capsule: object) -> Requests: ...
    def __len__(self) -> int: ...

@final
class Grid:
    """Every combination of some settings, each a run with a row."""

    def __new__(
        cls,
        stack: StackText,
        settings: Sequence[str],
        trace: str | Requests | None,
        policy: tuple[Callable[[int], Any], str] | None,
    ) -> Grid: ...
    def __len__(self) -> int: ...
    def rows(self, runs: Sequence[int], jobs: int) -> list[str]: ...

@final
class Table:
    """A table: columns by name."""

    @staticmethod
    def of_json(lines: Sequence[str]) -> Table: ...
    def __len__(self) -> int: ...
    @property
    def columns(self) -> list[str]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

def replay(
    stack: StackText,
    settings: Sequence[str],
    trace: str | Requests | None,
    policy: tuple[Callable[[int], Any], str] | None,
) -> str: ...
def status(place: str | os.PathLike[str]) -> str: ...
