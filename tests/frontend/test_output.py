"""What a function prints, logs or writes: as often as it is called, and never twice for one call."""

from __future__ import annotations

import builtins
import functools
import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.frontend.output import OutputError

torch = pytest.importorskip("torch")

LIBRARIES = pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
Function = Callable[..., Any]

say = print
say_at_once = functools.partial(print, flush=True)
told = False
logger = logging.getLogger("tests.frontend.output")


class Speaker:
    def __init__(self) -> None:
        self.say = print

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *_: object) -> None:
        print("left")

    def __call__(self, x: Any) -> Any:
        self.say("object")
        return x * 2


def prints(x: Any) -> Any:
    print("one")
    return x * 2


def by_another_name(x: Any) -> Any:
    say("other")
    builtins.print("builtins")
    return x * 2


def by_a_partial(x: Any) -> Any:
    say_at_once("partial")
    return x * 2


def in_a_helper(x: Any) -> Any:
    return prints(x) + 1


def to_stdout(x: Any) -> Any:
    sys.stdout.write("out\n")
    sys.stdout.writelines(["a", "b\n"])
    return x * 2


def to_stderr(x: Any) -> Any:
    sys.stderr.write("err\n")
    print("more", file=sys.stderr)
    return x * 2


def goes_on(x: Any) -> Any:
    for _ in range(2):
        try:
            print("try")
        except Exception:
            print("except")
            sys.stderr.write("except\n")
        finally:
            print("finally")
    return x * 2


def goes_on_after_any_error(x: Any) -> Any:
    try:
        sys.stdout.write("try\n")
    except:  # noqa: E722
        print("except")
    with Speaker():
        return x * 2


def makes_another_error(x: Any) -> Any:
    try:
        print("try")
    except Exception as error:
        raise ValueError("it can't print") from error
    return x * 2


def prints_before_a_branch(x: Any) -> Any:
    print("before")
    if x.sum() > 0:
        print("inside")
    return x * 2


def logs(x: Any) -> Any:
    logger.warning("log %d", 1)
    return x * 2


SPEAKING = (
    *(prints, by_another_name, by_a_partial, in_a_helper, to_stdout, to_stderr, goes_on, goes_on_after_any_error),
    *(makes_another_error, prints_before_a_branch, logs),
)


class ToStderr(logging.StreamHandler[Any]):
    """To what is stderr at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@pytest.fixture
def shown(capsys: Any) -> Any:
    """What is printed, and logged to stderr."""
    added = ToStderr()
    logger.addHandler(added)
    yield capsys
    logger.removeHandler(added)


def called(function: Function, make: Any) -> list[float]:
    return [float(function(make(3))[0]) for _ in range(4)]


def output(function: Function, make: Any, shown: Any) -> tuple[list[float], str, str]:
    values = called(function, make)
    texts = shown.readouterr()
    return values, texts.out, texts.err


@LIBRARIES
@pytest.mark.parametrize("function", [*SPEAKING, Speaker()], ids=lambda f: getattr(f, "__name__", "object"))
@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_each_call_prints_once(function: Function, make: Any, shown: Any) -> None:
    expected = output(function, make, shown)
    assert output(fusec.jit(function), make, shown) == expected
    assert sys.getprofile() is None


@LIBRARIES
def test_the_reason_and_the_line(make: Any) -> None:
    compiled: Any = fusec.jit(in_a_helper)
    with pytest.warns(fusec.RunsAsWritten, match=r"test_output.py:\d+: the function calls print\(\)") as seen:
        called(compiled, make)
    assert len(seen) == 1
    assert ": the function calls print()" in fusec.explain(compiled, make(3))
    with pytest.raises(OutputError, match="writes to stdout"):
        fusec.jit(to_stdout, fallback="error")(make(3))
    with pytest.raises(OutputError, match=r"calls print\(\)"):
        fusec.jit(makes_another_error, fallback="error")(make(3))


@LIBRARIES
def test_a_branch_that_is_not_taken(make: Any) -> None:
    def f(x: Any, verbose: bool = False) -> Any:
        if verbose:
            print("verbose")
        logger.debug("not enabled")
        return x * 2

    assert float(fusec.jit(f, fallback="error")(make(3))[0]) == 2


def said_once(x: Any) -> Any:
    global told
    if not told:
        told = True
        print("once")
    return x * 2


@functools.lru_cache
def log_once(text: str) -> None:
    logger.warning(text)


def logged_once(x: Any) -> Any:
    log_once("once")
    return x * 2


@LIBRARIES
@pytest.mark.parametrize("function", [said_once, logged_once])
def test_what_is_said_at_the_first_call_alone(function: Function, make: Any, shown: Any) -> None:
    global told
    told = False
    log_once.cache_clear()
    compiled: Any = fusec.jit(function)
    _, out, err = output(compiled, make, shown)
    assert out + err == "once\n"
    assert sum(compiled.dispatcher.eager_calls.values()) == 1


@LIBRARIES
def test_what_a_file_gets(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines"

    def writes(x: Any) -> Any:
        with path.open("a") as file:
            json.dump({"a": 1}, file)
            print(file=file)
        return x * 2

    compiled = fusec.jit(writes, warn=False)
    for _ in range(3):
        compiled(make(3))
    assert path.read_text() == '{"a": 1}\n' * 3


@LIBRARIES
def test_a_text_in_memory(make: Any) -> None:
    def f(x: Any) -> Any:
        text = io.StringIO()
        text.write("12")
        return x * len(text.getvalue())

    assert float(fusec.jit(f, fallback="error")(make(3))[0]) == 2


def test_what_a_library_logs_and_warnings(capsys: Any) -> None:
    """They are said at the capture; a warning is not said again as written, either."""
    source = "def note(logger):\n    logger.warning('from a library')\n"
    library: dict[str, Any] = {}
    exec(compile(source, "/lib/site-packages/library.py", "exec"), library)
    theirs = logging.getLogger("tests.frontend.output.library")
    theirs.addHandler(ToStderr())

    def f(x: Any) -> Any:
        library["note"](theirs)
        warnings.warn("a warning", UserWarning, stacklevel=1)
        return x * 2

    compiled = fusec.jit(f, fallback="error")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda *_, **__: sys.stderr.write("a warning\n")
        for _ in range(3):
            compiled(torch.ones(3))
    theirs.handlers.clear()
    assert capsys.readouterr().err == "from a library\na warning\n"


def test_other_threads_print(capsys: Any) -> None:
    """While another captures: each line of theirs is there."""

    def f(x: Any) -> Any:
        thread = threading.Thread(target=lambda: [print("thread") for _ in range(3)])
        thread.start()
        thread.join()
        return x * 2

    fusec.jit(f)(torch.ones(3))
    assert set(capsys.readouterr().out.split()) == {"thread"}


def test_a_progress_bar(capsys: Any) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    def f(x: Any, disable: bool) -> Any:
        for k in tqdm(range(3), disable=disable, mininterval=0, bar_format="{n_fmt}"):
            x = x * k
        return x

    fusec.jit(f, fallback="error")(torch.ones(3), True)
    compiled = fusec.jit(f, warn=False)
    for _ in range(3):
        f(torch.ones(3), False)
        expected = capsys.readouterr().err
        compiled(torch.ones(3), False)
        assert capsys.readouterr().err == expected


def test_a_tracer_stays() -> None:
    seen: list[str] = []

    def tracer(frame: Any, event: str, arg: object) -> Any:
        seen.append(event)
        return tracer

    sys.settrace(tracer)
    try:
        fusec.jit(goes_on, warn=False)(torch.ones(3))
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert "exception" in seen
