// What a cover really covers: the geometry of the renderer's covers, for the page to draw.

const MARGIN = 1.3, FEATHER = {plain: 0.2}, USUAL = 0.1;  // as in faces/covers.py; a test holds them together

/**
 * The cover of a box by a mode: centre, the half axes within which nothing is left (`full`) and outside of which nothing
 * is changed (`reach`), and the exponent of its outline. `marks` are landmarks of the face in it; none of a drawn box.
 */
export function coverOf(box, mode, marks = []) {
  const most = [Math.max(1, box[2] - box[0]) / 2, Math.max(1, box[3] - box[1]) / 2];
  const near = marks.filter(([x, y]) => x >= box[0] - most[0] && x <= box[2] + most[0] && y >= box[1] - most[1] && y <= box[3] + most[1]);
  const low = [0, 1].map(axis => Math.min(box[axis], ...near.map(mark => mark[axis])));
  const high = [0, 1].map(axis => Math.max(box[2 + axis], ...near.map(mark => mark[axis])));
  const centre = [0, 1].map(axis => (low[axis] + high[axis]) / 2), full = [0, 1].map(axis => Math.max(1, high[axis] - low[axis]) / 2 * MARGIN);
  const round = mode === "plain" && near.length > 0 && near.every(mark => [0, 1].reduce((sum, axis) => sum + ((mark[axis] - centre[axis]) / full[axis]) ** 2, 0) <= 0.9);
  const edge = Math.max(FEATHER[mode] ?? USUAL, 1 / Math.min(...full));
  return {centre, full, reach: full.map(half => half * (1 + edge)), power: round ? 2 : 4};
}

/** Points of an outline |x/a|^p + |y/b|^p = 1. */
export function outline({centre, power}, half, count = 96) {
  return Array.from({length: count}, (_, n) => {
    const angle = 2 * Math.PI * n / count, [c, s] = [Math.cos(angle), Math.sin(angle)];
    const bend = value => Math.sign(value) * Math.abs(value) ** (2 / power);
    return [centre[0] + half[0] * bend(c), centre[1] + half[1] * bend(s)];
  });
}

/** Landmarks of a face whose box was moved. */
export function movedMarks(marks, from, to) {
  return marks.map(mark => [0, 1].map(axis => to[axis] + (mark[axis] - from[axis]) / (from[2 + axis] - from[axis]) * (to[2 + axis] - to[axis])));
}

const XML = "http:" + "//www.w3.org/2000/svg";

/** A picture of a cover, to lie over a picture of a size: what is covered whole, and how far its soft edge reaches. */
export function extent(width, height) {
  const svg = document.createElementNS(XML, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("class", "extent");
  svg.setAttribute("aria-hidden", "true");
  const [whole, soft] = ["full", "reach"].map(name => { const node = document.createElementNS(XML, "polygon"); node.setAttribute("class", name); return node; });
  svg.append(soft, whole);
  return {
    node: svg,
    show: (box, mode, marks) => {
      const cover = coverOf(box, mode, marks);
      for (const [node, half] of [[whole, cover.full], [soft, cover.reach]]) node.setAttribute("points", outline(cover, half).map(point => point.map(value => value.toFixed(1)).join()).join(" "));
    },
  };
}
