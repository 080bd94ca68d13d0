"""What runs give."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from . import _bimetal

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Table:
    """A table that whoever knows Arrow takes: ``pyarrow.table(t)``, ``polars.DataFrame(t)``, ``pandas.DataFrame.from_arrow(t)``."""

    def __init__(self, lines: Sequence[str]) -> None:
        """The table of lines of JSON, as ``rows.parquet`` of the command has them."""
        self._table = _bimetal.Table.of_json(list(lines))

    @property
    def columns(self) -> list[str]:
        """The names of the columns: the paths of the figures, as ``result.latency_ns.p99``."""
        return self._table.columns

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's PyCapsule interface."""
        return self._table.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pyarrow.Table:
        """As a table of pyarrow, which must be installed."""
        import pyarrow

        return pyarrow.table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """As a data frame of pandas, which must be installed, and pyarrow."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame


class Result(Mapping[str, Any]):
    """What one run measured: a mapping of the figures that ``bimetal replay --json`` prints.

    ``result["hit_ratio"]``, ``result["latency_ns"]["p99"]``; ``docs/traces.md`` has them all. What the stack cannot have is
    ``None``.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._figures: dict[str, Any] = json.loads(text)

    def __getitem__(self, key: str) -> Any:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"<bimetal.Result {self._figures.get('config', {}).get('run', '')}: {len(self)} figures>"

    def to_dict(self) -> dict[str, Any]:
        """The figures as a dictionary of the caller's own."""
        figures: dict[str, Any] = json.loads(self._text)
        return figures

    def to_json(self) -> str:
        """The figures as one line of JSON."""
        return self._text

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A table of one row, by Arrow's PyCapsule interface."""
        return Table([self._text]).__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pyarrow.Table:
        """As a table of pyarrow with one row, a column a figure."""
        return Table([self._text]).to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """As a data frame of pandas with one row, a column a figure."""
        return Table([self._text]).to_pandas()


class Rows(Table, Sequence[dict[str, Any]]):
    """The rows of a grid, one a run, as ``rows.jsonl`` of the command has them: a table, and a sequence of dictionaries.

    A row has ``run``, what was ``set``, the whole ``config``, ``inputs``, ``seed``, ``version``, the ``error`` if the run
    failed, and the ``result``.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(lines)
        self._lines = list(lines)
        self._rows: list[dict[str, Any]] = [json.loads(line) for line in self._lines]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._rows[index]

    def __repr__(self) -> str:
        failed = sum(row["error"] is not None for row in self._rows)
        return f"<bimetal.Rows: {len(self)} runs" + (f", {failed} of them failed>" if failed else ">")

    def to_jsonl(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as lines of JSON, the command's ``rows.jsonl``; written to a file if one is named."""
        text = "".join(line + "\n" for line in self._lines)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text
