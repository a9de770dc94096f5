"""The page in a headless Chromium."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chromium import told

import fusec


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"

    def waves(x: np.ndarray) -> np.ndarray:
        return np.sin(x) / np.sin(x).sum(axis=1, keepdims=True)

    fusec.compile(waves, np.ones((8, 4), np.float32)).write_report(path)
    return path


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


def test_details_open(report: Path) -> None:
    script = """[...document.querySelectorAll("details.kernel-text")].map((d) => {
      d.open = true; return d.querySelector(".beside").getBoundingClientRect().height > 20; }).join()"""
    assert told(report, script).startswith("true")
