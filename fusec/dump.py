# SPDX-License-Identifier: Apache-2.0
"""FUSEC_DUMP: what became of each compiled graph, as files to read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from fusec.errors import TargetError
from fusec.runtime.executable import Executable, Module
from fusec.runtime.program import Lowered
from fusec.runtime.serial import program_to_json
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target, is_gpu, require_device
from fusec.tile.print import print_kernel

_lock = threading.Lock()


def dump(folder: Path, lowered: Lowered, module: Module, executable: Executable) -> None:
    """Writes a folder of its own under ``folder``: the IR after each pass, numbered, each kernel's tile IR, source and
    assembly, the program as JSON, and, where this machine can run it, the Python of a call."""
    program = lowered.program
    target = _new_folder(folder, program.name)
    for number, (stage, text) in enumerate(lowered.stages.items()):
        (target / f"{number:02d}_{stage}.ir").write_text(text + "\n")
    texts: Callable[[str], dict[str, str]] = getattr(module, "texts", lambda name: {})
    for kernel in program.kernels:
        (target / f"{kernel.name}.tile").write_text(print_kernel(kernel) + "\n")
        for ending, text in texts(kernel.name).items():
            (target / f"{kernel.name}.{ending}").write_text(text + "\n")
    if program.kernels and not is_gpu(program.target):  # LLVM gives all kernels as one text
        (target / "kernels.s").write_text(getattr(module, "assembly", str)())
    (target / "program.json").write_text(json.dumps(program_to_json(program), indent=1) + "\n")
    if _runs_here(program.target, executable.device or 0):
        (target / "call.py").write_text(executable.source)


def _new_folder(folder: Path, name: str) -> Path:
    """``003_name``, the next number in the folder."""
    with _lock:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [path.name.partition("_")[0] for path in folder.iterdir()]
        number = max((int(n) for n in numbers if n.isdigit()), default=-1) + 1
        while True:
            target = folder / f"{number:03d}_{name}"
            try:
                target.mkdir()
                return target
            except FileExistsError:  # another process was faster
                number += 1


def _runs_here(target: str, device: int) -> bool:
    if not is_gpu(target):
        return cpu_target(target).runs_here
    gpu = gpu_target(target)
    try:
        require_device(gpu.backend, gpu.arch, device)
    except TargetError:
        return False
    return True
