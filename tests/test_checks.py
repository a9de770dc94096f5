"""What is wrong with options, environment, device or tools is one error, whatever the function does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusec
from fusec import checks, toolchain
from fusec.errors import ArtifactError, CacheError, OptionError, SetupError, TargetError
from fusec.notices import SettingWarning

torch = pytest.importorskip("torch")


def branching(x: Any) -> Any:
    """No graph: with ``fallback="eager"`` it runs as written."""
    return x * 2 if x.sum() > 0 else x


def failing(x: Any) -> Any:
    raise AssertionError("it is not run where nothing can be compiled")


@pytest.fixture
def untold() -> Iterator[None]:
    known = set(checks._told)
    checks._told.clear()
    yield
    checks._told.clear()
    checks._told.update(known)


# Environment variables

WRONG = [
    ("FUSEC_DISABLE_PASS", "fus", "there is no pass fus; it takes regions, loops, canonicalize"),
    ("FUSEC_DISABLE_PASS", "cse,writes", "writes can't be left out"),
    ("FUSEC_VERIFY", "maybe", "FUSEC_VERIFY=maybe; it is 0 or 1"),
    ("FUSEC_NVTX", "2", "FUSEC_NVTX=2; it is 0 or 1"),
    ("FUSEC_GPU_LANGUAGE", "opencl", "it is triton or cuda"),
    ("FUSEC_DUMP", "{file}", "a file is in its place"),
    ("FUSEC_DUMP", "{file}/inside", "can't be written"),
    ("FUSEC_TRACE", "{file}", "is no trace of fusec"),
    ("FUSEC_TRACE", "{folder}/none/trace.json", "No such file"),
    ("FUSEC_TRACE", "{folder}", "Is a directory"),
]


@pytest.fixture(params=WRONG, ids=lambda case: f"{case[0]}={case[1]}")
def told(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets a variable to a value that it can't have, and returns what is said of that."""
    (tmp_path / "file").write_text("not a trace")
    name, value, text = request.param
    monkeypatch.setenv(name, value.format(file=tmp_path / "file", folder=tmp_path))
    return text


def test_a_wrong_variable_is_an_error_at_the_decoration(told: str) -> None:
    with pytest.raises(OptionError, match=told):
        fusec.jit(branching)


def test_a_wrong_variable_is_an_error_at_each_call(told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as right:
        for name, _, _ in WRONG:
            right.delenv(name, raising=False)
        jitted = fusec.jit(branching)
    for _ in range(2):
        with pytest.raises(OptionError, match=told):
            jitted(torch.ones(3))
    assert not jitted.dispatcher.eager_calls


def test_a_wrong_variable_ends_everything_else_that_compiles(told: str) -> None:
    x = torch.ones(3)
    graph = fusec.trace(lambda x: x * 2, x)
    with pytest.raises(OptionError, match=told):
        fusec.compile(lambda x: x * 2, x)
    with pytest.raises(OptionError, match=told):
        fusec.lower(graph)
    with pytest.raises(Exception, match=told):  # Dynamo wraps what a backend raises
        torch.compile(lambda x: x * 2, backend="fusec")(x)
    assert told in fusec.explain(lambda x: x * 2, x)


@pytest.mark.parametrize("value", ["1", "0", "true", "Off", ""])
def test_switches(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_VERIFY", value)
    assert fusec.config.verifies() is (value in ("1", "true"))
    np.testing.assert_array_equal(fusec.jit(lambda x: x * 2)(np.ones(3)), np.full(3, 2.0))


@pytest.mark.usefixtures("untold")
def test_an_unknown_variable_is_warned_of_once_at_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_DISABLE_PASSES", "fuse")
    monkeypatch.setenv("FUSEC_WITHOUT_EQUAL", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            np.testing.assert_array_equal(fusec.jit(lambda x: x * 2)(np.ones(3)), np.full(3, 2.0))
    assert [w.category for w in caught] == [SettingWarning] * 2
    assert "no environment variable FUSEC_DISABLE_PASSES; did you mean FUSEC_DISABLE_PASS?" in str(caught[0].message)
    assert "FUSEC_WITHOUT_EQUAL; fusec reads FUSEC_CACHE_DIR" in str(caught[1].message)
    assert {w.filename for w in caught} == {__file__}


# Targets


@pytest.mark.parametrize("target", ["nonsense", "cpu:nonsense", "CPU", "gpu", "", "cuda:x", "cuda:-1", "cuda:", "hip"])
def test_an_unknown_target_is_an_error_at_the_decoration(target: str) -> None:
    with pytest.raises(TargetError, match=r"x86-64-v3|cuda:sm_90"):
        fusec.jit(branching, target=target)
    with pytest.raises(TargetError):
        fusec.compile(branching, torch.ones(3), target=target)
    with pytest.raises(TargetError):
        fusec.lower(fusec.trace(lambda x: x * 2, torch.ones(3)), target)


@pytest.mark.parametrize("target", ["cuda", "cuda:0", "cuda:sm_90", "hip:gfx942"])
@pytest.mark.parametrize("x", [torch.ones(3), np.ones(3)], ids=["torch", "numpy"])
@pytest.mark.parametrize("function", [branching, failing])
def test_a_card_that_is_not_here_is_an_error_at_each_call(function: Any, x: Any, target: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    jitted = fusec.jit(function, target=target)
    for _ in range(2):
        with pytest.raises(TargetError, match=r"can't run here.*leave target= out"):
            jitted(x)
    assert not jitted.dispatcher.eager_calls


@pytest.mark.parametrize("fallback", ["eager", "error"])
def test_code_that_this_cpu_lacks_instructions_for_is_never_run(fallback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.isa.host_features", lambda: frozenset({"sse2", "avx2"}))
    with pytest.raises(TargetError, match=r"target='cpu:x86-64-v4' can't run here: it needs a CPU with avx512"):
        fusec.jit(lambda x: x * 2, target="cpu:x86-64-v4", fallback=fallback)(np.ones(3))
    with pytest.raises(TargetError, match="it needs an aarch64 machine"):
        fusec.jit(lambda x: x * 2, target="cpu:neoverse-n1", fallback=fallback)(np.ones(3))


# Tools


@pytest.mark.parametrize("function", [branching, failing])
def test_a_missing_compiler_is_an_error(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "is_there", lambda module: module != "tvm")
    with pytest.raises(TargetError, match=r"kernels for CPUs need apache-tvm.*not installed: pip install 'apache-tvm"):
        fusec.jit(function)(torch.ones(3))


def test_a_compiler_of_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, right in (("0.26.1", False), ("0.27.0", True), ("0.27.1.post2", True), ("0.28", False), ("1.0", False)):
        monkeypatch.setattr(toolchain, "version", lambda package, found=found: found)
        toolchain._missing.cache_clear()
        reason = toolchain.missing(toolchain.TVM)
        assert (reason == "") is right, found
        assert right or f"apache-tvm {found} is installed: pip install" in reason
    toolchain._missing.cache_clear()


def test_a_compiler_that_can_not_be_imported_is_an_error() -> None:
    with (
        pytest.raises(TargetError, match=r"can't be imported \(libtvm.so: none\).*pip install"),
        toolchain.importing(toolchain.TVM),
    ):
        raise ImportError("libtvm.so: none")
    with pytest.raises(ImportError), toolchain.importing(toolchain.TVM):
        raise ImportError("a bug of ours", name="fusec.codegen.gone")


@pytest.mark.parametrize(
    ("language", "nvrtc", "triton", "right"),
    [
        ("both", False, True, True),
        ("both", True, False, True),
        ("both", False, False, False),
        ("cuda", False, True, False),
        ("triton", True, False, False),
    ],
)
def test_one_language_for_gpus_is_enough(
    language: str, nvrtc: bool, triton: bool, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        if not nvrtc:
            raise TargetError("CUDA C++ needs NVRTC")

    monkeypatch.setattr("fusec.codegen.cuda.nvrtc.load_nvrtc", load)
    monkeypatch.setattr(toolchain, "is_there", lambda module: triton)
    if right:
        toolchain.require_gpu_compiler("cuda:sm_90", language)
    else:
        with pytest.raises(TargetError, match="need"):
            toolchain.require_gpu_compiler("cuda:sm_90", language)


def test_the_versions_are_those_that_the_package_asks_for() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    for tool in (toolchain.TVM, toolchain.TRITON, toolchain.TORCH):
        assert f'"{tool.requirement}"' in text


# Options

OPTIONS: list[dict[str, Any]] = [
    {"target": 3},
    {"dynamic": "yes"},
    {"dynamic": 1},
    {"tune": True},
    {"tune": "slow"},
    {"tune": None},
    {"precision": "fast"},
    {"precision": None},
    {"fallback": "none"},
    {"fallback": True},
    {"cache": "no"},
    {"cache": None},
    {"graph": 1},
    {"warn": "never"},
    {"static": 3},
    {"static": [1]},
    {"static": b"x"},
    {"static": "z"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_wrong_option_is_an_error_at_the_decoration(options: dict[str, Any]) -> None:
    (name,) = options
    for wrong in (ValueError, TypeError, SetupError):
        with pytest.raises(wrong, match=f"{name}="):
            fusec.jit(**options)(lambda x: x)
    with pytest.raises(OptionError):
        fusec.jit(lambda x: x, **options)


X = np.ones((4, 4), np.float32)
NAMED = fusec.TensorSpec(("B", 4))
ON_GPU = fusec.TensorSpec((4, 4), device="cuda:1")


def doubled(x: Any) -> Any:
    return np.multiply(x, 2)


MISUSED: dict[str, tuple[Any, str]] = {
    "freeze": (lambda _: fusec.compile(doubled, X, freeze="no"), "freeze='no'; it is True or False"),
    "fallback": (lambda _: fusec.compile(doubled, X, fallback="none"), "fallback='none'"),
    "graph": (lambda _: fusec.compile(doubled, X, graph=1), "graph=1"),
    "tune": (lambda _: fusec.compile(doubled, X, tune="slow"), "tune='slow'"),
    "dims is no mapping": (lambda _: fusec.compile(doubled, NAMED, dims=3), "dims=3; it maps names"),
    "dims is a list": (lambda _: fusec.compile(doubled, NAMED, dims=[("B", (1, 2))]), "it maps names"),
    "dims has no names": (lambda _: fusec.compile(doubled, NAMED, dims={3: (1, 2)}), "it maps names"),
    "dims has no ends": (lambda _: fusec.compile(doubled, NAMED, dims={"B": 3}), "the range of B is 3"),
    "dims of others": (lambda _: fusec.compile(doubled, NAMED, dims={"C": (1, 2)}), "no spec has a dimension"),
    "shape is a number": (lambda _: fusec.TensorSpec(3), "3 is not a shape"),
    "shape is a text": (lambda _: fusec.TensorSpec("B"), "'B' is not a shape"),
    "shape is nothing": (lambda _: fusec.TensorSpec(None), "None is not a shape"),
    "dimension is nothing": (lambda _: fusec.TensorSpec((None,)), "None is not a dimension"),
    "dimension is negative": (lambda _: fusec.TensorSpec((-1,)), "-1 is not a dimension"),
    "strides are a number": (lambda _: fusec.TensorSpec((4,), strides=3), "strides=3; they are integers"),
    "strides are texts": (lambda _: fusec.TensorSpec((4,), strides=("a",)), "they are integers"),
    "too many strides": (lambda _: fusec.TensorSpec((4,), strides=(1, 1)), "2 strides for 1 dimensions"),
    "dtype": (lambda _: fusec.TensorSpec((4,), "float99"), "no dtype 'float99'"),
    "device": (lambda _: fusec.TensorSpec((4,), device="tpu"), "'tpu' is not a device; it is 'cpu', 'cuda'"),
    "device is a number": (lambda _: fusec.TensorSpec((4,), device=3), "3 is not a device"),
    "a target, and an argument elsewhere": (
        lambda _: fusec.compile(lambda x: torch.exp(x), ON_GPU, target="cpu"),
        "target='cpu' and an argument on cuda:1; leave one of them out",
    ),
    "two GPUs": (
        lambda _: fusec.trace(lambda x: torch.exp(x), ON_GPU, target="cuda:0"),
        "target='cuda:0' and an argument on cuda:1",
    ),
    "a trace's target": (lambda _: fusec.trace(doubled, X, target=3), "target=3; it is a name"),
    "NumPy's arrays on a GPU": (
        lambda _: fusec.compile(lambda x: np.exp(x), ON_GPU, target="cuda:sm_90"),
        "an argument on cuda:1, and NumPy's arrays are in host memory",
    ),
    "lower takes graphs": (lambda _: fusec.lower("graph"), "takes a graph"),
    "parse takes texts": (lambda _: fusec.parse(3), "IR text is a str"),
    "save": (lambda c: c.save(3), "path=3; it is the path of a file"),
    "save without a name": (lambda c: c.save(""), "it is the path of a file"),
    "save with weights": (lambda c: c.save("x.fusec", weights="no"), "weights='no'"),
    "export_c": (lambda c: c.export_c(3), "folder=3"),
    "write_report": (lambda c: c.write_report(None), "path=None"),
    "load": (lambda _: fusec.load(None), "path=None"),
    "load with weights": (lambda _: fusec.load("x.fusec", weights=[1]), r"weights=\[1\]"),
    "profile": (lambda _: fusec.profile(3), "path=3"),
    "profile into nothing": (lambda _: fusec.profile("/nowhere/at/all.json").__enter__(), "trace can't be written"),
}


@pytest.mark.parametrize("case", MISUSED)
def test_every_other_option_is_checked_at_once(case: str) -> None:
    misuse, told = MISUSED[case]
    with pytest.raises(OptionError, match=told):
        misuse(fusec.compile(doubled, X))


def test_devices_may_be_given_as_torch_says_them() -> None:
    assert fusec.TensorSpec((4,), device=torch.device("cuda", 1)).device == "cuda:1"
    assert fusec.TensorSpec((4,), device="cuda").device == "cuda:0"


def test_folders_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    compiled = fusec.compile(doubled, X)
    for write in (compiled.save, compiled.write_report, compiled.export_c):
        with pytest.raises(ArtifactError, match="can't write"):
            write(tmp_path / "file" / "inside")


def test_what_is_compiled_for_another_cpu_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fusec.compile(doubled, X, target="cpu:x86-64-v4")
    monkeypatch.setattr("fusec.runtime.isa.host_features", lambda: frozenset({"sse2"}))
    for _ in range(3):
        with pytest.raises(TargetError, match=r"compiled for cpu:x86-64-v4, it can't run here: .*avx512"):
            compiled(X)
    with pytest.raises(TargetError, match="it needs an aarch64 machine"):
        fusec.compile(doubled, X, target="cpu:neoverse-n1")(X)


@pytest.mark.parametrize("wrong", [3, None, "text", [len]])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="not"):
        fusec.jit()(wrong)
    with pytest.raises(OptionError, match="not a function"):
        fusec.compile(wrong, np.ones(3))
    with pytest.raises(OptionError, match="not a function"):
        fusec.trace(wrong, np.ones(3))


def test_names_of_parameters_that_python_does_not_know() -> None:
    with pytest.raises(OptionError, match="does not know those of"):
        fusec.jit(static="x")(dict.update)


def test_an_unwritable_cache_is_no_matter_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError):
        fusec.jit(lambda x: x * 8.125)(np.ones(3))
    fusec.jit(lambda x: x * 8.125, cache=False)(np.ones(3))
