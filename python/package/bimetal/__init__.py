"""The laboratory of bimetal: stacks, traces and page cache policies, replayed in virtual time.

>>> import bimetal
>>> stack = bimetal.Stack(cache={"policy": "lru", "size": "1MiB"})
>>> result = bimetal.replay(stack, "gen:zipf:pages=1000:requests=10000")
>>> result["requests"]
10000

The same stack files, traces and figures as the command ``bimetal replay`` has; ``docs/python.md`` in the repository
tells what there is.
"""

from ._bimetal import Error, __version__
from ._policy import Policy
from ._run import replay, status, sweep
from ._stack import Stack
from ._table import Result, Rows, Table

__all__ = ["Error", "Policy", "Result", "Rows", "Stack", "Table", "__version__", "replay", "status", "sweep"]
