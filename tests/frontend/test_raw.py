from __future__ import annotations

from fusec.frontend.raw import attributes_of


def test_a_class_may_get_other_bases() -> None:
    class First:
        pass

    class Second:
        pass

    class Own(First):
        pass

    own = Own()
    own.size = 1  # type: ignore[attr-defined]
    assert attributes_of(own) == {"size": 1}
    Own.__bases__ = (Second,)
    assert attributes_of(own) == {"size": 1}
