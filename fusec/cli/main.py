# SPDX-License-Identifier: Apache-2.0
"""The command ``fusec``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fusec import __version__
from fusec.checks import check_environment
from fusec.cli.ahead import compile_to_file, run_file
from fusec.cli.doctor import diagnose, gpu_count
from fusec.cli.inspect import describe_file
from fusec.cli.measure import measure_file
from fusec.cli.words import counted, fitted
from fusec.errors import FusecError
from fusec.page.gather import gather_file
from fusec.page.write import write_page
from fusec.runtime.cache import default_cache

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Fuses plain PyTorch and NumPy code into kernels.")
cache_app = typer.Typer(no_args_is_help=True, help="The on-disk cache of compiled programs.")
app.add_typer(cache_app, name="cache")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fusec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Every command but the one that says what is wrong refuses an environment that is."""
    if context.invoked_subcommand == "doctor":
        return
    try:
        check_environment()
    except FusecError as error:
        _fail(error)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="a file that Compiled.save wrote")],
    ir: Annotated[bool, typer.Option("--ir", help="also print the graph")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="also print the kernels' tile IR")] = False,
    detail: Annotated[bool, typer.Option("--detail", help="tell each of many kernels")] = False,
    html: Annotated[
        Path | None, typer.Option(help="write one HTML page instead: graphs, passes, kernels, roofline")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="the folder of the function's source, for the page")] = None,
    onnx: Annotated[Path | None, typer.Option(help="write an ONNX file instead, for Netron")] = None,
    stage: Annotated[str, typer.Option(help="the pass after which the ONNX file shows the graph")] = "fuse",
    piece: Annotated[int, typer.Option(help="which of the file's pieces the ONNX file shows", min=0)] = 0,
    model_explorer: Annotated[Path | None, typer.Option(help="write Model Explorer's JSON instead")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="run it here, on random arguments; only a file whose author you trust")
    ] = False,
) -> None:
    """Shows what is in a compiled file. Without --measure nothing in it is run: safe on a file you don't trust."""
    try:
        if source is not None and html is None:
            raise FusecError("--source is where a page finds your lines; write one with --html FILE")
        times = measure_file(file) if measure else None
        if onnx is not None or model_explorer is not None:
            from fusec.cli.export import export_file

            typer.echo("\n".join(export_file(file, onnx, model_explorer, stage, piece)))
            if html is None:
                return
        if html is not None:
            write_page(gather_file(file, source, times), html)
            typer.echo(f"{html}: {html.stat().st_size:,} bytes")
            return
        typer.echo(fitted(describe_file(file, graph=ir, kernels=kernels, times=times, detail=detail)), nl=False)
    except FusecError as error:
        _fail(error)


@app.command("compile")
def compile_command(
    function: Annotated[
        str, typer.Argument(help="module:function, or module:factory('base', layers=2), which makes one")
    ],
    spec: Annotated[list[str], typer.Option("--spec", help="an argument, such as 'x=f32[B:1..64, 512, 768]'")],
    output: Annotated[Path, typer.Option("-o", "--output", help="the file to write")],
    target: Annotated[str | None, typer.Option(help="such as cpu:x86-64-v3 or cuda:sm_90; this machine's CPU")] = None,
    c: Annotated[Path | None, typer.Option("--c", help="also write a C header and what it loads into a folder")] = None,
    weights: Annotated[bool, typer.Option(help="without: they are given to fusec run, or at load")] = True,
    tune: Annotated[str | None, typer.Option(help="quick or full: measure schedules, on this machine")] = None,
    library: Annotated[
        str | None, typer.Option(help="torch or numpy: whose arrays it takes, where the function does not tell")
    ] = None,
) -> None:
    """Compiles a function into a file that runs without its source and the compilers."""
    try:
        typer.echo(compile_to_file(function, spec, output, target, c, weights=weights, tune=tune, library=library))
    except FusecError as error:
        _fail(error)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="a file that fusec compile wrote, from an author you trust")],
    inputs: Annotated[list[Path], typer.Option("--inputs", help="an argument as .npy; again for each, in order")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="where to write the results, as .npz")] = None,
    weights: Annotated[Path | None, typer.Option(help="a safetensors file, for one compiled with --no-weights")] = None,
) -> None:
    """Calls a compiled file on arrays."""
    try:
        typer.echo(run_file(file, inputs, output, weights))
    except FusecError as error:
        _fail(error)


@app.command()
def opt(
    file: Annotated[
        Path, typer.Argument(help="IR text, as str(graph) or FUSEC_DUMP writes it; - for the standard input")
    ],
    passes: Annotated[str | None, typer.Option("-p", "--passes", help="names, by commas; all in order")] = None,
    target: Annotated[str, typer.Option(help="what the passes are to prepare for, such as cuda:sm_90")] = "cpu",
    print_after_all: Annotated[bool, typer.Option("--print-after-all", help="print the IR after each pass")] = False,
    onnx: Annotated[Path | None, typer.Option(help="also write the result as an ONNX file, for Netron")] = None,
    model_explorer: Annotated[Path | None, typer.Option(help="also write it as Model Explorer's JSON")] = None,
) -> None:
    """Runs graph passes on IR text and prints the result."""
    from fusec.cli.opt import optimise_file

    names = None if passes is None else [name.strip() for name in passes.split(",") if name.strip()]
    try:
        text, graph = optimise_file(file, names, target, print_after_all=print_after_all)
        if onnx is not None or model_explorer is not None:
            from fusec.cli.export import export_graph

            export_graph(graph, onnx, model_explorer)
        typer.echo(text, nl=False)
    except FusecError as error:
        _fail(error)


@app.command("bench")
def bench_command(
    function: Annotated[str, typer.Argument(help="module:function; a function, or a module with weights")],
    spec: Annotated[list[str], typer.Option("--spec", help="an argument, such as 'x=f32[64, 512]'")],
    seconds: Annotated[float, typer.Option(help="how long each way is called", min=0.0)] = 1.0,
    target: Annotated[str | None, typer.Option(help="what fusec compiles for")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, times in seconds, memory in bytes")] = False,
) -> None:
    """Times a function as written, by fusec and by torch.compile, on random data, and compares their results."""
    from fusec.cli.bench import bench

    try:
        typer.echo(bench(function, spec, seconds=seconds, as_json=as_json, target=target).rstrip())
    except FusecError as error:
        _fail(error)


@app.command("explain")
def explain_command(
    function: Annotated[str, typer.Argument(help="module:function; a function, or a module with weights")],
    spec: Annotated[list[str], typer.Option("--spec", help="an argument, such as 'x=f32[64, 512]'")],
    errors: Annotated[bool, typer.Option("--errors", help="hold each result against float64")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="run the kernels and time them")] = False,
    detail: Annotated[bool, typer.Option("--detail", help="tell each of many kernels")] = False,
    precision: Annotated[str, typer.Option(help="of float32 matmuls: ieee, tf32, bf16 or f16")] = "ieee",
    target: Annotated[str | None, typer.Option(help="what fusec compiles for")] = None,
) -> None:
    """Says which kernels a function becomes and why not fewer, and how far its results are from float64."""
    from fusec.cli.explain import explain_named

    try:
        told = explain_named(
            *(function, spec), target=target, precision=precision, measure=measure, errors=errors, detail=detail
        )
    except FusecError as error:
        _fail(error)
    typer.echo(fitted(told), nl=False)


@app.command("bisect")
def bisect_command(
    what: Annotated[str, typer.Argument(help="module:function, or the folder of a reproducer")],
    spec: Annotated[list[str] | None, typer.Option("--spec", help="an argument, such as 'x=f32[64, 512]'")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="write a reproducer into this folder")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="allowed difference, relative to the largest value", min=0.0)
    ] = None,
) -> None:
    """Finds the pass or kernel that makes a wrong answer; exit status 1 if there is one."""
    from fusec.cli.bisect import bisect_command as search

    try:
        text, right = search(what, spec or [], output, tolerance)
    except FusecError as error:
        _fail(error)
    typer.echo(text, nl=False)
    if not right:
        raise typer.Exit(1)


@app.command()
def doctor(
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="measure this CPU and the GPUs for the cost model first: some seconds, kept in the cache",
        ),
    ] = False,
) -> None:
    """Says what this machine and installation can do; exit status 1 if something needed is missing."""
    if measure:
        from fusec.probing import measure_machine

        try:
            measure_machine()
            for index in range(gpu_count()):
                from fusec.probing_gpu import measure_gpu

                measure_gpu(index)
        except FusecError as error:
            _fail(error)
    text, healthy = diagnose()
    typer.echo(text, nl=False)
    if not healthy:
        raise typer.Exit(1)


@cache_app.command("ls")
def cache_list() -> None:
    """Lists the cached programs, the last used first."""
    from fusec.cli.cache import listing

    try:
        typer.echo(listing(default_cache()), nl=False)
    except FusecError as error:
        _fail(error)


@cache_app.command("clear")
def cache_clear() -> None:
    """Removes every cached program, measured schedule and machine's profile."""
    try:
        count = default_cache().clear()
    except FusecError as error:
        _fail(error)
    typer.echo(f"{counted(count, 'entry', 'entries')} removed")


@cache_app.command("why")
def cache_why(
    key: Annotated[str, typer.Argument(help="a key that cache ls or FUSEC_LOGS=cache shows, or its beginning")],
) -> None:
    """Says what a cached program was made from, and how that differs from the entries most like it."""
    from fusec.cli.cache import why

    try:
        typer.echo(why(default_cache(), key), nl=False)
    except FusecError as error:
        _fail(error)


@cache_app.command("export")
def cache_export(file: Annotated[Path, typer.Argument(help="the zip file to write")]) -> None:
    """Writes every cached program into one file."""
    from fusec.cli.cache import export_entries

    try:
        typer.echo(f"{counted(export_entries(default_cache(), file), 'program')} in {file}")
    except FusecError as error:
        _fail(error)


@cache_app.command("import")
def cache_import(
    file: Annotated[Path, typer.Argument(help="what cache export wrote, from an author you trust")],
) -> None:
    """Adds the programs of a file to the cache. They are machine code, which later calls run."""
    from fusec.cli.cache import import_entries

    try:
        added, known = import_entries(default_cache(), file)
    except FusecError as error:
        _fail(error)
    typer.echo(f"{counted(added, 'program')} added, {known} {'was' if known == 1 else 'were'} there")


def _fail(error: FusecError) -> NoReturn:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(1)
