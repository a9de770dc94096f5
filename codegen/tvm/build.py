# SPDX-License-Identifier: Apache-2.0
"""PrimFuncs to machine code, and back from saved bytes.

The whole of TVM's part is four steps: bind the target, make the calling convention, lower TVM's own
builtins, run LLVM. The usual simplifying passes stay out: they are wrong for NaN and slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import tvm
from tvm import tirx

from fusec import tracing
from fusec.codegen.tvm import parallel, tir
from fusec.codegen.tvm.chain import CHAIN
from fusec.codegen.tvm.emit import emit_kernel
from fusec.codegen.tvm.launcher import PAUSES, launcher_ir
from fusec.codegen.tvm.module import CompiledModule, linked, object_of
from fusec.errors import CodegenError
from fusec.progress import bar
from fusec.target.cpu import CpuTarget
from fusec.tile.kernel import Kernel

_SWITCHES = {
    "avx512_vnni": "+avx512vnni",
    "avx512_bf16": "+avx512bf16",
    "amx_tile": "+amx-tile",
    "amx_bf16": "+amx-bf16",
    "amx_int8": "+amx-int8",
}
"""LLVM's switches of a target's matmuls: a machine may have more of them than the processor it is told to be."""


def llvm_target(target: CpuTarget) -> Any:
    """TVM's target for a CPU."""
    options: dict[str, object] = {"kind": "llvm", "mcpu": target.mcpu, "num-cores": target.cores}
    if target.triple:
        options["mtriple"] = target.triple
    switches = [*target.attributes, *(_SWITCHES[name] for name in target.matmul_features)]
    if switches:
        options["mattr"] = switches
    return tvm.target.Target(options)


def compile_kernels(kernels: Sequence[Kernel], target: CpuTarget) -> CompiledModule:
    """Compiles kernels, whose names must differ, in one run of LLVM.

    Raises LoweringError for a kernel that the backend can't express, CodegenError where LLVM fails.
    """
    functions = {}
    with bar("compiling kernels", len(kernels) + 1) as done:
        for kernel in kernels:
            with tracing.span(f"emit {kernel.name}", "compile", language="tvm"):
                functions[kernel.name] = emit_kernel(kernel, target)
            done()
        if len(functions) != len(kernels):
            raise CodegenError("two kernels of one module have the same name")
        if target.runs_here:
            module = _compiled(functions, target)
            shared = linked((object_of(module), _launcher_object(target)))
            if shared is not None:
                return CompiledModule.from_bytes(shared, functions, module)
        module = _compiled({**functions, **_launcher(target)}, target)
    if target.runs_here:
        parallel.prepare()
        parallel.attach(module)
    return CompiledModule(module, functions)


@cache
def _launcher_object(target: CpuTarget) -> bytes:
    """Machine code of the launcher: a longer text than most kernels, and the same in every module of a target."""
    return object_of(_compiled(_launcher(target), target))


def _compiled(functions: dict[str, Any], target: CpuTarget) -> Any:
    try:
        with tracing.span(f"llvm {', '.join(functions)}", "compile", target=target.name):
            return _run_llvm(functions, llvm_target(target))
    except Exception as error:
        names = ", ".join(functions)
        raise CodegenError(f"compiling {names} for {target.name} failed: {str(error).strip()[-400:]}") from error


def _run_llvm(functions: dict[str, Any], target: Any) -> Any:
    plain = {name: f for name, f in functions.items() if _CALLING in f.attrs}
    packed = {name: f for name, f in functions.items() if name not in plain}
    module = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(packed))
    for lower in (tirx.transform.MakePackedAPI(), tirx.transform.LowerTVMBuiltin()):
        module = lower(module)
    for name, function in plain.items():
        module[tvm.ir.GlobalVar(name)] = function.with_attr("target", target)
    return tvm.get_global_func("target.build.llvm")(module, target)


_CALLING, _C_CALL = "calling_conv", 0
"""TVM's attribute, and its number for a plain C function, which takes its arguments as they are."""


_PACKED = "__tvm_ffi_"
"""What TVM puts before the name of a function that is called with tagged values."""


def _launcher(target: CpuTarget) -> dict[str, Any]:
    """The functions that run a module's loops in parallel, and chains of its kernels."""
    return {parallel.SETUP: _setup_function(PAUSES.get(target.architecture, "")), **_plain_functions()}


def _setup_function(pause: str) -> Any:
    """The function that puts the launcher in place; its body brings the IR of all that is not TVM's into the module."""
    addresses = [tir.variable(f"a{k}", "int64") for k in range(6)]
    call = tirx.Evaluate(tirx.call_extern("int32", "fusec_use", *addresses))
    text = tvm.ir.StringImm(launcher_ir(pause))
    body = tirx.AttrStmt(tvm.ir.StringImm("launcher"), "pragma_import_llvm", text, call)
    return tirx.PrimFunc(addresses, body).with_attr("global_symbol", parallel.SETUP)


def _plain_functions() -> dict[str, Any]:
    """Functions of the module that are called by address or from Python; they call on into the imported IR.

    TVM links imported IR only as far as its own functions call it, so each needs one of its own.
    """
    arguments = {
        "fusec_worker": ("pointer",),
        "fusec_team": ("pointer",),
        "fusec_launch": ("pointer", "pointer", "int32"),
        CHAIN: ("pointer", "pointer", "int32", "pointer"),
    }
    result = {}
    for name, types in arguments.items():
        variables = [tir.plain_argument(f"a{i}", t) for i, t in enumerate(types)]
        call = tirx.call_extern("int32", f"{name}_impl", *variables)
        failed = tir.when(tirx.NE(call, tir.integer(0)), [tirx.Evaluate(tirx.tvm_throw_last_error())])
        body = tirx.SeqStmt([failed, tirx.Return(tir.integer(0))])
        function = tirx.PrimFunc(variables, body, ret_type=tvm.ir.PrimType("int32"))
        symbol = f"{_PACKED}{name}" if name == CHAIN else name
        result[symbol] = function.with_attr("global_symbol", symbol).with_attr(_CALLING, tir.integer(_C_CALL))
    return result
