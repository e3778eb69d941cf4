// Keys: what they do, and the list of all of them.

import {at, button, desk, h} from "./base.js";

const all = [];

/** A key: where it counts ("", "grid", "photo" or "film"), its names ("Ctrl+z"), in words, and what it does; false: nothing. */
export function key(where, names, words, run) { all.push({where, names, words, run}); }

function nameOf(event) {
  const letter = event.key.length === 1, name = event.key === " " ? "Space" : letter ? event.key.toLowerCase() : event.key;
  const ctrl = event.ctrlKey || event.metaKey;
  return (ctrl ? "Ctrl+" : "") + (event.shiftKey && (ctrl || !letter || name === "Space") ? "Shift+" : "") + name;
}

/** Whether what has the focus takes the key itself: a field, an open list, or a button that the keyboard has reached. */
function taken(name, target) {
  const tag = target.tagName;
  if (target.closest?.("dialog, .box.new")) return true;
  if (tag === "SELECT" || tag === "INPUT" && target.type === "number") return !name.startsWith("Ctrl+");
  if (tag === "INPUT" && target.type === "range") return /Arrow|Page|Home|End/.test(name);
  if (/Space|Enter/.test(name)) return tag === "SUMMARY" || tag === "INPUT" || /^(A|BUTTON)$/.test(tag) && target.matches(":focus-visible");
  return false;
}

addEventListener("keydown", event => {
  if (event.defaultPrevented || event.altKey || document.querySelector("dialog[open]")) return;
  const name = nameOf(event), here = desk.open ? desk.open.kind : "grid";
  if (taken(name, event.target)) return;
  if (!all.some(one => (one.where === here || !one.where) && one.names.includes(name) && one.run(event) !== false)) return;
  event.preventDefault();
  // A button that the mouse has pressed would be pressed again by the space bar.
  if (name.endsWith("Space") && document.activeElement?.tagName === "BUTTON" && desk.open) document.activeElement.blur();
});

const SHOWN = {ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc", "+": "+", "-": "−"};
const shown = name => name.split(/(?<=.)\+/).map(part => SHOWN[part] || (part.length === 1 ? part.toUpperCase() : part)).join("+");

/** Names for people; a row of digits is its ends. */
const shortly = names => names.length > 2 && names.every(name => /^\d$/.test(name)) ? [names[0] + "–" + names.at(-1)] : names.map(shown);

/** The list of all keys. */
export function showKeys() {
  const titles = {"": "Everywhere", grid: "All files", photo: "A photo", film: "A film"};
  const close = button("Close", "", () => dialog.close(), {class: "primary"});
  const dialog = h("dialog", {class: "keys", "aria-labelledby": "keys-title", onclose: () => dialog.remove()}, h("div", {class: "head"}, h("h2", {id: "keys-title"}, "Keys"), close),
    h("div", {class: "columns"}, ...Object.entries(titles).filter(([where]) => all.some(one => one.where === where)).map(([where, title]) => h("section", {}, h("h3", {}, title),
      h("dl", {}, ...all.filter(one => one.where === where).flatMap(one => [h("dt", {}, ...shortly(one.names).map(name => h("kbd", {}, name))), h("dd", {}, one.words)]))))));
  document.body.append(dialog);
  dialog.showModal();
}

key("", ["?"], "these keys", showKeys);
at("show-keys").addEventListener("click", showKeys);
