"""Versions of packages, and imports without garbage collection."""

from __future__ import annotations

import gc
from importlib import import_module

import pytest

from fusec.packages import installed, uncollected


def test_versions() -> None:
    assert installed("numpy").split(".")[0].isdigit()
    assert installed("no-such-package") == "none"


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_again_as_before(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(ImportError), uncollected():
            import_module("no_such_module")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
