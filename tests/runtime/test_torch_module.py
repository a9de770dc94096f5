"""A compiled module is an ``nn.Module``: what PyTorch's own tools find in it, and do with it."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitted import plans, same, strict  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import fusec  # noqa: E402
from fusec.notices import RunsAsWritten  # noqa: E402
from fusec.runtime.jit import JitModule  # noqa: E402


class Scaled(torch.nn.Linear):
    """Has state of its own, a plain attribute that its code reads, and a buffer."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.gain = 2.0
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Any) -> Any:
        return torch.tanh(super().forward(x)) * self.gain + self.shift

    def get_extra_state(self) -> Any:
        return {"gain": self.gain}

    def set_extra_state(self, state: Any) -> None:
        self.gain = state["gain"]


def scaled() -> Any:
    torch.manual_seed(0)
    return Scaled().requires_grad_(False)


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(scope="module")
def nested() -> tuple[Any, Any]:
    """A model, and the same with a part of it compiled."""
    inner, norm = scaled(), torch.nn.BatchNorm1d(4).eval()
    return torch.nn.Sequential(inner, norm), torch.nn.Sequential(fusec.jit(inner), fusec.jit(norm))


def test_names_are_those_without_it(nested: tuple[Any, Any]) -> None:
    plain, model = nested
    assert isinstance(model[0], torch.nn.Module)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert model.state_dict()._metadata == plain.state_dict()._metadata
    for names in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert [n for n, _ in getattr(model, names)()] == [n for n, _ in getattr(plain, names)()]
    assert list(model.modules())[1] is model[0]
    assert model.get_parameter("0.weight") is plain[0].weight
    model.load_state_dict({**plain.state_dict(), "0._extra_state": {"gain": 5.0}})
    assert plain[0].gain == 5.0
    plain[0].gain = 2.0
    assert list(model[0].state_dict()) == list(plain[0].state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*bias"):
        model[0].load_state_dict({"weight": torch.ones(4, 4)})


def test_what_is_done_to_the_model_is_done_to_the_module(nested: tuple[Any, Any]) -> None:
    plain, model = nested
    for change in (lambda m: m.train(), lambda m: m.double(), lambda m: m.eval(), lambda m: m.float()):
        assert change(model) is model
        assert (plain[0].training, plain[0].weight.dtype) == (model[0].training, model[0].weight.dtype)
    seen: list[Any] = []
    model.apply(seen.append)
    assert seen == [plain[0], plain[1], model]
    handle = model[0].register_forward_hook(lambda *_: seen.append("hook"))
    model[0](X)
    handle.remove()
    assert seen[-1] == "hook"


def test_calls_are_compiled_where_it_is_nested(nested: tuple[Any, Any]) -> None:
    plain, model = nested
    same(model(X), plain(X))
    assert plans(model[0])


def test_a_compiled_model_with_a_compiled_part_sees_what_changes_in_that() -> None:
    inner = scaled()
    whole = strict(torch.nn.Sequential(fusec.jit(inner), torch.nn.ReLU()))
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: inner.weight.mul_(2),
        lambda: setattr(inner, "gain", 3.0),
        lambda: setattr(inner, "weight", torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)),
        lambda: setattr(inner, "shift", torch.zeros(4)),
        lambda: setattr(inner, "forward", lambda x: x * 7),
    ]
    for change in changes:
        change()
        same(whole(X), inner(X).relu())
    assert not whole._fusec.dispatcher.eager_calls


def test_copies() -> None:
    model = torch.nn.Sequential(fusec.jit(scaled(), precision="tf32"))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        same(twin(X), model(X))
        assert type(twin[0]).__name__ == "JitModule"
        assert twin[0]._fusec.make == model[0]._fusec.make
        twin[0].weight.zero_()
        assert model[0].weight.any()
    assert copy.copy(model[0]).weight is model[0].weight


def test_python_s_protocols_are_the_module_s() -> None:
    layers = [torch.nn.Linear(4, 4), torch.nn.ReLU()]
    model = fusec.jit(torch.nn.Sequential(*layers))
    assert (len(model), model[0], list(model), layers[1] in model) == (2, layers[0], layers, True)
    assert type(model[:1]) is torch.nn.Sequential
    model += torch.nn.Sequential(torch.nn.Tanh())
    assert type(model).__name__ == "JitModule"
    model[1] = torch.nn.GELU()
    assert [type(layer).__name__ for layer in model] == ["Linear", "GELU", "Tanh"]
    assert not fusec.jit(torch.nn.Sequential())
    single = fusec.jit(layers[0])
    assert single
    with pytest.raises(TypeError, match="len"):
        len(single)


def renamed(x: Any) -> Any:
    return x * 2


@fusec.jit
def decorated(x: Any) -> Any:
    return x * 3


class Doubling:
    @fusec.jit
    def double(self, x: Any) -> Any:
        return x * 2


def test_functions_are_pickled_by_name() -> None:
    same(pickle.loads(pickle.dumps(Doubling().double))(X), X * 2)
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    other = pickle.loads(pickle.dumps(fusec.jit(renamed, fallback="error")))
    same(other(X), X * 2)
    assert other.dispatcher.fallback == "error"
    assert (other.__qualname__, other.__wrapped__, copy.deepcopy(other)) == ("renamed", renamed, other)


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda f, m: torch.vmap(f)(X),
    "grad": lambda f, m: torch.func.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f, m: torch.func.jvp(f, (X,), (X,)),
    "jacrev": lambda f, m: torch.func.jacrev(f)(X),
    "hessian": lambda f, m: torch.func.hessian(lambda x: f(x).sum())(X),
    "functional_call": lambda f, m: torch.func.functional_call(f, {"weight": m.weight * 2}, (X,)),
    "vmap of functional_call": lambda f, m: torch.vmap(
        lambda w: torch.func.functional_call(f, {"weight": w}, (X,)),
    )(torch.stack([m.weight, m.weight * 2])),
    "checkpoint": lambda f, m: torch.utils.checkpoint.checkpoint(f, X, use_reentrant=False),
    "trace": lambda f, m: torch.jit.trace(f, (X,))(X + 1),
    "script": lambda f, m: torch.jit.script(f)(X),
    "symbolic_trace": lambda f, m: torch.fx.symbolic_trace(f)(X),
    "export": lambda f, m: torch.export.export(f, (X,)).module()(X),
    "export, strict": lambda f, m: torch.export.export(f, (X,), strict=True).module()(X),
    "export, nested": lambda f, m: torch.export.export(torch.nn.Sequential(f), (X,)).module()(X),
    "compile": lambda f, m: torch.compile(torch.nn.Sequential(f), backend="eager", fullgraph=True)(X),
}


class Simple(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.nn.functional.linear(x, self.weight, self.bias))


@pytest.fixture(scope="module")
def simple() -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = Simple(4, 4).requires_grad_(False)
    return module, fusec.jit(module)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_and_tracers(name: str, simple: tuple[Any, Any]) -> None:
    module, compiled = simple
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = TRANSFORMS[name](compiled, module)
    assert len({str(w.message) for w in told if w.category is RunsAsWritten}) <= 1
    torch.testing.assert_close(found, TRANSFORMS[name](module, module))


def test_its_class_is_the_module_s() -> None:
    inner = scaled()
    compiled = fusec.jit(inner)
    assert isinstance(compiled, Scaled)
    assert isinstance(compiled, JitModule)
    messages = []
    for module in (inner, compiled):
        with pytest.raises(RuntimeError, match="loading state_dict for Scaled") as raised:
            module.load_state_dict({})
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_shallow_copy_has_attributes_of_its_own() -> None:
    inner = scaled()
    compiled = fusec.jit(inner)
    twin = copy.copy(compiled)
    twin.gain = 5.0
    assert (inner.gain, compiled.gain) == (2.0, 2.0)
    wanted = copy.copy(inner)
    wanted.gain = 5.0
    same(twin(X), wanted(X))
    same(compiled(X), inner(X))


def _weight_norm(module: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(module)
    with torch.no_grad():
        module.parametrizations.weight.original0.mul_(3)


def _unparametrized(module: Any) -> None:
    _weight_norm(module)
    torch.nn.utils.parametrize.remove_parametrizations(module, "weight")


def _old_weight_norm(module: Any) -> None:
    torch.nn.utils.weight_norm(module)
    with torch.no_grad():
        module.weight_g.mul_(3)


def _pruned(module: Any) -> None:
    prune.l1_unstructured(module, "weight", amount=0.5)


def _hooked(module: Any) -> None:
    module.register_forward_hook(lambda _, args, result: result * args[0].sum())


def _spectral_norm(module: Any) -> None:
    torch.manual_seed(3)
    torch.nn.utils.parametrizations.spectral_norm(module)


def _in_double(module: Any) -> None:
    module.to(torch.float64).to(torch.float32)


def _constant(module: Any) -> None:
    module.apply(lambda m: torch.nn.init.constant_(m.weight, 0.25))


CHANGES = [_weight_norm, _unparametrized, _old_weight_norm, _pruned, _hooked, _spectral_norm, _in_double, _constant]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_done_to_a_compiled_module_is_seen_by_later_calls(change: Callable[[Any], None], nested: bool) -> None:
    eager = torch.nn.Linear(4, 4).requires_grad_(False)
    twin = copy.deepcopy(eager)
    whole = torch.nn.Sequential(twin) if nested else twin
    compiled = fusec.jit(whole)
    same(compiled(X), eager(X))
    change(eager)
    change(compiled[0] if nested else compiled)
    same(compiled(X), eager(X))
    assert list(compiled.state_dict()) == [f"0.{name}" if nested else name for name in eager.state_dict()]


def test_a_model_with_a_compiled_part_is_traced_by_fx() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).requires_grad_(False)
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(fusec.jit(inner), torch.nn.Tanh()))
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0.0", "0.1", "1"]
    same(traced(X), torch.tanh(inner(X)))
