# SPDX-License-Identifier: Apache-2.0
"""Every environment variable that fusec reads.

FUSEC_CACHE_DIR      folder of compiled programs (default: the user's cache folder)
FUSEC_DUMP           folder that gets the IR of every pass, the tile IR and the sources of each compiled graph
FUSEC_LOGS           subjects to log on stderr, separated by commas: fuse, tune, cache, compile, recompile, code;
                     or all
FUSEC_DISABLE_PASS   graph passes to leave out, separated by commas
FUSEC_GPU_LANGUAGE   triton or cuda: write GPU kernels in this language where it can say them (default: the best)
FUSEC_TRACE          file that gets a Chrome trace of compiling and of calls; what is in it stays
FUSEC_NVTX           1: NVTX ranges around calls and kernels; 0: none (default: where Nsight watches the process)
FUSEC_VERIFY         1: check the IR after every pass
"""

from __future__ import annotations

import logging
import os
import tempfile
from difflib import get_close_matches
from pathlib import Path

from fusec.errors import OptionError

LOG_SUBJECTS = ("fuse", "tune", "cache", "compile", "recompile", "code")

VARIABLES = (
    *("FUSEC_CACHE_DIR", "FUSEC_DUMP", "FUSEC_LOGS", "FUSEC_DISABLE_PASS"),
    *("FUSEC_GPU_LANGUAGE", "FUSEC_TRACE", "FUSEC_NVTX", "FUSEC_VERIFY"),
)

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def cache_dir() -> Path:
    """The folder of the on-disk cache; it need not exist yet."""
    given = os.environ.get("FUSEC_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    try:
        import platformdirs  # not needed by a program that compiles nothing
    except ImportError:
        return Path.home() / ".cache" / "fusec"
    return Path(platformdirs.user_cache_dir("fusec", appauthor=False))


def dump_dir() -> Path | None:
    """Where to write IR and sources, or None."""
    given = os.environ.get("FUSEC_DUMP")
    return Path(given).expanduser() if given else None


def disabled_passes() -> frozenset[str]:
    return frozenset(filter(None, (p.strip() for p in os.environ.get("FUSEC_DISABLE_PASS", "").split(","))))


def gpu_language() -> str:
    """``triton``, ``cuda``, or ``both``. OptionError for another."""
    given = os.environ.get("FUSEC_GPU_LANGUAGE") or "both"
    if given not in ("triton", "cuda", "both"):
        raise OptionError(f"FUSEC_GPU_LANGUAGE={given}; it is triton or cuda, or unset for the better of both")
    return given


def trace_file() -> Path | None:
    """Where to write a Chrome trace, or None."""
    given = os.environ.get("FUSEC_TRACE")
    return Path(given).expanduser() if given else None


def nvtx() -> bool:
    """Whether calls have NVTX ranges. Nsight's tools name their library in NVTX_INJECTION64_PATH."""
    asked = _switch("FUSEC_NVTX")
    return bool(os.environ.get("NVTX_INJECTION64_PATH")) if asked is None else asked


def verifies() -> bool:
    """Whether the IR is checked after every pass, and an internal error is raised instead of told."""
    return bool(_switch("FUSEC_VERIFY"))


def _switch(name: str) -> bool | None:
    """A variable that is on or off; None where it is not set. OptionError for another value."""
    given = os.environ.get(name, "").strip().lower()
    if given not in ("", *_YES, *_NO):
        raise OptionError(f"{name}={os.environ[name]}; it is 0 or 1")
    return None if not given else given in _YES


def unknown_variables() -> dict[str, str]:
    """Variables that are named like fusec's and are none of them, each with the one that may be meant, or ''."""
    names = [name for name in os.environ if name.upper().startswith("FUSEC_") and name not in VARIABLES]
    return {name: next(iter(get_close_matches(name.upper(), VARIABLES, 1)), "") for name in sorted(names)}


def check_values() -> None:
    """OptionError where a variable has a value that it can't have, or FUSEC_DUMP a folder that can't be written."""
    gpu_language()
    verifies()
    nvtx()
    folder = dump_dir()
    if folder is not None and (reason := why_not_writable(folder)):
        raise OptionError(f"FUSEC_DUMP={folder}: {reason}; set it to a folder that can be written, or unset it")


def why_not_writable(folder: Path, mode: int = 0o777) -> str:
    """Why no file can be put into a folder, which is made; empty where one can."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except FileExistsError:
        return "a file is in its place"
    except OSError as error:
        return f"it can't be written ({error.strerror or error})"


def logger(subject: str) -> logging.Logger:
    """The logger ``fusec.<subject>``."""
    assert subject in LOG_SUBJECTS, subject
    return logging.getLogger(f"fusec.{subject}")


def root_logger() -> logging.Logger:
    """The logger of all of fusec, for warnings that belong to no subject."""
    return logging.getLogger("fusec")


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """fusec's own handler, so that it is added once."""


def configure_logging() -> None:
    """Turns on the subjects named by FUSEC_LOGS. A name that is not one is warned about."""
    wanted = {s.strip() for s in os.environ.get("FUSEC_LOGS", "").split(",")} - {""}
    if not wanted:
        return
    root = root_logger()
    if any(isinstance(handler, _Lines) for handler in root.handlers):
        return
    handler = _Lines()
    handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
    root.addHandler(handler)
    for subject in LOG_SUBJECTS if "all" in wanted else wanted & set(LOG_SUBJECTS):
        logging.getLogger(f"fusec.{subject}").setLevel(logging.DEBUG)
    unknown = wanted - set(LOG_SUBJECTS) - {"all"}
    if unknown:
        root.warning("FUSEC_LOGS: no subject %s; subjects: %s", ", ".join(sorted(unknown)), ", ".join(LOG_SUBJECTS))
