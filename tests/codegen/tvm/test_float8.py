"""Numbers of 8 bits: each of them read, and all that rounds to them or lies beside a tie."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from programs import run

TYPES = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
TARGETS = ["cpu", "cpu:x86-64-v3"]


def every(eight: type) -> np.ndarray:
    """All numbers with 16 bits, those of 8 and what lies halfway between two of them, and what is next to each."""
    numbers = np.arange(256, dtype=np.uint8).view(eight).astype(np.float32)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    ties = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    sixteen = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    beside = [np.nextafter(x, np.float32(to)) for x in (numbers, ties) for to in (-np.inf, np.inf)]
    return np.concatenate([sixteen, numbers, ties, *beside])


def graph(n: int, source: str, target: str) -> str:
    return f"graph @g(%x: {source}[{n}]) {{\n%y = cast(%x) : {target}[{n}]\nreturn %y\n}}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
def test_rounding(name: str, target: str) -> None:
    x = every(TYPES[name])
    (found,) = run(graph(x.size, "f32", name), [x], target=target).outputs
    with np.errstate(all="ignore"):
        wanted = x.astype(TYPES[name])
    same = found.view(np.uint8) == wanted.view(np.uint8)
    assert (same | (np.isnan(found.astype(np.float32)) & np.isnan(wanted.astype(np.float32)))).all()
    assert (np.signbit(x) == (found.view(np.uint8) >= 0x80)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
def test_reading(name: str, target: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(TYPES[name])
    (found,) = run(graph(256, name, "f32"), [x], target=target).outputs
    np.testing.assert_array_equal(found, x.astype(np.float32))


@pytest.mark.parametrize("name", TYPES)
def test_moving(name: str) -> None:
    x = np.arange(3 * 37, dtype=np.uint8).reshape(3, 37).view(TYPES[name])
    text = f"""graph @g(%x: {name}[3, 37]) {{
        %t = permute(%x) {{permutation=[1, 0]}} : {name}[37, 3]
        %y = concat(%t, %t) {{axis=1}} : {name}[37, 6]
        return %y
    }}"""
    (found,) = run(text, [x]).outputs
    assert (found.view(np.uint8) == np.concatenate([x.T, x.T], 1).view(np.uint8)).all()
