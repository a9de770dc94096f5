"""precision= of jit, compile and torch.compile, and autocast, which rounds as the user's own code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.errors import OptionError

torch = pytest.importorskip("torch")


def _halves(x: Any, dtype: Any) -> Any:
    return x.to(dtype).to(torch.float64)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)).eval()


@pytest.fixture(scope="module")
def x() -> Any:
    return torch.randn(24, 48, generator=torch.Generator().manual_seed(1))


def _error(found: Any, exact: Any) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def _exact(model: Any, x: Any) -> Any:
    wide = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)).double()
    wide.load_state_dict(model.state_dict())
    return wide(x.double())


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_a_product_is_of_rounded_operands_with_sums_in_f32(precision: Any, dtype: Any) -> None:
    a, b = torch.randn(33, 200), torch.randn(200, 40)
    found = fusec.jit(torch.matmul, precision=precision, fallback="error")(a, b)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), _halves(a, dtype) @ _halves(b, dtype), rtol=1e-5, atol=1e-4)
    assert _error(found, a.double() @ b.double()) > 1e-5


def test_f16_overflows_where_its_operands_do() -> None:
    a = torch.full((4, 4), 1e5)
    assert fusec.jit(torch.matmul, precision="f16")(a, a).isinf().all()
    assert fusec.jit(torch.matmul, precision="bf16")(a, a).isfinite().all()


def test_the_precision_is_part_of_what_is_compiled(model: Any, x: Any) -> None:
    with torch.no_grad():
        exact = _exact(model, x)
        errors = [_error(fusec.jit(model, precision=p)(x), exact) for p in ("ieee", "bf16", "f16", "tf32")]
    ieee, bf16, f16, tf32 = errors
    assert max(ieee, tf32) < 1e-6  # TF32 is a GPU's
    assert 1e-4 < bf16 < 2e-2
    assert 1e-5 < f16 < 2e-3


def test_gradients(model: Any, x: Any) -> None:
    exact = []
    for jitted in (model, fusec.jit(model, precision="bf16"), fusec.jit(model)):
        model.zero_grad()
        jitted(x).square().sum().backward()
        exact.append([p.grad.clone() for p in model.parameters()])
    for as_written, rounded, whole in zip(*exact, strict=True):
        assert 1e-5 < _error(rounded, as_written.double()) < 3e-2
        assert _error(whole, as_written.double()) < 1e-5


def test_torch_compile(model: Any, x: Any) -> None:
    compiled = torch.compile(model, backend="fusec", options={"precision": "bf16"})
    with torch.no_grad():
        assert torch.equal(compiled(x), fusec.jit(model, precision="bf16")(x))


def test_ahead_of_time(model: Any, x: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        compiled = fusec.compile(model, x, precision="bf16")
        compiled.save(tmp_path / "m.fusec")
        loaded = fusec.load(tmp_path / "m.fusec")
        assert torch.equal(loaded(x), compiled(x))
        assert 1e-4 < _error(compiled(x), _exact(model, x)) < 2e-2
    assert "round their operands to bf16" in loaded.explain()
    assert "round their operands" not in fusec.compile(model, x).explain()


def test_numpy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((9, 70), np.float32), rng.standard_normal((70, 8), np.float32)

    @fusec.jit(precision="f16")
    def product(a: Any, b: Any) -> Any:
        return a @ b

    wanted = a.astype(np.float16).astype(np.float64) @ b.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(product(a, b), wanted, rtol=1e-4, atol=1e-4)


def test_a_convolution() -> None:
    image, weight = torch.randn(2, 6, 9, 9), torch.randn(8, 6, 3, 3)

    def function(image: Any, weight: Any) -> Any:
        return torch.nn.functional.conv2d(image, weight, padding=1).relu()

    found = fusec.jit(function, precision="bf16", fallback="error")(image, weight)
    wanted = function(_halves(image, torch.bfloat16), _halves(weight, torch.bfloat16))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_lowering_says_what_it_did(model: Any, x: Any) -> None:
    with torch.no_grad():
        graph = fusec.trace(model, x)
    lowered = fusec.lower(graph, "cuda:sm_90", precision="bf16")
    assert "bf16" not in fusec.lower(graph, "cuda:sm_90").stages["products"]
    assert "round their operands to bf16" in lowered.explain()
    with pytest.raises(OptionError, match="'ieee', 'tf32', 'bf16' or 'f16'"):
        fusec.lower(graph, precision="int8")  # type: ignore[arg-type]


# autocast


def _same(function: Any, *args: Any) -> None:
    """The same dtype, and no further from float64 than twice eager's distance."""
    jitted = fusec.jit(function, fallback="error")
    with torch.no_grad():
        found, wanted = jitted(*args), function(*args)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def _casts(function: Any, *args: Any) -> int:
    with torch.no_grad():
        graph = fusec.trace(function, *args)
    return sum(op.name == "cast" and op.result.type.dtype.name in ("bf16", "f16") for op in graph.ops)


def test_a_region_under_autocast(model: Any, x: Any) -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    _same(function, x)
    assert _casts(function, x) >= 3


def test_autocast_is_off_in_a_region_inside(model: Any, x: Any) -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x.T
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ y.float()
            return z @ y.float()

    _same(function, x / 8)
    assert fusec.jit(function)(x).dtype == torch.bfloat16


def test_autocast_of_another_type_inside(x: Any) -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x.T
            with torch.autocast("cpu", torch.float16):
                z = x @ x.T
            return y, z, x @ x.T

    with torch.no_grad():
        found = fusec.jit(function, fallback="error")(x)
    assert [v.dtype for v in found] == [torch.bfloat16, torch.float16, torch.bfloat16]
    for ours, eager in zip(found, function(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-2, atol=0.1)


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_without_its_cache(model: Any, x: Any, enabled: bool) -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=enabled):
            return model(x) + model(x * 2)

    _same(function, x)


def test_a_cast_that_autocast_might_have_made_is_a_result() -> None:
    """Autocast casts weights under gradients, for its cache; what the function casts so requires one where it is
    returned."""
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=True):
            y = x @ weight
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                return y, weight.to(torch.bfloat16)

    with torch.no_grad():
        _, cast = fusec.jit(function, warn=False)(torch.randn(3, 4))
    assert cast.requires_grad


def test_autocast_around_the_call(model: Any, x: Any) -> None:
    jitted = fusec.jit(model, fallback="error")
    with torch.no_grad():
        outside = jitted(x)
        with torch.autocast("cpu", torch.bfloat16):
            inside = jitted(x)
            again = model(x)
        after = jitted(x)
    assert (outside.dtype, inside.dtype, after.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    torch.testing.assert_close(inside, again, rtol=2e-2, atol=2e-2)
    assert torch.equal(outside, after)


def test_gradients_under_autocast(model: Any, x: Any) -> None:
    @fusec.jit
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    found = []
    for call in (function, function.__wrapped__):
        model.zero_grad()
        call(x).float().square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for ours, eager in zip(*found, strict=True):
        assert ours.dtype == eager.dtype == torch.float32
        assert _error(ours, eager.double()) < 3e-2


def test_precision_leaves_what_autocast_did(model: Any, x: Any) -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    with torch.no_grad():
        assert torch.equal(fusec.jit(function, precision="bf16")(x), fusec.jit(function)(x))
