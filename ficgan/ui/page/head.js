// What stands above a file that is open.

import {attempt, call, desk, h} from "./base.js";

/** The file before or after one, among those that the grid showed. */
export function neighbour(id, by) {
  const route = desk.route.includes(id) ? desk.route : desk.order;
  return route[route.indexOf(id) + by];
}

/** Mark files as reviewed, or not. */
export const review = (ids, reviewed) => attempt(async () => { await call("POST", "/items", {ids, reviewed}); await desk.poll(); });

export function headOf(id, extra) {
  const step = by => h("button", {type: "button", onclick: () => desk.show(neighbour(id, by)), disabled: !neighbour(id, by), "aria-label": by < 0 ? "Previous file" : "Next file", title: by < 0 ? "Previous file (←)" : "Next file (→)"}, by < 0 ? "‹" : "›");
  const item = desk.items.get(id), state = h("span", {class: "state", role: "status"});
  const reviewed = h("button", {type: "button", title: "A mark of your own (R)", onclick: () => review([id], !desk.items.get(id).reviewed)}, "Reviewed");
  const head = h("div", {class: "head"},
    h("div", {class: "row"}, h("button", {type: "button", onclick: () => desk.leave()}, "All files"), step(-1), step(1)),
    h("div", {class: "title"}, h("h2", {}, item.name), state), h("div", {class: "row"}, reviewed, ...extra));
  const mark = () => reviewed.setAttribute("aria-pressed", String(!!desk.items.get(id)?.reviewed));
  mark();
  return {head, state, mark};
}

export const exportLink = id => h("a", {class: "button", href: `/api/items/${id}/decisions.json`, download: "decisions.json"}, "Export decisions");
