// The editor of a photo: its picture with the faces in it, and what is decided on each.

import {ACTION_WORDS, MODE_WORDS, at, attempt, button, call, desk, fit, h, loaded, place, rebuilt, stateOf} from "./base.js";
import {buildControls} from "./controls.js";
import {cut, faceCard} from "./face.js";
import {drawButton, exportLink, headOf, removeButton, zoomButtons} from "./head.js";
import {key} from "./keys.js";
import {boxDrawer, zoomer} from "./stage.js";

const {items} = desk;
const FEW = 8, MOST = 24;  // faces: from which a list is filtered, and cut
// What stays from photo to photo.
const kept = {settings: false, boxes: true, tiles: false};

export function photoEditor(id) {
  let people = [], item = null, seen = -1, working = 0, kind = "all", most = MOST, cards = new Map(), chosen = null, whole = {before: -1, after: -1};
  const before = h("img", {alt: "Before", draggable: false}), after = h("img", {alt: "After", class: "over", draggable: false});
  const divider = h("div", {class: "divider"}), boxes = h("div", {class: "boxes"});
  const stage = h("div", {class: "stage"}, before, after, divider, boxes);
  const view = h("div", {class: "view"}, stage, h("span", {class: "tag left"}, "before"), h("span", {class: "tag right"}, "after"));
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
    view.querySelector(".left").hidden = slide.value === "0";
    view.querySelector(".right").hidden = slide.value === "100" || after.hidden;
  };
  slide.addEventListener("input", split);

  const percent = h("span", {class: "state", role: "status", id: "zoom"});
  const zoom = zoomer(view, stage, () => item ? [item.width, item.height] : [1, 1], (times, share) => {
    percent.textContent = Math.round(100 * share) + " %";
    boxes.classList.toggle("near", times > 2);
    if (item && times > 1 && before.naturalWidth < item.width && times * view.clientWidth > before.naturalWidth) sharpen();
  });
  const hide = button("Boxes", "Show or hide the boxes (B)", () => toggleBoxes(), {"aria-pressed": String(kept.boxes)});
  const tools = h("div", {class: "row tools", role: "group", "aria-label": "Zoom"}, ...zoomButtons(percent, () => zoom), button("Fit", "The whole picture (double click)", () => zoom.fit()), button("100 %", "A pixel is a pixel (Z, or double click)", () => zoom.full()), hide);

  const draw = drawButton();
  const {stop} = boxDrawer(stage, () => [item.width, item.height], draw, box => edit("POST", "/faces", {box}), () => item.controls.fallback);
  const all = mode => button({"": "Replace all", keep: "Keep all", plain: "Cover all"}[mode], "", () => edit("PATCH", "/faces", {mode}));
  const maybe = button("", "Finds that are too weak for a face (P)", () => takePossible(), {hidden: true});
  const save = button("Save", "S", () => edit("POST", "/save", {}), {class: "primary", id: "save"});
  const remove = removeButton(id), exporting = exportLink(id), {head, state, mark} = headOf(id, [remove, exporting, save]);
  const list = h("ul", {class: "faces", "aria-label": "Faces"}), notes = h("div", {class: "notes"}), picked = h("div", {class: "faces picked"});
  const which = h("select", {"aria-label": "Which faces are listed", onchange: event => { kind = event.target.value; most = MOST; showFaces(); }});
  const tiles = button("Side by side", "All faces side by side (F)", () => toggleTiles(), {"aria-pressed": String(kept.tiles)});
  const filter = h("div", {class: "row filter"}, which, tiles);
  const panel = h("div", {class: "panel"}), summary = h("span", {class: "hint"});
  const toAll = button("Use these settings for all files", "", () => attempt(async () => { await call("POST", "/controls", item.controls); await desk.poll(); }));
  const frame = h("div", {class: "frame"}, view, slide, tools);
  const work = h("div", {class: "work"}, frame, picked, h("div", {class: "row under"}, draw, maybe, all(""), all("keep"), all("plain")), notes);
  const settings = h("details", {open: kept.settings, ontoggle: event => { kept.settings = event.target.open; }}, h("summary", {}, "How new faces are drawn ", summary), panel, h("div", {class: "panel"}, toAll));
  at("editor").append(head, work, h("div", {class: "side"}, settings, filter, list));
  boxes.hidden = !kept.boxes;
  at("editor").classList.toggle("tiles", kept.tiles);

  async function edit(method, path, body) {
    working += 1;
    showState();
    const told = await attempt(() => call(method, "/items/" + id + path, body));
    working -= 1;
    if (told) await take(told); else await refresh(true);
    desk.poll();
  }

  function showState() {
    const [tone, words] = stateOf(items.get(id) || item || {});
    state.className = "state " + (working ? "" : tone);
    state.textContent = working ? "drawing…" : words;
    save.disabled = working > 0 || !item || item.state !== "ready";
    at("editor").dataset.busy = working ? "yes" : "no";
    mark();
  }

  async function take(told) {
    if (!desk.open || desk.open.id !== id || told.revision < seen) return;
    item = told;
    if (told.list.some(face => face.person)) people = await attempt(() => call("GET", "/people")) || people;
    items.set(id, {...items.get(id), ...told});
    const first = seen < 0;
    seen = told.revision;
    fit(frame, told);
    remove.hidden = !told.upload;
    work.hidden = settings.hidden = exporting.hidden = save.hidden = !told.width;  // nothing can be decided on what cannot be read
    const sharp = whole.after >= 0;
    if (told.width && (first || !before.src)) await loaded(before, `/api/items/${id}/picture/before?v=${told.revision}`);
    after.hidden = !told.after;
    if (told.after && whole.after !== told.drawn) {
      await loaded(after, `/api/items/${id}/picture/after?${sharp ? "whole&" : ""}v=${told.drawn}`);
      whole.after = sharp ? told.drawn : -1;
    }
    split();
    showState();
    notes.replaceChildren(...told.notes.map(note => h("p", {}, note)), told.saved ? h("p", {class: "hint"}, "Last saved as ", h("code", {}, told.saved)) : "");
    summary.textContent = `k ${told.controls.k}${told.own_controls ? ", of this photo alone" : ""}`;
    rebuilt(at("editor"), () => {
      showFaces();
      if (!panel.contains(document.activeElement)) buildControls(panel, told.controls, values => edit("POST", "/controls", values), "photo");
    });
  }

  /** The pictures in their full size, once somebody looks closer. */
  async function sharpen() {
    if (whole.before >= 0) return;
    whole.before = 0;
    await loaded(before, `/api/items/${id}/picture/before?whole`);
    const drawn = item.drawn;
    if (item.after) { await loaded(after, `/api/items/${id}/picture/after?whole&v=${drawn}`); whole.after = drawn; }
    showFaces();
  }

  // -- the chosen face: a number of a face, or "p" and a number of a place that may be one

  const isPossible = () => typeof chosen === "string";
  const boxOf = one => typeof one === "string" ? item.places[Number(one.slice(1))].box : item.list[one].box;
  const light = (one, on) => { boxes.querySelector(`[data-one="${one}"]`)?.classList.toggle("over", on); cards.get(one)?.classList.toggle("over", on); };

  function choose(one) {
    chosen = one;
    if (typeof one === "number" && one >= most) { most = one + 1; showFaces(); } else showChosen();
    if (innerWidth > 820 && one !== null) cards.get(one)?.scrollIntoView({block: "nearest"});
  }

  function showChosen() {
    for (const node of boxes.children) { node.classList.toggle("lit", node.dataset.one === String(chosen)); node.setAttribute("aria-pressed", String(node.dataset.one === String(chosen))); }
    for (const [one, card] of cards) card.classList.toggle("lit", one === chosen);
    picked.replaceChildren(...chosen === null ? [] : [isPossible() ? possibleCard(Number(chosen.slice(1)), "div") : cardOf(chosen, "div")]);
  }

  const openPlaces = () => item.places.map((one, n) => n).filter(n => item.places[n].open);
  const takePossible = () => { if (openPlaces().length) edit("POST", "/possible", {mode: "plain"}); };

  function setMode(mode) {
    if (chosen === null) return false;
    if (isPossible()) { const n = Number(chosen.slice(1)); chosen = null; edit("POST", "/possible", {places: [n], mode}); }
    else edit("PATCH", "/faces/" + chosen, {mode});
    return true;
  }

  const another = () => { if (typeof chosen !== "number") return false; edit("PATCH", "/faces/" + chosen, {draw: Math.max(...item.list[chosen].draws) + 1}); return true; };

  function walk(by) {
    const shown = [...item.list.keys(), ...openPlaces().map(n => "p" + n)];
    if (!shown.length) return;
    const now = shown.indexOf(chosen);
    choose(shown[now < 0 ? (by > 0 ? 0 : shown.length - 1) : (now + by + shown.length) % shown.length]);
    if (view.classList.contains("zoomed")) zoom.show(boxOf(chosen));
  }

  function drop() {
    if (typeof chosen !== "number" || !(item.list[chosen].drawn || item.list[chosen].possible)) return false;
    const gone = chosen;
    chosen = null;
    edit("DELETE", "/faces/" + gone);
    return true;
  }

  function toggleBoxes() { kept.boxes = !kept.boxes; boxes.hidden = !kept.boxes; hide.setAttribute("aria-pressed", String(kept.boxes)); }
  function toggleTiles() { kept.tiles = !kept.tiles; at("editor").classList.toggle("tiles", kept.tiles); tiles.setAttribute("aria-pressed", String(kept.tiles)); most = kept.tiles ? Infinity : MOST; if (kept.tiles && before.naturalWidth < item.width) sharpen(); showFaces(); }

  // -- boxes and lists

  function boxNode(one, box, words, names, label) {
    const [x0, y0, x1] = box;
    const node = h("button", {type: "button", class: `box ${names}${x1 - x0 < item.width / 24 ? " small" : ""}${y0 < item.height / 16 ? " low" : ""}`, title: words, "aria-label": words, "aria-pressed": "false", "data-key": "box" + one, "data-one": one,
      onclick: () => choose(one), onmouseenter: () => light(one, true), onmouseleave: () => light(one, false)}, h("span", {class: "number"}, label));
    return place(node, box, item.width, item.height);
  }

  function showFaces() {
    if (typeof chosen === "number" && chosen >= item.list.length || isPossible() && !item.places[Number(chosen.slice(1))]?.open) chosen = null;
    const places = openPlaces();
    boxes.replaceChildren(
      ...places.map(n => boxNode("p" + n, item.places[n].box, `Place ${n + 1} may be a face, left as it is`, "possible", "?")),
      ...item.list.map((face, n) => boxNode(n, face.box, `Face ${n + 1}, ${ACTION_WORDS[face.action] ?? face.action}`, (face.action === "kept" ? "kept " : "") + (face.doubt ? "doubtful" : ""), String(n + 1))));
    maybe.hidden = !places.length;
    maybe.textContent = places.length === 1 ? "Cover 1 possible face" : `Cover ${places.length} possible faces`;
    const kinds = {all: ["All faces", () => true], doubt: ["Doubtful", face => face.doubt && face.action !== "kept"], masked: ["Masked", face => face.action === "masked"],
      matched: ["Still recognised", face => face.matched && face.action !== "kept"], kept: ["Kept", face => face.action === "kept"], drawn: ["Drawn by hand", face => face.drawn]};
    const counted = Object.entries(kinds).map(([name, [words, test]]) => [name, words, item.list.filter(test).length]).filter(([name, , number]) => number || name === kind);
    const shown = item.list.map((face, n) => n).filter(n => kinds[kind][1](item.list[n]));
    cards = new Map(shown.slice(0, kept.tiles ? Infinity : most).map(n => [n, cardOf(n)]));
    if (kind === "all" && cards.size === shown.length) for (const n of places.slice(0, most)) cards.set("p" + n, possibleCard(n));
    list.replaceChildren(...cards.values());
    which.hidden = item.list.length <= FEW;
    filter.hidden = !item.list.length;
    which.replaceChildren(...counted.map(([name, words, number]) => h("option", {value: name, selected: name === kind}, `${words} (${number})`)));
    if (shown.length > most) list.append(h("li", {}, button(`Show ${shown.length - most} more`, "", () => { most = Infinity; showFaces(); })));
    if (!item.list.length) list.append(h("li", {class: "hint"}, item.state === "ready" ? "No face was found. Draw a box over a face that was missed." : item.state === "failed" ? "Mend or replace the file, then try again." : "The faces are still to be looked for."));
    if (item.state === "failed") list.append(h("li", {}, button("Try again", "", () => edit("POST", "/look", {}))));
    showChosen();
  }

  const cardOf = (n, tag = "li") => hovering(faceCard(tag, {people, item, n, before, after, modes: desk.info.modes, set: values => edit("PATCH", "/faces/" + n, values), remove: () => { chosen = n; drop(); }, show: () => { if (kept.tiles) toggleTiles(); choose(n); zoom.show(boxOf(n)); }}), n);

  function possibleCard(n, tag = "li") {
    const face = item.places[n], cover = mode => button(MODE_WORDS[mode], "", () => { chosen = "p" + n; setMode(mode); });
    return hovering(h(tag, {class: "face"}, h("div", {class: "top"}, cut(before, face.box, item), h("div", {class: "facts"}, h("h3", {}, "May be a face"), h("span", {class: "state warn"}, "left as it is"), h("span", {class: "hint"}, "score " + face.score.toFixed(2)))),
      h("div", {class: "row"}, cover("plain"), cover("ficgan"))), "p" + n);
  }

  function hovering(card, one) {
    card.addEventListener("mouseenter", () => light(one, true));
    card.addEventListener("mouseleave", () => light(one, false));
    card.addEventListener("click", event => { if (chosen !== one && !event.target.closest("button, select, input, summary")) choose(one); });
    return card;
  }

  async function refresh(force) {
    const brief = items.get(id);
    mark();
    if (!force && (working || !brief || brief.revision === seen)) return;
    const told = await attempt(() => call("GET", "/items/" + id));
    if (told && !(working && !force)) await take(told);
  }

  return {id, kind: "photo", refresh, edit, zoom, walk, setMode, another, drop, takePossible, toggleBoxes, toggleTiles, ready: () => item,
    draw: () => draw.click(), save: () => save.click(), swap: () => { slide.value = slide.value === "0" ? 100 : 0; split(); },
    unchoose: () => { if (chosen === null) return false; choose(null); return true; },
    close: () => { stop(); zoom.close(); }};
}

const photo = run => event => desk.open.ready() ? run(desk.open, event) : false;
key("photo", ["Delete", "Backspace"], "remove the chosen box, if it was drawn", photo(open => open.drop()));
key("photo", ["p"], "cover all possible faces", photo(open => open.takePossible()));
key("photo", ["Shift+ArrowLeft", "Shift+ArrowRight", "Shift+ArrowUp", "Shift+ArrowDown"], "move the zoomed picture (drag, too)", photo((open, event) => open.zoom.move({ArrowLeft: -1, ArrowRight: 1}[event.key] || 0, {ArrowUp: -1, ArrowDown: 1}[event.key] || 0)));
key("photo", ["f"], "all faces side by side", photo(open => open.toggleTiles()));
