"""Functions that are written at run time."""

from __future__ import annotations

import gc
import linecache

from fusec.runtime.code import Scope, make_function


def test_a_functions_text_is_there_for_tracebacks_as_long_as_it_is():
    scope = Scope({"given": 2})
    function = make_function("twice", ["x"], [f"return {scope.bind(2.5, 'given')} * x + given"], scope)
    assert function(4) == 12
    filename = function.__code__.co_filename
    assert linecache.getline(filename, 3).strip() == "return given_1 * x + given"
    del function
    gc.collect()
    assert filename not in linecache.cache
