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
