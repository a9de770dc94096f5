"""``fusec.jit`` on CUDA tensors: streams, layouts, devices, CUDA graphs, saved modules. Skipped without a device."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import fusec  # noqa: E402
from fusec.errors import FusecError, TargetError  # noqa: E402

pytestmark = pytest.mark.gpu


def rand(*shape: int, dtype: Any = torch.bfloat16, device: str = "cuda") -> Any:
    return torch.randn(*shape, dtype=dtype, device=device)


def mlp(x: Any, w: Any, v: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b)) @ v


def close(found: Any, wanted: Any) -> None:
    assert found.shape == wanted.shape
    assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)


def arguments(device: str = "cuda") -> tuple[Any, ...]:
    return (
        rand(100, 256, device=device),
        rand(512, 256, device=device) / 16,
        rand(512, 128, device=device) / 22,
        rand(512, device=device),
    )


def test_a_jitted_function() -> None:
    args = arguments()
    fast = fusec.jit(mlp, fallback="error")
    close(fast(*args), mlp(*args))
    close(fast(*args), mlp(*args))


def test_attention_in_plain_code() -> None:
    q, k, v = (rand(2, 4, 500, 64) for _ in range(3))

    @fusec.jit(fallback="error")
    def attention(q: Any, k: Any, v: Any) -> Any:
        s = (q @ k.transpose(-1, -2)).float() * 0.125
        i = torch.arange(500, device=q.device)
        s = s.masked_fill(i[None, :] > i[:, None], float("-inf"))
        return torch.softmax(s, -1).to(q.dtype) @ v

    close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_the_callers_stream() -> None:
    x = rand(4096, 4096)
    double = fusec.jit(lambda t: t * 2 + 1, fallback="error")
    stream = torch.cuda.Stream()
    double(x.fill_(2))  # what loads a kernel for the first time may wait
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
        x.fill_(3)
        y = double(x)
    assert not stream.query()  # nothing waited for the device
    stream.synchronize()
    assert (y == 7).all()


def test_misaligned_and_offset_views() -> None:
    base = rand(1 + 64 * 256)
    x = base[1:].view(64, 256)
    scale = fusec.jit(lambda t: F.softmax(t, -1) * 2, fallback="error")
    close(scale(x), F.softmax(x, -1) * 2)
    y = rand(64, 300)[:, 7:263]
    close(scale(y), F.softmax(y, -1) * 2)


def test_empty_and_scalar_results() -> None:
    total = fusec.jit(lambda t: (t * t).sum(), fallback="error")
    x = rand(33, 77, dtype=torch.float32)
    torch.testing.assert_close(total(x), (x * x).sum())
    plus = fusec.jit(lambda t: t + 1, fallback="error")
    assert plus(rand(0, 5)).shape == (0, 5)


def test_inside_a_cuda_graph() -> None:
    args = arguments()
    fast = fusec.jit(mlp, fallback="error")
    fast(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fast(*args)
    args[0].copy_(rand(100, 256))
    graph.replay()
    close(result, mlp(*args))


def test_tensors_on_two_devices_are_refused() -> None:
    add = fusec.jit(lambda a, b: a + b, fallback="error")
    with pytest.raises((FusecError, RuntimeError)):
        add(rand(4, 4), torch.ones(4, 4))


def test_code_for_another_card_is_refused() -> None:
    double = fusec.jit(lambda t: t * 2, target="cuda:sm_80", fallback="error", cache=False)
    if torch.cuda.get_device_capability() == (8, 0):
        pytest.skip("this is that card")
    with pytest.raises(TargetError, match="sm_"):
        double(rand(4, 4))


def test_gradients() -> None:
    fast = fusec.jit(mlp, fallback="error")
    for _ in range(2):
        args, others = ([t.requires_grad_() for t in arguments("cuda")] for _ in range(2))
        for mine, theirs in zip(args, others):
            theirs.data.copy_(mine)
        fast(*args).float().square().mean().backward()
        mlp(*others).float().square().mean().backward()
        for mine, theirs in zip(args, others):
            close(mine.grad, theirs.grad)
    assert [plan.gradient is not None for plan in fast.dispatcher.plans] == [True]


def test_dropout_in_training_follows_eager() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 8)).to("cuda")
    fast, x = fusec.jit(net), rand(16, 64, dtype=torch.float32)
    found = []
    for called in (fast, net):
        torch.manual_seed(3)
        made = called(x)
        made.square().sum().backward()
        found.append((made.detach(), net[0].weight.grad.clone(), torch.rand(4, device="cuda")))
        net.zero_grad()
    for mine, theirs in zip(*found):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_a_second_device_while_the_first_is_current() -> None:
    fast = fusec.jit(mlp, fallback="error")
    for device in ("cuda:0", "cuda:1"):
        args = arguments(device)
        close(fast(*args), mlp(*args))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_networks_stay_the_librarys(kind: Any) -> None:
    module = kind(64, 96, num_layers=2, batch_first=True, bidirectional=True).cuda().eval()
    x = rand(4, 50, 64, dtype=torch.float32)
    jitted: Any = fusec.jit(module)
    with torch.no_grad():
        for _ in range(2):
            for found, wanted in zip(tree_leaves(jitted(x)), tree_leaves(module(x)), strict=True):
                close(found, wanted)
    assert not jitted._fusec.dispatcher.eager_calls


def test_past_two_to_the_31_elements() -> None:
    if torch.cuda.get_device_properties(0).total_memory < 24 * 2**30:
        pytest.skip("too little memory")
    x = torch.zeros(2**31 + 4096, dtype=torch.float16, device="cuda")
    x[-5:] = 3
    y = fusec.jit(lambda t: t * 2, fallback="error")(x)
    assert (y[-5:] == 6).all()
    assert not y[:-5].any()


@torch.jit.script
def bucket(position: torch.Tensor, middle: int) -> torch.Tensor:
    near = torch.where(position.abs() < middle, torch.tensor(middle - 1).type_as(position), position.abs())
    return torch.ceil(torch.log(near / middle) / torch.log(torch.tensor(3.99)) * (middle - 1)) + middle


def test_numbers_on_the_cpu() -> None:
    """No kernel reads or writes them; what is known of them is computed on the GPU."""

    def root(x: Any, s: Any) -> Any:
        return x / torch.sqrt(torch.tensor(x.shape[-1], dtype=torch.float) * 3).to(x.dtype)

    def given(x: Any, s: Any) -> Any:
        return x * (s * 2 + 1).exp() - 1, s * 3

    def made(x: Any, s: Any) -> Any:
        rows = torch.arange(x.shape[0]).to(x.device)
        return x * rows[:, None] + torch.arange(1.0, x.shape[1] + 1).log().to(x.device), torch.tensor(2.0) * 4

    def scripted(x: Any, s: Any) -> Any:
        position = torch.arange(x.shape[1], device=x.device)
        return x.float() + bucket(position[None, :] - position[:, None], 8)[: x.shape[0]]

    for f in (root, given, made, scripted):
        for run in (fusec.jit(f), torch.compile(f, backend="fusec")):
            for rows in (3, 16):
                x, s = rand(rows, 40), torch.tensor(0.25)
                found, wanted = tree_leaves(run(x, s)), tree_leaves(f(x, s))
                for y, z in zip(found, wanted, strict=True):
                    close(y, z)
                    assert y.device == z.device
