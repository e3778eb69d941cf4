"""Style and script of the page on which boxes are corrected, kept apart from what fills it.

The functions above `if (typeof document …)` are pure, and what they count is what `boxes.errors` counts: collecting
judges the gold images once more, by the boxes that were exported.
"""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --warn: #c60; --box: #fd0; --truth: #0c6; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 80rem; padding: .8rem 1.2rem 2rem; }
h1 { font-size: 1.3rem; margin: 0 0 .4rem; overflow-wrap: anywhere; }
.warning { border-left: .3rem solid var(--warn); background: var(--soft); padding: .5rem .9rem; }
.controls { display: flex; flex-wrap: wrap; gap: .4rem .6rem; align-items: center; margin: .5rem 0; }
#frame { overflow: auto; max-height: 75vh; border: 1px solid var(--line); }
#stage { position: relative; } #stage img, #stage svg { display: block; width: 100%; }
#stage svg { position: absolute; inset: 0; height: 100%; touch-action: none; cursor: crosshair; }
rect { fill: none; stroke: var(--box); stroke-width: 2; vector-effect: non-scaling-stroke; }
rect.chosen { stroke-width: 4; fill: #fd03; } rect.truth { stroke: var(--truth); stroke-width: 4; }
#message { min-height: 1.5em; font-weight: 600; } #message.bad { color: var(--warn); }
button { font: inherit; padding: .2rem .7rem; } kbd { border: 1px solid var(--line); padding: 0 .3em; }
"""

SCRIPT = r"""
"use strict";
function overlap(a, b) {
  const x = Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0]));
  const y = Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1])), common = x * y;
  const union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common;
  return union > 0 ? common / union : 0;
}
// Boxes without a face and faces without a box, where boxes and faces are paired as often as can be (Kuhn).
function errors(boxes, truth, least) {
  const owner = truth.map(() => -1);
  const assign = (i, tried) => truth.some((face, j) => {
    if (tried.has(j) || overlap(boxes[i], face) < least) return false;
    tried.add(j);
    if (owner[j] >= 0 && !assign(owner[j], tried)) return false;
    owner[j] = i;
    return true;
  });
  const right = boxes.filter((_, i) => assign(i, new Set())).length;
  return [boxes.length - right, truth.length - right];
}
// Corners in order, inside the image, to tenths of a pixel; null where less than a pixel is left.
function tidy(box, width, height) {
  const at = (v, most) => Math.min(most, Math.max(0, Math.round(v * 10) / 10));
  const x = [at(box[0], width), at(box[2], width)], y = [at(box[1], height), at(box[3], height)];
  const out = [Math.min(...x), Math.min(...y), Math.max(...x), Math.max(...y)];
  return out[2] - out[0] < 1 || out[3] - out[1] < 1 ? null : out;
}
// What lies under the pointer: an edge of the chosen box, else the smallest box; edges: left, top, right, bottom.
function grab(boxes, x, y, slack, chosen) {
  const hits = [];
  boxes.forEach((b, index) => {
    if (x < b[0] - slack || x > b[2] + slack || y < b[1] - slack || y > b[3] + slack) return;
    const sx = Math.min(slack, (b[2] - b[0]) / 4), sy = Math.min(slack, (b[3] - b[1]) / 4);
    const edges = [x < b[0] + sx, y < b[1] + sy, x > b[2] - sx, y > b[3] - sy];
    hits.push({index, edges, area: (b[2] - b[0]) * (b[3] - b[1])});
  });
  hits.sort((a, b) => a.area - b.area);
  return hits.find(hit => hit.index === chosen && hit.edges.includes(true)) ?? hits[0] ?? null;
}
// A box dragged by its edges, or as a whole where none moves; a whole box stops at the border.
function pull(box, edges, dx, dy, width, height) {
  if (edges.includes(true)) return box.map((v, k) => edges[k] ? v + (k % 2 ? dy : dx) : v);
  const sx = Math.min(width - box[2], Math.max(-box[0], dx)), sy = Math.min(height - box[3], Math.max(-box[1], dy));
  return [box[0] + sx, box[1] + sy, box[2] + sx, box[3] + sy];
}
function begin(page, attempt) {
  return {batch: page.batch, attempt, lives: page.lives, at: 0, showing: false, judged: {},
    boxes: page.images.map(image => image.boxes.map(box => [...box])), seen: page.images.map(() => false)};
}
// What was kept in the browser, or a fresh start where that is of another batch or damaged.
function restore(text, page) {
  try {
    const kept = JSON.parse(text), count = page.images.length;
    const sound = kept.batch === page.batch && kept.boxes.length === count && kept.seen.length === count &&
      kept.at >= 0 && kept.at < count && kept.attempt >= 1 && kept.lives >= 0 && typeof kept.judged === "object";
    if (sound) return kept;
  } catch (error) { /* nothing kept, or nothing of use */ }
  return begin(page, 1);
}
function editable(state) { return state.lives > 0 && !state.showing && !(state.at in state.judged); }
// The worker says that this image is done; a gold image is judged once, by what was drawn before its truth was shown.
function confirm(state, page, checks) {
  if (state.lives === 0) return begin(page, state.attempt + 1);
  const next = {...state, seen: [...state.seen], judged: {...state.judged}};
  next.seen[state.at] = true;
  const truth = checks[state.at];
  if (truth !== undefined && !(state.at in state.judged)) {
    const [more, less] = errors(state.boxes[state.at], truth, page.overlap);
    next.judged[state.at] = more + less === 0;
    if (more + less > 0) return {...next, lives: state.lives - 1, showing: true};
  }
  return {...next, showing: false, at: Math.min(state.at + 1, page.images.length - 1)};
}
function finished(state) { return state.lives > 0 && !state.showing && state.seen.every(Boolean); }
function exported(state, page, worker) {
  if (!finished(state)) throw new Error("look through all images first");
  if (!worker.trim()) throw new Error("say who you are: your name, or the one you were given");
  return {schema: page.schema, batch: page.batch, worker: worker.trim(), attempt: state.attempt, lives: state.lives,
    images: page.images.map((image, i) => ({id: image.id, boxes: state.boxes[i]}))};
}
if (typeof document !== "undefined") {
  const at = id => document.getElementById(id), page = JSON.parse(at("data").textContent);
  const checks = JSON.parse(atob(page.checks)), slot = "ficgan-annotation-" + page.batch;
  const svg = at("boxes"), SVG = "http://www.w3.org/2000/svg";
  let kept = null, chosen = -1, drag = null, zoom = 1, undo = [], trouble = "";
  try { kept = localStorage.getItem(slot); } catch (error) { trouble = "This browser keeps no progress. "; }
  let state = restore(kept, page);
  const image = () => page.images[state.at], boxes = () => state.boxes[state.at];
  const keep = () => {
    try { localStorage.setItem(slot, JSON.stringify(state)); trouble = ""; }
    catch (error) { trouble = "This browser keeps no progress: do not close the page. "; }
  };
  const rectangle = (box, name) => {
    const rect = document.createElementNS(SVG, "rect");
    const values = {x: box[0], y: box[1], width: Math.max(0, box[2] - box[0]), height: Math.max(0, box[3] - box[1])};
    for (const [key, value] of Object.entries(values)) rect.setAttribute(key, value);
    rect.setAttribute("class", name);
    svg.append(rect);
  };
  const ordered = b => [Math.min(b[0], b[2]), Math.min(b[1], b[3]), Math.max(b[0], b[2]), Math.max(b[1], b[3])];
  const draw = () => {
    const {width, height, src} = image(), picture = at("picture");
    if (picture.getAttribute("src") !== src) picture.setAttribute("src", src);
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    const fit = Math.min(at("frame").clientWidth, 0.74 * innerHeight * width / height);
    at("stage").style.width = Math.round(zoom * fit) + "px";
    svg.replaceChildren();
    boxes().forEach((box, i) =>
      rectangle(drag?.index === i ? ordered(drag.now) : box, i === chosen ? "box chosen" : "box"));
    if (drag && drag.index < 0) rectangle(ordered(drag.now), "box chosen");
    if (state.showing) checks[state.at].forEach(box => rectangle(box, "truth"));
    const gone = state.lives === 0, done = finished(state);
    at("place").textContent = "Image " + (state.at + 1) + " of " + page.images.length;
    at("lives").textContent = "lives: " + state.lives + (state.attempt > 1 ? ", attempt " + state.attempt : "");
    at("message").className = state.showing || trouble ? "bad" : "";
    at("message").textContent = trouble + (gone ? "No life is left. The faces are shown in green; start again." :
      state.showing ? "Not right: the faces are shown in green. One life is lost." :
      !editable(state) ? "This image was judged and stays as it is." :
      done ? "All images are done: export, or go back and correct." : "");
    at("next").textContent = gone ? "Start again" : "Next";
    at("back").disabled = gone || state.showing || state.at === 0;
    for (const id of ["add", "remove", "undo", "reset"]) at(id).disabled = !editable(state);
    at("export").disabled = !done;
  };
  const put = list => { undo.push(boxes()); state.boxes[state.at] = list; keep(); draw(); };
  const go = place => {
    if (state.lives === 0 || state.showing) return;
    state.at = Math.min(page.images.length - 1, Math.max(0, place));
    chosen = -1; undo = []; keep(); draw();
  };
  const actions = {
    next() { drag = null; state = confirm(state, page, checks); chosen = -1; undo = []; keep(); draw(); },
    back() { go(state.at - 1); },
    add() {
      const {width, height} = image(), x = width / 2, y = height / 2, r = Math.min(width, height) / 10;
      const box = tidy([x - r, y - r, x + r, y + r], width, height);
      if (box) { chosen = boxes().length; put([...boxes(), box]); }
    },
    remove() { if (chosen >= 0) { const gone = chosen; chosen = -1; put(boxes().filter((_, i) => i !== gone)); } },
    undo() { if (undo.length) { chosen = -1; state.boxes[state.at] = undo.pop(); keep(); draw(); } },
    reset() { chosen = -1; put(image().boxes.map(box => [...box])); },
    export() {
      try {
        const text = JSON.stringify(exported(state, page, at("worker").value), null, 1) + "\n";
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
        link.download = "boxes-" + page.batch + ".json"; link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      } catch (error) { at("message").className = "bad"; at("message").textContent = String(error.message); }
    },
    closer() { zoom = Math.min(8, zoom * 1.5); draw(); },
    wider() { zoom = Math.max(1, zoom / 1.5); draw(); },
    choose() { if (boxes().length) { chosen = (chosen + 1) % boxes().length; draw(); } },
  };
  const fixed = new Set(["add", "remove", "undo", "reset"]);
  const act = name => { if (!fixed.has(name) || editable(state)) actions[name](); };
  for (const id of ["next", "back", "add", "remove", "undo", "reset", "export", "closer", "wider"])
    at(id).addEventListener("click", () => act(id));
  const keys = {Enter: "next", n: "next", b: "back", a: "add", Delete: "remove", Backspace: "remove", u: "undo",
    "+": "closer", "-": "wider", c: "choose"};
  const arrows = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  const nudge = (e, dx, dy) => {
    const step = e.shiftKey ? 10 : 1, {width, height} = image();
    const edges = e.altKey ? [false, false, dx !== 0, dy !== 0] : [false, false, false, false];
    const box = tidy(pull(boxes()[chosen], edges, dx * step, dy * step, width, height), width, height);
    if (box) put(boxes().map((old, i) => i === chosen ? box : old));
  };
  document.addEventListener("keydown", e => {
    if (["INPUT", "TEXTAREA"].includes(e.target.tagName) || e.ctrlKey || e.metaKey) return;
    if (e.key === "Enter" && e.target.tagName === "BUTTON") return;  // that button's own
    if (e.key in arrows && chosen >= 0 && editable(state)) nudge(e, ...arrows[e.key]);
    else if (e.key === "Escape") { chosen = -1; drag = null; draw(); }
    else if (e.key in keys) act(keys[e.key]);
    else return;
    e.preventDefault();
  });
  const where = e => {
    const frame = svg.getBoundingClientRect(), {width, height} = image();
    return {x: (e.clientX - frame.left) * width / frame.width, y: (e.clientY - frame.top) * height / frame.height,
      pixel: width / frame.width};
  };
  svg.addEventListener("pointerdown", e => {
    if (e.button || !editable(state)) return;
    const {x, y, pixel} = where(e), hit = grab(boxes(), x, y, 6 * pixel, chosen);
    svg.setPointerCapture(e.pointerId);
    chosen = hit ? hit.index : -1;
    const box = hit ? boxes()[hit.index] : [x, y, x, y];
    drag = {index: chosen, edges: hit ? hit.edges : [false, false, true, true], x, y, box, now: box};
    draw();
  });
  svg.addEventListener("pointermove", e => {
    if (!drag) return;
    const {x, y} = where(e), {width, height} = image();
    drag.now = pull(drag.box, drag.edges, x - drag.x, y - drag.y, width, height);
    draw();
  });
  svg.addEventListener("pointerup", e => {
    if (!drag) return;
    const {index, now, box} = drag, {pixel} = where(e), {width, height} = image();
    drag = null;
    const clean = tidy(now, width, height), wide = Math.min(Math.abs(now[2] - now[0]), Math.abs(now[3] - now[1]));
    if (clean && index < 0 && wide >= 3 * pixel) { chosen = boxes().length; put([...boxes(), clean]); }
    else if (clean && index >= 0 && now.some((v, k) => v !== box[k]))
      put(boxes().map((b, i) => i === index ? clean : b));
    else draw();
  });
  addEventListener("resize", draw);
  svg.addEventListener("pointercancel", () => { drag = null; draw(); });
  const who = "ficgan-annotation-worker";
  try { at("worker").value = localStorage.getItem(who) || ""; } catch (error) { /* no storage */ }
  at("worker").addEventListener("change", () => {
    try { localStorage.setItem(who, at("worker").value); } catch (error) { /* no storage */ }
  });
  draw();
}
"""
