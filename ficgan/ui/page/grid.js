// All files: their cards, which of them are shown, which are chosen.

import {at, attempt, button, call, count, desk, h, modeList, rebuilt, select, stateOf} from "./base.js";
import {another, faceRow} from "./face.js";
import {review} from "./head.js";
import {key} from "./keys.js";

const {items} = desk, cards = new Map(), chosen = new Set();
let filter = "all", originals = false, last = null;

// Of the new faces that are close to their sources so many are near, and at most a tenth: a flag on half of them is none.
const MOST_NEAR = 12;
let nearest = 0;

const near = item => item.close.some(distance => distance <= nearest);
const FILTERS = {
  all: ["All files", () => true],
  look: ["Needs a look", item => item.looked && (item.error || item.matched || item.doubtful || near(item) || !(item.kind === "film" ? item.people : item.faces))],
  masked: ["Masked", item => item.masked],
  near: ["Near to the source", near],
  possible: ["Possible faces", item => item.possible],
  kept: ["Faces kept", item => item.kept],
  open: ["Not reviewed", item => !item.reviewed],
  reviewed: ["Reviewed", item => item.reviewed],
  unsaved: ["Not saved", item => item.state === "ready" && (item.changed || !item.saved)],
};

/** Files that the filter shows. */
export const shownFiles = () => desk.order.filter(id => items.has(id) && FILTERS[filter][1](items.get(id)));

export function showGrid(changed) {
  const grid = at("grid"), known = [...items.values()];
  const close = known.flatMap(item => item.close).sort((a, b) => a - b);
  nearest = close[Math.min(MOST_NEAR, Math.ceil(known.reduce((sum, item) => sum + item.new, 0) / 10)) - 1] ?? 0;
  for (const [id, card] of cards) if (!items.has(id)) { card.remove(); cards.delete(id); chosen.delete(id); }
  const shown = new Set(shownFiles());
  desk.order.forEach((id, index) => {
    const item = items.get(id);
    if (!item) return;
    if (!cards.has(id)) {
      const box = h("input", {type: "checkbox", tabIndex: -1, "aria-label": "Choose " + item.name, onclick: event => { event.stopPropagation(); choose(id, box.checked, event.shiftKey); }});
      cards.set(id, h("li", {}, h("button", {type: "button", class: "card", onclick: event => press(event, id)}), h("label", {class: "choose"}, box)));
      changed.add(id);
    }
    const card = cards.get(id);
    card.hidden = !shown.has(id);
    if (grid.children[index] !== card) grid.insertBefore(card, grid.children[index] || null);
    if (changed.has(id)) fillCard(card.firstChild, item);
  });
  for (const id of [...chosen]) if (!shown.has(id)) chosen.delete(id);
  showBar(shown.size);
  showTeam();
}

function fillCard(card, item) {
  const [tone, words] = stateOf(item);
  const address = item.drawn && !originals ? `/api/items/${item.id}/picture/result?v=${item.drawn}` : `/api/items/${item.id}/picture/thumb`;
  let picture = card.querySelector("img");
  if (item.thumb && !picture) picture = h("img", {src: address, alt: "", loading: "lazy", draggable: false});
  else if (picture && picture.getAttribute("src") !== address) picture.src = address;
  const bar = item.progress && item.progress[1] ? h("progress", {max: item.progress[1], value: item.progress[0]}) : null;
  if (bar) bar.setAttribute("aria-label", "Progress of " + item.name);
  card.dataset.state = item.state;
  card.dataset.id = item.id;
  card.replaceChildren(
    h("span", {class: "picture"}, picture || (item.state === "failed" ? "no picture" : "…"), item.kind === "film" ? h("span", {class: "badge"}, "film") : null,
      item.reviewed ? h("span", {class: "badge mark"}, "✓ reviewed") : null),
    h("span", {class: "text"}, h("span", {class: "name", title: item.name}, item.name.split("/").pop()), item.name.includes("/") ? h("span", {class: "folder"}, item.name.slice(0, item.name.lastIndexOf("/") + 1)) : null, h("span", {class: "state " + tone, title: words}, words), bar),
  );
}

// -- filters, and what is done to the chosen files ---------------------------------------------------------------------

const refill = () => showGrid(new Set(items.keys()));
// -- people: who is in several photos ----------------------------------------------------------------------------------

const team = h("ul", {class: "team", "aria-label": "People in several photos", hidden: true});
const compare = button("Link people", "Find who is in several photos: they get one new face, and what is decided on them counts in all", () => attempt(async () => {
  compare.disabled = true;
  try { await call("POST", "/people", {}); } finally { compare.disabled = false; }
  await desk.poll();
  showTeam(true);
}));
let teamOf = "";

/** A row for each person: the faces in all photos, and what is decided on them. */
async function showTeam(force) {
  const basis = JSON.stringify([...items.values()].map(item => [item.id, item.linked, item.drawn]));
  if (!force && basis === teamOf) return;
  teamOf = basis;
  const people = [...items.values()].some(item => item.linked) ? await attempt(() => call("GET", "/people")) || [] : [];
  team.hidden = !people.length;
  rebuilt(team, () => team.replaceChildren(...people.map(person => {
    const first = person.faces[0], set = values => attempt(async () => { await call("PATCH", `/items/${first.id}/faces/${first.face}`, values); await desk.poll(); });
    const same = person.faces.every(one => one.mode === first.mode), modes = [["", "As all others"], ...modeList(desk.info.modes)];
    const mode = select(same ? modes : [["-", "Different"], ...modes], same ? first.mode : "-", value => { if (value !== "-") set({mode: value}); }, {"aria-label": `What happens to person ${person.person}`, "data-key": "team" + person.person});
    const open = one => { desk.route = [...new Set(person.faces.map(face => face.id))]; desk.show(one.id); };
    return h("li", {}, h("span", {class: "name"}, `Person ${person.person}`, h("span", {class: "hint"}, ` ${person.faces.length} photos`)), faceRow(person, open, id => items.get(id)?.drawn), h("span", {class: "row"}, mode, another("team" + person.person, first.draws, set)));
  })));
}

const which = select([], filter, name => { filter = name; showGrid(new Set()); }, {id: "filter", "aria-label": "Which files are shown"});
const look = button("Originals", "Show the pictures as they were (O)", () => toggleOriginals(), {"aria-pressed": "false"});
const selection = h("div", {class: "row chosen-files", role: "group", "aria-label": "Chosen files", hidden: true});
const number = h("span", {role: "status"});
const ids = () => shownFiles().filter(id => chosen.has(id));
const decide = values => attempt(async () => { await call("POST", "/items", {ids: ids(), ...values}); await desk.poll(); });
const modes = select([], "-", mode => { if (mode !== "-") decide({mode}); modes.value = "-"; }, {"aria-label": "Faces of the chosen photos"});
selection.append(number, button("Reviewed", "", () => mark()), modes, button("Cover possible faces", "", () => decide({possible: "plain"})),
  button("Save", "", () => attempt(async () => { for (const id of ids()) await call("POST", "/items/" + id + "/save", {}); await desk.poll(); })),
  button("Choose none", "", () => clear()));
at("grid-bar").append(h("div", {class: "row"}, which, look, button("Choose all", "", () => everything()), compare), team, selection);

function showBar(shown) {
  at("grid-bar").hidden = !items.size;
  const known = [...items.values()];
  const options = Object.entries(FILTERS).map(([name, [words, test]]) => [name, words, known.filter(test).length]).filter(([name, , many]) => many || name === filter);
  const text = options.map(([, words, many]) => `${words} (${many})`).join();
  if (which.dataset.text !== text) {
    which.dataset.text = text;
    which.replaceChildren(...options.map(([name, words, many]) => h("option", {value: name, selected: name === filter}, `${words} (${many})`)));
  }
  if (!modes.children.length) modes.append(...select([["-", "All their faces…"], ["", "As all others"], ...modeList(desk.info.modes)], "-").children);
  for (const [id, card] of cards) {
    card.classList.toggle("chosen", chosen.has(id));
    card.querySelector(".choose input").checked = chosen.has(id);
  }
  selection.hidden = !chosen.size;
  number.textContent = count(chosen.size, "file") + " chosen";
  at("nothing").hidden = shown > 0 || !items.size;
}

function choose(id, on, range) {
  const shown = shownFiles(), ends = [shown.indexOf(last), shown.indexOf(id)].sort((a, b) => a - b);
  for (const one of range && ends[0] >= 0 ? shown.slice(ends[0], ends[1] + 1) : [id]) if (on) chosen.add(one); else chosen.delete(one);
  last = id;
  showBar(shown.length);
}

function press(event, id) {
  if (event.shiftKey) choose(id, true, true);
  else if (event.ctrlKey || event.metaKey) choose(id, !chosen.has(id));
  else { desk.route = shownFiles(); desk.show(id); }
}

const everything = () => { for (const id of shownFiles()) chosen.add(id); showBar(1); };
const clear = () => { if (!chosen.size) return false; chosen.clear(); showBar(1); return true; };
const mark = () => { const which = chosen.size ? ids() : focused() ? [focused()] : []; if (which.length) review(which, !which.every(id => items.get(id).reviewed)); };
function toggleOriginals() { originals = !originals; look.setAttribute("aria-pressed", String(originals)); refill(); }

export const focusCard = id => cards.get(id)?.firstChild.focus();
const focused = () => document.activeElement?.dataset?.id;

function walk(by, range) {
  const shown = shownFiles(), grid = at("grid"), at0 = shown.indexOf(focused());
  const columns = Math.max(1, getComputedStyle(grid).gridTemplateColumns.split(" ").length);
  const next = at0 < 0 ? shown[0] : shown[at0 + (Math.abs(by) === 1 ? by : Math.sign(by) * columns)];
  if (!next) return;
  if (range && at0 >= 0) { choose(shown[at0], true); choose(next, true); }
  focusCard(next);
}

key("grid", ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"], "go from file to file", event => walk({ArrowLeft: -1, ArrowRight: 1, ArrowUp: -2, ArrowDown: 2}[event.key]));
key("grid", ["Shift+ArrowLeft", "Shift+ArrowRight", "Shift+ArrowUp", "Shift+ArrowDown"], "choose on the way", event => walk({ArrowLeft: -1, ArrowRight: 1, ArrowUp: -2, ArrowDown: 2}[event.key], true));
key("grid", ["Enter"], "open the file", () => { if (!focused()) return false; desk.route = shownFiles(); desk.show(focused()); return true; });
key("grid", ["x"], "choose the file, or not (Ctrl or Shift and click, too)", () => { if (focused()) choose(focused(), !chosen.has(focused())); });
key("grid", ["Ctrl+a"], "choose all that are shown", everything);
key("grid", ["Escape"], "choose none", clear);
key("grid", ["r"], "reviewed, or not: the chosen files", mark);
key("grid", ["o"], "the originals, or the results", toggleOriginals);
