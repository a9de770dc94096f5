"""Programs of one range for sizes up to some: which call runs which, and when another is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusec.errors import CodegenError
from fusec.runtime.dynamic import SizeClass
from fusec.runtime.entry import Entry
from fusec.runtime.frequent import OFTEN
from fusec.runtime.sized import SizedEntry

CLASSES = [SizeClass(64, {"n": 64}), SizeClass(256, {"n": 256}), SizeClass(None, {})]


class Made:
    """Programs are their names; a call gives the name of what ran it."""

    def __init__(self, size: int, refused: Sequence[str] = ()) -> None:
        self.refused = refused
        self.built: list[str] = []
        self.entry = SizedEntry(CLASSES, self.build, self.write, size)

    def build(self, usual: Mapping[str, int]) -> Any:
        name = f"up to {usual['n']}" if usual else "all"
        if name in self.refused:
            raise CodegenError("no")
        self.built.append(name)
        return name

    def write(self, last: Any, smaller: Sequence[tuple[int, Any]], other: Callable[[int], Entry | None] | None) -> Any:
        def entry(args: tuple[int], kwargs: dict[str, Any]) -> Any:
            (size,) = args
            instead = None if other is None else other(size)
            if instead is not None:
                return instead(args, kwargs)
            return next((made for upto, made in smaller if size <= upto), last)

        return entry

    def __call__(self, size: int) -> Any:
        return self.entry((size,), {})


def test_there_is_one_program_at_first_which_serves_all_sizes() -> None:
    made = Made(100)
    assert [made(n) for n in (3, 100, 5000)] == ["up to 256"] * 3
    assert made.built == ["up to 256"]
    assert made.entry.made == [CLASSES[1]]


def test_sizes_that_come_often_get_another() -> None:
    made = Made(100)
    found = [made(5000 + n) for n in range(OFTEN)]
    assert found == ["up to 256"] * (OFTEN - 1) + ["all"]
    assert [made(n) for n in (3, 100, 257)] == ["up to 256", "up to 256", "all"]
    for n in range(OFTEN):
        made(n)
    assert [made(n) for n in (3, 64, 65, 256, 257)] == ["up to 64"] * 2 + ["up to 256"] * 2 + ["all"]
    assert made.built == ["up to 256", "all", "up to 64"]


def test_one_that_can_t_be_built_is_left_to_what_is_there() -> None:
    made = Made(100, refused=["all"])
    assert {made(5000) for _ in range(2 * OFTEN)} == {"up to 256"}
    assert made.built == ["up to 256"]
