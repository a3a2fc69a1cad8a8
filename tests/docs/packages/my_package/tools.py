"""The reader's own tools: two servers."""

from __future__ import annotations

from examples.tools import Lengths


class MyTools(Lengths):
    pass


class Search(Lengths):
    label = "search"
