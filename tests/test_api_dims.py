"""Functions compiled for ranges of named dimensions: right at every extent, refused outside, saved as one file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusec
from fusec.errors import ArtifactError, DimensionError, LoweringError, SignatureError
from fusec.specs import named_specs

SLOW = settings(max_examples=25, deadline=None)


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check(compiled: Any, function: Any, *arrays: Any) -> None:
    """Shapes, dtypes and values; the error at most twice that of the code as written, against float64."""
    wanted = function(*arrays)
    exact = function(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays))
    found = compiled(*arrays)
    if not isinstance(wanted, tuple):
        wanted, exact, found = (wanted,), (exact,), (found,)
    for a, w, e in zip(found, wanted, exact, strict=True):
        assert (a.shape, a.dtype) == (w.shape, w.dtype)
        assert all(p == q for n, p, q in zip(a.shape, a.strides, w.strides, strict=True) if n > 1)
        scale = np.abs(e).max(initial=1e-30)
        assert np.abs(a - e).max(initial=0) <= 2 * np.abs(w - e).max(initial=0) + 4e-7 * scale


W1, B1, W2 = random(24, 40), random(40), random(40, 10)


def mlp(x: Any) -> Any:
    h = np.tanh(x @ W1 + B1) @ W2
    e = np.exp(h - h.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def compiled_mlp() -> Any:
    return fusec.compile(mlp, fusec.TensorSpec(("B", 24)), dims={"B": (1, 100)}, fallback="error")


@SLOW
@given(rows=st.integers(1, 100))
def test_mlp_at_any_batch(compiled_mlp: Any, rows: int) -> None:
    check(compiled_mlp, mlp, random(rows, 24))


@pytest.mark.parametrize("rows", [1, 2, 97, 99, 100])
def test_mlp_at_primes_and_ends(compiled_mlp: Any, rows: int) -> None:
    check(compiled_mlp, mlp, random(rows, 24))


@pytest.mark.parametrize("rows", [0, 101])
def test_outside_the_range(compiled_mlp: Any, rows: int) -> None:
    with pytest.raises(SignatureError, match=f"mlp: B is {rows}, compiled was B from 1 to 100"):
        compiled_mlp(random(rows, 24))


def test_a_file_serves_the_range_without_source_or_compiler(compiled_mlp: Any, tmp_path: Path) -> None:
    compiled_mlp.save(tmp_path / "mlp.fusec")
    for rows in (1, 7, 100):
        np.save(tmp_path / f"x{rows}.npy", random(rows, 24))
        np.save(tmp_path / f"y{rows}.npy", mlp(random(rows, 24)))
    program = f"""
import sys, numpy as np, fusec
f = fusec.load({str(tmp_path / "mlp.fusec")!r})
for rows in (1, 7, 100):
    y = f(np.load(f"{tmp_path}/x{{rows}}.npy"))
    np.testing.assert_allclose(y, np.load(f"{tmp_path}/y{{rows}}.npy"), rtol=1e-5, atol=1e-7)
try:
    f(np.zeros((101, 24), np.float32))
except fusec.errors.SignatureError as error:
    assert "B is 101, compiled was B from 1 to 100" in str(error), error
else:
    raise AssertionError("101 rows were taken")
assert not {{"tvm", "fusec.frontend.torch", "fusec.passes.pipeline"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def two(x: Any, y: Any) -> Any:
    """Products of symbols, a join, an extent as a number, a transposed result, equal extents of two arguments."""
    h = x @ y
    flat = (h * x.shape[0]).reshape(-1)
    return h.mean(axis=0) / np.sqrt(x.shape[1]), flat, np.concatenate([x, x], axis=1), (h + 1).T, h.max(axis=1)


@pytest.fixture(scope="module")
def compiled_two() -> Any:
    return fusec.compile(two, fusec.TensorSpec(("B:1..40", "S:1..30")), fusec.TensorSpec(("S", 18)), fallback="error")


@SLOW
@given(b=st.integers(1, 40), s=st.integers(1, 30))
def test_two_symbols(compiled_two: Any, b: int, s: int) -> None:
    check(compiled_two, two, random(b, s), random(s, 18))


def test_numbers_that_half_types_hold_at_some_extents_alone() -> None:
    torch = pytest.importorskip("torch")

    def mean(x: Any) -> Any:
        return torch.relu(x).sum(1) / x.shape[1]

    compiled = fusec.compile(mean, fusec.TensorSpec(("B", "S"), "bfloat16"), dims={"B": (1, 8), "S": (2, 301)})
    for b, s in ((1, 7), (2, 300), (8, 301), (5, 2)):
        x = torch.from_numpy(random(b, s)).bfloat16()
        torch.testing.assert_close(compiled(x), mean(x), rtol=0, atol=0)


def test_equal_names_are_equal_extents(compiled_two: Any) -> None:
    with pytest.raises(SignatureError, match=r"array 1 is f32\[6, 18\], compiled was f32\[S, 18\], S = 5"):
        compiled_two(random(4, 5), random(6, 18))


def attention(q: Any, k: Any, v: Any) -> Any:
    n, m = q.shape[1], k.shape[1]
    scores = q @ k.transpose(0, 2, 1) / np.float32(4)
    scores = np.where(np.arange(n)[:, None] >= np.arange(m)[None, :], scores, np.float32(-1e9))
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)) @ v


def test_attention_over_symbolic_sequences() -> None:
    q, kv = fusec.TensorSpec(("H:2..6", "N:2..150", 16)), fusec.TensorSpec(("H", "M:2..90", 16))
    compiled = fusec.compile(attention, q, kv, kv, fallback="error")
    assert "attention" in compiled.explain()
    for h, n, m in ((2, 2, 2), (3, 150, 90), (6, 67, 13), (2, 64, 64), (3, 5, 90), (2, 129, 65)):
        check(compiled, attention, random(h, n, 16), random(h, m, 16), random(h, m, 16))


def test_a_branch_on_one_is_a_piece_of_its_own() -> None:
    def function(x: Any) -> Any:
        return np.squeeze(x) * 2

    compiled = fusec.compile(function, fusec.TensorSpec(("B:1..9", 4)))
    assert [dict(v.ranges) for v in compiled.ranged] == [{"B": (1, 1)}, {"B": (2, 9)}]
    for rows in (1, 2, 9):
        check(compiled, function, random(rows, 4))


def test_short_ranges_are_compiled_one_by_one() -> None:
    compiled = fusec.compile(mlp, fusec.TensorSpec(("B:3..4", 24)))
    assert [dict(v.ranges) for v in compiled.ranged] == [{"B": (3, 3)}, {"B": (4, 4)}]
    check(compiled, mlp, random(4, 24))


def test_functions_that_no_one_graph_serves() -> None:
    def branches(x: Any) -> Any:
        return x * 2 if x.shape[0] > 10 else np.exp(x)

    def power(x: Any) -> Any:
        return np.exp(x) * 2.0 ** x.shape[0]

    def returns(x: Any) -> Any:
        return np.exp(x), x.shape[0]

    spec = fusec.TensorSpec(("B:1..50", 4))
    with pytest.raises(
        DimensionError, match=r"test_api_dims.py:\d+: B can't be symbolic: the function does .*, by the ext"
    ):
        fusec.compile(branches, spec)
    with pytest.raises(DimensionError, match=r"test_api_dims.py:\d+: B can't be symbolic: the number"):
        fusec.compile(power, spec)
    with pytest.raises(DimensionError, match="what the function returns, besides arrays, depends on the extents"):
        fusec.compile(returns, spec)


def test_ranges_that_are_wrong() -> None:
    spec = fusec.TensorSpec(("B", "S"))
    with pytest.raises(ValueError, match="S has no range"):
        fusec.compile(mlp, spec, dims={"B": (1, 4)})
    with pytest.raises(ValueError, match="no spec has a dimension of this name"):
        fusec.compile(mlp, spec, dims={"T": (1, 4)})
    for ends in ((0, 4), (5, 4), (1,), 7, (1, float("inf"))):
        with pytest.raises(ValueError, match="the range of B is"):
            fusec.compile(mlp, spec, dims={"B": ends, "S": (1, 4)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="B has two ranges"):
        fusec.compile(mlp, fusec.TensorSpec(("B:1..4",)), fusec.TensorSpec(("B:1..5",)))


def test_named_dimensions_without_a_range_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"dims=\{'B': \(1, 64\)\}"):
        fusec.compile(mlp, fusec.TensorSpec(("B", 24)), random(1)[:0].reshape(0)).save(tmp_path / "x")


def test_specs_as_text() -> None:
    found = named_specs(["x=f32[B:1..64, 512,768]", "mask = bool[B,512]@cuda:0", "n=i64[]"])
    assert found["x"] == fusec.TensorSpec(("B:1..64", 512, 768))
    assert found["x"].ranges == (("B", 1, 64),)
    assert (found["mask"].dtype, found["mask"].device, found["n"].shape) == ("bool", "cuda:0", ())
    for text in ("f32[2]", "x=f32", "x=f32[a b]", "x=q7[2]", "x=f32[B:0..2]", "x=f32[B:3..2]", "x=f32[-1]"):
        with pytest.raises(ValueError, match=r"spec|dimension|dtype|range"):
            named_specs([text])
    with pytest.raises(ValueError, match="one more argument"):
        named_specs(["x=f32[2]", "x=f32[3]"])


def test_torch_dimensions_and_modules(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    dim = torch.export.Dim("B", min=1, max=32)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
    ).eval()
    compiled = fusec.compile(model, fusec.TensorSpec((dim, "S:1..20", 16)), fallback="error")
    compiled.save(tmp_path / "m.fusec")
    loaded = fusec.load(tmp_path / "m.fusec")
    assert loaded.ranges == {"B": (1, 32), "S": (1, 20)}
    for b, s in ((1, 1), (1, 20), (32, 1), (32, 20), (7, 13), (2, 2)):
        x = torch.randn(b, s, 16)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(loaded(x), model(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(SignatureError, match="S is 21, compiled was S from 1 to 20"):
        loaded(torch.randn(2, 21, 16))
    with pytest.raises(ValueError, match="made of others"):
        fusec.TensorSpec((2 * dim, 3))


def test_branches_between_the_samples_are_found() -> None:
    torch = pytest.importorskip("torch")

    class Odd(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * (2 if x.shape[0] == 45 else 1)

    model = Odd(4, 4)
    with pytest.raises(
        DimensionError, match=r"B can't be symbolic: .* unless Ne\(B, 45\), and with B = 45 it is not so"
    ):
        fusec.compile(model, fusec.TensorSpec(("B:1..64", 4)))
    x = torch.randn(44, 4)
    compiled = fusec.compile(model, fusec.TensorSpec(("B:1..44", 4)))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        jitted = fusec.jit(dynamic=True, fallback="error")(model)
        for rows in (44, 46, 45):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(jitted(x), model(x))


def test_ranges_of_host_arrays_are_refused_on_gpus() -> None:
    pytest.importorskip("triton")
    with pytest.raises(LoweringError, match="fixed extents only"):
        fusec.compile(lambda x: np.exp(x), fusec.TensorSpec(("B:2..64", 4)), target="cuda:sm_90")


def test_the_last_extent_may_be_a_piece_of_its_own() -> None:
    table = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)

    def add_positions(x: Any) -> Any:
        return np.tanh(x + table[: x.shape[1]])  # at 16 rows all of it

    torch = pytest.importorskip("torch")
    weight = torch.from_numpy(table)

    def add_positions_torch(x: Any) -> Any:
        return torch.tanh(x + weight[: x.shape[1]])

    ranges = {"B": (1, 9), "T": (1, 16)}
    exe = fusec.compile(add_positions_torch, fusec.TensorSpec(("B", "T", 8), "float32"), dims=ranges)
    by_numpy = fusec.compile(add_positions, fusec.TensorSpec(("B", "T", 8), "float32"), dims=ranges)
    for b, t in ((1, 1), (3, 15), (9, 16), (1, 16), (2, 2)):
        x = np.random.default_rng(b + t).standard_normal((b, t, 8)).astype(np.float32)
        np.testing.assert_allclose(exe(torch.from_numpy(x)).numpy(), add_positions(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(by_numpy(x), add_positions(x), rtol=1e-5, atol=1e-6)


def test_what_has_no_kernel_for_a_range_is_named() -> None:
    rows, index = fusec.TensorSpec(("B:1..50", 4)), fusec.TensorSpec((3,), "int64")
    with pytest.raises(LoweringError, match=r"test_api_dims.py:\d+: gather reaches into an axis of symbolic extent B"):
        fusec.compile(lambda x, i: np.take(x, i, axis=0), rows, index)
