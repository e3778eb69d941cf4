// The card of a face: it before and after, what was done to it, and what may be decided.

import {ACTION_WORDS, button, desk, h, modeList, select} from "./base.js";
import {buildControls} from "./controls.js";

/** The part of a picture around a box, which is in pixels of the photo. */
export function cut(image, box, item) {
  const canvas = h("canvas", {width: 152, height: 152});
  if (image.naturalWidth && !image.hidden) {
    const scale = image.naturalWidth / item.width, side = 1.4 * Math.max(box[2] - box[0], box[3] - box[1]);
    const x = (box[0] + box[2] - side) / 2, y = (box[1] + box[3] - side) / 2;
    canvas.getContext("2d").drawImage(image, x * scale, y * scale, side * scale, side * scale, 0, 0, 152, 152);
  }
  return canvas;
}

/** The new faces that were drawn before, to go back to by a click; `picture` makes that of a number. */
export function drawRow(words, name, draws, now, picture, set) {
  if (draws.length < 2) return null;
  return h("div", {class: "draws", role: "group", "aria-label": words}, ...draws.map(number => {
    const more = {"aria-pressed": String(number === now), "aria-label": `Drawn face ${number + 1}`, "data-key": `draw${name}-${number}`};
    const node = button(picture(number), `Drawn face ${number + 1}`, () => { if (number !== now) set({draw: number}); }, more);
    node.append(h("span", {}, String(number + 1)));
    return node;
  }));
}

/** What asks for a new face beside those that were drawn. */
export const another = (name, draws, set, disabled = false) => button("Another face", "N", () => set({draw: Math.max(...draws) + 1}), {disabled, "data-key": "again" + name});

/** A picture that may not be there. */
export const maybePicture = src => h("img", {src, alt: "", onerror: event => event.target.remove()});

const opened = new Set();  // names of faces whose settings are open
const DRAWN = ["k", "layer", "psi", "attributes", "keep_kind", "fallback"];

/** How a new face is drawn, where it is not as the others: `usual` controls. */
export function ownDrawing(name, title, drawing, usual, set, back) {
  const panel = h("div", {class: "panel"});
  const fill = () => {
    buildControls(panel, drawing || Object.fromEntries(DRAWN.map(one => [one, usual[one]])), values => set({drawing: values}), "face");
    if (drawing) panel.append(button(back, "", () => set({drawing: null})));
  };
  const details = h("details", {open: opened.has(name), ontoggle: () => { if (details.open) { opened.add(name); if (!panel.children.length) fill(); } else opened.delete(name); }},
    h("summary", {}, title, drawing ? h("span", {class: "hint"}, " in its own way") : ""), panel);
  if (details.open) fill();
  return details;
}

/** The faces of one person in all photos; a click opens a photo. */
export function faceRow(person, open, version) {
  const picture = one => maybePicture(`/api/items/${one.id}/faces/${one.face}/picture?v=${version(one.id)}`);
  return h("div", {class: "draws row-of", role: "group", "aria-label": `Person ${person.person} in all photos`}, ...person.faces.map(one =>
    button(picture(one), one.name, () => open(one), {"aria-label": `Person ${person.person} in ${one.name}`, "data-key": `person${person.person}-${one.id}`})));
}

export function faceCard(tag, {people, item, n, before, after, modes, set, remove, show}) {
  const face = item.list[n], other = face.person ? people.find(one => one.person === face.person) : null, words = ACTION_WORDS[face.action] ?? face.action;
  const mode = select([["", "As all others"], ...modeList(modes)], face.mode, name => set({mode: name}), {"aria-label": `What happens to face ${n + 1}`, "data-key": "mode" + n});
  const fresh = face.action === "generated" || face.action === "retried", bad = face.matched && face.action !== "kept";
  return h(tag, {class: "face"},
    h("div", {class: "top"}, cut(before, face.box, item), cut(after, face.box, item),
      h("div", {class: "facts"}, h("h3", {}, `Face ${n + 1}`), h("span", {class: "state " + (bad ? "bad" : face.doubt ? "warn" : "")}, bad ? words + ", still recognised" : words),
        h("span", {class: "hint"}, face.possible ? "was a possible face, score " + face.score.toFixed(2) : face.drawn ? (face.score ? "drawn, found on a closer look" : "drawn by hand") : "score " + face.score.toFixed(2)),
        face.doubt ? h("span", {class: "state warn"}, "doubtful: " + face.doubt) : "",
        face.note && face.note !== "chosen by hand" ? h("span", {class: "hint"}, face.note) : "")),
    other ? h("div", {class: "stack"}, h("span", {class: "hint"}, `Person ${face.person}: what is decided here counts in ${other.faces.length} photos`), faceRow(other, one => desk.show(one.id), id => desk.items.get(id)?.drawn)) : "",
    h("div", {class: "row"}, mode, another(n, face.draws, set, !fresh), button("Zoom", "", show), face.drawn || face.possible ? button("Remove box", "", remove) : ""),
    drawRow(`Faces drawn for face ${n + 1}`, n, face.draws, face.draw, number => number === face.draw ? cut(after, face.box, item) : maybePicture(`/api/items/${item.id}/draws/${n}/${number}`), set),
    ownDrawing(item.id + face.box, `How face ${n + 1} is drawn`, face.drawing, item.controls, set, "As the others of this photo"));
}
