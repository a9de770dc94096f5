"use strict";
// Each picture's viewBox is what the frame shows of it: the wheel scales it about the pointer, dragging moves it.
for (const frame of document.querySelectorAll(".zoom")) {
  const svg = frame.querySelector("svg");
  const whole = svg.getAttribute("viewBox").split(" ").map(Number);
  let box = whole.slice();
  const show = () => svg.setAttribute("viewBox", box.join(" "));
  const scale = () => Math.max(box[2] / svg.clientWidth, box[3] / svg.clientHeight);
  const zoom = (factor, x, y) => {
    const wide = Math.min(Math.max(box[2] * factor, whole[2] / 200), whole[2] * 4);
    const by = wide / box[2];
    box = [x - (x - box[0]) * by, y - (y - box[1]) * by, wide, box[3] * by];
    show();
  };
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
  frame.addEventListener("dblclick", () => { box = whole.slice(); show(); });
  frame.addEventListener("keydown", (event) => {
    const middle = [box[0] + box[2] / 2, box[1] + box[3] / 2];
    if (event.key === "+") zoom(0.8, ...middle);
    else if (event.key === "-") zoom(1.25, ...middle);
    else if (event.key === "0") { box = whole.slice(); show(); }
  });
}

// Kernels in pictures and plots lead to their texts, and a text's button back to the picture.
const partOf = (element) => element.closest("[data-part]").dataset.part;
const textOf = (element) => {
  const names = element.dataset.kernels.split(" ");
  return names.map((name) => document.getElementById(`kernel-${partOf(element)}-${name}`)).find(Boolean);
};
const open = (text) => {
  text.open = true;
  text.scrollIntoView({ block: "start" });
};
let pressed = null;
addEventListener("pointerdown", (event) => { pressed = event; }, true);
addEventListener("pointerup", (event) => {
  if (!pressed || Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > 4) return;
  const kernel = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-kernels]");
  const text = kernel && textOf(kernel);
  if (text) open(text);
});
for (const kernel of document.querySelectorAll("[data-kernels]")) kernel.classList.toggle("leads", Boolean(textOf(kernel)));
const follow = () => {
  const text = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (text?.matches("details")) open(text);
};
addEventListener("hashchange", follow);
follow();
for (const button of document.querySelectorAll("button.show")) {
  const text = button.closest("details");
  const boxes = [...document.querySelectorAll(`.zoom[data-part="${text.dataset.part}"] [data-kernels]`)];
  const box = boxes.find((found) => textOf(found) === text);
  button.hidden = !box;
  button.addEventListener("click", (event) => {
    event.preventDefault();
    for (const found of document.querySelectorAll(".found")) found.classList.remove("found");
    box.classList.add("found");
    box.closest(".frame").scrollIntoView({ block: "center" });
  });
}

// The search hides rows and kernels that don't hold what is looked for.
const search = document.getElementById("search");
search.addEventListener("input", () => {
  const wanted = search.value.trim().toLowerCase();
  for (const found of document.querySelectorAll("tr.row, details.kernel-text"))
    found.hidden = !found.textContent.toLowerCase().includes(wanted);
});
