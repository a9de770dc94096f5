"""Random lives of a module and two functions: calls, and between them all that may change what a call has to give.

    python -m tests.campaigns.state_machine --count 1000 --seed 0

Hypothesis draws the steps. A program of steps that differs is cut down and printed as source that runs.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.campaigns.batches import Campaign, Finding, command
from tests.campaigns.held_programs import DifferenceError, Pair, is_dynamos, replay, smallest, source

EXAMPLES, STEPS = 5, 16
"""Programs of one seed, and steps of one program."""

KNOWN: dict[str, str] = {}
"""A part of a line that makes a difference, and why it stays."""

WRITES = (
    "net.first.weight.data[1] = 0.25",
    "net.first.weight.data.mul_(0.5)",
    "net.last.weight.data[:, 2] += 0.5",
    "net.first.weight.detach().numpy()[...] *= 0.75",
    "net.block.inner.weight.detach().numpy()[0, 3] = 2.0",
    "net.norm.weight.detach().numpy()[...] = 0.5",
    "net.last.bias.untyped_storage()[2] = 60",
    "net.first.bias.untyped_storage().fill_(0)",
    "with torch.no_grad(): net.block.inner.weight.add_(0.125)",
    "with torch.no_grad(): net.block.slope.fill_(-0.5)",
    "with torch.no_grad(): net.last.weight.copy_(draw(3, (6, 8)))",
    "with torch.inference_mode(): net.last.bias.mul_(2)",
    "with torch.no_grad(): net.first.weight.set_(draw(11, (8, 6)))",
    "torch.from_dlpack(net.first.bias.data)[1:3] = 1.5",
    "net.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in net.state_dict().items()})",
    "net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)",
    "net.first.weight = nn.Parameter(draw(4, (8, 6)))",
    "net.first.weight = nn.Parameter(draw(4, (8, 6)), requires_grad=False)",
    "net.first.weight.data = draw(5, (8, 6))",
    "net.first.weight.data = draw(5, (6, 8)).t()",
    "net.last.weight.data = net.first.weight.data.t()",
    "net.block.inner.bias = net.first.bias",
    "net.first.bias = None",
    "net.last.weight = nn.Parameter(draw(12, (5, 8)))",
    "net.block.slope = nn.Parameter(draw(13, (8,)))",
    "torch.utils.swap_tensors(net.last.bias, nn.Parameter(draw(14, (6,))))",
    "step(net, torch.optim.SGD)",
    "step(net, torch.optim.SGD, momentum=0.5)",
    "step(net, torch.optim.Adam, foreach=True)",
    "step(net, torch.optim.AdamW, foreach=False)",
    "net.table[1] = 3",
    "net.table = draw(7, (3, 6))",
    "net.table = draw(7, (6, 3)).t()",
    "net.table.data = draw(8, (2, 6))",
    "net.register_buffer('table', draw(8, (4, 6)), persistent=False)",
    "net.seen = torch.zeros(6)",
    "net.requires_grad_(False)",
    "net.requires_grad_(True)",
    "net.first.requires_grad_(False)",
    "net.float()",
    "net.double()",
    "net.bfloat16()",
    "VECTOR[2] = 5.0",
    "VECTOR.numpy()[...] += 1",
    "VECTOR = draw(9, (6,))",
    "VECTOR = draw(9, (6,)).requires_grad_()",
    "VECTOR = draw(9, (6, 2))",
    "VECTOR.untyped_storage().resizable() and VECTOR.resize_(12).fill_(0.5).resize_(6)",
    "WEIGHTS[0] = 2",
    "WEIGHTS.T[1] *= 0.5",
    "WEIGHTS = np.full((4, 3), 0.5)",
    "WEIGHTS = np.asfortranarray(WEIGHTS)",
    "WEIGHTS = np.ones((4, 3), np.float32)",
    "WEIGHTS.flags.writeable = False",
)

READS = (
    "SHIFT = 0.5",
    "SHIFT = 1",
    "SHIFT = True",
    "SHIFT = -0.0",
    "SHIFT = float('nan')",
    "SHIFT = torch.tensor(0.25)",
    "SHIFT = torch.full((6,), 2.0)",
    "SHIFT = np.float32(0.75)",
    "set_factor(2.0)",
    "set_factor(3)",
    "set_factor(torch.tensor(3.0))",
    "scale.gain = 2.5",
    "scale.gain = draw(10, (3, 1))",
    "scale.__defaults__ = (0.5,)",
    "net.gains[0] = 2.0",
    "net.gains = [3.0]",
    "net.gains.insert(0, 0.5)",
    "net.gains = (torch.tensor(0.5), 1.0)",
    "net.flags['scale'] = False",
    "net.flags['scale'] = True",
    "net.flags['all'] = not net.flags['all']",
    "net.flags = {'scale': 0, 'all': 1}",
    "net.config.scale = 0.5",
    "net.config.scale = 2",
    "net.config = Config(scale=2.0)",
    "net.config.kept = 0.0",
    "Config.kept = 3.0",
    "net.config.writes = True",
    "net.config.writes = False",
    "net.factor = 0.5",
    "Net.factor = 2.0",
    "torch.manual_seed(2); net.block = Block(8)",
    "net.block = nn.Identity()",
    "net.norm = nn.Identity()",
    "net.norm = nn.LayerNorm(6, eps=0.5)",
    "net.norm.eps = 0.25",
    "net.act = torch.relu",
    "net.act = torch.tanh",
    "net.act = nn.SiLU()",
    "net.drop.p = 0.25",
    "net.drop = nn.Identity()",
    "net.block.forward = lambda x: x * 2",
    "Block.forward = lambda self, x: self.inner(x) * 3",
    "handles.append(net.block.register_forward_hook(double_output))",
    "handles.append(net.last.register_forward_pre_hook(shift_input))",
    "handles.append(net.register_forward_pre_hook(shift_input))",
    "handles.append(nn.modules.module.register_module_forward_hook(halve_linear))",
    "[handle.remove() for handle in handles]; handles.clear()",
    "net.eval()",
    "net.train()",
    "net.block.train()",
    "TABLE['bias'] = 1.0",
    "TABLE['bias'] = np.arange(3.0)",
    "TABLE = {'bias': 2}",
    "LIMITS.scale = -0.5",
    "LIMITS.scale = np.float64(0.5)",
    "rows.__defaults__ = (2.0,)",
    "rows.__kwdefaults__ = {'c': 0.25}",
    "rows.gain = 3.0",
    "rows.gain = np.ones(3)",
    "double_output.__code__ = shift_input.__code__",
    "gc.collect()",
    "torch.manual_seed(3)",
)

KEPT = (
    "kept[-1].data.fill_(7)",
    "kept[0].data.mul_(2)",
    "kept[-1].detach().numpy()[...] = -1",
    "kept[-1][...] = 0.5",
    "kept[-1] += 1",
    "kept[-2].data.view(-1)[0] = 3",
    "del kept[-1]",
    "del kept[:]; gc.collect()",
)

COPIES = (
    "net = copy.deepcopy(net)",
    "torch.manual_seed(4); net.load_state_dict(Net().state_dict(), strict=False)",
    "net = copy.copy(net)",
)

LAYOUTS = ("rows", "columns", "every other", "offset", "expanded", "overlapping", "inference", "gradient")
DTYPES = ("torch.float32", "torch.float32", "torch.float32", "torch.float64", "torch.bfloat16", "torch.int64")


@st.composite
def matrix(draw: Any, rows: int, columns: int) -> str:
    """One that fits, mostly: the net's dtype changes."""
    dtype, layout = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))
    return f"draw({draw(st.integers(0, 3))}, ({rows}, {columns}), {dtype}, {layout!r})"


@st.composite
def tensors(draw: Any) -> str:
    """Arguments of the net, and of the function ``scale`` with a tensor for its number."""
    n = draw(st.sampled_from((3, 3, 1, 4, 8, 0)))
    x = draw(matrix(n, 6))
    match draw(st.integers(0, 11)):
        case 0:
            return f"*[{x}] * 2"
        case 1:
            return f"*(lambda x: (x, x.view(x.shape)))({x})"
        case 2:
            return f"*(lambda x: (x, x[:1]))({x})"
        case 3:
            return f"{x}, net.table"
        case 4:
            return f"{x}, net.table.detach()[:1]"
        case 5:
            return f"{x}, *kept[-1:]"
        case 6:
            return f"{draw(matrix(n, 5))}, {x}"
        case 7:
            return f"{x}, None"
        case 8:
            return f"{x}, 2.0"
        case _:
            return f"{x}, {draw(matrix(n, 6))}"


@st.composite
def arrays(draw: Any) -> str:
    """Arguments of the NumPy function."""
    n, seed = draw(st.sampled_from((3, 3, 1, 5, 0))), draw(st.integers(0, 3))
    a = f"np.random.default_rng({seed}).normal(size=({n}, 4))"
    a += draw(st.sampled_from(("", "", ".astype(np.float32)", ".T.copy().T", ".repeat(2, 1)[:, ::2]", "[::-1]", ".T")))
    rest = ("", "", ", 2.0", ", 2", ", np.arange(3.0)", ', TABLE["bias"]', ", WEIGHTS[:1]")
    return a + draw(st.sampled_from(rest))


class Life(RuleBasedStateMachine):
    """The life of a :class:`Pair`. What is found stands in ``found``; the steps after it are not made."""

    found: ClassVar[list[tuple[str, list[str]]]] = []
    pair: Pair

    @initialize(way=st.sampled_from(("jit", "compile")), training=st.booleans(), gradients=st.booleans())
    def begin(self, way: str, training: bool, gradients: bool) -> None:
        self.pair = Pair(way)
        self.over = False
        self.attempt("do", f"net.train({training})")
        self.attempt("do", f"net.requires_grad_({gradients})")

    def attempt(self, name: str, *arguments: Any) -> None:
        if self.over:
            return
        try:
            getattr(self.pair, name)(*arguments)
        except DifferenceError as error:
            self.note(str(error))
        except Exception as error:
            self.note(repr(error))

    def note(self, said: str) -> None:
        self.over = True
        Life.found.append((said, list(self.pair.steps)))

    @rule(arguments=tensors(), keep=st.booleans())
    def call_net(self, arguments: str, keep: bool) -> None:
        self.attempt("call", "net", arguments, keep)
        self.attempt("call", "net", arguments, keep)

    @rule()
    def call_net_again(self) -> None:
        self.attempt("call", "net", "draw(1, (3, 6)), draw(2, (3, 6))", True)

    @rule(arguments=tensors())
    def call_scale(self, arguments: str) -> None:
        self.attempt("call", "scale", arguments, True)

    @rule(arguments=arrays())
    def call_rows(self, arguments: str) -> None:
        self.attempt("call", "rows", arguments, True)

    @rule(line=st.sampled_from(WRITES))
    def write(self, line: str) -> None:
        self.attempt("do", line)
        self.attempt("call", "net", "draw(1, (3, 6)), draw(2, (3, 6))", False)

    @rule(line=st.sampled_from(WRITES))
    def write_only(self, line: str) -> None:
        self.attempt("do", line)

    @rule(line=st.sampled_from(READS))
    def change(self, line: str) -> None:
        self.attempt("do", line)
        self.attempt("call", "net", "draw(1, (3, 6)), draw(2, (3, 6))", False)

    @rule(line=st.sampled_from(READS))
    def change_only(self, line: str) -> None:
        self.attempt("do", line)

    @rule(line=st.sampled_from(KEPT))
    def write_result(self, line: str) -> None:
        self.attempt("do", line)

    @rule(line=st.sampled_from(COPIES))
    def copy(self, line: str) -> None:
        self.attempt("do", line)
        self.attempt("renew")

    @rule(grad=st.sampled_from(("no_grad", "enable_grad", "inference_mode")))
    def set_gradients(self, grad: str) -> None:
        self.attempt("mode", "grad", grad)

    @rule(dtype=st.sampled_from((None, torch.bfloat16)))
    def set_autocast(self, dtype: Any) -> None:
        self.attempt("mode", "autocast", dtype)

    @rule(dtype=st.sampled_from((torch.float32, torch.float64)))
    def set_default_dtype(self, dtype: Any) -> None:
        self.attempt("mode", "dtype", dtype)

    @rule(on=st.booleans(), precision=st.sampled_from(("highest", "high", "medium")))
    def set_flags(self, on: bool, precision: str) -> None:
        self.attempt("mode", "deterministic", on)
        self.attempt("mode", "matmul", precision)

    @rule(arguments=tensors())
    def train_net(self, arguments: str) -> None:
        self.attempt("train", arguments)

    @rule(name=st.sampled_from(("net", "scale")), arguments=tensors())
    def call_in_threads(self, name: str, arguments: str) -> None:
        self.attempt("call_in_threads", name, arguments)

    @rule(name=st.sampled_from(("net", "scale")), arguments=tensors())
    def call_in_child(self, name: str, arguments: str) -> None:
        self.attempt("call_in_child", name, arguments)

    @rule(arguments=tensors())
    def save(self, arguments: str) -> None:
        self.attempt("save", "net", arguments)

    @rule(arguments=arrays())
    def save_rows(self, arguments: str) -> None:
        self.attempt("save", "rows", arguments)


def lives(number: int, examples: int = EXAMPLES, steps: int = STEPS) -> list[tuple[str, list[str]]]:
    """Makes the programs of a seed; what differs, each with its steps."""
    Life.found = []

    @seed(number)
    class Seeded(Life):
        pass

    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Seeded, settings=chosen)
    found = [f for f in Life.found if not any(known in line for known in KNOWN for line in f[1])]
    return [f for f in found if not is_dynamos(f[1])]


def trial(number: int) -> Finding | None:
    found = lives(number)
    if not found:
        return None
    said, steps = found[0]
    short = smallest(steps)
    if is_dynamos(short):
        short = steps
    others = "".join(f"\n# also: {other}" for other, _ in found[1:])
    return Finding(replay(short) or said, source(short) + others)


def _of_seed(seed: int) -> str:
    """Source that tries a seed, made without computing anything: the process that forks prints it."""
    return f"from tests.campaigns.state_machine import lives\n\nprint(lives({seed}))"


CAMPAIGN = Campaign("state_machine", _of_seed, trial)

if __name__ == "__main__":
    sys.exit(command(CAMPAIGN, sys.argv[1:]))
