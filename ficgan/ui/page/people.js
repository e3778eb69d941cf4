// The cards of a film's people and boxes: what is decided on each.

import {button, clock, desk, h, modeList, select} from "./base.js";
import {choose} from "./controls.js";
import {another, drawRow, maybePicture, ownDrawing} from "./face.js";

export const nameOf = one => one.person ? "Person " + one.person : (one.tracks[0].kind || "Unknown") + " " + one.tracks[0].id;
const span = one => `${clock(one.from)} – ${clock(one.to)}`;

function modeSelect(words, key, modes, value, run) {
  const known = !value || modes.some(([name]) => name === value);
  return select(known ? modes : [...modes, [value, value]], value, run, {"aria-label": words, "data-key": key});
}

/** `set` takes mode, draw or drawing of the person, `link` whom its tracks belong to. */
export function personCard({id, one, film, controls, version, set, link, show, choose: pick}) {
  const name = nameOf(one), [first, last] = [one.tracks[0], one.tracks.at(-1)], face = !first.kind;
  const modes = [["", "As all others"], ...modeList(desk.info.modes.filter(mode => face || mode !== "ficgan"))];
  const notes = [...new Set(one.tracks.flatMap(track => track.notes))];
  const replaced = face && (one.mode || film.default) === "ficgan";
  const others = film.people.filter(other => other.person && other.person !== one.person && !other.tracks[0].kind);
  const join = choose("is the same as", [["", "nobody else"], ...others.map(other => [String(other.person), nameOf(other)])], "", value => link(Object.fromEntries(one.tracks.map(track => [track.id, Number(value)]))));
  join.className = "row hint";
  const next = Math.max(0, ...film.people.map(other => other.person)) + 1;
  const apart = one.person && one.tracks.length > 1 ? button("Take apart", "Each appearance becomes a person of its own", () => link(Object.fromEntries(one.tracks.slice(1).map((track, n) => [track.id, next + n])))) : null;
  const cut = draw => one.pictures.includes(draw) ? maybePicture(`/api/items/${id}/people/${one.key}/${draw}?v=${version}`) : null;
  const card = h("li", {class: "face"},
    h("div", {class: "top"}, h("img", {class: "strip", alt: `${name} in the film`, loading: "lazy", src: `/api/items/${id}/track/${first.id}`}), replaced ? h("span", {class: "now"}, cut(one.draw)) : null,
      h("div", {class: "facts"}, h("h3", {}, name), h("span", {class: "hint"}, `${clock(first.from)} – ${clock(last.to)}${one.tracks.length > 1 ? `, ${one.tracks.length} times` : ""}, score ${Math.max(...one.tracks.map(track => track.score))}`),
        notes.length ? h("span", {class: "state warn"}, notes.join("; ")) : "")),
    h("div", {class: "row"}, modeSelect("What happens to " + name, "mode" + one.key, modes, one.mode, mode => set({mode})), another(one.key, one.draws, set, !replaced), button("Show", "", show)),
    drawRow(`Faces drawn for ${name}`, one.key, one.draws, one.draw, cut, set),
    face ? ownDrawing(id + one.key, `How ${name} is drawn`, one.drawing, controls, set, "As the others of this film") : null,
    face && (others.length || apart) ? h("div", {class: "row"}, others.length ? join : null, apart) : null);
  card.addEventListener("click", event => { if (!event.target.closest("button, select, input, summary")) pick(); });
  return card;
}

/** `change` takes fields of the region. */
export function regionCard({film, n, change, remove, show, choose: pick}) {
  const one = film.regions[n], name = `Box ${n + 1}`, modes = modeList(desk.info.modes.filter(mode => !["ficgan", "keep"].includes(mode)));
  const time = (words, value, set) => h("label", {}, words, h("input", {type: "number", min: 0, max: film.duration.toFixed(2), step: 0.01, value: value.toFixed(2), onchange: event => set(Number(event.target.value))}), " s");
  const card = h("li", {class: "face"}, h("div", {class: "facts"}, h("h3", {}, name), h("span", {class: "hint"}, span(one) + (one.keys?.length > 1 ? `, moves over ${one.keys.length} places` : ""))),
    h("div", {class: "row"}, modeSelect("What covers " + name, "region" + n, modes, one.mode, mode => change({mode})), button("Show", "", show), button("Remove box", "Delete", remove)),
    h("div", {class: "row times"}, time("from ", one.from, from => change({from})), time("to ", one.to, to => change({to}))));
  card.addEventListener("click", event => { if (!event.target.closest("button, select, input")) pick(); });
  return card;
}
