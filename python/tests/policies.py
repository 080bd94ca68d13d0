"""Policies written in Python, for the tests."""

import collections

import bimetal


class Lru(bimetal.Policy):
    """The page that was used longest ago leaves."""

    def __init__(self, capacity):
        self.pages = collections.OrderedDict()
        self.capacity = capacity

    def hit(self, page, write, was_dirty):
        self.pages.move_to_end(page)

    def insert(self, page, write):
        assert page not in self.pages and len(self.pages) < self.capacity
        self.pages[page] = None

    def evict(self, coming):
        return next(iter(self.pages))

    def remove(self, page, evicted):
        del self.pages[page]


class Fifo(Lru):
    """The page that came first leaves."""

    def hit(self, page, write, was_dirty):
        pass


class Broken(Lru):
    """Takes no page."""

    def insert(self, page, write):
        raise LookupError("broken")
