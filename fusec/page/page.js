"use strict";
const READABLE = 0.8; // pixels of the screen for each of a large picture, to begin with

// Each picture's viewBox is what the frame shows of it: the wheel scales it about the pointer, dragging moves it.
for (const frame of document.querySelectorAll(".zoom")) {
  const svg = frame.querySelector("svg");
  const first = svg.querySelector("rect");
  let whole = svg.getAttribute("viewBox").split(" ").map(Number);
  let box = whole.slice();
  const show = () => svg.setAttribute("viewBox", box.join(" "));
  const scale = () => box[2] / svg.clientWidth;
  const zoom = (factor, x, y) => {
    const wide = Math.min(Math.max(box[2] * factor, whole[2] / 200), whole[2] * 4);
    const by = wide / box[2];
    box = [x - (x - box[0]) * by, y - (y - box[1]) * by, wide, box[3] * by];
    show();
  };
  const least = () => Math.max(whole[2] / svg.clientWidth, whole[3] / svg.clientHeight, 1);
  const look = (by, middle, top) => {
    const wide = svg.clientWidth * by;
    box = [middle - wide / 2, top, wide, svg.clientHeight * by];
    show();
  };
  const showWhole = () => {
    const by = least();
    look(by, whole[0] + whole[2] / 2, whole[1] - (svg.clientHeight * by - whole[3]) / 2);
  };
  // A large picture begins at its top, at a size that can be read.
  const begin = () => {
    if (least() <= 1 / READABLE) showWhole();
    else look(1 / READABLE, first.x.baseVal.value + first.width.baseVal.value / 2, whole[1]);
  };
  frame.addEventListener("grown", (event) => {
    whole = event.detail;
    frame.style.height = `min(70vh, ${Math.round(whole[3])}px)`;
    box[3] = svg.clientHeight * scale();
    show();
  });
  frame.addEventListener("lookat", (event) => {
    const by = Math.min(Math.max(scale(), 1), 1 / READABLE);
    look(by, event.detail.x + event.detail.width / 2, event.detail.y - svg.clientHeight * by / 4);
  });
  frame.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    zoom(Math.exp(event.deltaY / 500), at.x, at.y);
  }, { passive: false });
  let last = null;
  frame.addEventListener("pointerdown", (event) => { last = event; frame.setPointerCapture(event.pointerId); });
  frame.addEventListener("pointerup", () => { last = null; });
  frame.addEventListener("pointermove", (event) => {
    if (!last) return;
    box[0] -= (event.clientX - last.clientX) * scale();
    box[1] -= (event.clientY - last.clientY) * scale();
    last = event;
    show();
  });
  frame.addEventListener("dblclick", showWhole);
  frame.addEventListener("keydown", (event) => {
    const middle = [box[0] + box[2] / 2, box[1] + box[3] / 2];
    if (event.key === "+") zoom(0.8, ...middle);
    else if (event.key === "-") zoom(1.25, ...middle);
    else if (event.key === "0") showWhole();
  });
  addEventListener("resize", () => { box[3] = box[2] * svg.clientHeight / svg.clientWidth; show(); });
  begin();
}

// An unfolded layer is wider and higher than its box: what lies below it moves down, what lies beside it aside.
function arrange(svg) {
  const boxes = [...svg.querySelectorAll(":scope > [data-box]")].map((group) => {
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => group.querySelector("rect")[name].baseVal.value);
    const open = group.classList.contains("open");
    const more = open ? [group.dataset.wide - width, group.dataset.high - height] : [0, 0];
    return { group, x, y, width, height, row: Number(group.dataset.row), open, more, middle: x + width / 2 };
  });
  const rows = Math.max(...boxes.map((box) => box.row)) + 1;
  const high = Array(rows).fill(0), grown = Array(rows).fill(0), below = Array(rows).fill(0);
  for (const box of boxes) high[box.row] = Math.max(high[box.row], box.height);
  for (const box of boxes) grown[box.row] = Math.max(grown[box.row], box.height + box.more[1] - high[box.row]);
  for (let row = 1; row < rows; row++) below[row] = below[row - 1] + grown[row - 1];
  const aside = (row, middle) => boxes.reduce((sum, box) =>
    box.row === row && box.middle !== middle ? sum + Math.sign(middle - box.middle) * box.more[0] / 2 : sum, 0);
  let [left, right, bottom] = [0, 0, 0];
  for (const box of boxes) {
    box.dx = aside(box.row, box.middle);
    box.group.setAttribute("transform", `translate(${box.dx} ${below[box.row]})`);
    const half = (box.width + box.more[0]) / 2;
    left = Math.min(left, box.middle + box.dx - half);
    right = Math.max(right, box.middle + box.dx + half);
    bottom = Math.max(bottom, box.y + below[box.row] + box.height + box.more[1]);
  }
  const byNumber = new Map(boxes.map((box) => [box.group.dataset.box, box]));
  for (const edge of svg.querySelectorAll(":scope > [data-points]")) {
    const points = edge.dataset.points.split(" ").map((point) => point.split(",").map(Number));
    const moved = points.map(([x, y, row], k) => {
      if (k === 0 || k === points.length - 1) {
        const box = byNumber.get(k === 0 ? edge.dataset.from : edge.dataset.to);
        return [x + box.dx, y + below[row] + (k === 0 ? box.more[1] : 0)];
      }
      return [x + aside(row, x), y + below[row] + (k % 2 === 0 ? grown[row] : 0)];
    });
    let path = `M${moved[0].join(" ")}`;
    for (let k = 1; k < moved.length; k++) {
      const [[x, y], [nx, ny]] = [moved[k - 1], moved[k]], middle = (y + ny) / 2;
      path += `C${x} ${middle} ${nx} ${middle} ${nx} ${ny}`;
    }
    edge.setAttribute("d", path);
  }
  const margin = 12;
  const whole = [left - margin, -margin, right - left + 2 * margin, bottom + 2 * margin];
  svg.closest(".frame").dispatchEvent(new CustomEvent("grown", { detail: whole }));
}
function unfold(layer, open) {
  layer.classList.toggle("open", open);
  layer.setAttribute("aria-expanded", String(open));
}
function toggle(layer) {
  unfold(layer, !layer.classList.contains("open"));
  arrange(layer.ownerSVGElement);
}
for (const svg of document.querySelectorAll("svg.graph")) {
  const layers = [...svg.querySelectorAll(".layer")];
  for (const layer of layers) layer.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle(layer);
  });
  const controls = svg.closest(".frame").previousElementSibling;
  for (const [name, open] of [["unfold", true], ["fold", false]])
    controls?.querySelector(`button.${name}`)?.addEventListener("click", () => {
      for (const layer of layers) unfold(layer, open);
      arrange(svg);
    });
}

// Kernels in pictures and plots lead to their texts, and a text's button back to the picture.
const partOf = (element) => element.closest("[data-part]").dataset.part;
const textOf = (element) => {
  const names = element.dataset.kernels.split(" ");
  return names.map((name) => document.getElementById(`kernel-${partOf(element)}-${name}`)).find(Boolean)?.closest("details");
};
const open = (text) => {
  text.open = true;
  text.scrollIntoView({ block: "start" });
};
let pressed = null;
addEventListener("pointerdown", (event) => { pressed = event; }, true);
addEventListener("pointerup", (event) => {
  if (!pressed || Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > 4) return;
  const under = document.elementFromPoint(event.clientX, event.clientY);
  const kernel = under?.closest("[data-kernels]"), layer = under?.closest(".layer");
  const text = kernel && textOf(kernel);
  if (text) open(text);
  else if (layer && (under.closest(".folded") || under.parentElement.matches(".unfolded"))) toggle(layer);
});
for (const kernel of document.querySelectorAll("[data-kernels]")) kernel.classList.toggle("leads", Boolean(textOf(kernel)));
const follow = () => {
  const text = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (text?.closest("details.kernel-text")) open(text.closest("details"));
};
addEventListener("hashchange", follow);
follow();
for (const button of document.querySelectorAll("button.show")) {
  const text = button.closest("details");
  const boxes = [...document.querySelectorAll(`.zoom[data-part="${text.dataset.part}"] [data-kernels]`)];
  const own = boxes.filter((found) => textOf(found) === text);
  button.hidden = own.length === 0;
  button.addEventListener("click", (event) => {
    event.preventDefault();
    for (const found of document.querySelectorAll(".found")) found.classList.remove("found");
    for (const box of own) box.classList.add("found");
    const [box] = own, layer = box.closest(".layer"), svg = box.ownerSVGElement;
    if (layer && !layer.classList.contains("open")) toggle(layer);
    const frame = box.closest(".frame"), { x, y, width } = box.querySelector("rect").getBBox();
    frame.scrollIntoView({ block: "center" });
    const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM().inverse().multiply(box.getScreenCTM()));
    frame.dispatchEvent(new CustomEvent("lookat", { detail: { x: at.x, y: at.y, width } }));
  });
}

// The search hides rows and kernels that don't hold what is looked for.
const search = document.getElementById("search");
search.addEventListener("input", () => {
  const wanted = search.value.trim().toLowerCase();
  for (const found of document.querySelectorAll("tr.row, details.kernel-text"))
    found.hidden = !found.textContent.toLowerCase().includes(wanted);
});
