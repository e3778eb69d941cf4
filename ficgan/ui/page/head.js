// What stands above a file that is open.

import {attempt, button, call, desk, h} from "./base.js";
import {key} from "./keys.js";

/** The file before or after one, among those that the grid showed. */
export function neighbour(id, by) {
  const route = desk.route.includes(id) ? desk.route : desk.order;
  return route[route.indexOf(id) + by];
}

/** Mark files as reviewed, or not. */
export const review = (ids, reviewed) => attempt(async () => { await call("POST", "/items", {ids, reviewed}); await desk.poll(); });

export function headOf(id, extra) {
  const step = (by, words, name, key) => button(words, `${name} (${key})`, () => desk.show(neighbour(id, by)), {disabled: !neighbour(id, by), "aria-label": name});
  const item = desk.items.get(id), state = h("span", {class: "state", role: "status"});
  const reviewed = button("Reviewed", "A mark of your own (R)", () => review([id], !desk.items.get(id).reviewed));
  const head = h("div", {class: "head"},
    h("div", {class: "row"}, button("All files", "", () => desk.leave()), step(-1, "‹", "Previous file", "←"), step(1, "›", "Next file", "→")),
    h("div", {class: "title"}, h("h2", {}, item.name), state), h("div", {class: "row"}, reviewed, ...extra));
  const mark = () => reviewed.setAttribute("aria-pressed", String(!!desk.items.get(id)?.reviewed));
  mark();
  return {head, state, mark};
}

export const exportLink = id => h("a", {class: "button", href: `/api/items/${id}/decisions.json`, download: "decisions.json"}, "Export decisions");

/** What forgets a file that was dropped into the page. */
export const removeButton = id => button("Remove from the list", "The copy and all decisions on it go; this cannot be undone", () => {
  if (confirm(`Remove ${desk.items.get(id).name}? Its copy and all decisions on it go; this cannot be undone.`)) attempt(async () => { await call("DELETE", "/items/" + id); desk.leave(); await desk.poll(); });
});

export const drawButton = () => h("button", {type: "button", title: "D"}, "Draw a box over a missed face");

/** Smaller and larger, with the percentage between; `zoom` is known once they are pressed. */
export const zoomButtons = (percent, zoom) => [button("−", "Smaller (−)", () => zoom().out(), {"aria-label": "Smaller"}), percent, button("+", "Larger (+)", () => zoom().in(), {"aria-label": "Larger"})];

/** Keys that photos and films share. */
for (const kind of ["photo", "film"]) {
  const on = run => event => desk.open.ready() ? run(desk.open, event) : false;
  const digit = event => ["", ...desk.info.modes][Number(event.key)], words = kind === "photo" ? "the chosen face" : "who is chosen";
  key(kind, ["Escape"], kind === "photo" ? "choose no face" : "choose nobody", on(open => open.unchoose()));
  key(kind, ["j", "ArrowDown"], kind === "photo" ? "the next face" : "the next person or box", on(open => open.walk(1)));
  key(kind, ["k", "ArrowUp"], "the one before", on(open => open.walk(-1)));
  key(kind, ["0", "1", "2", "3", "4", "5", "6"], words + ": 0 as all others, 1 replace, 2 keep, 3 one colour, 4 black, 5 blur, 6 mosaic", on((open, event) => digit(event) !== undefined && open.setMode(digit(event))));
  key(kind, ["n"], "another new face for " + words, on(open => open.another()));
  key(kind, ["d"], "draw a box over a missed face", on(open => open.draw()));
  key(kind, ["b"], "boxes shown, or hidden", on(open => open.toggleBoxes()));
  key(kind, ["o"], "the original, or the result", on(open => open.swap()));
  key(kind, ["+", "="], "larger (the wheel, too)", on(open => open.zoom.in()));
  key(kind, ["-"], "smaller", on(open => open.zoom.out()));
  key(kind, ["z"], "100 %, or the whole picture (double click, too)", on(open => open.zoom.toggle()));
  key(kind, ["s"], kind === "photo" ? "save" : "render", on(open => open.save()));
}
