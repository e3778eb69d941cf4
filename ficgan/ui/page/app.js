"use strict";
// The page of `ficgan ui`. All text is set as text, never as markup.

const at = id => document.getElementById(id);
const items = new Map();
let order = [], since = 0, info = {modes: []}, open = null, uploads = {done: 0, all: 0}, timer = 0;

const MODE_WORDS = {ficgan: "Replace", keep: "Keep as it is", plain: "Cover, one colour", black: "Cover, black", blur: "Blur (can be reversed)", mosaic: "Mosaic (can be reversed)"};
const ACTION_WORDS = {generated: "replaced", retried: "replaced, second try", masked: "masked", kept: "kept", blurred: "blurred", mosaic: "mosaic", plain: "covered", black: "covered", solid: "covered", "": "not drawn yet"};

function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}

/** The picture takes the room there is: as high as the window allows, and not blown up too far. */
function fit(node, {width, height}) {
  node.style.setProperty("--ratio", width / Math.max(height, 1));
  node.style.setProperty("--most", 2.5 * width + "px");
}

function place(node, box, width, height) {
  node.style.left = 100 * box[0] / width + "%";
  node.style.top = 100 * box[1] / height + "%";
  node.style.width = 100 * (box[2] - box[0]) / width + "%";
  node.style.height = 100 * (box[3] - box[1]) / height + "%";
  return node;
}

function tell(text) {
  const line = h("p", {}, h("span", {}, text));
  line.append(h("button", {type: "button", onclick: () => line.remove()}, "Close"));
  at("messages").append(line);
  while (at("messages").children.length > 5) at("messages").firstChild.remove();
}

async function call(method, path, body) {
  const raw = body instanceof Blob;
  let answer;
  try {
    answer = await fetch("/api" + path, {
      method, body: body === undefined ? undefined : raw ? body : JSON.stringify(body),
      headers: raw ? {"content-type": "application/octet-stream"} : {"content-type": "application/json"},
    });
  } catch {
    throw new Error("ficgan does not answer; is the program still running? What was decided is kept.");
  }
  const type = answer.headers.get("content-type") || "";
  const told = type.includes("json") ? await answer.json() : {error: await answer.text()};
  if (!answer.ok) throw new Error(told.error || "It did not work.");
  return told;
}

async function attempt(work) {
  try { return await work(); } catch (error) { tell(error.message); return null; }
}

const count = (number, word, words) => number + " " + (number === 1 ? word : words || word + "s");
const clock = seconds => {
  const tenths = Math.round(seconds * 10), rest = (tenths % 600) / 10;
  return Math.floor(tenths / 600) + ":" + (rest < 10 ? "0" : "") + rest.toFixed(1);
};

// -- state ------------------------------------------------------------------------------------------------------------

async function poll() {
  clearTimeout(timer);
  let busy = true;
  try {
    const told = await call("GET", "/state?since=" + since);
    since = told.revision;
    info = {...info, ...told};
    order = told.ids;
    for (const item of told.items) items.set(item.id, item);
    for (const id of [...items.keys()]) if (!order.includes(id)) items.delete(id);
    document.body.dataset.model = told.model;
    busy = told.model === "loading" || [...items.values()].some(item => item.state === "waiting" || item.progress || item.state === "working");
    if (told.output) { at("output").textContent = told.output; at("project").textContent = told.project; }
    showGrid(new Set(told.items.map(item => item.id)));
    showStatus();
    buildAllControls();
    if (open && !items.has(open.id)) leave();
    else if (open) open.refresh();
    lost = false;
  } catch (error) {
    if (!lost) tell(error.message);
    lost = true;
  }
  const bare = order.slice(0, 12).some(id => !items.get(id)?.thumb && items.get(id)?.state !== "failed");
  timer = setTimeout(poll, document.hidden || !busy ? 2000 : bare ? 200 : 600);
}
let lost = false;

function showStatus() {
  const all = [...items.values()], waiting = all.filter(item => !item.looked).length;
  const parts = [];
  if (uploads.done < uploads.all) parts.push(`Adding ${uploads.done + 1} of ${uploads.all}`);
  if (info.model === "loading") parts.push("The model is being loaded");
  else if (info.model && info.model !== "ready") parts.push(info.model);
  parts.push(waiting ? `${all.length - waiting} of ${count(all.length, "file")} looked at` : count(all.length, "file"));
  const saving = all.filter(item => item.progress && /sav|turn|render|check/.test(item.progress[2])).length;
  if (saving) parts.push(`${saving} still to be saved`);
  const saved = all.filter(item => item.saved && !item.changed).length;
  if (saved) parts.push(`${saved} saved`);
  at("status").textContent = parts.join(" · ");
  at("looked").hidden = !waiting;
  at("looked").max = all.length;
  at("looked").value = all.length - waiting;
  at("empty").hidden = all.length > 0;
  at("export-all").hidden = at("save-all").hidden = !all.length;
  at("save-all").disabled = !all.some(item => item.state === "ready" && (item.changed || !item.saved) && !item.progress);
}

function stateOf(item) {
  if (item.progress && item.state !== "failed") {
    const [done, total, stage] = item.progress;
    return ["", stage === "waiting" ? "waiting for its turn" : `${stage}${total ? " " + Math.floor(100 * done / total) + " %" : ""}`];
  }
  if (item.state === "waiting") return ["", "waiting"];
  if (item.state === "working") return ["", "at work"];
  if (item.error) return ["bad", item.error.replace(item.name + ": ", "")];
  const number = item.kind === "film" ? item.people : item.faces;
  const parts = [!number ? "no face found" : item.kind === "film" ? count(number, "person", "people") : count(number, "face")];
  if (item.kept) parts.push(item.kept + " kept");
  if (item.masked) parts.push(item.masked + " masked");
  if (item.doubtful) parts.push(item.doubtful + " doubtful");
  if (item.matched) parts.push(item.matched + " still recognised");
  if (item.saved) parts.push(item.changed ? "changed since saved" : "saved");
  const tone = item.matched ? "bad" : item.doubtful || !number ? "warn" : item.saved && !item.changed ? "good" : "";
  return [tone, parts.join(", ")];
}

const cards = new Map();

function showGrid(changed) {
  const grid = at("grid");
  for (const [id, card] of cards) if (!items.has(id)) { card.remove(); cards.delete(id); }
  order.forEach((id, index) => {
    const item = items.get(id);
    if (!item) return;
    if (!cards.has(id)) {
      cards.set(id, h("li", {}, h("button", {type: "button", class: "card", onclick: () => show(id)})));
      changed.add(id);
    }
    const card = cards.get(id);
    if (grid.children[index] !== card) grid.insertBefore(card, grid.children[index] || null);
    if (changed.has(id)) fillCard(card.firstChild, item);
  });
}

function fillCard(card, item) {
  const [tone, words] = stateOf(item);
  let picture = card.querySelector("img");
  if (item.thumb && !picture) picture = h("img", {src: `/api/items/${item.id}/picture/thumb`, alt: "", loading: "lazy", draggable: false});
  const bar = item.progress && item.progress[1] ? h("progress", {max: item.progress[1], value: item.progress[0]}) : null;
  if (bar) bar.setAttribute("aria-label", "Progress of " + item.name);
  card.dataset.state = item.state;
  card.replaceChildren(
    h("span", {class: "picture"}, picture || (item.state === "failed" ? "no picture" : "…"), item.kind === "film" ? h("span", {class: "badge"}, "film") : null),
    h("span", {class: "text"}, h("span", {class: "name", title: item.name}, item.name.split("/").pop()), item.name.includes("/") ? h("span", {class: "folder"}, item.name.slice(0, item.name.lastIndexOf("/") + 1)) : null, h("span", {class: "state " + tone, title: words}, words), bar),
  );
}

// -- controls ---------------------------------------------------------------------------------------------------------

function choose(label, options, value, onchange, hint) {
  const select = h("select", {onchange: event => onchange(event.target.value)});
  for (const [key, words] of options) select.append(h("option", {value: key, selected: key === value}, words));
  return h("label", {}, label, select, hint ? h("span", {class: "hint"}, hint) : null);
}

function buildControls(panel, values, change, film) {
  const now = {...values}, send = (name, value) => { now[name] = value; change({...now}); };
  const layers = info.layers || 8;
  const strength = h("input", {type: "range", min: 0, max: layers - 1, step: 1, value: layers - 1 - values.layer});
  const told = () => strength.value == layers - 1 ? "all of the new face" : `${layers - 1 - strength.value} of ${layers} layers stay the source's: weaker`;
  const hint = h("span", {class: "hint"}, told());
  strength.addEventListener("input", () => { hint.textContent = told(); });
  strength.addEventListener("change", () => send("layer", layers - 1 - Number(strength.value)));
  const people = h("input", {type: "number", min: 2, max: info.people || 100000, step: 1, value: values.k, onchange: event => send("k", Number(event.target.value))});
  const psis = [["auto", "automatic"], ["0", "0: the average face"], ["0.3", "0.3"], ["0.6", "0.6"], ["1", "1: as people differ"], ["1.2", "1.2"]];
  if (!psis.some(([key]) => key === String(values.psi))) psis.push([String(values.psi), String(values.psi)]);
  const kinds = [["ethnicity,gender,age", "ethnic group, gender, age"], ["gender,age", "gender, age"], ["gender", "gender"], ["none", "nothing: hides most"]];
  if (!kinds.some(([key]) => key === values.keep_kind)) kinds.push([values.keep_kind, values.keep_kind]);
  const wanted = new Map(values.attributes.split(",").filter(Boolean).map(name => name.startsWith("-") ? [name.slice(1), "-"] : [name, "+"]));
  const chosen = h("details", {class: "wide"}, h("summary", {}, "Attributes of the new faces" + (wanted.size ? ` (${values.attributes})` : "")));
  const list = h("div", {class: "attributes"});
  const age = name => Number.isNaN(parseInt(name)) ? 1000 : parseInt(name);
  for (const name of [...info.attributes || []].sort((a, b) => age(a) - age(b) || a.localeCompare(b)))
    list.append(choose(name.replaceAll("_", " "), [["", "any"], ["+", "only with"], ["-", "only without"]], wanted.get(name) || "", value => {
      if (value) wanted.set(name, value); else wanted.delete(name);
      send("attributes", [...wanted].map(([word, sign]) => (sign === "-" ? "-" : "") + word).join(","));
    }));
  chosen.append(list);
  const covers = info.modes.filter(mode => mode !== "keep").map(mode => [mode, MODE_WORDS[mode]]);
  panel.replaceChildren(h("div", {class: "form"},
    film === "photo" ? "" : choose("Faces", covers, values.mode, value => send("mode", value)),
    film === "photo" ? choose("Faces of this photo", covers, values.mode, value => send("mode", value)) : "",
    h("label", {}, "Strength", strength, hint),
    h("label", {}, "People averaged (k)", people),
    choose("Diversity (ψ)", psis, String(values.psi), value => send("psi", value === "auto" ? value : Number(value))),
    choose("Kind that stays", kinds, values.keep_kind, value => send("keep_kind", value), "Read from looks, kept as a group, stored nowhere."),
    choose("Where none is possible", [["plain", "one colour"], ["black", "black"], ["blur", "blur"], ["mosaic", "mosaic"]], values.fallback, value => send("fallback", value)),
    film === "photo" ? "" : choose("Sound of films", [["copy", "keep"], ["drop", "leave out"]], values.audio, value => send("audio", value), "A voice identifies, too."),
    chosen));
}

let builtFrom = "";
function buildAllControls() {
  const key = JSON.stringify([info.controls, info.layers, info.attributes]);
  if (key === builtFrom || !info.controls || at("all-controls").contains(document.activeElement) && builtFrom && document.activeElement.tagName !== "SUMMARY" && info.layers === undefined) return;
  builtFrom = key;
  const opened = at("all-controls").querySelector("details")?.open;
  buildControls(at("all-controls").querySelector(".panel"), info.controls, values => attempt(async () => { await call("POST", "/controls", values); await poll(); }));
  const inner = at("all-controls").querySelector("details");
  if (opened && inner) inner.open = true;
}

// -- uploads ----------------------------------------------------------------------------------------------------------

const pending = [];
let running = 0;

function add(files) {
  const taken = [...files].filter(file => !file.name.startsWith("."));
  if (!taken.length) return;
  if (uploads.done >= uploads.all) uploads = {done: 0, all: 0};
  uploads.all += taken.length;
  pending.push(...taken);
  while (running < 2 && pending.length) work();
  showStatus();
}

async function work() {
  running += 1;
  while (pending.length) {
    const file = pending.shift();
    await attempt(() => call("POST", "/upload?name=" + encodeURIComponent(file.name), file));
    uploads.done += 1;
    showStatus();
    if (uploads.done % 10 === 0) poll();
  }
  running -= 1;
  if (!running) poll();
}

async function dropped(list) {
  const entries = [...list].map(one => one.webkitGetAsEntry?.() || one.getAsFile()).filter(Boolean), files = [];
  const walk = async entry => {
    if (entry instanceof File) files.push(entry);
    else if (entry.isFile) files.push(await new Promise((good, bad) => entry.file(good, bad)));
    else {
      const reader = entry.createReader();
      for (;;) {
        const part = await new Promise((good, bad) => reader.readEntries(good, bad));
        if (!part.length) break;
        for (const inner of part) if (!inner.name.startsWith(".")) await walk(inner);
      }
    }
  };
  for (const entry of entries) await walk(entry);
  add(files);
}

addEventListener("dragover", event => { event.preventDefault(); at("drop").hidden = ![...event.dataTransfer.types].includes("Files"); });
addEventListener("dragleave", event => { if (!event.relatedTarget) at("drop").hidden = true; });
addEventListener("drop", event => { event.preventDefault(); at("drop").hidden = true; attempt(() => dropped(event.dataTransfer.items)); });
for (const id of ["pick", "pick-folder"]) at(id).addEventListener("change", event => { add(event.target.files); event.target.value = ""; });
at("save-all").addEventListener("click", () => attempt(async () => { await call("POST", "/save", {}); await poll(); }));
at("home").addEventListener("click", () => leave());

// -- one file ---------------------------------------------------------------------------------------------------------

function show(id) { location.hash = id; }

function leave() {
  if (open) open.close();
  const was = open && open.id;
  open = null;
  at("editor").hidden = true;
  at("overview").hidden = false;
  if (location.hash) history.pushState(null, "", "/");
  if (was && cards.has(was)) cards.get(was).firstChild.focus();
}

async function route() {
  const id = location.hash.slice(1);
  if (open && open.id === id) return;
  if (!id) return leave();
  if (!items.has(id)) return leave();
  if (open) open.close();
  at("overview").hidden = true;
  at("editor").hidden = false;
  at("editor").replaceChildren();
  open = items.get(id).kind === "film" ? filmEditor(id) : photoEditor(id);
  scrollTo(0, 0);
  await open.refresh(true);
  at("editor").querySelector("button")?.focus({preventScroll: true});
}
addEventListener("hashchange", route);
addEventListener("popstate", route);
addEventListener("keydown", event => {
  if (event.key === "Escape" && open && !event.defaultPrevented) leave();
});

function headOf(id, extra) {
  const step = by => () => { const next = order[order.indexOf(id) + by]; if (next) show(next); };
  const index = order.indexOf(id), item = items.get(id);
  const state = h("span", {class: "state", role: "status"});
  const head = h("div", {class: "head"},
    h("div", {class: "row"},
      h("button", {type: "button", onclick: () => leave()}, "All files"),
      h("button", {type: "button", onclick: step(-1), disabled: index <= 0, "aria-label": "Previous file", title: "Previous file"}, "‹"),
      h("button", {type: "button", onclick: step(1), disabled: index >= order.length - 1, "aria-label": "Next file", title: "Next file"}, "›")),
    h("div", {class: "title"}, h("h2", {}, item.name), state), h("div", {class: "row"}, ...extra));
  return {head, state};
}

const exportLink = id => h("a", {class: "button", href: `/api/items/${id}/decisions.json`, download: "decisions.json"}, "Export decisions");

/** Draw one box on a stage, by pointer or keyboard; `done` takes x0, y0, x1, y1 in pixels of the picture. */
function boxDrawer(stage, size, button, done) {
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

function loaded(image, address) {
  return new Promise(done => {
    const next = new Image();
    next.onload = () => { image.src = address; image.decode().then(done, done); };
    next.onerror = () => done();
    next.src = address;
  });
}

let settingsOpen = false;
const FEW = 8, MOST = 24;  // faces: from which a list is filtered, and cut

function photoEditor(id) {
  let item = null, seen = -1, working = 0, kind = "all", most = MOST, faceCards = new Map();
  const before = h("img", {alt: "Before", draggable: false}), after = h("img", {alt: "After", class: "over", draggable: false});
  const divider = h("div", {class: "divider"}), boxes = h("div", {});
  const stage = h("div", {class: "stage"}, before, after, divider, h("span", {class: "tag left"}, "before"), h("span", {class: "tag right"}, "after"), boxes);
  const slide = h("input", {type: "range", min: 0, max: 100, value: 0, id: "slide", "aria-label": "Before and after: share of the picture as it was"});
  const compare = event => {
    const frame = stage.getBoundingClientRect();
    slide.value = 100 * (event.clientX - frame.left) / frame.width;
    split();
  };
  divider.addEventListener("pointerdown", event => { event.preventDefault(); divider.setPointerCapture(event.pointerId); });
  divider.addEventListener("pointermove", event => { if (divider.hasPointerCapture(event.pointerId)) compare(event); });
  const split = () => {
    after.style.clipPath = `inset(0 0 0 ${slide.value}%)`;
    divider.style.left = slide.value + "%";
    divider.hidden = slide.value === "0" || slide.value === "100";
    stage.querySelector(".left").hidden = slide.value === "0";
    stage.querySelector(".right").hidden = slide.value === "100" || after.hidden;
  };
  slide.addEventListener("input", split);
  const draw = h("button", {type: "button"}, "Draw a box over a missed face");
  const stop = boxDrawer(stage, () => [item.width, item.height], draw, box => edit("POST", "/faces", {box}));
  const all = mode => h("button", {type: "button", onclick: () => edit("PATCH", "/faces", {mode})}, {"": "Replace all", keep: "Keep all", plain: "Cover all"}[mode]);
  const save = h("button", {type: "button", class: "primary", id: "save", onclick: () => edit("POST", "/save", {})}, "Save");
  const remove = h("button", {type: "button", onclick: () => attempt(async () => { await call("DELETE", "/items/" + id); leave(); await poll(); })}, "Remove from the list");
  const exporting = exportLink(id), {head, state} = headOf(id, [remove, exporting, save]);
  const list = h("ul", {class: "faces", "aria-label": "Faces"}), notes = h("div", {class: "notes"});
  const filter = h("div", {class: "stack", hidden: true}, h("select", {"aria-label": "Which faces are listed", onchange: event => { kind = event.target.value; most = MOST; showFaces(); }}));
  const panel = h("div", {class: "panel"}), summary = h("span", {class: "hint"});
  const toAll = h("button", {type: "button", onclick: () => attempt(async () => { await call("POST", "/controls", item.controls); await poll(); })}, "Use these settings for all files");
  const work = h("div", {class: "work"}, h("div", {class: "frame"}, stage, slide, h("p", {class: "hint"}, "Slide to the right to see the picture as it was. Click on a box to keep the face, or to hide it again.")),
      h("div", {class: "row under"}, draw, all(""), all("keep"), all("plain")), notes);
  const settings = h("details", {open: settingsOpen, ontoggle: event => { settingsOpen = event.target.open; }}, h("summary", {}, "How new faces are drawn ", summary), panel, h("div", {class: "panel"}, toAll));
  at("editor").append(head, work, h("div", {class: "side"}, settings, filter, list));

  async function edit(method, path, body) {
    working += 1;
    showState();
    const told = await attempt(() => call(method, "/items/" + id + path, body));
    working -= 1;
    if (told) await take(told); else await refresh(true);
    poll();
  }

  function showState() {
    const [tone, words] = stateOf(items.get(id) || item || {});
    state.className = "state " + (working ? "" : tone);
    state.textContent = working ? "drawing…" : words;
    save.disabled = working > 0 || !item || item.state !== "ready";
    at("editor").dataset.busy = working ? "yes" : "no";
  }

  async function take(told) {
    if (!open || open.id !== id) return;
    item = told;
    items.set(id, {...items.get(id), ...told});
    const first = seen < 0;
    seen = told.revision;
    fit(stage.parentNode, told);
    remove.hidden = !told.upload;
    work.hidden = settings.hidden = exporting.hidden = save.hidden = !told.width;  // nothing can be decided on what cannot be read
    if (told.width && (first || !before.src)) await loaded(before, `/api/items/${id}/picture/before?v=${told.revision}`);
    after.hidden = !told.after;
    if (told.after) await loaded(after, `/api/items/${id}/picture/after?v=${told.revision}`);
    split();
    showState();
    notes.replaceChildren(...told.notes.map(note => h("p", {}, note)), told.saved ? h("p", {class: "hint"}, "Last saved as ", h("code", {}, told.saved)) : "");
    const focus = document.activeElement?.dataset?.key;
    showFaces();
    summary.textContent = `k ${told.controls.k}${told.own_controls ? ", of this photo alone" : ""}`;
    if (!panel.contains(document.activeElement)) buildControls(panel, told.controls, values => edit("POST", "/controls", values), "photo");
    if (focus) at("editor").querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({preventScroll: true});
  }

  function light(n, on) {
    boxes.children[n]?.classList.toggle("lit", on);
    faceCards.get(n)?.classList.toggle("lit", on);
  }

  function showCard(n) {
    most = Math.max(most, n + 1);
    if (innerWidth > 820) faceCards.get(n)?.scrollIntoView({block: "nearest"});
  }

  function showFaces() {
    boxes.replaceChildren(...item.list.map((face, n) => {
      const kept = face.action === "kept", words = ACTION_WORDS[face.action] ?? face.action;
      const node = h("button", {type: "button", class: "box" + (kept ? " kept" : "") + (face.doubt ? " doubtful" : "") + (face.box[2] - face.box[0] < item.width / 24 ? " small" : ""),
        title: kept ? "Click to hide this face" : "Click to keep this face", "aria-label": `Face ${n + 1}, ${words}. ${kept ? "Hide it" : "Keep it"}`,
        onclick: () => { showCard(n); edit("PATCH", "/faces/" + n, {mode: kept ? "" : "keep"}); },
        onmouseenter: () => light(n, true), onmouseleave: () => light(n, false)}, h("span", {class: "number"}, String(n + 1)));
      node.dataset.key = "box" + n;
      return place(node, face.box, item.width, item.height);
    }));
    const kinds = {all: ["All faces", () => true], doubt: ["Doubtful", face => face.doubt && face.action !== "kept"], masked: ["Masked", face => face.action === "masked"],
      matched: ["Still recognised", face => face.matched && face.action !== "kept"], kept: ["Kept", face => face.action === "kept"], drawn: ["Drawn by hand", face => face.drawn]};
    const counted = Object.entries(kinds).map(([key, [words, test]]) => [key, words, item.list.filter(test).length]).filter(([key, , number]) => number || key === kind);
    const shown = item.list.map((face, n) => n).filter(n => kinds[kind][1](item.list[n]));
    faceCards = new Map(shown.slice(0, most).map(n => [n, faceCard(item.list[n], n)]));
    list.replaceChildren(...faceCards.values());
    filter.hidden = item.list.length <= FEW;
    filter.firstChild.replaceChildren(...counted.map(([key, words, number]) => h("option", {value: key, selected: key === kind}, `${words} (${number})`)));
    if (shown.length > most) list.append(h("li", {}, h("button", {type: "button", onclick: () => { most = Infinity; showFaces(); }}, `Show ${shown.length - most} more`)));
    if (!item.list.length) list.append(h("li", {class: "hint"}, item.state === "ready" ? "No face was found. Draw a box over a face that was missed." : item.state === "failed" ? "Mend or replace the file, then try again." : "The faces are still to be looked for."));
    if (item.state === "failed") list.append(h("li", {}, h("button", {type: "button", onclick: () => edit("POST", "/look", {})}, "Try again")));
  }

  function cut(image, box) {
    const canvas = h("canvas", {width: 152, height: 152});
    if (image.naturalWidth && !image.hidden) {
      const scale = image.naturalWidth / item.width, side = 1.4 * Math.max(box[2] - box[0], box[3] - box[1]);
      const x = (box[0] + box[2] - side) / 2, y = (box[1] + box[3] - side) / 2;
      canvas.getContext("2d").drawImage(image, x * scale, y * scale, side * scale, side * scale, 0, 0, 152, 152);
    }
    return canvas;
  }

  function faceCard(face, n) {
    const set = values => edit("PATCH", "/faces/" + n, values), words = ACTION_WORDS[face.action] ?? face.action;
    const modes = [["", "As all others"], ...info.modes.map(mode => [mode, MODE_WORDS[mode]])];
    const select = h("select", {"aria-label": `What happens to face ${n + 1}`, onchange: event => set({mode: event.target.value})});
    for (const [key, word] of modes) select.append(h("option", {value: key, selected: key === face.mode}, word));
    select.dataset.key = "mode" + n;
    const drawn = face.action === "generated" || face.action === "retried";
    const again = h("button", {type: "button", disabled: !drawn, onclick: () => set({draw: face.draw + 1})}, "Another face");
    again.dataset.key = "again" + n;
    const gone = face.drawn ? h("button", {type: "button", onclick: () => edit("DELETE", "/faces/" + n)}, "Remove box") : "";
    const bad = face.matched && face.action !== "kept";
    return h("li", {class: "face", onmouseenter: () => light(n, true), onmouseleave: () => light(n, false)},
      h("div", {class: "top"}, cut(before, face.box), cut(after, face.box),
        h("div", {class: "facts"}, h("h3", {}, `Face ${n + 1}`), h("span", {class: "state " + (bad ? "bad" : face.doubt ? "warn" : "")}, bad ? words + ", still recognised" : words),
          h("span", {class: "hint"}, face.drawn ? (face.score ? "drawn, found on a closer look" : "drawn by hand") : "score " + face.score.toFixed(2)),
          face.doubt ? h("span", {class: "state warn"}, "doubtful: " + face.doubt) : "",
          face.note && face.note !== "chosen by hand" ? h("span", {class: "hint"}, face.note) : "")),
      h("div", {class: "row"}, select, again, gone));
  }

  async function refresh(force) {
    const brief = items.get(id);
    if (!force && (working || !brief || brief.revision === seen)) return;
    const told = await attempt(() => call("GET", "/items/" + id));
    if (told && !(working && !force)) await take(told);
  }
  return {id, refresh, close: stop};
}

// -- films ------------------------------------------------------------------------------------------------------------

function filmEditor(id) {
  let film = null, item = null, seen = -1, now = null, working = 0, playing = null, asked = 0;
  let wanted = {time: 0};  // the place last asked for: what is loaded anew meanwhile goes there, not back to what is shown
  const frame = h("img", {alt: "Frame of the film", draggable: false});
  const video = h("video", {class: "over", playsInline: true, preload: "none", hidden: true, tabIndex: -1});
  const boxes = h("div", {}), stage = h("div", {class: "stage"}, frame, video, boxes);
  const seek = h("input", {type: "range", min: 0, max: 1, step: "any", value: 0, "aria-label": "Place in the film"});
  const time = h("span", {class: "state"}, "0:00.0");
  const play = h("button", {type: "button"}, "Play");
  const view = h("select", {"aria-label": "What is shown"}, h("option", {value: "before"}, "Original"), h("option", {value: "preview"}, "Preview of this frame"), h("option", {value: "after"}, "Result"));
  const draw = h("button", {type: "button"}, "Draw a box over a missed face");
  const stop = boxDrawer(stage, () => [film.width, film.height], draw, box => { pause(); askRegion(box); });
  const timeline = h("div", {class: "timeline", role: "group", "aria-label": "People over time"});
  const legend = h("p", {class: "legend"}, h("span", {}, "replaced"), h("span", {class: "kept"}, "kept"), h("span", {class: "covered"}, "covered"), h("span", {class: "cuts"}, "cut"));
  const list = h("ul", {class: "faces people", "aria-label": "People"}), notes = h("div", {class: "notes"}), form = h("div", {});
  const save = h("button", {type: "button", class: "primary", id: "save", onclick: () => run("POST", "/save")}, "Render");
  const cancel = h("button", {type: "button", onclick: () => run("POST", "/cancel")}, "Cancel");
  const download = exportLink(id);
  const remove = h("button", {type: "button", onclick: () => attempt(async () => { await call("DELETE", "/items/" + id); leave(); await poll(); })}, "Remove from the list");
  const {head, state} = headOf(id, [remove, download, cancel, save]);
  const bar = h("progress", {hidden: true, "aria-label": "Progress"}), waiting = h("p", {class: "hint"});
  const player = h("div", {class: "work"}, h("div", {class: "frame"}, stage),
    seek, h("div", {class: "player"}, h("button", {type: "button", "aria-label": "One frame back", title: "One frame back", onclick: () => step(-1)}, "‹"), play, h("button", {type: "button", "aria-label": "One frame on", title: "One frame on", onclick: () => step(1)}, "›"), time, view, draw),
    form, timeline, legend, notes);
  at("editor").append(head, h("div", {class: "work"}, waiting, bar, player), h("div", {class: "side"}, list));

  async function run(method, path, body = {}) {
    working += 1;
    const told = await attempt(() => call(method, "/items/" + id + path, body));
    working -= 1;
    if (told && Array.isArray(told.people)) { film = told; build(); await goTo(wanted, true); }
    await poll();
    await refresh(true);
  }

  async function goTo(where, force) {
    if (!film) return;
    wanted = where.frame === undefined ? where : {frame: Math.min(Math.max(where.frame, 0), film.frames - 1)};
    const ask = ++asked, query = where.frame !== undefined ? "frame=" + where.frame : "time=" + where.time;
    const told = await attempt(() => call("GET", `/items/${id}/at?${query}`));
    if (!told || ask !== asked) return;
    const fresh = force || !now || now.frame !== told.frame;
    now = told;
    wanted = {frame: told.frame};
    showTime(told.time);
    if (fresh) await loaded(frame, `/api/items/${id}/frame/${told.frame}${{before: "", preview: "?after&v=" + seen, after: "?result&v=" + seen}[view.value]}`);
    if (ask !== asked) return;
    at("editor").dataset.frame = told.frame;
    boxes.replaceChildren(...(view.value === "before" ? told.boxes : []).map(box => place(
      h("button", {type: "button", class: "box" + (box.mode === "keep" ? " kept" : ""), title: box.mode === "keep" ? "Click to hide this person" : "Click to keep this person",
        "aria-label": `${who(box.person, box.track)}: ${box.mode === "keep" ? "kept, hide" : "hidden, keep"}`, onclick: () => decide(box.person, box.track, box.mode === "keep" ? "" : "keep")},
        h("span", {class: "number"}, box.person ? String(box.person) : "?")), box.box, film.width, film.height)),
      ...(view.value === "after" ? [] : told.regions).map(box => place(h("div", {class: "box region"}), box.box, film.width, film.height)));
  }

  function showTime(seconds) {
    seek.value = seconds;
    time.textContent = `${clock(seconds)} of ${clock(film.duration)}`;
    for (const line of timeline.querySelectorAll(".head-line")) line.style.left = 100 * seconds / Math.max(film.duration, 1e-6) + "%";
  }

  const kinds = Object.fromEntries(film.people.flatMap(one => one.tracks.map(track => [track.id, track.kind])));
  const who = (person, track) => person ? "Person " + person : (kinds[track] || "Unknown") + " " + track;
  const decide = (person, track, mode) => run("PATCH", "/film", person ? {people: {[person]: mode}} : {tracks: {[track]: mode}});
  const step = by => { pause(); if (now) goTo({frame: (wanted.frame ?? now.frame) + by}); };

  function pause() {
    if (!playing) return;
    clearInterval(playing);
    playing = null;
    const at = video.hidden ? null : video.currentTime;
    video.pause();
    video.hidden = true;
    boxes.hidden = false;
    play.textContent = "Play";
    goTo(at === null ? {frame: now.frame} : {time: at});
  }

  play.addEventListener("click", async () => {
    if (playing) return pause();
    const after = view.value === "after" && item.saved ? "?after&v=" + seen : "";
    if (!video.src.endsWith(`/video${after}`)) video.src = `/api/items/${id}/video${after}`;
    play.textContent = "Pause";
    boxes.hidden = true;
    playing = setInterval(() => {
      if (video.hidden) { if (now.frame + 1 >= film.frames) pause(); else goTo({frame: now.frame + Math.max(1, Math.round(film.frames / Math.max(film.duration, 0.1) / 8))}); }
      else { showTime(video.currentTime); if (video.ended) pause(); }
    }, 125);
    try {
      video.currentTime = now ? now.time : 0;
      await video.play();
      if (playing) video.hidden = false;
    } catch { video.hidden = true; }  // a format the browser does not know: frame by frame
  });
  seek.addEventListener("input", () => { if (playing) pause(); goTo({time: Number(seek.value)}); });
  seek.addEventListener("keydown", event => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (by) { event.preventDefault(); step(by); }
  });
  view.addEventListener("change", () => { pause(); goTo(wanted, true); });

  function askRegion(box) {
    const from = h("input", {type: "number", min: 0, max: film.duration, step: 0.1, value: Math.max(0, now.time - 2).toFixed(1)});
    const to = h("input", {type: "number", min: 0, max: film.duration.toFixed(1), step: 0.1, value: Math.min(film.duration, now.time + 2).toFixed(1)});
    const mode = h("select", {});
    for (const key of ["plain", "black", "blur", "mosaic"]) mode.append(h("option", {value: key}, MODE_WORDS[key]));
    const shown = place(h("div", {class: "box region"}), box, film.width, film.height);
    boxes.append(shown);
    const done = () => { form.replaceChildren(); shown.remove(); draw.focus(); };
    const take = h("button", {type: "button", class: "primary", onclick: async () => {
      take.disabled = true;
      await run("POST", "/regions", {box, frame: now.frame, from: Number(from.value), to: Number(to.value), mode: mode.value});
      done();
    }}, "Cover it");
    form.replaceChildren(h("div", {class: "region-form"}, h("h3", {}, "Cover this box"),
      h("div", {class: "row"}, h("label", {}, "from ", from, " s"), h("label", {}, "to ", to, " s"), h("label", {}, "with ", mode)),
      h("div", {class: "row"}, take, h("button", {type: "button", onclick: done}, "Leave it"))));
    take.focus();
  }

  function build() {
    seek.max = film.duration;
    const end = Math.max(film.duration, 1e-6), share = seconds => 100 * seconds / end + "%";
    const lane = (name, bars) => {
      const rail = h("div", {class: "rail", onclick: event => { pause(); goTo({time: film.duration * event.offsetX / rail.clientWidth}); }});
      for (const [from, to, kind, words] of bars) {
        const node = h("div", {class: "bar " + kind, title: words});
        node.style.left = share(from);
        node.style.width = 100 * (to - from + film.duration / Math.max(film.frames, 1)) / end + "%";
        node.style.pointerEvents = "none";
        rail.append(node);
      }
      for (const cut of film.cuts) { const line = h("div", {class: "cut"}); line.style.left = share(cut); line.style.pointerEvents = "none"; rail.append(line); }
      const line = h("div", {class: "head-line"});
      line.style.pointerEvents = "none";
      rail.append(line);
      return h("div", {class: "lane"}, h("span", {class: "who", title: name}, name), rail);
    };
    timeline.replaceChildren(
      ...film.people.map(one => lane(who(one.person, one.tracks[0].id), one.tracks.map(track => [track.from, track.to, (one.mode || film.default) === "keep" ? "kept" : (one.mode || film.default) === "ficgan" ? "" : "covered", `${clock(track.from)} – ${clock(track.to)}`]))),
      ...film.regions.map((one, n) => lane("Box " + (n + 1), [[one.from, one.to, "covered", `${clock(one.from)} – ${clock(one.to)}`]])));
    if (!timeline.children.length) timeline.append(h("p", {class: "hint"}, "No face was found in this film."));
    const focus = document.activeElement?.dataset?.key;
    const modes = [["", "As all others"], ...info.modes.map(mode => [mode, MODE_WORDS[mode]])];
    const everybody = choose("People on whom nothing else is decided", modes.filter(([key]) => key && key !== "keep"), film.default, value => run("PATCH", "/film", {default: value}));
    list.replaceChildren(h("li", {class: "face"}, everybody),
      ...film.people.map(one => {
        const select = h("select", {"aria-label": "What happens to " + who(one.person, one.tracks[0].id), onchange: event => decide(one.person, one.tracks[0].id, event.target.value)});
        for (const [key, word] of modes) select.append(h("option", {value: key, selected: key === one.mode}, word));
        if (one.mode && !modes.some(([key]) => key === one.mode)) select.append(h("option", {value: one.mode, selected: true}, one.mode));
        select.dataset.key = "person" + one.person + "-" + one.tracks[0].id;
        const first = one.tracks[0], last = one.tracks[one.tracks.length - 1], told = one.tracks.flatMap(track => track.notes);
        const join = choose("is the same as", [["", "nobody else"], ...film.people.filter(other => other.person && other.person !== one.person).map(other => [String(other.person), "Person " + other.person])], "",
          value => run("PATCH", "/film", {link: Object.fromEntries(one.tracks.map(track => [track.id, Number(value)])), ...(one.person ? {people: {[one.person]: ""}} : {tracks: {[first.id]: ""}})}));
        join.className = "row hint";
        return h("li", {class: "face"},
          ...one.tracks.slice(0, 2).flatMap(track => [h("img", {class: "strip", alt: `${who(one.person, track.id)}, before`, loading: "lazy", src: `/api/items/${id}/track/${track.id}`}),
            track.after ? h("img", {class: "strip", alt: `${who(one.person, track.id)}, after`, loading: "lazy", src: `/api/items/${id}/track/${track.id}?after&v=${seen}`}) : null]),
          h("div", {class: "facts"}, h("h3", {}, who(one.person, first.id)), h("span", {class: "hint"}, `${clock(first.from)} – ${clock(last.to)}, best score ${Math.max(...one.tracks.map(track => track.score))}`),
            told.length ? h("span", {class: "state warn"}, told.join("; ")) : ""),
          h("div", {class: "row"}, select, h("button", {type: "button", onclick: () => { pause(); goTo({time: (first.from + first.to) / 2}); }}, "Show")),
          film.people.length > 1 ? join : null);
      }),
      ...film.regions.map((one, n) => h("li", {class: "face"}, h("div", {class: "facts"}, h("h3", {}, "Box " + (n + 1)), h("span", {class: "hint"}, `${clock(one.from)} – ${clock(one.to)}, ${MODE_WORDS[one.mode]}`)),
        h("div", {class: "row"}, h("button", {type: "button", onclick: () => { pause(); goTo({time: one.from}); }}, "Show"), h("button", {type: "button", onclick: () => run("DELETE", "/regions/" + n)}, "Remove box")))));
    if (focus) at("editor").querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({preventScroll: true});
  }

  async function refresh(force) {
    item = items.get(id) || item;
    const [tone, words] = stateOf(item), busy = item.state === "waiting" || item.state === "working";
    state.className = "state " + tone;
    state.textContent = words;
    save.disabled = cancel.hidden = !busy ? false : true;
    cancel.hidden = !item.progress;
    save.disabled = busy || item.state === "failed";
    remove.hidden = !item.upload || busy;
    bar.hidden = !(item.progress && item.progress[1]);
    if (!bar.hidden) { bar.max = item.progress[1]; bar.value = item.progress[0]; }
    view.options[2].disabled = !item.saved;
    at("editor").dataset.busy = working || busy ? "yes" : "no";
    if (!force && (working || item.revision === seen)) return;
    const first = !film;
    seen = item.revision;
    player.hidden = list.hidden = download.hidden = first && item.state !== "ready";
    waiting.textContent = first && item.state !== "ready" ? (item.state === "failed" ? item.error : "The faces of this film are still to be looked for; other files can be reviewed meanwhile.") : "";
    if (first && item.state !== "ready") return;
    const told = await attempt(() => call("GET", `/items/${id}/film`));
    if (!told || !open || open.id !== id) return;
    film = told;
    fit(stage.parentNode, film);
    notes.replaceChildren(...item.notes.map(note => h("p", {}, note)), item.saved ? h("p", {class: "hint"}, "Last saved as ", h("code", {}, item.saved)) : "");
    build();
    if (first) await goTo({time: 0}); else if (!playing) await goTo(wanted, true);
  }
  return {id, refresh, close: () => { stop(); if (playing) { clearInterval(playing); playing = null; video.pause(); } video.removeAttribute("src"); }};
}

poll().then(route);
