// What all parts of the page share: the files, requests, and how elements are made. Text is set as text, never as markup.

export const at = id => document.getElementById(id);
/** The files by id, their order, what the server told of itself, the editor that is open, and what app.js does for others. */
export const desk = {items: new Map(), order: [], route: [], info: {modes: []}, open: null, poll: null, show: null, leave: null};

export const MODE_WORDS = {ficgan: "Replace", keep: "Keep as it is", plain: "Cover, one colour", black: "Cover, black", blur: "Blur (can be reversed)", mosaic: "Mosaic (can be reversed)"};
export const ACTION_WORDS = {generated: "replaced", retried: "replaced, second try", masked: "masked", kept: "kept", blurred: "blurred", mosaic: "mosaic", plain: "covered", black: "covered", solid: "covered", "": "not drawn yet"};

export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}

export const button = (words, title, run, more = {}) => h("button", {type: "button", title, onclick: run, ...more}, words);

/** A list of [value, words] to choose from; `run` takes the value. */
export const select = (options, value, run, more = {}) => h("select", {onchange: event => run(event.target.value), ...more},
  ...options.map(([name, words]) => h("option", {value: name, selected: name === value}, words)));

/** Modes as such a list. */
export const modeList = modes => modes.map(mode => [mode, MODE_WORDS[mode]]);

/** Build anew what is in a node; what has the focus keeps it, by its data-key. */
export function rebuilt(node, build) {
  const focus = document.activeElement?.dataset?.key;
  build();
  if (focus) node.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({preventScroll: true});
}

export const within = (value, least, most) => Math.max(least, Math.min(most, value));

/** The picture takes the room there is: as high as the window allows, and not blown up too far. */
export function fit(node, {width, height}) {
  node.style.setProperty("--ratio", width / Math.max(height, 1));
  node.style.setProperty("--most", 2.5 * width + "px");
}

export function place(node, box, width, height) {
  node.style.left = 100 * box[0] / width + "%";
  node.style.top = 100 * box[1] / height + "%";
  node.style.width = 100 * (box[2] - box[0]) / width + "%";
  node.style.height = 100 * (box[3] - box[1]) / height + "%";
  return node;
}

export function tell(text) {
  const line = h("p", {}, h("span", {}, text), button("Close", "", () => line.remove()));
  at("messages").append(line);
  while (at("messages").children.length > 5) at("messages").firstChild.remove();
}

export async function call(method, path, body) {
  const raw = body instanceof Blob;
  let answer;
  try {
    answer = await fetch("/api" + path, {
      method, body: body === undefined ? undefined : raw ? body : JSON.stringify(body),
      headers: raw ? {"content-type": "application/octet-stream"} : {"content-type": "application/json"},
    });
  } catch {
    throw new Error("ficgan does not answer; is the program still running? What was decided is kept.");
  }
  const type = answer.headers.get("content-type") || "";
  const told = type.includes("json") ? await answer.json() : {error: await answer.text()};
  if (!answer.ok) throw new Error(told.error || "It did not work.");
  return told;
}

export async function attempt(work) {
  try { return await work(); } catch (error) { tell(error.message); return null; }
}

export const count = (number, word, words) => number + " " + (number === 1 ? word : words || word + "s");
export const clock = seconds => {
  const tenths = Math.round(seconds * 10), rest = (tenths % 600) / 10;
  return Math.floor(tenths / 600) + ":" + (rest < 10 ? "0" : "") + rest.toFixed(1);
};

export function stateOf(item) {
  if (item.progress && item.state !== "failed") {
    const [done, total, stage] = item.progress;
    return ["", stage === "waiting" ? "waiting for its turn" : `${stage}${total ? " " + Math.floor(100 * done / total) + " %" : ""}`];
  }
  if (item.state === "waiting") return ["", "waiting"];
  if (item.state === "working") return ["", "at work"];
  if (item.error) return ["bad", item.error.replace(item.name + ": ", "")];
  const number = item.kind === "film" ? item.people : item.faces;
  const parts = [!number ? "no face found" : item.kind === "film" ? count(number, "person", "people") : count(number, "face")];
  if (item.kept) parts.push(item.kept + " kept");
  if (item.masked) parts.push(item.masked + " masked");
  if (item.doubtful) parts.push(item.doubtful + " doubtful");
  if (item.matched) parts.push(item.matched + " still recognised");
  if (item.saved) parts.push(item.changed ? "changed since saved" : "saved");
  const tone = item.matched ? "bad" : item.doubtful || !number ? "warn" : item.saved && !item.changed ? "good" : "";
  return [tone, parts.join(", ")];
}

/** Show a picture once it is there, if it is still `wanted` then; whether it came. */
export function loaded(image, address, wanted = () => true) {
  return new Promise(done => {
    const next = new Image(), came = () => done(true);
    next.onload = () => { if (!wanted()) return came(); image.src = address; image.decode().then(came, came); };
    next.onerror = () => done(false);
    next.src = address;
  });
}
