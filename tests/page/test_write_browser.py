"""The page in a headless Chromium."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chromium import told
from typer.testing import CliRunner

import fusec
from fusec.cli.main import app


def waves(x: np.ndarray) -> np.ndarray:
    return np.sin(x) / np.sin(x).sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    fusec.compile(waves, np.ones((8, 4), np.float32)).write_report(path)
    return path


@pytest.fixture(scope="module", params=["cpu", "gpu", "ranges", "measured"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A page of each kind of file, by ``fusec inspect --html``."""
    folder = tmp_path_factory.mktemp(request.param)
    file, path = folder / "f.fusec", folder / "report.html"
    if request.param == "gpu":
        pytest.importorskip("triton")
        torch = pytest.importorskip("torch")
        spec = fusec.TensorSpec((2, 64, 32), "float16")
        fusec.compile(lambda q, k: torch.softmax(q @ k.mT, -1) @ k, spec, spec, target="cuda:sm_90").save(file)
    elif request.param == "ranges":
        fusec.compile(waves, fusec.TensorSpec(("B:1..64", 4), "float32")).save(file)
    else:
        fusec.compile(waves, np.ones((8, 4), np.float32)).save(file)
    options = ["--measure"] if request.param == "measured" else []
    result = CliRunner().invoke(app, ["inspect", str(file), "--html", str(path), *options])
    assert result.exit_code == 0, result.output
    return request.param, path


def test_each_kind_of_file_has_a_whole_page(each: tuple[str, Path]) -> None:
    """Pictures before and after fusion, a roofline with a dot for each kernel, kernels with text; nothing fails."""
    kind, path = each
    script = """[document.querySelectorAll(".zoom svg").length, document.querySelectorAll("svg.roofline").length,
      [...document.querySelectorAll("svg.roofline g.kernel circle")].every((c) => c.getBoundingClientRect().width > 4),
      [...document.querySelectorAll("svg.roofline g.kernel text")].every((t) => t.textContent.length > 3),
      [...document.querySelectorAll("details.kernel-text pre")].every((p) => p.textContent.length > 20),
      document.querySelectorAll("details.kernel-text .beside pre").length >= 2].join()"""
    pieces = 2 if kind == "ranges" else 1
    assert told(path, script) == f"{2 * pieces},{pieces},true,true,true,true"


def test_pictures_are_drawn(report: Path) -> None:
    script = """[...document.querySelectorAll(".zoom svg")].map((svg) => {
      const inner = svg.querySelector("rect").getBoundingClientRect(), frame = svg.getBoundingClientRect();
      return inner.width > 5 && inner.left >= frame.left && inner.bottom <= frame.bottom; }).join()"""
    assert told(report, script) == "true,true"


def test_text_fits_its_box(report: Path) -> None:
    script = """[...document.querySelectorAll(".zoom g")].every((g) => { const box = g.querySelector("rect").getBBox();
      return [...g.querySelectorAll("text")].every((t) => t.getBBox().x + t.getBBox().width <= box.x + box.width); })"""
    assert told(report, script) == "true"


def test_zoom_drag_and_back(report: Path) -> None:
    script = """(() => {
      const frame = document.querySelector(".zoom"), svg = frame.querySelector("svg");
      const box = () => svg.getAttribute("viewBox").split(" ").map(Number), at = frame.getBoundingClientRect();
      const point = (type, x, y) => new PointerEvent(type, {clientX: at.left + x, clientY: at.top + y, pointerId: 1});
      frame.setPointerCapture = () => {};
      const whole = box();
      frame.dispatchEvent(new WheelEvent("wheel", {deltaY: -300, clientX: at.left + 50, clientY: at.top + 50}));
      const closer = box();
      frame.dispatchEvent(point("pointerdown", 50, 50));
      frame.dispatchEvent(point("pointermove", 80, 50));
      frame.dispatchEvent(point("pointerup", 80, 50));
      const moved = box();
      frame.dispatchEvent(new MouseEvent("dblclick"));
      return [closer[2] < whole[2], moved[0] < closer[0], moved[1] === closer[1], box().join() === whole.join()];
    })()"""
    assert told(report, script) == "true,true,true,true"


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model of four layers."""
    torch = pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("stacked") / "report.html"
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0)
    net = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    fusec.compile(net, fusec.TensorSpec((2, 8, 32), "float32")).write_report(path)
    return path


def test_layers_unfold_and_fold(stacked: Path) -> None:
    """An open layer pushes what lies below it down, edges end at boxes, and all is as before when it is folded."""
    script = """(() => {
      const svg = document.querySelector("svg.graph"), layers = [...svg.querySelectorAll(".layer")];
      const shown = () => [...svg.querySelectorAll(":scope > [data-box]")].map((g) => {
        const open = g.classList.contains("open");
        return [g, (open ? g.querySelector(".room") : g.querySelector("rect")).getBoundingClientRect()]; });
      const apart = () => { const all = shown().map(([, box]) => box);
        return all.every((a, i) => all.slice(i + 1).every((b) =>
          a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top)); };
      const ends = () => [...svg.querySelectorAll(":scope > .edge")].every((edge) => {
        const to = (k) => edge.getPointAtLength(k).matrixTransform(svg.getScreenCTM());
        const box = (n) => shown().find(([g]) => g.dataset.box === n)[1], near = (a, b) => Math.abs(a - b) < 1;
        return near(to(0).y, box(edge.dataset.from).bottom) && near(to(1e9).y, box(edge.dataset.to).top); });
      const edges = () => [...svg.querySelectorAll(":scope > .edge")].map((e) => e.getPointAtLength(0).y | 0).join();
      const before = edges(), told = [layers.length, apart(), ends()];
      const press = (layer) => layer.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
      press(layers[1]); press(layers[2]);
      told.push(layers.map((l) => l.classList.contains("open")).join("/"), apart(), ends(), edges() !== before);
      told.push(layers[1].querySelector(".unfolded .op").getBoundingClientRect().width > 5);
      press(layers[1]); press(layers[2]);
      return [...told, apart(), ends(), edges() === before];
    })()"""
    wanted = "4,true,true,false/true/true/false,true,true,true,true,true,true,true"
    assert told(stacked, script) == wanted


def test_a_kernel_leads_into_folded_layers(stacked: Path) -> None:
    script = """(() => {
      const button = [...document.querySelectorAll("button.show")].find((b) => !b.hidden);
      button.click();
      const found = [...document.querySelectorAll(".zoom .found")], layer = found[0].closest(".layer");
      const at = found[0].getBoundingClientRect(), frame = found[0].closest(".frame").getBoundingClientRect();
      const inside = at.top >= frame.top && at.bottom <= frame.bottom;
      const within = inside && at.left >= frame.left && at.right <= frame.right;
      return [found.length, layer.classList.contains("open"), within];
    })()"""
    assert told(stacked, script) == "4,true,true"


def test_details_open(report: Path) -> None:
    script = """[...document.querySelectorAll("details.kernel-text")].map((d) => {
      d.open = true; return d.querySelector(".beside").getBoundingClientRect().height > 20; }).join()"""
    assert told(report, script).startswith("true")


def test_small_pictures_are_not_blown_up(report: Path) -> None:
    script = """[...document.querySelectorAll(".zoom svg")].map((svg) => {
      const scale = svg.getScreenCTM().a; return scale > 0.3 && scale < 1.05; }).join()"""
    assert told(report, script) == "true,true"


def test_search_hides_what_does_not_match(report: Path) -> None:
    script = """(() => {
      const search = document.getElementById("search"), rows = [...document.querySelectorAll("tr.row")];
      const count = () => rows.filter((row) => !row.hidden).length, all = count();
      search.value = "no such thing"; search.dispatchEvent(new Event("input"));
      const none = count();
      search.value = rows[0].querySelector("a").textContent; search.dispatchEvent(new Event("input"));
      const some = count();
      search.value = ""; search.dispatchEvent(new Event("input"));
      return [all > 0, none, some > 0, count() === all];
    })()"""
    assert told(report, script) == "true,0,true,true"


def test_pictures_table_and_texts_lead_to_each_other(report: Path) -> None:
    script = """(() => {
      const links = [...document.querySelectorAll("table.kernels a")];
      const found = links.every((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
      const text = document.querySelector("details.kernel-text");
      location.hash = text.id; dispatchEvent(new Event("hashchange"));
      const opened = text.open;
      const boxes = document.querySelectorAll(".zoom .kernel.leads");
      const dots = document.querySelectorAll(".roofline .leads");
      text.querySelector("button.show").click();
      const shown = document.querySelectorAll(".zoom .found").length;
      text.open = false;
      const box = document.querySelector(".zoom .found"), at = box.getBoundingClientRect();
      const middle = {clientX: at.x + at.width / 2, clientY: at.y + at.height / 2, bubbles: true};
      const point = (type) => new PointerEvent(type, middle);
      box.closest(".frame").setPointerCapture = () => {};
      box.dispatchEvent(point("pointerdown")); box.dispatchEvent(point("pointerup"));
      return [links.length > 0 && found, opened, boxes.length > 0 && dots.length > 0, shown, text.open];
    })()"""
    assert told(report, script) == "true,true,true,1,true"


def test_nothing_is_wider_than_a_narrow_window(report: Path) -> None:
    script = """(() => { document.body.style.width = "360px";
      return [...document.querySelectorAll("body > *")].every((e) => e.getBoundingClientRect().width <= 362); })()"""
    assert told(report, script) == "true"
