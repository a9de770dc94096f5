"""Compiled functions inside torch.compile and torch.export: their own code is taken, and nothing of ours is traced."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import fusec  # noqa: E402

x = torch.linspace(-2, 2, 32).reshape(4, 8)


@fusec.jit
def act(x: torch.Tensor, scale: int = 2) -> torch.Tensor:
    return torch.relu(x * scale + 1)


@fusec.jit
def branching(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


@fusec.jit
def table() -> torch.Tensor:
    return torch.arange(8) * 0.5


class Layer(torch.nn.Module):
    """A module with a compiled method, a compiled forward below it, and compiled functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.second.forward = fusec.jit(self.second.forward)
        self.scale = 2.0

    @fusec.jit
    def squash(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.scale + table()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return act(self.second(self.squash(self.first(x))))


class Plain:
    def __init__(self) -> None:
        self.w = torch.eye(8)

    @fusec.jit
    def product(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w

    @staticmethod
    @fusec.jit
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3


plain, linear = Plain(), fusec.jit(torch.nn.Linear(8, 8))

WHOLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "function": lambda x: act(x) + 1,
    "option": lambda x: act(x, scale=3) + table(),
    "itself": act,
    "method": lambda x: plain.product(x) + 1,
    "static method": lambda x: Plain.thrice(x) + 1,
    "module": lambda x: linear(x).relu(),
    "module itself": linear,
    "module of compiled parts": Layer(),
    "map": lambda x: list(map(act, [x, x + 1]))[1],
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("warm", [False, True])
def test_one_graph_as_if_written_there(name: str, warm: bool) -> None:
    function = WHOLE[name]
    if warm:
        with torch.no_grad():
            function(x)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for given in (x, x + 1):
        torch.testing.assert_close(compiled(given), function(given))
    act(x, scale=5)  # a plan more, which is nothing to Dynamo
    compiled(x)
    assert counter.frame_count == 1


def test_gradients_of_all_that_it_reads() -> None:
    layer = Layer()
    for name in ("aot_eager", "fusec"):
        given = x.clone().requires_grad_()
        wanted = [given, *layer.parameters()]
        compiled = torch.compile(layer, backend=name, fullgraph=True)
        found = torch.autograd.grad(compiled(given).sum(), wanted)
        for a, b in zip(found, torch.autograd.grad(layer(given).sum(), wanted), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.compiler.reset()


@pytest.mark.parametrize("outer", [branching, lambda x: branching(x) * 2])
def test_a_graph_break_in_the_function_is_one_there(outer: Callable[..., Any]) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    compiled = torch.compile(outer, backend="eager")
    for given in (x.abs(), -x.abs()):
        torch.testing.assert_close(compiled(given), outer(given))
    assert counters["frames"]["total"] < 10


def test_skipped_by_dynamo_it_runs_compiled() -> None:
    runs = torch.compiler.disable(act)
    compiled = torch.compile(lambda x: runs(x + 1) * 2, backend="eager")
    torch.testing.assert_close(compiled(x), act(x + 1) * 2)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("graded", [False, True])
def test_an_exported_program_holds_no_fusec(strict: bool, graded: bool) -> None:
    layer = Layer().eval()
    with torch.no_grad():
        layer(x)
    with torch.set_grad_enabled(graded):
        sizes = {"x": {0: torch.export.Dim("rows")}}
        program = torch.export.export(layer, (x,), strict=strict, dynamic_shapes=sizes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    given = torch.ones(7, 8)
    torch.testing.assert_close(loaded(given), layer(given))
    assert set(program.state_dict) == {f"{part}.{kind}" for part in ("first", "second") for kind in ("weight", "bias")}


def test_a_function_jitted_before_pytorch_is_imported() -> None:
    import subprocess
    import sys

    program = (
        "import fusec\n"
        "def double(x): return x * 2 + 1\n"
        "f = fusec.jit(double)\n"
        "import torch\n"
        "x = torch.ones(3)\n"
        "f(x)\n"
        "g = torch.compile(lambda x: f(x) + 1, backend='eager', fullgraph=True)\n"
        "assert torch.equal(g(x), torch.full((3,), 4.0))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class Stepping(torch.nn.Module):
    """Compiles its own call, as transformers does for tokens with a preallocated cache."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 5).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))

    def steps(self, x: torch.Tensor, backend: Any) -> torch.Tensor:
        call = torch.compile(self.__call__, backend=backend)
        return call(call(x))


def _graphs() -> tuple[list[Any], Any]:
    found: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        found.append(module)
        return module.forward

    return found, backend


def test_a_compiled_function_alone_is_run_by_fusec() -> None:
    x = torch.randn(4, 5)
    function = fusec.jit(act)
    graphs, backend = _graphs()
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), act(x))
    assert not graphs
    assert len(function.dispatcher.plans) == 1
    torch.testing.assert_close(torch.compile(lambda x: function(x) + 1, backend=backend)(x), act(x) + 1)
    assert len(graphs) == 1, "what surrounds it is the backend's, and so is it"


READS_A_THREADS_OWN = not torch.__version__.startswith(("2.9", "2.10", "2.11"))


@pytest.mark.parametrize("way", ["forward", "module"])
def test_a_module_that_compiles_its_own_call_is_run_by_fusec(way: str) -> None:
    if way == "module" and not READS_A_THREADS_OWN:
        pytest.skip("this Dynamo takes a class's value for a thread's own: the backend has the module, as written")
    module, x = Stepping(), torch.randn(4, 5)
    graphs, backend = _graphs()
    expected = module(module(x))
    if way == "forward":
        module.forward = fusec.jit(module.forward)  # type: ignore[method-assign]
        found, dispatcher = module.steps(x, backend), module.forward.dispatcher  # type: ignore[attr-defined]
    else:
        fast = fusec.jit(module)
        found, dispatcher = fast.steps(x, backend), fast._fusec.dispatcher
    torch.testing.assert_close(found, expected)
    assert not graphs
    assert [plan.is_compiled for plan in dispatcher.plans] == [True]


def test_alone_and_with_a_gradient() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    (expected,) = torch.autograd.grad(act(x).sum(), x)
    graphs, backend = _graphs()
    (found,) = torch.autograd.grad(torch.compile(fusec.jit(act), backend=backend)(x).sum(), x)
    torch.testing.assert_close(found, expected)
    assert not graphs
