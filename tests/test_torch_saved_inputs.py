"""Writes to an input between a forward and its backward: the gradients, and the errors, are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gradients import compiled, copies  # noqa: E402
from jitted import plans  # noqa: E402

Write = Callable[[Any], None]

RESULTS = {
    "tanh": lambda x: (x.tanh() * 2).sum(-1),
    "sigmoid": lambda x: x.sigmoid() * 2,
    "exp": lambda x: (x + 1).exp() * 2,
    "sqrt": lambda x: x.sqrt() * 2,
    "softmax": lambda x: x.softmax(-1).square(),
    "log_softmax": lambda x: x.log_softmax(-1)[:, :3],
    "relu": lambda x: (x - 0.9).relu() * 2,
    "reciprocal": lambda x: 1 / x,
    "sine of a sum": lambda x: (x + 1).sin(),
    "square": lambda x: (x * 2) ** 2,
    "quotient": lambda x: (x + 1) / (x + 2),
    "views": lambda x: x.T.flatten()[3:].tanh(),
    "cast": lambda x: x.half().float().sin(),
}
"""Of these eager saves what is made of the input, and not the input."""

INPUTS = {
    "sine": lambda x: x.sin() * 2,
    "gelu": lambda x: F.gelu(x) * 2,
    "layer norm": lambda x: F.layer_norm(x, (8,)) * 2,
    "clamp": lambda x: x.clamp(0.7, 1.1),
    "greatest": lambda x: x.amax(-1),
    "norm": lambda x: x.norm(dim=-1),
    "view": lambda x: x.T[1:].sin(),
}


def behind_autograd(x: Any) -> None:
    x.data.mul_(2)


def in_place(x: Any) -> None:
    with torch.no_grad():
        x.mul_(2)


def gradient(f: Any, inputs: tuple[Any, ...], write: Write) -> Any:
    """Of the first input, which is written to after the forward."""
    y = f(*inputs)
    write(inputs[0])
    y.sum().backward()
    return inputs[0].grad


def example() -> Any:
    torch.manual_seed(0)
    return torch.rand(4, 8).add_(0.5).requires_grad_()


@pytest.mark.parametrize("write", [behind_autograd, in_place])
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_saved_where_eager_saves_them(name: str, write: Write) -> None:
    f = RESULTS[name]
    torch.testing.assert_close(gradient(compiled(f), (example(),), write), gradient(f, (example(),), write))


@pytest.mark.parametrize("name", INPUTS)
def test_a_write_to_what_eager_saves_is_its_error(name: str) -> None:
    for f in (INPUTS[name], compiled(INPUTS[name])):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(f, (example(),), in_place)


def test_what_eager_computes_in_the_backward_reads_what_was_written() -> None:
    f = INPUTS["clamp"]
    wanted = gradient(f, (example(),), behind_autograd)
    torch.testing.assert_close(gradient(compiled(f), (example(),), behind_autograd), wanted)


def test_a_bias_of_scores_may_change() -> None:
    """The backward computes the scores again, of a copy of the bias."""
    torch.manual_seed(0)
    operands = [torch.randn(1, 4, 256, 16).requires_grad_() for _ in range(3)]
    bias = torch.randn(256, 256)

    def attend(bias: Any, q: Any, k: Any, v: Any) -> Any:
        return ((q @ k.mT) * 0.25 + bias).softmax(-1) @ v

    found = []
    for f in (attend, compiled(attend)):
        own, (q, k, v) = bias.clone(), copies(operands)
        y = f(own, q, k, v)
        own.zero_()
        y.sum().backward()
        found.append((q.grad, k.grad, v.grad))
    torch.testing.assert_close(found[1], found[0])


def test_an_optimizer_may_step_before_a_backward_that_reads_no_parameter() -> None:
    """A sum with a bias saves nothing of it, nor does a cast."""

    def f(x: Any, w: Any, b: Any) -> Any:
        return (x @ w.half().float() + b).tanh()

    found = []
    for g in (f, compiled(f)):
        torch.manual_seed(0)
        x, w, b = torch.randn(4, 8), torch.randn(8, 8).requires_grad_(), torch.randn(8).requires_grad_()
        y = g(x, w, b)
        with torch.no_grad():
            w.add_(1)
            b.add_(1)
        y.sum().backward()
        found.append((w.grad, b.grad))
    torch.testing.assert_close(found[1], found[0])


def test_through_torch_compile() -> None:
    torch.compiler.reset()
    f = RESULTS["tanh"]
    made = torch.compile(f, backend="fusec")
    torch.testing.assert_close(gradient(made, (example(),), in_place), gradient(f, (example(),), in_place))


@pytest.mark.parametrize("name", ["tanh", "sine", "sine of a sum", "layer norm"])
def test_no_input_is_copied_where_something_as_small_is_saved(name: str) -> None:
    jitted = compiled(RESULTS[name] if name in RESULTS else INPUTS[name])
    jitted(example()).sum().backward()
    graphs = [graph for plan in plans(jitted) if plan.gradient is not None for graph in plan.gradient.graphs]
    forward = next(graph for graph in graphs if graph.kind == "forward")
    assert "copy" not in "".join(str(capture.graph) for capture in forward.captures)
