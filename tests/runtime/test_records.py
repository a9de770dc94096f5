"""Classes of results in files."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

import fusec
from fusec.errors import ArtifactError
from fusec.runtime.records import Base, find_class


class Pair(NamedTuple):
    total: Any
    rest: Any


@dataclasses.dataclass
class Scores:
    values: Any
    pair: Pair
    name: str = "scores"
    again: Any = None


class Output(OrderedDict[str, Any]):
    """As transformers' ModelOutput: items that are attributes, too."""

    def __init__(self, values: Any, most: Any) -> None:
        super().__init__(values=values, most=most)
        self.values_too = values
        self.hidden = None


def scored(x: Any) -> Any:
    y = np.tanh(x)
    return Scores(y, Pair(y.sum(), [y.max(axis=0)]), again=y), Output(y + 1, y.max())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "f.fusec"
    fusec.compile(scored, X).save(path)
    return path


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_classes_that_are_imported(file: Path) -> None:
    scores, output = fusec.load(file)(X)
    wanted, _ = scored(X)
    assert (type(scores), type(scores.pair), type(output)) == (Scores, Pair, Output)
    np.testing.assert_allclose(scores.values, wanted.values, rtol=1e-5)
    np.testing.assert_allclose(scores.pair.total, wanted.pair.total, rtol=1e-4, atol=1e-5)
    assert scores.again is scores.values
    assert (scores.name, list(output), output.hidden) == ("scores", ["values", "most"], None)
    assert output.values_too is output["values"]


def test_stand_ins_for_classes_that_are_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, __name__)
    scores, output = fusec.load(file)(X)
    assert type(scores) is not Scores
    assert [type(v).__name__ for v in (scores, scores.pair, output)] == ["Scores", "Pair", "Output"]
    assert scores.pair._fields == ("total", "rest")
    assert scores.pair[0] is scores.pair.total
    assert output.most is output["most"] is output[1] is output.to_tuple()[1]
    assert output.hidden is None
    with pytest.raises(AttributeError, match="has no 'nothing'; it has values, most"):
        _ = output.nothing


def test_nothing_is_imported_for_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(name: str) -> Any:
        raise AssertionError(name)

    lazy = ModuleType("lazy")
    lazy.__getattr__ = imports  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    assert find_class("lazy", "Output", "dict", ()).__name__ == "Output"


def test_a_kind_that_is_not_known() -> None:
    with pytest.raises(ArtifactError, match="no kind of results such as 'set'"):
        find_class("builtins", "set", cast(Base, "set"), ())


class Holder(dict[str, Any]):
    pass


def test_arguments_are_plain_containers(tmp_path: Path) -> None:
    def first(held: Any) -> Any:
        return held["x"] * 2

    with pytest.raises(ArtifactError, match="an argument is a Holder, which can't be saved; tuples, lists and dicts"):
        fusec.compile(first, Holder(x=X)).save(tmp_path / "f.fusec")
