# SPDX-License-Identifier: Apache-2.0
"""What a user calls: each function strings stages together and holds no logic of its own."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from typing import Any, Literal, TypeVar, overload

from fusec import config, loading
from fusec.ahead import for_range, ranges_of, size_classes
from fusec.arguments import called, capturing, devices_in, examples, is_argument, plain
from fusec.build import Options, Tune, checked, compile_with, kernel_source, run_passes, target_of
from fusec.calibrated import calibration_of
from fusec.checks import check_captured_for, check_target, require_target
from fusec.differentiating import differentiate_with
from fusec.digest import tell_program
from fusec.errors import OptionError
from fusec.explaining import explain_function
from fusec.exporting import Compiled
from fusec.frontend.capture import Capture, Fallback, Library
from fusec.frontend.structures import flatten
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.loading import Weights
from fusec.options import Precision, check_choice, check_mapping, check_switch
from fusec.parameters import Parameters
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.dynamic import Extents, Generality
from fusec.runtime.jit import JitFunction, JitModule, jit_function, original
from fusec.runtime.memory import release_memory
from fusec.runtime.program import KernelReport, Program
from fusec.runtime.telling import Telling
from fusec.specs import TensorSpec, placement, spec_of
from fusec.tile.kernel import Kernel
from fusec.variants import Variants

__all__ = [
    "Compiled",
    "LoweredGraph",
    "LoweredKernel",
    "TensorSpec",
    "compile",
    "explain",
    "jit",
    "load",
    "lower",
    "parse",
    "release_memory",
    "trace",
]

F = TypeVar("F", bound=Callable[..., Any])

config.configure_logging()


_EXTENTS: dict[bool | None, Extents] = {None: "followed", True: "sampled", False: "fixed"}
"""What ``dynamic=`` asks for."""


@overload
def jit(function: F, /) -> F: ...


@overload
def jit(
    *,
    target: str | None = None,
    dynamic: bool | None = None,
    static: str | Iterable[str] = (),
    freeze: bool = False,
    precision: Precision = "ieee",
    tune: Tune = False,
    fallback: Fallback = "eager",
    cache: bool = True,
    graph: bool = False,
    warn: bool = True,
) -> Callable[[F], F]: ...


def jit(
    function: Any = None,
    /,
    *,
    target: str | None = None,
    dynamic: bool | None = None,
    static: str | Iterable[str] = (),
    freeze: bool = False,
    precision: Precision = "ieee",
    tune: Tune = False,
    fallback: Fallback = "eager",
    cache: bool = True,
    graph: bool = False,
    warn: bool = True,
) -> Any:
    """Compiles a function of torch tensors or NumPy arrays, or an ``nn.Module``, for each signature it is called with.

    A decorator, bare or with options. The result is called like the function and gives what it gives: the same
    shapes, dtypes, strides and aliasing, and the same class of error. A call's signature is the layout of its
    arrays, its other arguments by value, and what the function reads from closures, globals and attributes.

    target: ``cpu``, ``cpu:NAME``, ``cuda:N`` or a GPU's name such as ``cuda:sm_90``; by default where the arguments
    live. tune: ``"quick"`` or ``"full"`` measures schedules at the first call. fallback: ``"eager"`` runs what can't
    be compiled as written, with one warning a reason (:class:`fusec.RunsAsWritten`; ``warn=False`` for none), and
    :func:`explain` says what; ``"error"`` refuses it. cache: keep compiled programs on disk.
    graph: on a GPU, the kernels of a call are replayed as one CUDA graph, which takes less of the host's time; results
    are fresh memory all the same.

    precision: how matmuls and convolutions of f32 are computed. ``"ieee"`` keeps f32, whatever PyTorch's own switches
    say; ``"tf32"`` lets a GPU round their operands to TF32 (ten bits of mantissa, several times faster). ``"bf16"`` and
    ``"f16"`` round the operands to seven and ten bits of mantissa on every device; sums and results stay f32, and all
    else is computed as written. In f16 what is beyond 65504 is infinite. Library calls keep f32.

    dynamic: whether a call that differs from an earlier one in extents alone makes a program that serves ranges of
    them. By default (None) it does for PyTorch functions on a CPU whose every question about extents PyTorch's symbolic
    sizes can follow. ``True``: also for NumPy functions and on GPUs, and where captures at some extents agree. Where no
    one graph serves the ranges each set of extents has a program of its own; with ``False`` always.

    freeze: a CPU's kernels may keep copies of the PyTorch tensors that the function reads besides its arguments (a
    module's weights), arranged as they need them; without, each call reads the weights where they lie. Copies are made
    anew when another tensor comes, and after every write that PyTorch counts (``w.mul_(2)``, an optimizer's step,
    ``load_state_dict``). It does not count writes through ``w.data``, ``w.numpy()``, a storage or a pointer: with
    ``freeze=True`` those may not be seen.

    static: the names of parameters whose PyTorch tensors are weights, too: of them copies are kept in the same way.
    (Arguments that are no arrays are static anyway.)

    OptionError for an option or an environment variable that can't be, TargetError for a target that is not known. A
    call raises them too where ``fallback`` is ``"eager"``: a device, a compiler or a folder that is missing is no
    matter of the function.
    """
    options = checked(Options(target, tune, cache, precision, freeze=freeze))
    check_choice("fallback", fallback, ("eager", "error"))
    check_choice("dynamic", dynamic, (True, False, None))
    check_switch("graph", graph)
    check_switch("warn", warn)
    named = _names(static)

    def decorated(f: Any) -> Any:
        if isinstance(f, staticmethod | classmethod):
            return type(f)(decorated(f.__func__))
        return _jit(f, options, fallback, graph, _EXTENTS[dynamic], named, warn)

    return decorated if function is None else decorated(function)


def _jit(
    function: Any,
    options: Options,
    fallback: Fallback,
    graph: bool,
    extents: Extents,
    static: frozenset[str],
    warn: bool,
) -> Any:
    if not callable(function):
        raise OptionError(f"fusec.jit compiles functions and modules, not {type(function).__name__}")
    if isinstance(function, JitFunction):
        function = function.dispatcher.function
    elif isinstance(function, JitModule):
        function = original(function)

    function = called(function)
    nn = sys.modules.get("torch.nn")
    module = nn is not None and isinstance(function, nn.Module)
    parameters = _parameters(function.forward if module else function, static)
    make = _Dispatchers(options, fallback, graph, extents, parameters, warn)
    if not module:
        return jit_function(function, make)
    from fusec.runtime.torch_module import compiled_module

    return compiled_module(function, make)


@dataclass(frozen=True)
class _Dispatchers:
    """Makes dispatchers with the options of one :func:`jit`. Pickled with what is compiled."""

    options: Options
    fallback: Fallback
    graph: bool
    extents: Extents
    static: frozenset[str]
    warn: bool

    @cached_property
    def _telling(self) -> Telling:
        """One for all, so that a method of many instances tells once."""
        return Telling(warn=self.warn)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    def __call__(self, function: Callable[..., Any]) -> Dispatcher:
        return Dispatcher(
            function,
            compile=compile_with(self.options, self.graph),
            fallback=self.fallback,
            general=Generality(for_range, extents=self.extents, integers=True, classes=size_classes),
            static=self.static,
            require=functools.partial(require_target, self.options.target),
            telling=self._telling,
            differentiate=differentiate_with(self.options, warn=self.warn),
        )


def _names(names: object) -> frozenset[str]:
    """The names of ``static=``. OptionError for what is neither a name nor an iterable of names."""
    given = [names] if isinstance(names, str) else names
    if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping):
        found = list(given)
        if all(isinstance(name, str) for name in found):
            return frozenset(found)
    raise OptionError(f"static={names!r:.100}; it is the name of a parameter, or a tuple of names")


def _parameters(function: Callable[..., Any], names: frozenset[str]) -> frozenset[str]:
    """The names, all of them the function's parameters. OptionError for others."""
    if not names:
        return names
    called = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise OptionError(f"static= names parameters, and Python does not know those of {called}") from None
    unknown = sorted(names - parameters.keys())
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise OptionError(f"static= names {', '.join(unknown)}; {called} takes {', '.join(parameters)}")
    return names


def trace(function: Callable[..., Any], /, *args: Any, target: str | None = None, **kwargs: Any) -> Graph:
    """The graph of a function for these arguments (arrays or :class:`TensorSpec`); its ``str`` is the IR text.

    What is a library's call on a CPU may be kernels on a GPU, so that graphs differ. With a GPU's ``target`` PyTorch's
    tensors on the CPU are meant for the GPU, as those of :func:`compile` are; the graph is what calls there would have.
    (A parameter of the function's own that is called ``target`` is given by position.)

    Raises what capture raises: DataDependentError, UnsupportedOpError, and eager's own errors for a mistake;
    OptionError and TargetError as :func:`compile`.
    """
    function = plain(function)
    check_target(target)
    positional, named, library = examples(function, args, kwargs)
    device = placement(devices_in(args, kwargs), target, library)
    return capturing(function, device=device).capture(positional, named).graph


@dataclass(frozen=True)
class LoweredKernel:
    """One kernel: its tile IR, its schedule, its source for the target, and what is known of its speed."""

    name: str
    kernel: Kernel
    report: KernelReport | None
    target: str

    @property
    def ir(self) -> str:
        """The tile IR text."""
        from fusec.tile.print import print_kernel

        return print_kernel(self.kernel)

    @property
    def schedule(self) -> dict[str, int | str]:
        """Tile sizes by name."""
        return dict(self.report.schedule) if self.report is not None else {}

    @property
    def source(self) -> str:
        """The kernel in the backend's language: TVMScript for a CPU, Triton for a GPU."""
        return kernel_source(self.kernel, self.target)[1]


@dataclass(frozen=True)
class LoweredGraph:
    """A graph after all passes. ``stages``: IR text after each pass, by its name, in order."""

    stages: Mapping[str, str]
    program: Program
    seconds: Mapping[str, float]

    @property
    def kernels(self) -> list[LoweredKernel]:
        """The kernels in the order in which they run, those that pack weights first used first."""
        reports = {report.kernel: report for report in self.program.reports}
        target = self.program.target
        return [LoweredKernel(k.name, k, reports.get(k.name), target) for k in self.program.kernels]

    def explain(self, *, detail: bool = False) -> str:
        """What was fused into which kernels, and why not more. ``detail``: of each of many kernels."""
        return tell_program(self.program, detail=detail)


def lower(
    graph: Graph, target: str | None = None, *, tune: Tune = False, precision: Precision = "ieee"
) -> LoweredGraph:
    """Runs the passes on a graph: IR after each, and kernels with their tile IR, schedule and source.

    The target need not be this machine. The options are those of :func:`jit`. Raises TargetError for one that is not
    known, OptionError for what is no graph, and for a GPU's target where a graph has a library's call because it was
    captured for a CPU (:func:`trace` takes a target, too).
    """
    if not isinstance(graph, Graph):
        raise OptionError(f"fusec.lower takes a graph, such as fusec.trace gives, not {type(graph).__name__}")
    options = checked(Options(target, tune, precision=precision))
    check_captured_for(graph, target)
    lowered = run_passes(graph, target or target_of(graph), options)
    return LoweredGraph(lowered.stages, lowered.program, lowered.seconds)


def compile(
    function: Callable[..., Any],
    /,
    *args: Any,
    target: str | None = None,
    freeze: bool = True,
    tune: Tune = False,
    precision: Precision = "ieee",
    fallback: Fallback = "eager",
    cache: bool = True,
    graph: bool = False,
    dims: Mapping[str, tuple[int, int]] | None = None,
    library: Library | None = None,
    **kwargs: Any,
) -> Compiled:
    """Compiles a function ahead of its calls, for arguments given as arrays or :class:`TensorSpec`.

    Other arguments are part of what is compiled. With ``freeze`` a module's parameters, and tensors that the function
    reads, are copied (packed for the kernels) as they are now; without, each call fetches them. The result computes
    no gradients. The options are those of :func:`jit`. With a GPU's ``target`` arguments described on the CPU, and a
    module's parameters there, are meant for the GPU, which need not be in this machine: what runs is what would run for
    tensors there. The function's own code still sees tensors on the CPU.

    ``dims`` gives named dimensions their least and largest extent (``{"B": (1, 64)}``): the result serves all of
    them, and refuses others with a SignatureError. A named dimension without a range is compiled for each extent that
    it is called with.

    ``library`` says whose arrays are meant (``"torch"``, ``"numpy"``) where there are only specs and the function does
    not tell. Raises what capture and the passes raise; DimensionError for a function that no one graph serves;
    OptionError and TargetError as :func:`jit`.
    """
    function = plain(function)
    options = checked(Options(target, tune, cache, precision))
    check_choice("fallback", fallback, ("eager", "error"))
    check_switch("freeze", freeze)
    check_switch("graph", graph)
    check_mapping("dims", dims, "{'B': (1, 64)}")
    name = getattr(function, "__name__", None) or type(function).__name__
    check_choice("library", library, ("torch", "numpy", "cupy", None))
    _, _, library = examples(function, args, kwargs, library)
    leaves, call = flatten(args, kwargs, is_argument)
    specs = [leaf if isinstance(leaf, TensorSpec) else spec_of(leaf, library) for leaf in leaves]
    device = placement([spec.device for spec in specs], target, library)

    def capture(positional: tuple[Any, ...], named: dict[str, Any]) -> Capture:
        return capturing(function, fallback, device=device).capture(positional, named)

    ahead = Variants(function, capture, library, call, specs, options, device, freeze, graph)
    ranges, parameters, noise = ranges_of(specs, dims), Parameters.of(function), calibration_of(function)
    if ranges:
        return Compiled(name, library, ahead.inputs, call, {}, None, ahead.over(ranges), parameters, noise)
    compiled = Compiled(name, library, ahead.inputs, call, {}, ahead.at, parameters=parameters, quantization=noise)
    if not any(spec.names for spec in specs):
        compiled.specialised({})
    return compiled


def load(
    path: str | PathLike[str], *, weights: Weights | None = None, library: Literal["numpy"] | None = None
) -> Compiled:
    """See :func:`fusec.loading.load`, which ``fusec.load`` is."""
    return loading.load(path, weights=weights, library=library)


def explain(
    function: Any,
    /,
    *args: Any,
    measure: bool = False,
    errors: bool = False,
    detail: bool = False,
    **kwargs: Any,
) -> str:
    """How calls of a function with these arguments run now, and what becomes of them: the kernels, what each fused,
    what was not fused and why.

    Of a function that :func:`jit` made the plan that such calls have is told, or that there is none yet, and the calls
    that ran as written; without arguments, all its plans. One that ``torch.compile`` made is compiled and run anew, and
    the report is on each graph that fusec was given, and on graph breaks. With ``measure`` the kernels are run on the
    arguments and timed. With ``errors`` the results are held against the same graph in float64, and so are those of the
    code as written, which runs once: the largest error, that over the largest exact value, and the largest in units in
    the last place of each element. What the call changes is changed back. Of a program with many kernels, those that
    do the same are told once, the longest first; ``detail`` tells every one. Raises nothing: what stands against it is
    in the text.
    """
    return explain_function(function, args, kwargs, measure=measure, errors=errors, detail=detail)
