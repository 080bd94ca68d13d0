"""A replacement policy written in Python."""

from __future__ import annotations


class Policy:
    """The base of a page cache's replacement policy.

    A subclass keeps an order of the pages in the cache, by their numbers, and says which one leaves. It is made anew for
    each run, and is handed to a stack as a class, or as anything else that can be called with the capacity::

        class Fifo(bimetal.Policy):
            def __init__(self, capacity):
                self.pages = collections.OrderedDict()

            def hit(self, page, write, was_dirty):
                pass

            def insert(self, page, write):
                self.pages[page] = None

            def evict(self, coming):
                return next(iter(self.pages))

            def remove(self, page, evicted):
                del self.pages[page]

        stack = bimetal.Stack(cache={"policy": Fifo, "size": "1MiB"})

    The cache keeps what it promises whatever a policy does: what is dirty is written before it leaves, and no more pages
    are kept than there is room for. An exception ends the run and is raised by ``replay`` or ``sweep``. A policy is called
    from another thread than the one that called ``replay``; never from two at once.

    It is for replays of requests; a stack with ``fs.kind`` takes the built-in policies.
    """

    keeps_reads: bool = True
    """Whether a page that a read missed is kept; a write buffer says False. Looked at once, when the policy is made."""

    def __init__(self, capacity: int) -> None:
        """Begins empty; at most ``capacity`` pages will be in the cache."""

    def hit(self, page: int, write: bool, was_dirty: bool) -> None:
        """A page in the cache is read or written; ``was_dirty`` tells of it before that."""
        raise NotImplementedError

    def insert(self, page: int, write: bool) -> None:
        """A page came in, read or written."""
        raise NotImplementedError

    def evict(self, coming: int) -> int:
        """The cache is full and the page ``coming`` is to come in: returns the page that leaves.

        It stays in the policy's order until :meth:`remove` tells that it left. A page that is not in the cache is an
        error.
        """
        raise NotImplementedError

    def remove(self, page: int, evicted: bool) -> None:
        """A page left: the one that :meth:`evict` named, or one that was discarded (``evicted`` is False)."""
        raise NotImplementedError

    def cleaned(self, page: int) -> None:
        """A dirty page was written and stays. Needed only if the order depends on what is dirty."""
