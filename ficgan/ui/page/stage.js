// The picture of a file: it is zoomed and moved, and boxes are drawn on it.

import {h, place, within} from "./base.js";
import {extent, movedMarks} from "./extent.js";

/** Where the pointer is, in pixels of the picture that a stage shows. */
function pointOn(stage, [width, height], event) {
  const place = stage.getBoundingClientRect();
  return [within((event.clientX - place.left) / place.width, 0, 1) * width, within((event.clientY - place.top) / place.height, 0, 1) * height];
}

/** A box moved, as far as the picture of a size reaches. */
function shifted(box, [dx, dy], [width, height]) {
  const x = within(dx, -box[0], width - box[2]), y = within(dy, -box[1], height - box[3]);
  return [box[0] + x, box[1] + y, box[2] + x, box[3] + y];
}

const rounded = box => box.map(value => Math.round(value * 10) / 10);
const LEAST = 4;  // pixels of the smallest box

/**
 * Draw one box on a stage, by pointer or keyboard; `done` takes x0, y0, x1, y1 in pixels of the picture. `mode` gives
 * what covers it: while it is drawn one sees how far its cover reaches.
 */
export function boxDrawer(stage, size, button, done, mode) {
  let box = null, node = null, from = null, finish = done, cover = null, back = button, marks = [], begun = null, covering = mode;
  const help = h("p", {class: "hint"});
  const paint = () => {
    if (!node) {
      node = h("div", {class: "box new", tabIndex: 0, role: "group", "aria-label": "Box. Arrow keys move it, with Shift they change its size, Enter takes it, Escape leaves it."});
      node.addEventListener("keydown", keys);
      cover = extent(...size());
      stage.append(cover.node, node);
    }
    place(node, box, ...size());
    cover.node.toggleAttribute("hidden", !covering());
    if (covering()) cover.show(box, covering(), movedMarks(marks, begun, box));
  };
  const stop = keyboard => {
    node?.remove();
    cover?.node.remove();
    box = node = from = cover = null;
    stage.classList.remove("drawing");
    help.remove();
    button.setAttribute("aria-pressed", "false");
    if (keyboard) back.focus({preventScroll: true}); else document.activeElement?.blur();
  };
  const take = keyboard => { const taken = box; stop(keyboard); if (taken) finish(rounded(taken)); };
  const keys = event => {
    const [width, height] = size(), step = Math.max(1, width / 100) * (event.ctrlKey ? 0.2 : 1);
    const move = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]}[event.key];
    if (event.key === "Enter") take(true);
    else if (event.key === "Escape") stop(true);
    else if (move && event.shiftKey) box = [box[0], box[1], within(box[2] + move[0], box[0] + LEAST, width), within(box[3] + move[1], box[1] + LEAST, height)];
    else if (move) box = shifted(box, move, [width, height]);
    else return;
    event.preventDefault();
    if (box) paint();
  };
  stage.addEventListener("pointerdown", event => {
    if (!stage.classList.contains("drawing") || event.button) return;
    event.preventDefault();
    stage.setPointerCapture(event.pointerId);
    from = pointOn(stage, size(), event);
  });
  stage.addEventListener("pointermove", event => {
    if (!from) return;
    const [x, y] = pointOn(stage, size(), event);
    box = [Math.min(x, from[0]), Math.min(y, from[1]), Math.max(x, from[0]), Math.max(y, from[1])];
    paint();
  });
  stage.addEventListener("pointerup", event => {
    if (!from) return;
    from = null;
    if (box && box[2] - box[0] >= LEAST && box[3] - box[1] >= LEAST) take();
  });
  /** Begin with a box, and give what becomes of it to `then`; `cover` and `landmarks` are those of the face in it. */
  const edit = (start, words, then, {cover: by = mode, landmarks = []} = {}) => {
    if (stage.classList.contains("drawing")) return stop();
    [finish, marks, begun, covering, back] = [then, landmarks, start, by, then === done ? button : document.activeElement || button];
    help.textContent = words + " With the keyboard: arrows move it, Shift and arrows change its size, Enter takes it, Escape leaves it. The lines around it show what its cover hides, and how far its soft edge reaches.";
    stage.classList.add("drawing");
    button.setAttribute("aria-pressed", "true");
    box = [...start];
    paint();
    (stage.closest(".frame") || stage).append(help);
    node.focus({preventScroll: true});
  };
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    const [width, height] = size(), side = Math.min(width, height) / 5;
    edit([(width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2], "Draw a box over the face.", done);
  });
  return {stop, edit};
}

const CORNERS = {nw: [0, 1], n: [1], ne: [2, 1], e: [2], se: [2, 3], s: [3], sw: [0, 3], w: [0]};

/** Give a box on a stage handles: it is moved and resized by the pointer; `done` takes the new box, `moved` each on the way. */
export function handles(node, stage, size, box, done, moved) {
  let from = null, now = box;
  const begin = (event, sides) => {
    if (event.button) return;
    event.preventDefault();
    event.stopPropagation();
    node.setPointerCapture(event.pointerId);
    from = {point: pointOn(stage, size(), event), sides, moved: false};
  };
  node.addEventListener("pointerdown", event => begin(event, CORNERS[event.target.dataset?.side] || null));
  node.addEventListener("pointermove", event => {
    if (!from) return;
    const [width, height] = size(), [x, y] = pointOn(stage, [width, height], event), dx = x - from.point[0], dy = y - from.point[1];
    if (!from.moved && Math.hypot(dx, dy) * stage.clientWidth / width < CLICK) return;
    from.moved = true;
    if (from.sides) {
      now = [...box];
      for (const side of from.sides) now[side] = side % 2 ? within(box[side] + dy, 0, height) : within(box[side] + dx, 0, width);
      now = [Math.min(now[0], now[2] - LEAST), Math.min(now[1], now[3] - LEAST), Math.max(now[2], now[0] + LEAST), Math.max(now[3], now[1] + LEAST)];
    } else now = shifted(box, [dx, dy], [width, height]);
    place(node, now, width, height);
    moved(now);
  });
  node.addEventListener("pointerup", () => { const was = from; from = null; if (was?.moved) done(rounded(now)); });
  node.addEventListener("pointercancel", () => { from = null; });
  node.append(...Object.keys(CORNERS).map(side => { const handle = h("span", {class: "handle " + side, "aria-hidden": "true"}); handle.dataset.side = side; return handle; }));
}

const STEP = 1.25, CLICK = 4;  // factor of a step of the zoom; pixels from which a press is a drag

/** Let a stage inside a view be zoomed and moved; `size` gives width and height of the picture, `seen` hears of it. */
export function zoomer(view, stage, size, seen) {
  let zoom = 1, x = 0, y = 0, from = null, moved = false;
  const full = () => size()[0] / view.clientWidth / (globalThis.devicePixelRatio || 1);
  const most = () => Math.max(8, 8 * full());
  const apply = () => {
    const [width, height] = [view.clientWidth, view.clientHeight];
    [x, y] = [within(x, width * (1 - zoom), 0), within(y, height * (1 - zoom), 0)];
    stage.style.width = 100 * zoom + "%";
    stage.style.translate = `${x}px ${y}px`;
    view.classList.toggle("zoomed", zoom > 1);
    seen(zoom, zoom / full());
  };
  /** Zoom so that a point of the view stays where it is; without it the middle. */
  const to = (next, px = view.clientWidth / 2, py = view.clientHeight / 2) => {
    const old = zoom;
    zoom = within(next, 1, most());
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
    if (zoom > 1 && event.button === 0 && !event.defaultPrevented && !stage.classList.contains("drawing") && !event.target.closest(".divider")) from = [event.clientX - x, event.clientY - y, event.clientX, event.clientY];
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
      zoom = within(Math.min(1 / share, Math.max(4 * full(), 2)), 1, most());
      x = view.clientWidth / 2 - (box[0] + box[2]) / 2 / width * view.clientWidth * zoom;
      y = view.clientHeight / 2 - (box[1] + box[3]) / 2 / height * view.clientHeight * zoom;
      apply();
    },
    close: () => watch.disconnect(),
  };
}
