// The page of `ficgan ui`: it asks the server for what changed, and shows all files or one.

import {at, attempt, call, count, desk, tell} from "./base.js";
import {buildAllControls} from "./controls.js";
import {filmEditor} from "./film.js";
import {focusCard, shownFiles, showGrid} from "./grid.js";
import {neighbour, review} from "./head.js";
import {key} from "./keys.js";
import {photoEditor} from "./photo.js";
import {uploads} from "./uploads.js";

const {items} = desk;
let since = 0, timer = 0, lost = false;

async function poll() {
  clearTimeout(timer);
  let busy = true;
  try {
    const told = await call("GET", "/state?since=" + since);
    since = told.revision;
    desk.info = {...desk.info, ...told};
    desk.order = told.ids;
    for (const item of told.items) items.set(item.id, item);
    for (const id of [...items.keys()]) if (!desk.order.includes(id)) items.delete(id);
    document.body.dataset.model = told.model;
    busy = told.model === "loading" || [...items.values()].some(item => item.state === "waiting" || item.progress || item.state === "working");
    if (told.output) { at("output").textContent = told.output; at("project").textContent = told.project; }
    showGrid(new Set(told.items.map(item => item.id)));
    showStatus();
    buildAllControls();
    if (desk.open && !items.has(desk.open.id)) leave();
    else if (desk.open) desk.open.refresh();
    lost = false;
  } catch (error) {
    if (!lost) tell(error.message);
    lost = true;
  }
  timer = setTimeout(poll, document.hidden || !busy ? 2000 : 600);
}

function showStatus() {
  const all = [...items.values()], waiting = all.filter(item => !item.looked).length;
  const parts = [];
  if (uploads.done < uploads.all) parts.push(`Adding ${uploads.done + 1} of ${uploads.all}`);
  if (desk.info.model === "loading") parts.push("The model is being loaded");
  else if (desk.info.model && desk.info.model !== "ready") parts.push(desk.info.model);
  parts.push(waiting ? `${all.length - waiting} of ${count(all.length, "file")} looked at` : count(all.length, "file"));
  const saving = all.filter(item => item.progress && /sav|turn|render|check/.test(item.progress[2])).length;
  if (saving) parts.push(`${saving} still to be saved`);
  const reviewed = all.filter(item => item.reviewed).length;
  if (reviewed) parts.push(`${reviewed} reviewed`);
  const saved = all.filter(item => item.saved && !item.changed).length;
  if (saved) parts.push(`${saved} saved`);
  at("status").textContent = parts.join(" · ");
  at("looked").hidden = !waiting;
  at("looked").max = all.length;
  at("looked").value = all.length - waiting;
  at("empty").hidden = all.length > 0;
  at("export-all").hidden = at("save-all").hidden = !all.length;
  at("save-all").disabled = !all.some(item => item.state === "ready" && (item.changed || !item.saved) && !item.progress);
  const scope = desk.open ? items.get(desk.open.id) || {} : desk.info;
  at("undo").disabled = !scope.undo;
  at("redo").disabled = !scope.redo;
}

// -- undo and redo: of the file that is open, else of the last action -------------------------------------------------

async function undo(query) {
  const way = "undo" + query;
  if (desk.open) await desk.open.edit("POST", "/" + way);
  else await attempt(async () => { await call("POST", "/" + way); await poll(); });
}
at("undo").addEventListener("click", () => undo(""));
at("redo").addEventListener("click", () => undo("?redo"));
key("", ["Ctrl+z"], "undo: on the file that is open, else the last action", () => undo(""));
key("", ["Ctrl+Shift+z", "Ctrl+y"], "redo", () => undo("?redo"));
at("save-all").addEventListener("click", () => attempt(async () => { await call("POST", "/save", {}); await poll(); }));
at("home").addEventListener("click", () => leave());

// -- from the files to one of them ------------------------------------------------------------------------------------

function show(id) { if (id) location.hash = id; }

function leave() {
  if (desk.open) desk.open.close();
  const was = desk.open && desk.open.id;
  desk.open = null;
  at("editor").hidden = true;
  at("overview").hidden = false;
  if (location.hash) history.pushState(null, "", "/");
  showStatus();
  if (was) focusCard(was);
}

async function route() {
  const id = location.hash.slice(1);
  if (desk.open && desk.open.id === id) return;
  if (!id || !items.has(id)) return leave();
  if (desk.open) desk.open.close();
  if (!desk.route.includes(id)) desk.route = shownFiles();
  at("overview").hidden = true;
  at("editor").hidden = false;
  at("editor").replaceChildren();
  desk.open = items.get(id).kind === "film" ? filmEditor(id) : photoEditor(id);
  showStatus();
  scrollTo(0, 0);
  at("editor").focus({preventScroll: true});
  await desk.open.refresh(true);
}
addEventListener("hashchange", route);
addEventListener("popstate", route);

for (const kind of ["photo", "film"]) {
  key(kind, ["Escape"], "back to all files", () => leave());
  key(kind, ["r"], "reviewed, or not", () => review([desk.open.id], !items.get(desk.open.id).reviewed));
}
key("photo", ["ArrowRight", "Space"], "the next file", () => show(neighbour(desk.open.id, 1)));
key("photo", ["ArrowLeft", "Shift+Space"], "the file before", () => show(neighbour(desk.open.id, -1)));

// How high the bars at the top are: what sticks below them must know.
const watch = new ResizeObserver(() => {
  const header = document.querySelector("header").offsetHeight, head = document.querySelector("#editor > .head")?.offsetHeight || 0;
  document.documentElement.style.setProperty("--header", header + "px");
  document.documentElement.style.setProperty("--bars", header + head + "px");
});
for (const one of [document.querySelector("header"), at("editor")]) watch.observe(one);

Object.assign(desk, {poll, show, leave, showStatus});
poll().then(route);
