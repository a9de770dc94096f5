"""A torch module, a torch function and a NumPy function, held twice: as written, and through fusec.

Lines of code are run in both worlds, calls are made in both, and what they give and leave behind is compared.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fusec
from fusec.notices import InternalErrorWarning

sys.path.insert(0, str(Path(__file__).parents[1]))

from aliasing import describe, leaves, outcome  # found beside this folder
from threads import at_once

SOURCE = """
class Config:
    kept = 1.0

    def __init__(self, scale=1.0, writes=False):
        self.scale, self.writes = scale, writes


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.slope = nn.Parameter(torch.tensor(0.25))

    def forward(self, x):
        y = self.inner(x)
        return torch.where(y > 0, y, y * self.slope)


class Net(nn.Module):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.block, self.last = nn.LayerNorm(6), nn.Linear(6, 8), Block(8), nn.Linear(8, 6)
        self.drop, self.act = nn.Dropout(0.5), F.gelu
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("table", torch.randn(3, 6))
        self.config, self.gains, self.flags = Config(), [1.0, 0.5], {"scale": True, "all": True}

    def forward(self, x, y):
        h = self.block(self.act(self.first(self.norm(x))))
        z = self.drop(self.last(h)) * self.gains[0] + SHIFT
        if self.flags["scale"]:
            z = z * self.config.scale * self.factor
        if self.training:
            self.count += 1
            self.seen.copy_(x.detach()[0])
        if self.config.writes:
            y.mul_(2)
        z = z + self.table[:1] * self.config.kept
        if not self.flags["all"]:
            return z
        made = {"z": z, "view": x.t(), "sum": (x * y).sum(-1), "same": y}
        return made | {"weight": self.last.weight, "row": self.table[1]}


def make_scale(factor):
    def scale(x, y=2.0):
        return x @ VECTOR * factor + scale.gain, x.relu() * y, VECTOR

    def set_factor(new):
        nonlocal factor
        factor = new

    scale.gain = 1.0
    return scale, set_factor


def rows(a, b=1.5, *, c=0.5):
    h = a @ WEIGHTS + TABLE["bias"]
    h = np.where(h > LIMITS.scale, h, c * h)
    return h * b + rows.gain, h.sum(0), a.T, WEIGHTS


def double_output(module, args, output):
    return output * 2


def halve_linear(module, args, result):
    return result / 2 if type(module) is nn.Linear else None


def shift_input(module, args):
    return (args[0] + 1, *args[1:])


torch.manual_seed(0)
net = Net()
scale, set_factor = make_scale(0.5)
rows.gain = 0.0
SHIFT, VECTOR, LIMITS = 0.25, torch.linspace(-1, 1, 6), Config(0.25)
WEIGHTS, TABLE = np.linspace(-1, 1, 12).reshape(4, 3), {"bias": 0.5}
handles, kept = [], []
"""

NAMES = ("net", "scale", "rows")
DYNAMO = "aot_eager"
"""A backend of torch.compile's that has no part of fusec."""

KEPT = 16
"""So many results are held on to."""


def draw(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, layout: str = "rows") -> torch.Tensor:
    """Numbers that are the same at each call, in a layout."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).to(dtype)
    match layout:
        case "rows":
            return x
        case "columns":
            return x.t().contiguous().t()
        case "every other":
            return torch.stack([x, x], -1).flatten(-2)[..., ::2]
        case "offset":
            return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(shape)
        case "expanded":
            return x[:1].expand(shape)
        case "overlapping":
            return torch.cat([x.flatten(), x.flatten(), x.flatten()]).as_strided(shape, (1,) * len(shape))
        case "inference":
            with torch.inference_mode():
                return x.clone()
        case "gradient":
            return x.requires_grad_(dtype.is_floating_point)
    raise ValueError(layout)


def step(net: Any, kind: Any, **options: Any) -> None:
    """An optimizer's step, with gradients that are made up."""
    parameters = [p for p in net.parameters() if p.is_leaf]
    needed = [p.requires_grad for p in parameters]
    for p in parameters:
        p.requires_grad_(True).grad = torch.full_like(p, 0.125)
    kind(parameters, lr=0.125, **options).step()
    for p, was in zip(parameters, needed, strict=True):
        p.grad = None
        p.requires_grad_(was)


class World:
    """The functions in a namespace of their own. way: "eager", "jit", "compile", or another
    backend of torch.compile.
    """

    def __init__(self, way: str) -> None:
        self.way = way
        self.space: dict[str, Any] = {"__name__": "held", "torch": torch, "np": np, "nn": torch.nn, "copy": copy}
        self.space |= {"F": torch.nn.functional, "draw": draw, "step": step, "gc": gc}
        exec(compile(SOURCE, "<held>", "exec"), self.space)
        self.calls: dict[str, Callable[..., Any]] = {}
        self.renew()

    @property
    def kept(self) -> list[Any]:
        made: list[Any] = self.space["kept"]
        return made

    def renew(self) -> None:
        self.calls = {name: self.through(name, self.space[name]) for name in NAMES}

    def through(self, name: str, function: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = function
        if self.way != "eager":
            made = fusec.jit(function)
            if name != "rows" and self.way != "jit":
                backend: Any = "fusec" if self.way == "compile" else self.way
                made = torch.compile(function, backend=backend)
        return made

    def do(self, line: str) -> None:
        exec(line, self.space)

    def arguments(self, text: str) -> list[Any]:
        made: list[Any] = eval(f"[{text}]", self.space)
        return made

    def state(self) -> dict[str, Any]:
        """Every array that a function reads, by name."""
        net, found = self.space["net"], dict[str, Any]()
        found |= dict(net.named_parameters(remove_duplicate=False))
        found |= dict(net.named_buffers(remove_duplicate=False))
        values = {name: self.space[name] for name in ("SHIFT", "VECTOR", "WEIGHTS")}
        values["bias"] = self.space["TABLE"]["bias"]
        return found | {k: v for k, v in values.items() if isinstance(v, torch.Tensor | np.ndarray)}


class DifferenceError(AssertionError):
    """What is not as written."""


MODES: dict[str, Any] = {
    "grad": "no_grad",
    "autocast": None,
    "dtype": torch.float32,
    "deterministic": False,
    "matmul": "highest",
}


class Pair:
    """Both worlds, and the steps that were made, each a line of source."""

    def __init__(self, way: str) -> None:
        torch._dynamo.reset()
        self.eager, self.fast = World("eager"), World(way)
        self.modes = dict(MODES)
        self.steps = [f"pair = Pair({way!r})"]

    # Steps

    def do(self, line: str) -> None:
        """Runs a line in both worlds."""
        self.steps.append(f"pair.do({line!r})")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            errors = [outcome(world.do, (line,))[1:] for world in (self.eager, self.fast)]
        if errors[0][0] is not errors[1][0]:
            raise DifferenceError(f"{line} raises {errors[1]}, as written {errors[0]}")
        self.compare_state(line)

    def mode(self, name: str, value: Any) -> None:
        self.steps.append(f"pair.mode({name!r}, {value!r})")
        self.modes[name] = value

    def renew(self) -> None:
        """Compiles the functions anew."""
        self.steps.append("pair.renew()")
        self.eager.renew()
        self.fast.renew()

    def call(self, name: str, arguments: str, keep: bool = True) -> None:
        self.steps.append(f"pair.call({name!r}, {arguments!r}, {keep!r})")
        with self.set_modes():
            made = self._call_both(name, arguments)
        if made is not None and keep:
            for world, results in zip((self.eager, self.fast), made, strict=True):
                world.kept.extend(leaves(results))
                del world.kept[:-KEPT]
        del made
        self.compare_state(f"after {name}")

    def call_in_threads(self, name: str, arguments: str) -> None:
        """Three calls at once: each gives what the function gives."""
        self.steps.append(f"pair.call_in_threads({name!r}, {arguments!r})")
        if self.modes["grad"] == "inference_mode":
            return
        modes = self.modes
        expected = self._expected(name, arguments)
        wrong: list[str] = []

        def work(k: int) -> None:
            with self.set_modes(modes, local=True):
                wrong.extend(self._same_as(expected, name, arguments))

        with self.set_modes():
            at_once(work, range(3))
        if wrong:
            raise DifferenceError(f"{name} in a thread: {wrong[0]}")
        self.compare_state(f"after {name} in threads")

    def call_in_child(self, name: str, arguments: str) -> None:
        """A call in a process that is forked here."""
        self.steps.append(f"pair.call_in_child({name!r}, {arguments!r})")
        expected = self._expected(name, arguments)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            said = "it failed"
            try:
                with self.set_modes():
                    said = "\n".join(self._same_as(expected, name, arguments))
            except BaseException as error:
                said = repr(error)
            finally:
                os.write(send, said.encode()[:4000])
                os._exit(0)
        os.close(send)
        with os.fdopen(receive) as told:
            said = told.read()
        _, status = os.waitpid(child, 0)
        if status or said:
            raise DifferenceError(f"{name} in a child: {said or f'status {status}'}")
        gc.collect()

    def train(self, arguments: str) -> None:
        """A backward pass, whose gradients both worlds then step along."""
        self.steps.append(f"pair.train({arguments!r})")
        found = []
        with self.set_modes(self.modes | {"grad": "enable_grad"}):
            for world in (self.eager, self.fast):
                given = world.arguments(arguments)
                torch.manual_seed(1)
                made, error, said = outcome(world.calls["net"], given)
                results = [x for x in leaves(made) if x.requires_grad]
                if error is None and results:
                    _, error, said = outcome(lambda r=results: sum((x.double() ** 2).sum() for x in r).backward(), ())
                found.append((error, said))
        if self._other_error(found[1][0], found[0][0]):
            raise DifferenceError(f"a backward raises {found[1]}, as written {found[0]}")
        theirs = dict(self.eager.space["net"].named_parameters())
        for name, p in self.fast.space["net"].named_parameters():
            other = theirs[name].grad
            if (p.grad is None) != (other is None):
                raise DifferenceError(f"gradient of {name}: {p.grad}, as written {other}")
            if other is not None:
                reach = other.abs().max().double() * torch.finfo(other.dtype).eps * 4 * self._roundings
                if not ((p.grad - other).abs().double() <= reach).logical_or(p.grad.isnan() & other.isnan()).all():
                    raise DifferenceError(f"gradient of {name} holds other numbers")
                p.grad = other.clone()
        for world in (self.eager, self.fast):
            parameters = list(world.space["net"].parameters())
            torch.optim.SGD(parameters, lr=0.0625).step()
            for p in parameters:
                p.grad = None
        self.compare_state("after a backward")

    def save(self, name: str, arguments: str) -> None:
        """Compiles ahead of time, saves, loads, and calls what was loaded."""
        self.steps.append(f"pair.save({name!r}, {arguments!r})")
        with self.set_modes(MODES), tempfile.TemporaryDirectory() as folder:
            expected = self._expected(name, arguments, MODES)
            if expected[1] is not None:
                return
            path = Path(folder) / "made.fusec"
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    fusec.compile(self.fast.space[name], *self.fast.arguments(arguments)).save(path)
            except fusec.errors.FusecError as error:
                if isinstance(error, fusec.errors.VerifyError | fusec.errors.CodegenError):
                    raise DifferenceError(f"{name} is not compiled: {error}") from error
                return
            loaded = fusec.load(path)
            for found in self._same_as(expected, name, arguments, loaded, aliases=False):
                raise DifferenceError(f"{name} loaded: {found}")

    # Comparing

    @contextmanager
    def set_modes(self, modes: dict[str, Any] | None = None, local: bool = False) -> Iterator[None]:
        """PyTorch's modes for calls. local: only those that belong to a thread."""
        modes = modes or self.modes
        before = (torch.get_default_dtype(), torch.get_float32_matmul_precision())
        with ExitStack() as stack, warnings.catch_warnings():
            if not local:
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", InternalErrorWarning)
                torch.set_default_dtype(modes["dtype"])
                torch.set_float32_matmul_precision(modes["matmul"])
                torch.use_deterministic_algorithms(modes["deterministic"])
            stack.enter_context(getattr(torch, modes["grad"])())
            if modes["autocast"] is not None:
                stack.enter_context(torch.autocast("cpu", modes["autocast"]))
            try:
                yield
            finally:
                if not local:
                    torch.set_default_dtype(before[0])
                    torch.set_float32_matmul_precision(before[1])
                    torch.use_deterministic_algorithms(False)

    def _expected(self, name: str, arguments: str, modes: dict[str, Any] | None = None) -> Any:
        """What a copy of the world as written gives. Its own state stays."""
        state = self.eager.state()
        before = dict(zip(state, _copies(list(state.values())), strict=True))
        with self.set_modes(modes):
            torch.manual_seed(1)
            given = self.eager.arguments(arguments)
            result = (*outcome(self.eager.calls[name], given), given)
        for k, x in state.items():
            _overwrite(x, before[k])
        return result

    def _same_as(
        self, expected: Any, name: str, arguments: str, function: Any = None, aliases: bool = True
    ) -> list[str]:
        """What is otherwise in one call; the state that it wrote is put back."""
        if name == "net" and (self.fast.space["net"].training or self.fast.space["net"].config.writes):
            return []
        results, error, said, theirs = expected
        given = self.fast.arguments(arguments)
        got, raised, message = outcome(function or self.fast.calls[name], given)
        if self._other_error(raised, error):
            return [f"raises {raised} ({message[:300]}), as written {error} ({said[:200]})"]
        if error is not None:
            return []
        if aliases and describe(got, given) != describe(results, theirs):
            return [f"results are {describe(got, given)}, as written {describe(results, theirs)}"]
        pairs = zip(leaves(got), leaves(results), strict=True)
        return [
            f"result {k} holds other numbers" for k, (a, b) in enumerate(pairs) if not near(a, b, None, self._roundings)
        ]

    def _call_both(self, name: str, arguments: str) -> tuple[Any, Any] | None:
        sides = []
        exact = self._exact(name, arguments)
        before = [_copies(world.kept) for world in (self.eager, self.fast)]
        for world in (self.eager, self.fast):
            given = world.arguments(arguments)
            torch.manual_seed(1)
            sides.append((*outcome(world.calls[name], given), given, torch.get_rng_state()))
        (expected, error, said, theirs, drawn), (got, raised, message, ours, ours_drawn) = sides
        if self._other_error(raised, error):
            raise DifferenceError(f"{name} raises {raised} ({message[:400]}), as written {error} ({said[:200]})")
        self._compare_kept(before)
        for k, (a, b) in enumerate(zip(leaves(ours), leaves(theirs), strict=True)):
            _same_layout(f"argument {k}", a, b)
            if not near(a, b, None):
                raise DifferenceError(f"argument {k} of {name} holds other numbers")
        if error is not None:
            return None
        if not torch.equal(drawn, ours_drawn):
            raise DifferenceError(f"{name} leaves another state of the random numbers")
        said = [
            describe(made, [*given, *world.kept, *world.state().values()])
            for made, given, world in ((got, ours, self.fast), (expected, theirs, self.eager))
        ]
        if said[0] != said[1]:
            raise DifferenceError(f"results of {name} are {said[0]}, as written {said[1]}")
        pairs = list(zip(leaves(got), leaves(expected), strict=True))
        for k, (a, b) in enumerate(pairs):
            _same_layout(f"result {k} of {name}", a, b)
            reference = exact[k] if exact is not None and len(exact) == len(pairs) else None
            if not near(a, b, reference, self._roundings):
                raise DifferenceError(f"result {k} of {name} holds {a}, as written {b}")
        return expected, got

    @property
    def _roundings(self) -> float:
        """Those of bfloat16 under autocast, in eps of float32: what is exact is not always known."""
        return 16 if self.modes["autocast"] is None else 2.0**18

    def _other_error(self, ours: type[Exception] | None, theirs: type[Exception] | None) -> bool:
        """Under torch.compile, Dynamo and not fusec chooses the class."""
        return (ours is None) is not (theirs is None) if self.fast.way not in ("eager", "jit") else ours is not theirs

    def _compare_kept(self, before: list[list[Any]]) -> None:
        """No call writes into results of others, unless the one as written does."""
        for k, (a, b) in enumerate(zip(self.fast.kept, self.eager.kept, strict=True)):
            changed = not _equal(b, before[0][k])
            if not changed and not _equal(a, before[1][k]):
                raise DifferenceError(f"kept result {k - len(self.fast.kept)} was overwritten")

    def _exact(self, name: str, arguments: str) -> list[Any] | None:
        """The net's results in float64. None for other functions, and where it can't be had."""
        net = self.eager.space["net"]
        if name != "net" or net.config.writes or net.training or self.modes["dtype"] is not torch.float32:
            return None
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                wide = copy.deepcopy(net).double()
                given = self.eager.arguments(arguments)
                return list(leaves(wide(*[x.double() if x.is_floating_point() else x for x in given])))
        except Exception:
            return None

    def compare_state(self, after: str) -> None:
        """Parameters, buffers and globals are the same. Those that differ by roundings are made equal."""
        ours, theirs = self.fast.state(), self.eager.state()
        if list(ours) != list(theirs):
            raise DifferenceError(f"{after}: the state is {list(ours)}, as written {list(theirs)}")
        for name, b in theirs.items():
            a = ours[name]
            _same_layout(f"{after}: {name}", a, b)
            if not _equal(a, b):
                if not near(a, b, None):
                    raise DifferenceError(f"{after}: {name} holds {a}, as written {b}")
                _overwrite(a, b)
        for k, (a, b) in enumerate(zip(self.fast.kept, self.eager.kept, strict=True)):
            _same_layout(f"{after}: kept result {k}", a, b)
            if not near(a, b, None, roundings=2.0**18):
                raise DifferenceError(f"{after}: kept result {k} holds {a}, as written {b}")


def _same_layout(what: str, a: Any, b: Any) -> None:
    if type(a) is not type(b):
        raise DifferenceError(f"{what} is a {type(a)}, as written {type(b)}")
    said = [(x.dtype, tuple(x.shape), _strides(x), _gradient(x)) for x in (a, b)]
    if said[0] != said[1]:
        raise DifferenceError(f"{what} is {said[0]}, as written {said[1]}")


def _strides(x: Any) -> tuple[int, ...]:
    strides = x.stride() if isinstance(x, torch.Tensor) else x.strides
    return tuple(s for s, n in zip(strides, x.shape) if n != 1) if 0 not in x.shape else ()


def _gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _tensor(x: Any) -> torch.Tensor:
    return x.detach() if isinstance(x, torch.Tensor) else torch.from_numpy(np.array(x))


def _copies(arrays: list[Any]) -> list[Any]:
    return [_tensor(x).clone() for x in arrays]


def _equal(a: Any, b: Any) -> bool:
    a, b = _tensor(a), _tensor(b)
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _overwrite(a: Any, b: Any) -> None:
    if _equal(a, b):
        return
    if isinstance(a, torch.Tensor):
        a.detach().data.copy_(_tensor(b))
    else:
        a[...] = np.asarray(b)


def near(ours: Any, theirs: Any, exact: Any, roundings: float = 16) -> bool:
    """Whether the error is at most twice that of the code as written, and some roundings of the largest number."""
    a, b = _tensor(ours), _tensor(theirs)
    if not b.is_floating_point():
        return torch.equal(a, b)
    size = torch.finfo(b.dtype).eps
    a, b = a.double(), b.double()
    if not torch.equal(a.isfinite(), b.isfinite()) or not torch.equal(a.isnan(), b.isnan()):
        return False
    a, b = a.nan_to_num(0, 7, -7), b.nan_to_num(0, 7, -7)
    reference = b if exact is None or exact.shape != b.shape else _tensor(exact).double().nan_to_num(0, 7, -7)
    reach = float(b.abs().max()) if b.numel() else 0.0
    worst = float((b - reference).abs().max()) if b.numel() else 0.0
    return bool(((a - reference).abs() <= 2 * worst + roundings * size * reach).all())


def source(steps: list[str]) -> str:
    """The steps as source that runs."""
    lines = "\n".join(steps)
    return f"import torch\nfrom tests.campaigns.held_programs import Pair\n\n{lines}"


def replay(steps: list[str]) -> str:
    """What differs when these steps are made; empty where nothing does."""
    space: dict[str, Any] = {"Pair": Pair, "torch": torch}
    try:
        exec("\n".join(steps), space)
    except DifferenceError as error:
        return str(error)
    except NameError:
        return ""
    except Exception as error:
        return repr(error)
    return ""


def is_dynamos(steps: list[str]) -> bool:
    """Whether the steps differ under torch.compile without fusec, too."""
    first = steps[0].replace("Pair('compile')", f"Pair({DYNAMO!r})")
    return first != steps[0] and bool(replay([first, *steps[1:]]))


def smallest(steps: list[str]) -> list[str]:
    """The steps without those that the difference does not take."""
    k = len(steps) - 2
    while k > 0:
        shorter = [*steps[:k], *steps[k + 1 :]]
        if replay(shorter):
            steps = shorter
        k -= 1
    return steps
