// The picture of a file: it is zoomed and moved, and boxes are drawn on it.

import {h, place} from "./base.js";

/** Draw one box on a stage, by pointer or keyboard; `done` takes x0, y0, x1, y1 in pixels of the picture. */
export function boxDrawer(stage, size, button, done) {
  let box = null, node = null, from = null;
  const help = h("p", {class: "hint"}, "Draw a box over the face. With the keyboard: arrows move it, Shift and arrows change its size, Enter takes it, Escape leaves it.");
  const paint = () => {
    if (!node) {
      node = h("div", {class: "box new", tabIndex: 0, role: "group", "aria-label": "New box. Arrow keys move it, with Shift they change its size, Enter takes it, Escape leaves it."});
      node.addEventListener("keydown", keys);
      stage.append(node);
    }
    place(node, box, ...size());
  };
  const stop = () => {
    node?.remove();
    box = node = from = null;
    stage.classList.remove("drawing");
    help.remove();
    button.setAttribute("aria-pressed", "false");
    button.focus();
  };
  const take = () => { const taken = box; stop(); if (taken) done(taken.map(value => Math.round(value * 10) / 10)); };
  const keys = event => {
    const [width, height] = size(), step = Math.max(1, width / 100) * (event.ctrlKey ? 0.2 : 1);
    const move = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]}[event.key];
    if (event.key === "Enter") take();
    else if (event.key === "Escape") stop();
    else if (move && event.shiftKey) { box[2] = Math.max(box[0] + 6, Math.min(width, box[2] + move[0])); box[3] = Math.max(box[1] + 6, Math.min(height, box[3] + move[1])); }
    else if (move) {
      const dx = Math.max(-box[0], Math.min(width - box[2], move[0])), dy = Math.max(-box[1], Math.min(height - box[3], move[1]));
      box = [box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy];
    } else return;
    event.preventDefault();
    if (box) paint();
  };
  const point = event => {
    const place = stage.getBoundingClientRect(), [width, height] = size();
    return [Math.max(0, Math.min(1, (event.clientX - place.left) / place.width)) * width, Math.max(0, Math.min(1, (event.clientY - place.top) / place.height)) * height];
  };
  stage.addEventListener("pointerdown", event => {
    if (!stage.classList.contains("drawing") || event.button) return;
    event.preventDefault();
    stage.setPointerCapture(event.pointerId);
    from = point(event);
  });
  stage.addEventListener("pointermove", event => {
    if (!from) return;
    const [x, y] = point(event);
    box = [Math.min(x, from[0]), Math.min(y, from[1]), Math.max(x, from[0]), Math.max(y, from[1])];
    paint();
  });
  stage.addEventListener("pointerup", event => {
    if (!from) return;
    from = null;
    if (box && box[2] - box[0] >= 4 && box[3] - box[1] >= 4) take();
  });
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    if (stage.classList.contains("drawing")) return stop();
    stage.classList.add("drawing");
    button.setAttribute("aria-pressed", "true");
    const [width, height] = size(), side = Math.min(width, height) / 5;
    box = [(width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2];
    paint();
    stage.after(help);
    node.focus({preventScroll: true});
  });
  return stop;
}

const STEP = 1.25, CLICK = 4;  // factor of a step of the zoom; pixels from which a press is a drag

/** Let a stage inside a view be zoomed and moved; `size` gives width and height of the picture, `seen` hears of it. */
export function zoomer(view, stage, size, seen) {
  let zoom = 1, x = 0, y = 0, from = null, moved = false;
  const full = () => size()[0] / view.clientWidth / (globalThis.devicePixelRatio || 1);
  const most = () => Math.max(8, 8 * full());
  const apply = () => {
    const [width, height] = [view.clientWidth, view.clientHeight];
    x = Math.min(0, Math.max(width * (1 - zoom), x));
    y = Math.min(0, Math.max(height * (1 - zoom), y));
    stage.style.width = 100 * zoom + "%";
    stage.style.translate = `${x}px ${y}px`;
    view.classList.toggle("zoomed", zoom > 1);
    seen(zoom, zoom / full());
  };
  /** Zoom so that a point of the view stays where it is; without it the middle. */
  const to = (next, px = view.clientWidth / 2, py = view.clientHeight / 2) => {
    const old = zoom;
    zoom = Math.min(most(), Math.max(1, next));
    x = px - (px - x) * zoom / old;
    y = py - (py - y) * zoom / old;
    apply();
  };
  const inside = event => { const place = view.getBoundingClientRect(); return [event.clientX - place.left, event.clientY - place.top]; };
  view.addEventListener("wheel", event => {
    event.preventDefault();
    to(zoom * Math.exp(-Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100) / 400), ...inside(event));
  }, {passive: false});
  const closer = () => Math.max(full(), 2);
  view.addEventListener("dblclick", event => {
    if (stage.classList.contains("drawing") || event.target.closest(".divider")) return;
    to(zoom > 1 ? 1 : closer(), ...inside(event));
  });
  view.addEventListener("pointerdown", event => {
    moved = false;
    if (zoom > 1 && event.button === 0 && !stage.classList.contains("drawing") && !event.target.closest(".divider")) from = [event.clientX - x, event.clientY - y, event.clientX, event.clientY];
  });
  view.addEventListener("pointermove", event => {
    if (!from) return;
    if (!moved && Math.hypot(event.clientX - from[2], event.clientY - from[3]) < CLICK) return;
    if (!moved) view.setPointerCapture(event.pointerId);
    moved = true;
    x = event.clientX - from[0];
    y = event.clientY - from[1];
    apply();
  });
  for (const kind of ["pointerup", "pointercancel"]) view.addEventListener(kind, () => { from = null; });
  view.addEventListener("click", event => { if (moved) { event.stopPropagation(); event.preventDefault(); moved = false; } }, true);
  const watch = new ResizeObserver(() => { if (view.clientWidth) apply(); });
  watch.observe(view);
  return {
    in: () => to(zoom * STEP), out: () => to(zoom / STEP), fit: () => to(1), full: () => to(full()), toggle: () => to(zoom > 1 ? 1 : closer()),
    move: (dx, dy) => { x -= dx * view.clientWidth / 5; y -= dy * view.clientHeight / 5; apply(); return zoom > 1; },
    /** A box of the picture, as large as the view allows, but not blown up more than four times. */
    show: box => {
      const [width, height] = size(), share = Math.max((box[2] - box[0]) / width, (box[3] - box[1]) / height) * 2.5;
      zoom = Math.min(most(), Math.max(1, Math.min(1 / share, Math.max(4 * full(), 2))));
      x = view.clientWidth / 2 - (box[0] + box[2]) / 2 / width * view.clientWidth * zoom;
      y = view.clientHeight / 2 - (box[1] + box[3]) / 2 / height * view.clientHeight * zoom;
      apply();
    },
    close: () => watch.disconnect(),
  };
}
