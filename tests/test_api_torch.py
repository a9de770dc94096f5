"""``fusec.jit`` on torch functions and modules, against eager."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from jitted import plans, same, strict  # noqa: E402
from threads import at_once  # noqa: E402

import fusec  # noqa: E402
from fusec.errors import CaptureError, DataDependentError, OptionError  # noqa: E402

SCALE = 2.0


def two_ops(x: Any, y: Any) -> Any:
    """Doc."""
    return torch.relu(x * 2 + y)


def test_it_is_the_function() -> None:
    jitted = strict(two_ops)
    assert jitted.__name__ == "two_ops"
    assert jitted.__doc__ == "Doc."
    assert list(inspect.signature(jitted).parameters) == ["x", "y"]
    x, y = torch.randn(8), torch.randn(8)
    for _ in range(3):
        same(jitted(x, y), two_ops(x, y))
        same(jitted(x, y=y), two_ops(x, y))
        same(jitted(y=y, x=x), two_ops(x, y))


def test_one_plan_for_one_signature() -> None:
    jitted = strict(two_ops)
    for shape in ((8,), (3, 5), (0,), (), (1, 1)):
        for _ in range(2):
            x, y = torch.randn(shape), torch.randn(shape)
            same(jitted(x, y), two_ops(x, y))
    assert len(plans(jitted)) == 5


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset", "expanded", "channels_last"])
def test_layouts(layout: str) -> None:
    base = torch.randn(4, 6, 8, 10)
    x = {
        "transposed": base.transpose(1, 3),
        "strided": base[:, ::2, 1::3],
        "offset": base.view(-1)[3:43].view(5, 8),
        "expanded": base[:, :1].expand(4, 6, 8, 10),
        "channels_last": base.contiguous(memory_format=torch.channels_last),
    }[layout]
    function = lambda x: (x * 2).tanh()  # noqa: E731
    jitted = strict(function)
    for _ in range(2):
        same(jitted(x), function(x))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"])
def test_dtypes(dtype: str) -> None:
    x = (torch.randn(5, 7) * 3).to(getattr(torch, dtype))

    def function(x: Any) -> Any:
        return x + x, x == x.flip(0), x.to(torch.float32) * 2

    for found, wanted in zip(strict(function)(x), function(x), strict=True):
        same(found, wanted)


def test_large_results_are_right_and_the_callers() -> None:
    function = lambda x: x * 2 + 1  # noqa: E731
    jitted = strict(function)
    x = torch.randn(700, 1000)
    held = [jitted(x + k) for k in range(4)]
    for k, out in enumerate(held):
        same(out, function(x + k))


def test_static_arguments_are_part_of_the_signature() -> None:
    def function(x: Any, n: Any, flag: bool = True, mode: str = "a") -> Any:
        x = x * n if flag else x - n
        return x + 1 if mode == "a" else x

    jitted = strict(function)
    x = torch.randn(6)
    calls: list[tuple[Any, ...]] = [(2,), (2.0,), (3,), (0.0,), (-0.0,), (True,), (2, False), (2, True, "b"), (2, 1)]
    for _ in range(2):
        for call in calls:
            found, wanted = jitted(x, *call), function(x, *call)
            same(found, wanted)
            assert torch.equal(torch.signbit(found), torch.signbit(wanted))
    assert len(plans(jitted)) == len(calls)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    x: Any
    factor: float


def test_structures_go_in_and_come_out() -> None:
    def function(items: Any, table: Any, pair: Any, record: Any) -> Any:
        return {"sum": items[0] + items[1][0], "pair": Pair(pair.right * 2, table["k"] - 1)}, [
            record.x * record.factor,
            3,
        ]

    jitted = strict(function)
    a, b, c, d, e = (torch.randn(4) for _ in range(5))
    for factor in (2.0, 3.0, 2.0):
        arguments = ([a, (b,)], {"k": c}, Pair(d, e), Record(a, factor))
        found, wanted = jitted(*arguments), function(*arguments)
        assert isinstance(found[0]["pair"], Pair)
        assert found[1][1] == 3
        torch.testing.assert_close(found, wanted)
    assert len(plans(jitted)) == 2
    with pytest.raises(KeyError):
        fusec.jit(function)([a, (b,)], {"other": c}, Pair(d, e), Record(a, 1.0))


def test_globals_and_closures_are_seen() -> None:
    global SCALE
    offset = 1.0

    def function(x: Any) -> Any:
        return x * SCALE + offset

    jitted = strict(function)
    x = torch.randn(5)
    try:
        for scale, shift in ((2.0, 1.0), (3.0, 1.0), (3.0, 5.0), (2.0, 1.0)):
            SCALE, offset = scale, shift
            same(jitted(x), function(x))
    finally:
        SCALE = 2.0


def test_closed_over_tensors_are_read_at_each_call() -> None:
    w = torch.randn(5)
    function = lambda x: x * w  # noqa: E731
    jitted = strict(function)
    x = torch.randn(5)
    same(jitted(x), function(x))
    w.mul_(3)
    same(jitted(x), function(x))
    w = torch.randn(5)
    same(jitted(x), function(x))
    w = torch.randn(1)
    same(jitted(x), function(x))


def test_modes() -> None:
    x = torch.randn(4)
    jitted = strict(lambda x: x * 2)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.inference_mode):
        with mode():
            for y in (x, x.clone()):
                same(jitted(y), y * 2)


def test_a_gradient_has_a_plan_of_its_own() -> None:
    jitted = strict(two_ops)
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    out = jitted(x, y)
    assert out.requires_grad
    out.sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        same(jitted(x, y), two_ops(x, y))
    assert [plan.gradient is not None for plan in plans(jitted)] == [True, False]


def test_mutation_and_aliasing() -> None:
    def function(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x, y[1:], y

    jitted = strict(function)
    for _ in range(2):
        x, y = torch.randn(4), torch.randn(4)
        expected = x * 2
        version = x._version
        first, second, third = jitted(x, y)
        assert first is x
        assert third is y
        assert x._version > version
        same(x, expected)
        assert second.data_ptr() == y[1:].data_ptr()


def test_aliased_arguments_of_a_function_that_writes() -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        return x + y

    jitted = fusec.jit(function)
    for view in (lambda t: t, lambda t: t[:], lambda t: t.flip(0).flip(0)):
        x, x2 = torch.arange(4.0), torch.arange(4.0)
        same(jitted(x, view(x)), function(x2, view(x2)))
        same(x, x2)
    # One array given twice is compiled as one; views of it run as written; a copy is compiled.
    assert jitted.dispatcher.eager_calls["a changed input shares memory with another input"] == 1


def test_what_can_not_be_captured_runs_as_written() -> None:
    def function(x: Any) -> Any:
        if float(x.sum()) > 0:
            return x * 2
        return x - 1

    jitted = fusec.jit(function)
    for sign in (1, -1, 1):
        x = sign * torch.ones(4)
        same(jitted(x), function(x))
    assert sum(jitted.dispatcher.eager_calls.values()) == 3
    text = fusec.explain(jitted, torch.ones(4))
    assert "runs as written" in text
    assert "test_api_torch.py" in text
    with pytest.raises(DataDependentError, match=r"test_api_torch\.py"):
        strict(function)(torch.ones(4))


@pytest.mark.parametrize("fallback", ["eager", "error"])
def test_the_users_mistakes_are_errors_of_their_class(fallback: Any) -> None:
    jitted = fusec.jit(fallback=fallback)(two_ops)
    wanted = None
    try:
        two_ops(torch.randn(3), torch.randn(4))
    except RuntimeError as error:
        wanted = error
    with pytest.raises(type(wanted)):
        jitted(torch.randn(3), torch.randn(4))
    with pytest.raises(TypeError):
        jitted(torch.randn(3))
    with pytest.raises(TypeError):
        jitted(torch.randn(3), torch.randn(3), torch.randn(3))
    same(jitted(torch.ones(3), torch.ones(3)), two_ops(torch.ones(3), torch.ones(3)))


def test_unusual_tensors_run_as_written() -> None:
    jitted = fusec.jit(lambda x: x * 2)
    conjugate = torch.randn(4, dtype=torch.complex64).conj()
    same(jitted(conjugate), conjugate * 2)
    negated = conjugate.imag
    assert negated.is_neg()
    same(jitted(negated), negated * 2)
    plain = torch.randn(4)
    same(jitted(plain), plain * 2)
    same(jitted(negated), negated * 2)
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(jitted(sparse).to_dense(), torch.eye(3) * 2)


def test_transforms_go_through() -> None:
    jitted = fusec.jit(lambda x: torch.sin(x) * 2)
    x = torch.randn(3, 4)
    same(jitted(x[0]), torch.sin(x[0]) * 2)
    torch.testing.assert_close(torch.func.vmap(jitted)(x), torch.sin(x) * 2)
    torch.testing.assert_close(torch.func.grad(lambda v: jitted(v).sum())(x[0]), torch.cos(x[0]) * 2)


def test_a_jitted_function_inside_another() -> None:
    inner = fusec.jit(lambda x: torch.relu(x) + 1)
    outer = strict(lambda x: inner(x * 2) - 3)
    x = torch.randn(6)
    same(inner(x), torch.relu(x) + 1)
    same(outer(x), torch.relu(x * 2) + 1 - 3)
    assert len(plans(outer)[0].executable.program.kernels) == 1


def test_no_arrays_and_mixed_libraries() -> None:
    import numpy as np

    jitted = fusec.jit(lambda x, y: x)
    assert jitted(1, 2) == 1
    x = torch.ones(2)
    assert jitted(x, np.ones(2)) is x
    assert sum(jitted.dispatcher.eager_calls.values()) == 2
    with pytest.raises(CaptureError, match="mixed"):
        strict(lambda x, y: x)(x, np.ones(2))


def test_too_many_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.dispatch.RECOMPILE_LIMIT", 3)
    jitted = fusec.jit(lambda x, n: x + n)
    x = torch.zeros(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(6):
            same(jitted(x, n / 2), x + n / 2)
    assert [w.category for w in caught] == [fusec.RunsAsWritten]
    assert "compiled 3 times" in str(caught[0].message)
    assert len(plans(jitted)) == 3


def test_eight_threads_compile_once_and_agree() -> None:
    built: list[int] = []
    jitted = strict(lambda x: torch.softmax(x * 3, -1) @ x)
    compile_capture = jitted.dispatcher.compile

    def counted(capture: Any) -> Any:
        built.append(1)
        return compile_capture(capture)

    jitted.dispatcher.compile = counted

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(10):
            x = torch.randn(32, 32, generator=generator)
            assert torch.allclose(jitted(x), torch.softmax(x * 3, -1) @ x, atol=1e-4)

    at_once(work, range(8))
    assert sum(built) == 1


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="fallback"):
        fusec.jit(fallback="maybe")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="tune"):
        fusec.jit(tune="hard")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="'ieee', 'tf32', 'bf16' or 'f16'"):
        fusec.jit(precision="fast")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="static= names y; <lambda> takes x"):
        fusec.jit(static="y")(lambda x: x)
    with pytest.raises(TypeError, match="not int"):
        fusec.jit(3)  # type: ignore[call-overload]


def test_explain_says_what_was_done() -> None:
    def function(x: Any, w: Any) -> Any:
        h = torch.relu(x @ w)
        return torch.sort(h)[0]

    text = fusec.explain(function, torch.randn(32, 16), torch.randn(16, 8), measure=True)
    assert "dot %" in text
    assert "test_api_torch.py:" in text
    assert "aten.sort" in text
    assert "of the limit" in text
    assert text == fusec.explain(function, torch.randn(32, 16), torch.randn(16, 8), measure=False) or "measured" in text
    assert fusec.explain(function, torch.randn(4, 4), torch.randn(4, 4)) == fusec.explain(
        function, torch.randn(4, 4), torch.randn(4, 4)
    )


def test_trace_lower_and_kernels() -> None:
    graph = fusec.trace(two_ops, torch.randn(8), torch.randn(8))
    assert str(fusec.parse(str(graph))) == str(graph)
    low = fusec.lower(graph)
    assert next(iter(low.stages)) == "capture"
    (kernel,) = low.kernels
    assert kernel.name in kernel.ir
    assert kernel.schedule
    assert "prim_func" in kernel.source
    other = fusec.lower(graph, target="cpu:x86-64-v3")
    assert other.program.target == "cpu:x86-64-v3"
    assert "float32x8" in other.kernels[0].source


def test_a_graph_for_a_cpu_is_not_lowered_for_a_gpu_where_its_calls_would_differ() -> None:
    def resized(x: Any) -> Any:
        return torch.nn.functional.interpolate(x * 2, scale_factor=2, mode="bilinear")

    x = torch.randn(1, 2, 4, 4)
    graph = fusec.trace(resized, x)
    fusec.lower(graph, "cpu:x86-64-v3")
    told = r"test_api_torch.py:\d+: aten.upsample_bilinear2d.vec is the library's .*trace\(..., target='cuda:sm_90'"
    with pytest.raises(OptionError, match=told):
        fusec.lower(graph, "cuda:sm_90")
    assert fusec.lower(fusec.trace(resized, x, target="cuda:sm_90"), "cuda:sm_90").kernels
    assert fusec.lower(fusec.trace(torch.sort, x), "cuda:sm_90").program.target == "cuda:sm_90"


# Weights among the arguments


def test_static_arguments_are_packed_once_and_again_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.runtime.packing import Packer

    packed: list[int] = []
    pack = Packer.pack

    def counting(self: Packer, sources: Any) -> Any:
        packed.append(len(sources))
        return pack(self, sources)

    monkeypatch.setattr(Packer, "pack", counting)

    def dense(x: Any, weights: Any) -> Any:
        for w in weights:
            x = torch.relu(torch.nn.functional.linear(x, w))
        return x

    fast = fusec.jit(static="weights")(dense)
    x, weights = torch.randn(4, 32), [torch.randn(32, 32) / 6, torch.randn(32, 32) / 6]
    for _ in range(3):
        same(fast(x, weights), dense(x, weights))
    assert len(packed) == 2
    weights[1].mul_(2)
    same(fast(x, weights=weights), dense(x, weights))
    same(fast(x, weights), dense(x, weights))
    weights = [torch.randn(32, 32) / 6, weights[1]]
    same(fast(x, weights), dense(x, weights))
    assert "pack" in fusec.explain(fast, x, weights)
    assert len(packed) == 4
    fusec.jit(dense)(x, weights)
    assert len(packed) == 4


def test_static_arguments_of_modules_methods_and_rests() -> None:
    class Layer(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def forward(self, x: Any, w: Any) -> Any:
            return x @ w

        @fusec.jit(static=["w"])
        def method(self, x: Any, w: Any) -> Any:
            return x @ w

    def rest(x: Any, *ws: Any) -> Any:
        return x @ ws[0] @ ws[1]

    x, w = torch.randn(3, 8), torch.randn(8, 8)
    layer = Layer()
    for jitted in (fusec.jit(static="w")(layer), layer.method):
        same(jitted(x, w), x @ w)
        assert [port.role for port in plans(jitted)[0].capture.graph.input_ports] == ["argument", "static"]
    jitted = fusec.jit(static="ws")(rest)
    same(jitted(x, w, w + 1), rest(x, w, w + 1))
    assert [p.role for p in plans(jitted)[0].capture.graph.input_ports] == ["argument", "static", "static"]
