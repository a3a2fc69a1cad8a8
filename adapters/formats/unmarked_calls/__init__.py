"""Calls that a model writes as JSON in its text, without the markers of its family."""

from antiphon.adapters.formats.unmarked_calls.parser import with_unmarked_calls
from antiphon.adapters.formats.unmarked_calls.search import UnmarkedCalls, search_of

__all__ = ["UnmarkedCalls", "search_of", "with_unmarked_calls"]
