# SPDX-License-Identifier: Apache-2.0
"""What a traced run leaves in the caches of ``functools.lru_cache``, told apart from what was there before it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from functools import _lru_cache_wrapper as _MEMO
from typing import Any, NamedTuple

from fusec.frontend.raw import attributes_of, is_a

_LINK = "_lru_list_elem"
"""The type of what a cache with bounds keeps a result in."""


class MemoCall(NamedTuple):
    """A call that a run was the first to make of a function that remembers its results."""

    memo: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def is_memo(value: object) -> bool:
    """Whether a value is a function under ``functools.lru_cache``."""
    return is_a(value, _MEMO)


def file_of_memo(memo: Any) -> str:
    """The file of the function under a cache; of one without code one that is nobody's."""
    code = getattr(getattr(memo, "__wrapped__", None), "__code__", None)
    return str(getattr(code, "co_filename", "<frozen>"))


class HeldMemo:
    """The cache of one function as it was when a run came upon it."""

    def __init__(self, memo: Any) -> None:
        self._memo = memo
        self._hits, self._misses, *_ = memo.cache_info()
        own = attributes_of(memo)
        tables = (part for part in gc.get_referents(memo) if type(part) is dict and part is not own)
        self._table: dict[Any, Any] = next(tables, {})
        self._before = list(self._table)

    @property
    def name(self) -> str:
        return str(getattr(self._memo, "__qualname__", "a function"))

    @property
    def was_called(self) -> bool:
        hits, misses, *_ = self._memo.cache_info()
        return bool((hits, misses) != (self._hits, self._misses))

    def added(self) -> dict[Any, Any]:
        """The results that the run has put there, by key."""
        if self._memo.cache_info().misses == self._misses:
            return {}
        known = set(map(id, self._before))
        results = self._results()
        return {key: results.get(id(key), kept) for key, kept in self._table.items() if id(key) not in known}

    def _results(self) -> dict[int, Any]:
        """By the ids of keys, what a cache with bounds keeps: it shows its links as a key, a result and their type."""
        shown = gc.get_referents(self._memo)
        triples = zip(shown, shown[1:], shown[2:])
        return {id(key): result for key, result, kind in triples if getattr(kind, "__name__", "") == _LINK}

    @property
    def kept(self) -> list[Any]:
        """All results that the cache has now."""
        results = self._results()
        return [results.get(id(key), kept) for key, kept in self._table.items()]

    def call(self, key: Any) -> MemoCall:
        """The call of a key in the table."""
        parts = list(key) if is_a(key, tuple) else [key]
        at = next((k for k, part in enumerate(parts) if type(part) is object), len(parts))
        positional, named = parts[:at], parts[at + 1 :]
        if self._memo.cache_parameters()["typed"]:  # behind them stand their types
            count = len(positional) // 2 if at == len(parts) else len(positional)
            positional, named = positional[:count], named[: 2 * ((len(named) - count) // 3)]
        return MemoCall(self._memo, tuple(positional), dict(zip(named[::2], named[1::2], strict=True)))

    def forget(self, keys: Iterable[Any]) -> None:
        """Takes results out of the cache that the run has put there."""
        if not self._before:
            self._memo.cache_clear()
            return
        for key in keys:
            self._table.pop(key, None)
