"""Calls that run as written whatever was compiled before: under transforms, tracers and modes, and of odd tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import fusec  # noqa: E402
from fusec.errors import CaptureError  # noqa: E402

Function = Callable[..., Any]
x = torch.linspace(-2, 2, 24).reshape(4, 6)
t = torch.linspace(0, 1, 24).reshape(4, 6)


def waves(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x) * x).sum(-1) + torch.ones(()) * 3


def numbers() -> torch.Tensor:
    return torch.ones(3) * torch.arange(3)


def jitted(function: Function, warm: bool, *args: Any) -> Function:
    made: Function = fusec.jit(function)
    if warm:
        made(*args)
    return made


@pytest.fixture(params=[False, True], ids=["cold", "warm"])
def warm(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def dual(f: Function) -> tuple[Any, Any]:
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(f(forward_ad.make_dual(x, t)))
    return found.primal, found.tangent


TRANSFORMS: dict[str, Callable[[Function], Any]] = {
    "dual": dual,
    "jvp": lambda f: torch.func.jvp(f, (x,), (t,)),
    "jvp of jvp": lambda f: torch.func.jvp(lambda y: torch.func.jvp(f, (y,), (t,))[1], (x,), (t,)),
    "vjp": lambda f: torch.func.vjp(f, x)[1](torch.ones(4))[0],
    "grad": lambda f: torch.func.grad(lambda y: f(y).sum())(x),
    "vmap": lambda f: torch.vmap(f)(x),
    "vmap of vmap": lambda f: torch.vmap(torch.vmap(f))(x.expand(2, 4, 6)),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(f))(x),
    "jacrev": lambda f: torch.func.jacrev(f)(x),
    "jacfwd": lambda f: torch.func.jacfwd(f)(x),
    "hessian": lambda f: torch.func.hessian(f)(x[0]),
    "functionalize": lambda f: torch.func.functionalize(f)(x),
    "jacobian by duals": lambda f: torch.autograd.functional.jacobian(f, x, vectorize=True, strategy="forward-mode"),
    "linearize": lambda f: torch.func.linearize(f, x)[1](t),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, warm: bool) -> None:
    f = jitted(waves, warm, x)
    torch.testing.assert_close(TRANSFORMS[name](f), TRANSFORMS[name](waves), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(f(x), waves(x))


def test_a_dual_tensor_that_is_read_and_not_given(warm: bool) -> None:
    held = {"w": t}

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * held["w"]

    f = jitted(scaled, warm, x)
    with forward_ad.dual_level():
        held["w"] = forward_ad.make_dual(t, torch.ones_like(t))
        assert torch.equal(forward_ad.unpack_dual(f(x)).tangent, x)


class Fives(TorchFunctionMode):
    """Makes ones fives, and the sine a cosine."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ones:
            return torch.full(args[0] if isinstance(args[0], tuple) else args, 5.0)
        return torch.cos(*args) if func is torch.sin else func(*args, **(kwargs or {}))


class Cosines(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.cos(*args) if func is torch.ops.aten.sin.default else func(*args, **(kwargs or {}))


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


MODES: dict[str, Callable[[], Any]] = {
    "function mode": Fives,
    "dispatch mode": Cosines,
    "fake tensors": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "meta device": lambda: torch.device("meta"),
    "default device": lambda: default_device("meta"),
    "device in a device": lambda: torch.device("cpu"),
}


def same_kind(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert type(found) is type(expected)
    assert (found.device, found.dtype, found.shape) == (expected.device, expected.dtype, expected.shape)
    if not expected.is_meta and not isinstance(expected, FakeTensor):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", MODES)
def test_modes(name: str, warm: bool) -> None:
    f, g = jitted(waves, warm, x), jitted(numbers, warm)
    with MODES[name]():
        expected = numbers()
        same_kind(g(), expected)
        if not expected.is_meta:
            same_kind(f(x), waves(x))
    same_kind(f(x), waves(x))
    same_kind(g(), numbers())


def test_under_a_default_device_programs_are_compiled() -> None:
    f = fusec.jit(waves)
    f(x)
    with torch.device("cpu"), default_device("cpu"):
        torch.testing.assert_close(f(x), waves(x))
        half = fusec.jit(lambda y: (y @ y.mT).relu())
        square = torch.ones(512, 512, dtype=torch.bfloat16)
        assert torch.equal(half(square), (square @ square.mT).relu())
    assert not f.dispatcher.eager_calls
    assert not half.dispatcher.eager_calls
    assert len(f.dispatcher.plans) == 2


def test_flops_are_counted(warm: bool) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ x.mT)

    f = jitted(product, warm, x)
    with FlopCounterMode(display=False) as counter:
        f(x)
    assert counter.get_total_flops() == 2 * 4 * 4 * 6


def test_another_threads_mode_is_not_this_ones(warm: bool) -> None:
    import threading

    f = jitted(waves, warm, x)
    entered, ended = threading.Event(), threading.Event()

    def other() -> None:
        with FakeTensorMode():
            entered.set()
            ended.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    try:
        same_kind(f(x), waves(x))
    finally:
        ended.set()
        thread.join()
    assert not f.dispatcher.eager_calls


def test_what_is_compiled_comes_back_after_a_mode() -> None:
    f = fusec.jit(waves)
    f(x)
    entry = f.dispatcher.entry
    with Fives():
        f(x)
    torch.vmap(f)(x)
    f(x)
    assert f.dispatcher.entry is entry
    assert sum(f.dispatcher.eager_calls.values()) == 2


def test_without_a_fallback_a_mode_is_an_error_and_an_outer_capture_is_none() -> None:
    f = fusec.jit(fallback="error")(waves)
    f(x)
    with pytest.raises(CaptureError, match="TorchFunctionMode"), Fives():
        f(x)
    with pytest.raises(CaptureError, match=r"torch\.func"):
        torch.vmap(f)(x)
    assert len(make_fx(f)(x).graph.nodes) == len(make_fx(waves)(x).graph.nodes)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(f(x), FakeTensor)
    traced = torch.jit.trace(f, (x,))
    torch.testing.assert_close(traced(x + 1), waves(x + 1))


# Outer captures


def test_jit_trace(warm: bool) -> None:
    f = jitted(waves, warm, x)
    traced = torch.jit.trace(f, (x,))
    assert "aten::sin" in str(traced.graph)
    torch.testing.assert_close(traced(t), waves(t))


def test_jit_trace_of_a_module_that_calls_one(warm: bool) -> None:
    f = jitted(waves, warm, x)

    class Caller(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 6)
            self.numbers = jitted(numbers, warm)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return f(self.linear(x)) + self.numbers().sum()

    module = Caller()
    traced = torch.jit.trace(module, (x,))
    torch.testing.assert_close(traced(t), module(t))


def test_fx_symbolic_trace(warm: bool) -> None:
    f = jitted(waves, warm, x)
    graph = torch.fx.symbolic_trace(lambda x: f(x) + 1)
    assert sum(node.target is torch.sin for node in graph.graph.nodes) == 1
    torch.testing.assert_close(graph(t), waves(t) + 1)


@pytest.mark.parametrize("kind", ["real", "fake", "symbolic"])
def test_make_fx(kind: str, warm: bool) -> None:
    f = jitted(waves, warm, x)
    graph = make_fx(f, tracing_mode=kind)(x)
    assert len(graph.graph.nodes) == len(make_fx(waves, tracing_mode=kind)(x).graph.nodes)
    torch.testing.assert_close(graph(t), waves(t))


# Tensors that are more than their memory says


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


class Named(torch.Tensor):
    pass


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


ODD: dict[str, Callable[[], torch.Tensor]] = {
    "nested": nested,
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "sparse": lambda: x.to_sparse(),
    "csr": lambda: x.to_sparse_csr(),
    "quantized": quantized,
    "mkldnn": lambda: x.to_mkldnn(),
    "meta": lambda: x.to("meta"),
    "functional": lambda: torch._to_functional_tensor(x),
    "zeros without memory": lambda: torch._efficientzerotensor((4, 6)),
    "fake": lambda: FakeTensorMode().from_tensor(x),
    "conjugated": lambda: torch.complex(x, t).conj(),
    "negated": lambda: torch.complex(x, t).conj().imag,
    "subclass": lambda: x.as_subclass(Named),
    "of two": lambda: TwoTensor(x, t),
    "number": lambda: 2.5,
}


def flipped(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) if not isinstance(x, float) and not x.is_complex() else x * 2  # type: ignore[redundant-expr]


@pytest.mark.sweep(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("dynamic", [False, True])
def test_odd_tensors(name: str, dynamic: bool, warm: bool) -> None:
    f = fusec.jit(dynamic=dynamic)(flipped)
    if warm:
        for rows in (4, 5, 7):
            f(torch.ones(rows, 6))
    odd = ODD[name]()
    found, expected = f(odd), flipped(odd)
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (found.layout, found.device, found.dtype) == (expected.layout, expected.device, expected.dtype)
        assert found.is_nested == expected.is_nested
        assert torch._is_functional_tensor(found) == torch._is_functional_tensor(expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in ODD if name not in ("number", "fake", "meta", "quantized")])
def test_odd_tensors_that_are_read_and_not_given(name: str, warm: bool) -> None:
    held = {"w": x}

    def read(y: torch.Tensor) -> Any:
        return torch.relu(held["w"]) if not held["w"].is_complex() else held["w"] * 2

    f = fusec.jit(read)
    if warm:
        f(x)
    held["w"] = ODD[name]()
    found, expected = f(x), read(x)
    assert type(found) is type(expected)
    assert (found.layout, found.is_nested, found.dtype) == (expected.layout, expected.is_nested, expected.dtype)


@pytest.mark.parametrize("kind", ["two", "nested"])
def test_parameters_that_are_odd(kind: str, warm: bool) -> None:
    layer = torch.nn.ReLU()
    layer.w = torch.nn.Parameter(torch.ones(4, 6), requires_grad=False)
    layer.forward = lambda y: torch.relu(layer.w)
    f = fusec.jit(layer)
    if warm:
        f(x)
    layer.w = torch.nn.Parameter(TwoTensor(x, t) if kind == "two" else nested(), requires_grad=False)
    found, expected = f(x), layer(x)
    assert type(found) is type(expected)
    assert found.is_nested == expected.is_nested
