"""A compiled function is called as the function is: by position or name, with its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.errors import ArtifactError, SignatureError
from fusec.parameters import Parameters

X, W = np.linspace(-1, 1, 6, dtype=np.float32), np.ones(6, np.float32)


def scaled(x: Any, w: Any, shift: Any = None, *, scale: float = 2.0, mode: str = "plain", kind: Any = object) -> Any:
    return np.tanh(x) * w * scale


@pytest.fixture(scope="module", params=["compiled", "loaded"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiled = fusec.compile(scaled, X, w=W, scale=3.0)
    if request.param == "compiled":
        return compiled
    path: Path = tmp_path_factory.mktemp("parameters") / "f.fusec"
    compiled.save(path)
    return fusec.load(path)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X,), {"w": W, "scale": 3.0}),
        ((X, W), {"scale": 3.0}),
        ((), {"w": W, "scale": 3.0, "x": X}),
        ((X, W, None), {"scale": 3.0, "mode": "plain"}),
    ],
)
def test_spellings(made: Any, args: Any, kwargs: Any) -> None:
    for _ in range(3):
        np.testing.assert_allclose(made(*args, **kwargs), scaled(*args, **kwargs), rtol=1e-5)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, W), {}),  # scale is 2 by default, compiled was 3
        ((X, W), {"scale": 3}),
        ((X, W, 1), {"scale": 3.0}),
        ((X, W), {"scale": 3.0, "mode": "other"}),
        ((X, W), {"scale": 3.0, "kind": object}),
        ((X,), {"scale": 3.0}),
        ((X, W), {"scale": 3.0, "nothing": 1}),
    ],
)
def test_other_calls_are_refused(made: Any, args: Any, kwargs: Any) -> None:
    with pytest.raises(SignatureError, match="was compiled for the arguments"):
        made(*args, **kwargs)


def test_a_damaged_record() -> None:
    for record in ([["x", "NOTHING"]], [["x", "KEYWORD_ONLY"], ["x", "KEYWORD_ONLY"]], 3):
        with pytest.raises(ArtifactError, match="parameters"):
            Parameters.from_json(record)


def test_errors_are_capped() -> None:
    with pytest.raises(SignatureError) as told:
        fusec.compile(scaled, X, W)(X, W, list(range(100_000)))
    assert len(str(told.value)) < 5000
    assert "characters left out" in str(told.value)
