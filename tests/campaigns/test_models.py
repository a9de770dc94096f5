"""A few models of the campaign, and what its comparison sees."""

from __future__ import annotations

import os
import signal
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from . import models  # noqa: E402
from .model_results import differences  # noqa: E402
from .zoo import Model  # noqa: E402
from .zoo_nn import NN  # noqa: E402

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("name", ["nn-mlp", "nn-embedding", "nn-ctc"])
def test_a_model(name: str) -> None:
    for outcome in models.try_model(name, NN[name], models.WAYS, 0.0):
        assert not outcome.wrong
        assert not models.unlisted(NN[name], outcome)
        assert outcome.kernels or outcome.written or outcome.breaks


def test_a_crash_is_one_finding() -> None:
    def crashing() -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    (outcome,) = models.in_child("crashing", Model(crashing), ("jit",), 0.0)
    assert "status 9" in outcome.wrong[0]


def test_what_is_listed_and_no_longer_so_is_told() -> None:
    model = Model(NN["nn-mlp"].make, as_written="some reason", breaks=1)
    assert len(models.unlisted(model, models.Outcome("x", "jit"))) == 1
    assert len(models.unlisted(model, models.Outcome("x", "compile"))) == 1
    assert not models.unlisted(model, models.Outcome("x", "jit", written={"for some reason here": 3}))


def test_what_is_known_to_be_wrong_and_no_longer_is_is_told() -> None:
    model = Model(NN["nn-mlp"].make, known={"compile: result": "a reason"})
    assert not models.unlisted(model, models.Outcome("x", "jit"))
    assert not models.unlisted(model, models.Outcome("x", "compile", wrong=["result: error 3"]))
    assert len(models.unlisted(model, models.Outcome("x", "compile", wrong=["second call: result"]))) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda x: Pair(x, [x, 4]),
        lambda x: (x, [x, 3]),
        lambda x: Pair(x, (x, 3)),
        lambda x: Pair(x, [x]),
        lambda x: Pair(x.double(), [x, 3]),
        lambda x: Pair(x[:2], [x, 3]),
        lambda x: Pair(x.t().contiguous().t(), [x, 3]),
        lambda x: Pair(x + 1e-5, [x, 3]),
        lambda x: Pair(x.where(x < 1, torch.nan), [x, 3]),
        lambda x: OrderedDict(a=x, b=[x, 3]),
    ],
)
def test_differences_are_seen(change: Callable[[Any], Any]) -> None:
    result = Pair(X, [X, 3])
    exact = Pair(X.double(), [X.double(), 3])
    assert not differences(Pair(X.clone(), [X.clone(), 3]), result, exact)
    assert differences(change(X), result, exact)
    assert differences(change(X), result, None)
