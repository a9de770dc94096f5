"""``explain`` raises nothing, and leads with how calls run now."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusec


def softmax(x: Any) -> Any:
    return torch.softmax(x @ x, -1)


def branching(x: Any) -> Any:
    return x * 2 if float(x.sum()) > 0 else x


def head(function: Any, *args: Any, **kwargs: Any) -> str:
    return fusec.explain(function, *args, **kwargs).partition("\n")[0]


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
class TestHowCallsRunNow:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
    def test_a_spec_on_a_gpu_that_is_not_here(self) -> None:
        spec = fusec.TensorSpec((4, 4), device="cuda")
        for f in (softmax, fusec.jit(softmax)):
            assert "softmax can't be compiled here: f32[4, 4]@cuda:0 is on a GPU, which is not here" in head(f, spec)

    def test_compiled(self) -> None:
        f, x = fusec.jit(softmax), torch.ones(4, 4)
        assert head(f, x) == "softmax is not called yet; it would be compiled so"
        assert not f.dispatcher.plans
        f(x)
        assert head(f, x) == "softmax is compiled for such calls"
        wider = head(f, torch.ones(5, 5))
        assert wider == "softmax is not called like this yet (compiled for 1 signature); it would be compiled so"
        assert head(f) == "softmax: compiled for 1 signature"
        assert "softmax on cpu: 6 ops in 2 kernels" in fusec.explain(f)

    def test_the_plan_is_told_and_nothing_is_compiled_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        f, x = fusec.jit(softmax), torch.ones(4, 4)
        f(x)
        monkeypatch.setattr("fusec.build.build", None)
        monkeypatch.setattr("fusec.frontend.torch.capture", None)
        text = fusec.explain(f, x, measure=True)
        assert "softmax on cpu: 6 ops in 2 kernels" in text
        assert "measured" in text

    def test_as_written(self) -> None:
        f, x = fusec.jit(branching), torch.ones(4)
        assert "is not called yet; it would run as written: " in head(f, x)
        f(x)
        f(x)
        text = fusec.explain(f, x)
        assert text.startswith("branching runs as written for such calls: ")
        assert f"test_explaining.py:{branching.__code__.co_firstlineno + 1}: the value of a tensor is needed" in text
        assert "calls that ran as written\n    2 × " in text
        assert head(f) == "branching: not compiled, 2 calls ran as written"
        assert "refused (fallback='error')" in head(fusec.jit(branching, fallback="error"), x)

    def test_a_gradient(self) -> None:
        f, x = fusec.jit(torch.nn.Linear(4, 4)), torch.ones(4, 4)
        assert head(f, x) == "Linear is not called yet; it would be compiled so, forward and backward"
        f(x)
        text = fusec.explain(f, x, measure=True)
        assert text.startswith("Linear is compiled for such calls, forward and backward")
        assert "Linear_forward on cpu: 2 ops in 1 kernel" in text
        assert "Linear_backward on cpu" in text
        assert "not measured" in text
        with torch.no_grad():
            assert head(f, x).endswith("(compiled for 1 signature); it would be compiled so")

    def test_a_gradient_without_a_backward(self) -> None:
        layer, x = torch.nn.Linear(4, 4), torch.ones(4, 4)
        layer.register_full_backward_hook(lambda *given: None)
        f = fusec.jit(layer)
        assert head(f, x).startswith("Linear would run as written for such calls: a gradient is needed")
        f(x)
        text = fusec.explain(f, x)
        assert text.startswith("Linear runs as written for such calls: a gradient is needed")
        assert "self has backward hooks" in text
        assert "Linear on cpu: 2 ops in 1 kernel" in text
        assert "1 × a gradient is needed" in text
        with torch.no_grad():
            assert "it would be compiled so" in head(f, x)

    def test_ranges(self) -> None:
        f = fusec.jit(lambda x: torch.relu(x) * 2, dynamic=True)
        for n in (3, 5):
            f(torch.ones(n))
        assert "is compiled for such calls" in head(f, torch.ones(9))
        assert "is compiled for such calls" in head(f, fusec.TensorSpec((9,)))

    def test_integers(self) -> None:
        f = fusec.jit(lambda x, n: x[n] * 2)
        for n in range(3, 9):
            f(np.ones((20, 3)), n)
        text = fusec.explain(f, np.ones((20, 3)), 12, measure=True)
        assert "is compiled for such calls" in text
        assert "not measured" in text

    def test_methods_modules_and_plain_functions(self) -> None:
        class Layer:
            @fusec.jit
            def call(self, x: Any) -> Any:
                return x * 2

        layer = Layer()
        layer.call(torch.ones(3))
        assert "is compiled for such calls" in head(layer.call, torch.ones(3))
        assert "not called yet" in head(Layer().call, torch.ones(3))
        module = fusec.jit(torch.nn.ReLU())
        module(torch.ones(3))
        assert head(module, torch.ones(3)) == "ReLU is compiled for such calls"
        assert head(softmax, torch.ones(3, 3)).startswith("softmax is not compiled: it is no function of fusec.jit")

    def test_a_function_without_arguments(self) -> None:
        weight = torch.ones(3)
        f = fusec.jit(lambda: torch.relu(weight))
        assert "not called yet" in head(f)
        f()
        assert "is compiled for such calls" in head(f)

    def test_ahead_of_time(self) -> None:
        spec = fusec.TensorSpec(("B", 4))
        compiled = fusec.compile(lambda x: torch.relu(x), spec)
        assert "is not called yet" in fusec.explain(compiled)
        compiled(torch.ones(3, 4))
        assert fusec.explain(compiled).startswith("for B = 3")

    def test_ahead_of_time_measured(self) -> None:
        compiled = fusec.compile(lambda x: torch.relu(x), fusec.TensorSpec(("B:1..4", 4)))
        assert " measured " in fusec.explain(compiled, measure=True)
        assert " measured " in compiled.explain(measure=True)
        assert " measured " not in compiled.explain()
        assert "without a range" in fusec.explain(fusec.compile(softmax, fusec.TensorSpec(("B", 4))), measure=True)

    def test_torch_compile(self) -> None:
        with torch.no_grad():
            fast = torch.compile(softmax, backend="fusec")
            assert head(fast, torch.ones(4, 4)) == "1 graph from torch.compile: 1 compiled"


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __call__(self, x: Any) -> Any:
        return x

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def raising(x: Any) -> Any:
    raise ValueError("the function's own")


def leaving(x: Any) -> Any:
    sys.exit(3)


def recursing(x: Any) -> Any:
    return recursing(x)


def taking(x: Any) -> Any:
    return next(x)


def returning_an_object(x: Any) -> Any:
    class Output:
        pass

    made = Output()
    made.x = x  # type: ignore[attr-defined]
    return made


X = torch.ones(4, 4)
CALLS: list[tuple[str, Callable[[], Any], tuple[Any, ...], dict[str, Any], str]] = [
    ("raises", lambda: raising, (X,), {}, "raises ValueError: the function's own"),
    ("leaves", lambda: leaving, (X,), {}, "SystemExit"),
    ("recurses", lambda: recursing, (X,), {}, "RecursionError"),
    ("too few arguments", lambda: softmax, (), {}, "raises TypeError for these arguments"),
    ("other names", lambda: softmax, (X,), {"y": 1}, "unexpected keyword argument 'y'"),
    ("no arrays", lambda: lambda x: x, (1,), {}, "no array of a known library"),
    ("mixed", lambda: lambda x, y: x, (X, np.ones(3)), {}, "are mixed"),
    ("a generator", lambda: taking, (iter([X]),), {}, "taking"),
    ("an object", lambda: returning_an_object, (X,), {}, "returning_an_object"),
    ("sparse", lambda: softmax, (X.to_sparse(),), {}, "layout"),
    ("meta", lambda: softmax, (X.to("meta"),), {}, "softmax"),
    ("shapes", lambda: softmax, (torch.ones(3, 4),), {}, "softmax"),
    ("numbers", lambda: 3, (X,), {}, "int can't be explained"),
    ("none", lambda: None, (), {}, "NoneType can't be explained"),
    ("hostile", Hostile, (X,), {}, "Hostile"),
    ("a class", lambda: torch.nn.Linear, (3, 4), {}, "Linear"),
    ("a builtin", lambda: len, (X,), {}, "len"),
    ("a ufunc", lambda: np.add, (np.ones(3), np.ones(3)), {}, "add"),
    ("no forward", torch.nn.Module, (X,), {}, "forward"),
    ("a spec alone", lambda: lambda x: x, (fusec.TensorSpec((3,)),), {}, "no array among the arguments"),
    ("in a list", lambda: lambda x: x[0] * 2, ([X],), {}, "would be compiled so"),
    ("objects", lambda: lambda x, y: x * 2, (X, object()), {}, "would be compiled so"),
    ("object array", lambda: lambda x: x * 2, (np.array([None, 1]),), {}, "can't be compiled"),
]


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
@pytest.mark.parametrize(("make", "args", "kwargs", "said"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
@pytest.mark.parametrize("how", ["plain", "jit", "called", "torch.compile"])
def test_nothing_is_raised(how: str, make: Any, args: Any, kwargs: Any, said: str) -> None:
    function = made = make()
    if how == "torch.compile":
        if not callable(made) or isinstance(made, type | Hostile) or made in (leaving, recursing):
            pytest.skip("torch.compile itself does not take it, or does not come back")
        function = torch.compile(made, backend="fusec")
    elif how != "plain":
        if not callable(made):
            pytest.skip("no function")
        function = fusec.jit(made)
        if how == "called":
            with contextlib.suppress(Exception, SystemExit):
                function(*args, **kwargs)
    for measure in (False, True):
        text = fusec.explain(function, *args, measure=measure, **kwargs)
        assert text.endswith("\n")
        assert text.strip()
        if how in ("plain", "jit"):
            assert said in text


def test_a_missing_device_or_tool_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        text = fusec.explain(fusec.jit(softmax, target="cuda"), X)
        assert text.startswith("softmax can't be compiled here: target='cuda' can't run here")
    monkeypatch.setattr("fusec.toolchain.is_there", lambda module: module != "tvm")
    assert "apache-tvm" in fusec.explain(fusec.jit(softmax), X)


def test_a_bug_of_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("broken")

    monkeypatch.setattr("fusec.build.build", broken)
    assert "internal error of fusec: AssertionError: broken" in fusec.explain(fusec.jit(softmax), X)


def test_a_result_without_elements_is_explained() -> None:
    for function in (np.sin, fusec.jit(lambda x: np.sin(x) * 2)):
        told = fusec.explain(function, np.ones(0, np.float32))
        assert "can't be explained" not in told
    assert "0 ops in 0 kernels" in told
