// The time line of a film: a row for each person and box, aligned with the place that is shown.

import {ACTION_WORDS, clock, h} from "./base.js";

const kindOf = mode => mode === "keep" ? "kept" : mode === "ficgan" ? "" : "covered";
const wordOf = mode => mode === "keep" ? "kept" : mode === "ficgan" ? "replaced" : ACTION_WORDS[mode] || mode;
const TICKS = 6;  // times that are written above the rows, about

/** Steps of seconds between two times that are written. */
function step(duration) {
  for (const one of [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600]) if (duration / one <= TICKS) return one;
  return 7200;
}

/** `seek` takes seconds, `step` frames, `choose` the key of a row: of a person, or a number of a box. */
export function timeline({seek, step: stepFrames, choose}) {
  let film = null, rows = new Map(), held = false;
  const ruler = h("div", {class: "rail", role: "slider", tabIndex: 0, "aria-label": "Place in the film", "aria-valuemin": 0});
  const playhead = h("div", {class: "playhead"}), lanes = h("div", {class: "lanes"});
  const legend = h("p", {class: "legend"}, h("span", {}, "replaced"), h("span", {class: "kept"}, "kept"), h("span", {class: "covered"}, "covered"), h("span", {class: "cuts"}, "cut"), h("span", {class: "found"}, "to be looked at"), h("span", {class: "keyed"}, "box set by hand"));
  const node = h("div", {class: "timeline", role: "group", "aria-label": "People over time", tabIndex: -1}, lanes);

  const share = seconds => Math.min(1, Math.max(0, seconds / Math.max(film.duration, 1e-6)));
  const at = (part, seconds) => { part.style.left = 100 * share(seconds) + "%"; return part; };

  function bar(from, to, kind, words) {
    const made = at(h("div", {class: "bar " + kind, title: words}), from);
    made.style.width = 100 * (share(to) - share(from)) + "%";
    return made;
  }

  function lane({key, name, spans, marks}) {
    const words = spans.map(([from, to, mode]) => `${wordOf(mode)} ${clock(from)} – ${clock(to)}`);
    const rail = h("div", {class: "rail", role: "img", "aria-label": `${name}: ${words.join(", ")}`},
      ...spans.map(([from, to, mode], n) => bar(from, to, kindOf(mode), `${name}: ${words[n]}`)),
      ...film.cuts.map(cut => at(h("div", {class: "cut"}), cut)), ...marks.map(time => at(h("div", {class: "key"}), time)));
    const who = h("button", {type: "button", class: "who", title: name, onclick: () => choose(key)}, name);
    who.dataset.key = "lane" + key + typeof key;
    const made = h("div", {class: "lane"}, who, rail);
    rows.set(key, made);
    return made;
  }

  const timeOf = event => { const place = ruler.getBoundingClientRect(); return film.duration * Math.min(1, Math.max(0, (event.clientX - place.left) / place.width)); };
  lanes.addEventListener("pointerdown", event => {
    if (event.button || !event.target.closest(".rail")) return;
    event.preventDefault();
    lanes.setPointerCapture(event.pointerId);
    held = true;
    ruler.focus({preventScroll: true});
    seek(timeOf(event));
  });
  lanes.addEventListener("pointermove", event => { if (held) seek(timeOf(event)); });
  for (const kind of ["pointerup", "pointercancel"]) lanes.addEventListener(kind, () => { held = false; });
  ruler.addEventListener("keydown", event => {
    const by = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: Math.round(film.rate), PageDown: -Math.round(film.rate)}[event.key];
    if (event.shiftKey || event.ctrlKey || event.altKey) return;
    if (by) stepFrames(by); else if (event.key === "Home") seek(0); else if (event.key === "End") seek(film.duration); else return;
    event.preventDefault();
  });

  return {
    node, legend, ruler,
    build(told, list) {
      film = told;
      rows = new Map();
      ruler.setAttribute("aria-valuemax", film.duration.toFixed(2));
      const every = step(film.duration), times = Array.from({length: Math.floor(film.duration / every) + 1}, (_, n) => n * every);
      ruler.replaceChildren(...times.filter(time => share(time) < 0.92).map(time => at(h("span", {class: "tick"}, clock(time).replace(/\.0$/, "")), time)),
        ...film.cuts.map(cut => at(h("div", {class: "cut"}), cut)), ...film.findings.map(one => at(h("div", {class: "finding", title: `${clock(one.time)}: ${one.reason}`}), one.time)));
      const empty = list.length ? null : h("p", {class: "hint"}, "No face was found in this film.");
      lanes.replaceChildren(h("div", {class: "lane ruler"}, h("span", {class: "who"}), ruler), ...list.map(lane), playhead);
      node.replaceChildren(lanes, ...(empty ? [empty] : []));
    },
    show(seconds, frame) {
      playhead.style.setProperty("--at", share(seconds));
      ruler.setAttribute("aria-valuenow", seconds.toFixed(2));
      ruler.setAttribute("aria-valuetext", `${clock(seconds)} of ${clock(film.duration)}${frame === undefined ? "" : `, frame ${frame}`}`);
    },
    lit(key) {
      for (const [one, made] of rows) made.classList.toggle("lit", one === key);
      const row = rows.get(key);
      if (row) node.scrollTop = Math.min(Math.max(node.scrollTop, row.offsetTop + row.offsetHeight - node.clientHeight), row.offsetTop - row.offsetHeight - 4);
    },
  };
}
