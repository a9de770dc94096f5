"""What a capture of a torch function carries: names, locations, references, guards, library calls."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch_harness import check, fetch, run

import fusec
from fusec.errors import DeviceError, UnsupportedOpError
from fusec.frontend.capture import ReferenceSource
from fusec.frontend.torch import capture, flatten, needs_autograd

torch.manual_seed(0)
X = torch.randn(3, 4)
SCALE = 2.0
TABLE = torch.randn(4)
HERE = __file__


def line_of(f, offset):
    return f.__code__.co_firstlineno + offset


class Block(nn.Module):
    def __init__(self, size=4, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.out = nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * size, size))

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x, mask=None):
        h = self.norm(x)
        q, k, v = self.split(self.query(h)), self.split(self.key(h)), self.split(self.value(h))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        return x + self.mlp(x)


class Encoder(nn.Module):
    def __init__(self, layers=2, size=4, vocabulary=11):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size)
        self.layers = nn.ModuleList(Block(size) for _ in range(layers))

    def forward(self, ids, mask=None):
        x = self.embed(ids) + self.embed.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return {"hidden": x, "pooled": F.normalize(x.mean(1), dim=-1)}


# Names and locations


def test_values_carry_names_and_lines():
    def f(x, w):
        h = F.linear(x, w)
        gate, up = h.chunk(2, dim=-1)
        y = F.silu(gate) * up
        y += 1
        return y / SCALE

    graph = capture(f, (X, torch.randn(6, 4)), {}).graph
    where = {v.name: (op.name, op.location.line) for op in graph.ops if op.location for v in op.results}
    assert where["h"] == ("linear", line_of(f, 1))
    assert where["gate"] == ("slice", line_of(f, 2))
    assert where["up"] == ("slice", line_of(f, 2))
    assert where["silu"] == ("silu", line_of(f, 3))
    assert where["y"] == ("mul", line_of(f, 3))
    assert where["y_1"] == ("add", line_of(f, 4))
    assert {op.location.file for op in graph.ops if op.location} == {HERE}
    assert [v.name for v in graph.inputs] == ["x", "w"]
    assert graph.name == "f"


def test_last_operation_of_a_line_has_its_name():
    def f(x):
        out = F.cosine_similarity(x, x + 1)
        return out * 2

    graph = capture(f, (X,), {}).graph
    named = [op for op in graph.ops for v in op.results if v.name == "out"]
    assert len(named) == 1
    assert graph.ops[-1].operands[0].name == "out"


def test_nested_arguments_have_paths():
    def f(batch, *rest, scale):
        return batch["ids"][0] + rest[0] + scale

    ports = capture(f, ({"ids": [X]}, X + 1), {"scale": X + 2}).graph.input_ports
    assert [p.path for p in ports] == ["batch['ids'][0]", "rest_0", "scale"]


def test_module_parameters_have_paths_and_the_user_line():
    graph = check(Encoder().eval(), torch.tensor([[1, 2, 3]]), torch.tensor([[1, 1, 0]]), ulps=64).graph
    assert "layers.0.mlp.3.weight" in [v.name for v in graph.inputs]
    parameter = next(p for p in graph.input_ports if p.path == "self.layers.0.mlp.3.weight")
    assert parameter.role == "parameter"
    linear = next(op for op in graph.ops if op.name == "linear")
    assert linear.location.line == line_of(Block.forward, 2)


# References


def test_parameters_are_fetched_anew():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    captured = capture(model, (X,), {})
    with torch.no_grad():
        model[0].weight += 1
        torch.testing.assert_close(run(captured, (X,)), model(X))
    model[0].weight = nn.Parameter(torch.randn(4, 4))
    torch.testing.assert_close(run(captured, (X,)), model(X).detach())


def test_globals_and_closures_are_references():
    weights = {"w": torch.randn(4), "list": [torch.randn(4)]}
    captured = check(lambda x: x * weights["w"] + weights["list"][0] + TABLE, X)
    assert sorted(s.path for s in captured.sources if isinstance(s, ReferenceSource)) == [
        "TABLE",
        "weights['list'][0]",
        "weights['w']",
    ]
    weights["w"] = torch.ones(4)
    torch.testing.assert_close(run(captured, (X,)), X + weights["list"][0] + TABLE)


def test_method_of_a_plain_object_and_helpers():
    class Scorer:
        def __init__(self):
            self.table = torch.randn(4)
            self.model = nn.Linear(4, 4)

        def score(self, x):
            return self.model(x) + helper(x) + self.table

    def helper(x):
        return x * TABLE

    captured = check(Scorer().score, X)
    paths = {s.path for s in captured.sources if isinstance(s, ReferenceSource)}
    assert paths == {"self.model.weight", "self.model.bias", "self.table", "TABLE"}


def test_module_as_argument_or_closure():
    model = nn.Linear(4, 2)
    inside = capture(lambda x: model(x), (X,), {})
    given = capture(lambda m, x: m(x), (model, X), {})
    assert [s.path for s in inside.sources[1:]] == ["model.weight", "model.bias"]
    assert [s.path for s in given.sources[1:]] == ["m.weight", "m.bias"]
    torch.testing.assert_close(run(given, (model, X)), model(X).detach())


def test_one_tensor_given_twice_is_one_input():
    """A write into one would be seen in the other."""
    captured = capture(lambda x, y: x - y, (X, X), {})
    assert len(captured.graph.inputs) == 1
    torch.testing.assert_close(run(captured, (X, X)), torch.zeros_like(X))
    jitted = fusec.jit(lambda x, y: x - y)
    torch.testing.assert_close(jitted(X, X), torch.zeros_like(X))
    torch.testing.assert_close(jitted(X, X + 1), torch.full_like(X, -1.0))
    torch.testing.assert_close(jitted(X, X), torch.zeros_like(X))


def test_unread_references_are_dropped_and_unread_arguments_kept():
    captured = capture(lambda x, y: (TABLE * 2, x)[1] + 1, (X, X + 1), {})
    assert [v.name for v in captured.graph.inputs] == ["x", "y"]
    assert len(captured.sources) == 2


# Guards


def test_guards_see_a_changed_global(monkeypatch):
    captured = capture(lambda x: x * SCALE, (X,), {})
    assert captured.environment.holds()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not captured.environment.holds()


def test_guards_see_module_state_and_torch_modes():
    model = Block().eval()
    with torch.no_grad():
        captured = capture(model, (torch.randn(1, 2, 4),), {})
        assert captured.environment.holds()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not captured.environment.holds()
        with torch.enable_grad():
            assert not captured.environment.holds()
        model.heads = 4
        assert not captured.environment.holds()
        model.heads = 2
        assert captured.environment.holds()
        model.train()
        assert not captured.environment.holds()


def test_autocast_is_captured_and_remembers_nothing():
    model = nn.Linear(4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(model, (X,), {})
        assert captured.graph.outputs[0].type.dtype.name == "bf16"
        assert type(model(X)) is torch.Tensor


def test_needs_autograd():
    model = nn.Linear(4, 4)
    captured = capture(model, (X,), {})
    picks = capture(lambda x: model(x).argmax(-1), (X,), {})
    assert needs_autograd([X], captured)
    assert needs_autograd([X.clone().requires_grad_()])
    assert not needs_autograd([X], picks)
    assert not needs_autograd([X])
    with torch.no_grad():
        assert not needs_autograd([X], captured)


# Structures


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    name: str = "out"


def test_results_are_rebuilt():
    def f(x):
        y = x + 1
        return Output(y), [y, {"n": 3, "t": (x.shape[0], None)}]

    first, rest = run(capture(f, (X,), {}), (X,))
    assert type(first) is Output
    assert first.name == "out"
    assert first.loss is None
    assert rest[0] is first.logits
    assert rest[1] == {"n": 3, "t": (3, None)}


def test_call_key_tells_static_values_apart():
    def key(*args):
        return flatten(args, {})[1]

    assert key(X, 1) == key(X + 1, 1)
    assert hash(key(X, [1.5, "a"])) == hash(key(X, [1.5, "a"]))
    for a, b in [(1, 1.0), (1, True), (0.0, -0.0), ([1], (1,)), ({"a": 1}, {"b": 1}), (None, 0)]:
        assert key(X, a) != key(X, b)
    assert key(float("nan")) == key(float("nan"))


# Library calls


@pytest.mark.parametrize(
    ("f", "externs"),
    [
        (lambda x: x.sort(-1, descending=True).values + 1, 1),
        (lambda x: torch.topk(x, 2), 1),
        (lambda x: F.conv_transpose1d(x[None], torch.ones(3, 3, 2), stride=2, dilation=2) * 2, 1),
        (lambda x: x.scatter_add(1, torch.zeros(3, 2, dtype=torch.long), torch.ones(3, 2)).relu(), 1),
        (lambda x: x.clone().index_put_((torch.tensor([0, 2]),), torch.zeros(4)), 1),
        (lambda x: F.adaptive_max_pool1d(x[None], 3), 1),
        (lambda x: torch.cummax(x > 0, 1), 1),
        (lambda x: (x * 10).long() // (x * 0 + 3).long(), 1),
        (lambda x: torch.searchsorted(torch.tensor([0.0, 1.0]), x), 1),
        (lambda x: torch.fft.rfft(x).abs(), 2),
        (lambda x: torch.linalg.inv(x[:, :3] @ x[:, :3].T), 2),
    ],
)
def test_library_calls_run_and_are_told(f, externs):
    captured = check(f, X, extern=externs, ulps=256)
    assert len(captured.notes) == externs
    assert "test_torch_capture.py" in captured.notes[0]


def test_library_call_is_refused_when_asked():
    def f(x):
        y = x + 1
        return torch.sort(y)

    with pytest.raises(UnsupportedOpError, match=rf"test_torch_capture.py:{line_of(f, 2)}: aten.sort"):
        capture(f, (X,), {}, fallback="error")


def test_random_calls_stay_apart():
    def f(x):
        return F.dropout(x, 0.5, training=True) + F.dropout(x, 0.5, training=True), torch.rand(3) + torch.rand(3)

    captured = capture(f, (X,), {})
    attributes = [op.attributes for op in captured.graph.ops if op.name == "extern"]
    assert len(set(attributes)) == 4
    assert "aten.bernoulli.p" in captured.notes[0]
    assert "it draws random numbers (call 1)" in captured.notes[0]
    torch.manual_seed(3)
    first = run(captured, (X,))
    torch.manual_seed(3)
    assert torch.equal(first[0], run(captured, (X,))[0])


# Modules of torch, speed, threads


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
        (nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.RMSNorm(8), nn.Softmax(-1)), (3, 4)),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            (2, 3, 5, 5),
        ),
        (nn.Sequential(nn.GroupNorm(2, 4), nn.ELU(), nn.Unflatten(1, (2, 2))), (3, 4, 5)),
    ],
)
def test_modules_of_torch(module, shape):
    module.eval()
    x = torch.randn(shape)
    captured = capture(module, (x,), {})
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(run(captured, (x,)), expected, rtol=1e-4, atol=1e-5)


def test_multihead_attention():
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    captured = capture(lambda x: module(x, x, x, need_weights=False)[0], (x,), {}, fallback="error")
    torch.testing.assert_close(run(captured, (x,)), module(x, x, x)[0].detach(), rtol=1e-4, atol=1e-5)


def test_capture_is_quick():
    model = Encoder(layers=6, size=16).eval()
    ids = torch.ones(2, 5, dtype=torch.long)
    capture(model, (ids, ids), {})
    start = time.perf_counter()
    captured = capture(model, (ids, ids), {})
    assert time.perf_counter() - start < 3
    assert len(captured.graph.ops) > 100


def test_threads_capture_at_once():
    model = Encoder().eval()
    ids = torch.ones(2, 5, dtype=torch.long)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(str(capture(model, (ids,), {}).graph))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(texts) == 4
    assert len(set(texts)) == 1


def test_capture_reads_and_changes_nothing():
    model = Encoder().eval()
    ids = torch.ones(2, 5, dtype=torch.long)
    before = {name: (p.data_ptr(), p._version, p.requires_grad) for name, p in model.named_parameters()}
    captured = capture(model, (ids,), {})
    assert before == {name: (p.data_ptr(), p._version, p.requires_grad) for name, p in model.named_parameters()}
    assert all(type(t) in (torch.Tensor, nn.Parameter) for t in fetch(captured, (ids,), {}))


def test_tied_weights_are_guarded():
    model = Encoder(layers=1).eval()
    head = nn.Linear(4, 11, bias=False)
    head.weight = model.embed.weight
    both = nn.ModuleDict({"body": model, "head": head})
    ids = torch.ones(2, 5, dtype=torch.long)
    captured = capture(lambda ids: both["head"](both["body"](ids)["hidden"]), (ids,), {})
    assert captured.environment.holds()
    head.weight = nn.Parameter(torch.randn(11, 4))
    assert not captured.environment.holds()


def test_hooks_are_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    handle = model[0].register_forward_hook(lambda *a: None)
    with pytest.raises(UnsupportedOpError, match=r"self.0 \(Linear\) has forward hooks"):
        capture(model, (X,), {})
    handle.remove()
    capture(model, (X,), {})


def test_tensor_kept_in_a_list_is_refused_and_put_back():
    class Recorder(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = [1]

        def forward(self, x):
            self.seen.append(x + 1)
            return x

    module = Recorder()
    with pytest.raises(UnsupportedOpError, match="outlives the call"):
        capture(module, (X,), {})
    assert module.seen == [1]


class Kept:
    scale = torch.randn(4)

    def __init__(self):
        self.hidden = iter([torch.randn(4)])
        self.queue = {frozenset([1]): {2: {3: {4: {5: {6: torch.randn(4)}}}}}}

    def scaled(self, x):
        return x * self.scale

    def deep(self, x):
        return x * self.queue[frozenset([1])][2][3][4][5][6]


class Hidden:
    weight = torch.full((3,), 2.0)
    held = (torch.full((3,), 5.0),)


class Hiding(Hidden):
    weight = torch.full((3,), 3.0)

    def __init__(self):
        self.held = (torch.full((3,), 7.0),)

    def all(self, x):
        return x * super().weight, x * self.weight, x * type(self).held[0], x * self.held[0]


def test_tensors_of_a_class_that_another_or_the_instance_hides():
    own, x = Hiding(), torch.ones(3)
    jitted = fusec.jit(own.all)
    for _ in range(2):
        assert [y[0].item() for y in jitted(x)] == [2, 3, 5, 7]
        assert not jitted.dispatcher.eager_calls


def test_tensor_of_a_class():
    kept = Kept()
    captured = capture(kept.scaled, (X,), {})
    assert [s.path for s in captured.sources[1:]] == ["self.scale"]
    kept.scale = torch.ones(4)
    assert torch.equal(run(captured, (X,)), X)


def test_tensor_that_can_not_be_fetched_anew_is_refused():
    with pytest.raises(UnsupportedOpError, match="fetched anew"):
        capture(Kept().deep, (X,), {})


def test_tensor_made_outside_of_dispatch_is_a_constant():
    def f(x):
        w = torch.from_numpy(np.arange(4, dtype=np.float32))
        return x * w + torch.from_numpy(np.ones(4, np.float32)) + torch.FloatTensor([1, 2, 3, 4])

    torch.testing.assert_close(run(capture(f, (X,), {}), (X,)), f(X))


@torch.jit.script
def nearest(x, most: int):
    return torch.where(x < most, torch.tensor(most - 1).type_as(x), torch.abs(x))


def test_tensor_that_torchscript_or_a_generator_makes_is_a_constant():
    def f(x):
        parts = (torch.from_numpy(np.full(4, k, np.float32)) for k in range(3))
        return nearest(x * 2, 1) + sum(part * x for part in parts)

    torch.testing.assert_close(run(capture(f, (X,), {}), (X,)), f(X))


def test_a_capture_keeps_no_argument_and_no_trace_alive():
    x = torch.randn(3, 4)
    gc.collect()
    before = {id(o) for o in gc.get_objects() if type(o) is FakeTensor}
    captured = capture(lambda x: (x + 1).sum(), (x,), {})
    gone = weakref.ref(x)
    fakes = [o for o in gc.get_objects() if type(o) is FakeTensor and id(o) not in before]
    del x
    assert gone() is None
    assert not fakes
    assert captured.environment.holds()


def test_a_rounding_is_the_users_or_implied():
    def f(x):
        return (x * 0.3).float(), (x.float() * 0.3).to(torch.bfloat16)

    half = torch.randn(4, dtype=torch.bfloat16)
    casts = [op.attributes for op in capture(f, (half,), {}).graph.ops if op.name == "cast"]
    assert [c.implied for c in casts if c.dtype.name == "bf16"] == [True, False]


def test_only_what_is_kept_in_f32_has_an_implied_rounding():
    """Dynamo makes f64 of a Python number that varies, and f32 of that with a library's function."""

    def f(x, y):
        return (x * torch.ops.prims.convert_element_type(y, torch.float32)).sum(-1)

    x = torch.randn(4, 6)
    captured = capture(f, (x, torch.tensor(2.5, dtype=torch.float64)), {}).graph.ops
    assert [op.attributes.implied for op in captured if op.name == "cast"] == [False]


@pytest.mark.gpu
def test_operands_on_two_devices_name_the_line() -> None:
    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    with pytest.raises(DeviceError, match=r"test_torch_capture\.py:\d+: aten\.add: operands on cuda:0 and cpu; move"):
        capture(add, (torch.empty(4, device="cuda"), torch.empty((4, 4))), {})


# What changes between calls

TABLES = {"first": torch.ones(3), "second": torch.full((3,), 2.0)}


def test_the_order_of_a_dict_of_tensors_is_seen() -> None:
    def folded(x: torch.Tensor) -> torch.Tensor:
        for table in TABLES.values():
            x = x * 3 + table
        return x

    jitted, x = fusec.jit(folded), torch.zeros(3)
    torch.testing.assert_close(jitted(x), torch.full((3,), 5.0))
    TABLES["first"] = TABLES.pop("first")
    torch.testing.assert_close(jitted(x), torch.full((3,), 7.0))


def test_hooks_that_come_and_go_are_seen() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False), torch.randn(2, 3)
    jitted = fusec.jit(model)
    plain = jitted(x)
    hooks = (
        lambda: model[0].register_forward_hook(lambda module, given, result: result + 100),
        lambda: model[1].register_forward_pre_hook(lambda module, given: (given[0] * 2 + 1,)),
        lambda: model.register_forward_hook(lambda module, given, result: result - 7),
    )
    for register in hooks:
        handle = register()
        torch.testing.assert_close(jitted(x), model(x))
        assert not torch.equal(jitted(x), plain)
        handle.remove()
        torch.testing.assert_close(jitted(x), plain)


def test_the_default_device_is_seen() -> None:
    jitted = fusec.jit(lambda x: (torch.zeros(3) + 1, x * 2))
    for device in ("cpu", "meta", "cpu"):
        with torch.device(device):
            assert jitted(X)[0].device.type == device
