"""Tensors made of others: quantised weights, which their classes compute with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import fusec
from fusec.runtime.program import Call

F = torch.nn.functional


class Scaled(torch.Tensor):
    """Small integers and a scale for each row; ``power`` says what is done to the integers first."""

    @staticmethod
    def __new__(cls, digits: torch.Tensor, scale: torch.Tensor, power: int = 1) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, digits.shape, dtype=scale.dtype)  # type: ignore[attr-defined]

    def __init__(self, digits: torch.Tensor, scale: torch.Tensor, power: int = 1) -> None:
        self.digits, self.scale, self.power = digits, scale, power

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return ["digits", "scale"], self.power

    @staticmethod
    def __tensor_unflatten__(parts: Any, power: int, size: Any, stride: Any) -> Scaled:
        return Scaled(parts["digits"], parts["scale"], power)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].digits, args[0].scale, args[0].power)
        return func(*tree_map(_opened, args), **tree_map(_opened, kwargs or {}))


def _opened(value: Any) -> Any:
    return value.digits.to(value.scale.dtype) ** value.power * value.scale if isinstance(value, Scaled) else value


def scaled(rows: int = 8, columns: int = 16, power: int = 1, seed: int = 0) -> Scaled:
    draws = torch.Generator().manual_seed(seed)
    digits = torch.randint(-8, 8, (rows, columns), dtype=torch.int8, generator=draws)
    return Scaled(digits, torch.rand(rows, 1, generator=draws) / 8, power)


class Layer(torch.nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.out = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(F.linear(x, self.weight).relu())


def _agree(fast: Any, slow: Any, x: torch.Tensor) -> None:
    torch.testing.assert_close(fast(x), slow(x), rtol=1e-5, atol=1e-5)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 16, generator=torch.Generator().manual_seed(1))


def test_its_class_says_what_a_call_is(x: torch.Tensor) -> None:
    weight = scaled()

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight).relu() + (weight * 2).sum(1)

    with torch.no_grad():
        _agree(fusec.jit(function, fallback="error"), function, x)
        graph = fusec.trace(function, x)
    assert [str(v.type) for v in graph.inputs] == ["f32[5, 16]", "i8[8, 16]", "f32[8, 1]"]
    assert [port.path for port in graph.input_ports] == ["x", "weight.digits", "weight.scale"]


def test_a_module_with_one(x: torch.Tensor, tmp_path: Path) -> None:
    layer = Layer(scaled())
    with torch.no_grad():
        _agree(fusec.jit(layer, fallback="error"), layer, x)
        _agree(fusec.jit(layer, fallback="error", freeze=True), layer, x)
        compiled = fusec.compile(layer, x)
        compiled.save(tmp_path / "m.fusec")
        _agree(fusec.load(tmp_path / "m.fusec"), layer, x)


def test_what_changes_is_seen(x: torch.Tensor) -> None:
    layer = Layer(scaled())
    fast = fusec.jit(layer, freeze=True)
    with torch.no_grad():
        _agree(fast, layer, x)
        layer.weight.digits.neg_()
        _agree(fast, layer, x)
        layer.weight.scale = layer.weight.scale * 3
        _agree(fast, layer, x)
        layer.weight = torch.nn.Parameter(scaled(seed=1), requires_grad=False)
        _agree(fast, layer, x)
        layer.weight = torch.nn.Parameter(torch.randn(8, 16), requires_grad=False)
        _agree(fast, layer, x)


def test_what_else_it_holds_is_part_of_what_is_compiled(x: torch.Tensor) -> None:
    """A weight with the same parts may be computed with in another way."""
    layer = Layer(scaled())
    fast = fusec.jit(layer, fallback="error")
    with torch.no_grad():
        _agree(fast, layer, x)
        layer.weight = torch.nn.Parameter(scaled(power=2), requires_grad=False)
        _agree(fast, layer, x)


def test_gradients_of_what_is_around_it(x: torch.Tensor) -> None:
    layer = Layer(scaled())
    found = []
    for call in (fusec.jit(layer, warn=False), layer):
        layer.zero_grad()
        call(x).square().sum().backward()
        found.append([p.grad.clone() for p in layer.out.parameters() if p.grad is not None])
    assert len(found[0]) == 2
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_an_argument_of_such_a_class_runs_as_written(x: torch.Tensor) -> None:
    fast = fusec.jit(F.linear, warn=False)
    weight = scaled()
    with torch.no_grad():
        torch.testing.assert_close(fast(x, weight), F.linear(x, weight))
    assert "Scaled may redefine" in fusec.explain(fast, x, weight)


@pytest.fixture(scope="module")
def torchao() -> Any:
    return pytest.importorskip("torchao.quantization")


def _quantised(torchao: Any, config: Any) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)).eval()
    torchao.quantize_(model, config)
    return model


def _configurations(torchao: Any) -> dict[str, Any]:
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType

    dynamic = torchao.Int8DynamicActivationInt8WeightConfig
    return {
        "int8 weights": torchao.Int8WeightOnlyConfig(),
        "int8 weights in groups": torchao.Int8WeightOnlyConfig(granularity=PerGroup(32)),
        "int8 rows": dynamic(),
        "int8 rows with zero points": dynamic(act_mapping_type=MappingType.ASYMMETRIC),
        "float8 weights": torchao.Float8WeightOnlyConfig(),
        "int4 weights": torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    }


@pytest.mark.parametrize(
    "name",
    [
        "int8 weights",
        "int8 weights in groups",
        "int8 rows",
        "int8 rows with zero points",
        "float8 weights",
        "int4 weights",
    ],
)
def test_models_of_torchao(torchao: Any, name: str) -> None:
    """Each layer is one kernel, beside those that look for the scales of rows."""
    model = _quantised(torchao, _configurations(torchao)[name])
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _agree(fusec.jit(model, fallback="error"), model, x)
        program = fusec.lower(fusec.trace(model, x)).program
    assert [r.kind for r in program.reports].count("gemm") == 2
    assert not any(isinstance(step, Call) for step in program.steps)


def test_torchaos_int8_rows_are_two_kernels_a_layer(torchao: Any) -> None:
    """torchao adds 128 to bytes for one kind of CPU, and takes it away from the product."""
    model = _quantised(torchao, _configurations(torchao)["int8 rows"])
    with torch.no_grad():
        program = fusec.lower(fusec.trace(model, torch.randn(6, 64))).program
    assert [report.kind for report in program.reports] == ["row", "gemm", "row", "gemm"]


def test_torch_compile_of_torchaos_models(torchao: Any) -> None:
    model = _quantised(torchao, _configurations(torchao)["int8 rows"])
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _agree(torch.compile(model, backend="fusec"), model, x)
