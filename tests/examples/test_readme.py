"""Every Python block of the README and the guides runs, in order, in one namespace a page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import fusec
from fusec import config, errors, notices
from fusec.ir.ops import OPS

ROOT = Path(__file__).resolve().parents[2]
GUIDE = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/guide").glob("*.md"))
PAGES = ("README.md", "docs/ir.md", "docs/errors.md", "CONTRIBUTING.md", *GUIDE)
WITHOUT_CODE = ("docs/guide/index.md", "docs/guide/deployment.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    found = blocks(page)
    assert bool(found) != (page in WITHOUT_CODE), f"{page} has {len(found)} Python blocks"
    for number, source in enumerate(found):
        path = tmp_path / f"block{number}.py"
        path.write_text(source)
        exec(compile(source, str(path), "exec"), namespace)


@pytest.mark.parametrize(
    ("head", "page", "columns"),
    [
        ("two cores of a Zen 5 CPU", "cpu.md", ("eager", "compile", "fusec")),
        ("an H200, bf16", "gpu.md", ("eager", "torch.compile", "fusec")),
    ],
)
def test_the_readmes_figures_are_those_of_the_tables(head: str, page: str, columns: tuple[str, ...]) -> None:
    text = (ROOT / "README.md").read_text()
    (table,) = re.findall(rf"^\| {head}.*?(?=\n\n)", text, re.M | re.S)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 5
    for name, *_, eager, compiled, fused in rows:
        found = figures(page, name)
        assert [found[column] for column in columns] == [eager, compiled, fused.strip("*")], name


def figures(page: str, name: str) -> dict[str, str]:
    """A row of a table of results: of each column, or of each of the peers that stand in one."""
    lines = [line.strip("| ").split(" | ") for line in (ROOT / "benchmarks/results" / page).read_text().splitlines()]
    row = next(cells for cells in lines if cells[0] == name)
    heads = next(cells for cells in lines if cells[0] == "work")
    found = dict(zip(heads, row, strict=False))
    peers = (peer.rpartition(" ") for peer in found.get("peers", "").split("<br>"))
    return found | {peer: figure for peer, _, figure in peers}


def test_the_ir_page_lists_every_op() -> None:
    """But for elementwise ops and reductions that are new: for those it names their tables."""
    page = (ROOT / "docs/ir.md").read_text()
    table = page.split("### Ops")[1].split("### Views")[0]
    listed = set(re.findall(r"`(\w+)`", "\n".join(line for line in table.splitlines() if line.startswith("|"))))
    assert listed <= set(OPS)
    assert {OPS[name].kind for name in set(OPS) - listed} <= {"elementwise", "reduce"}
    assert "(../fusec/ir/ops/elementwise.py)" in table
    assert "(../fusec/ir/monoid.py)" in table


def test_the_errors_page_lists_every_error() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    classes = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    pythons = {"TypeError", "ValueError", "RuntimeError"}
    assert classes - {"FusecError"} == set(re.findall(r"`(\w+Error)`", page)) - pythons


def test_the_errors_page_lists_every_warning() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    classes = {name for name, kind in vars(notices).items() if isinstance(kind, type) and issubclass(kind, Warning)}
    assert classes <= set(re.findall(r"`(?:fusec\.notices\.)?(\w+)`", page))


def test_the_readme_lists_every_variable_and_option() -> None:
    page = (ROOT / "README.md").read_text()
    assert set(config.VARIABLES) == set(re.findall(r"^\| `(FUSEC_\w+)=", page, re.M))
    options = {*inspect.signature(fusec.jit).parameters} - {"function"}
    assert options == set(re.findall(r"^\| `(\w+)=", page.split("## Options")[1].split("| environment")[0], re.M))


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("design/*.md")))
def test_the_design_names_files_that_are_there(page: str) -> None:
    for path in re.findall(r"`((?:fusec|passes|codegen|tests)/[\w/]+\.(?:py|c))`", (ROOT / page).read_text()):
        assert (ROOT / path).exists(), f"{page} names {path}"


def test_the_design_takes_fifteen_minutes() -> None:
    assert len((ROOT / "docs/design.md").read_text().split()) < 3000
