// As much of a browser as the review page touches; the page's script follows this text, then what a test does with it.
const listeners = {}, stored = {}, saved = [];
const element = id => ({
  id, tagName: "DIV", textContent: "", value: "", disabled: false, className: "", style: {}, attributes: {}, children: [],
  clientWidth: 800,
  setAttribute(name, value) { this.attributes[name] = String(value); },
  getAttribute(name) { return this.attributes[name] ?? null; },
  addEventListener(kind, act) { (listeners[id + ":" + kind] ??= []).push(act); },
  append(child) { this.children.push(child); },
  replaceChildren() { this.children = []; },
  setPointerCapture() {},
  getBoundingClientRect() { return {left: 100, top: 50, width: 240, height: 180}; },  // twice the size of the pictures
  click() { saved.push(this.download); },
});
const elements = {};
for (const id of IDS) elements[id] = element(id);
elements.data.textContent = DATA;
const fire = (id, kind, event = {}) => {
  for (const act of listeners[id + ":" + kind]) act({target: elements[id], preventDefault() {}, ...event});
};
globalThis.document = {
  getElementById(id) { if (!(id in elements)) throw new Error("the page has no " + id); return elements[id]; },
  createElementNS(_, tag) { return element(tag); },
  createElement(tag) { return element(tag); },
  addEventListener(kind, act) { (listeners["document:" + kind] ??= []).push(act); },
};
globalThis.innerHeight = 600;
globalThis.addEventListener = () => {};
globalThis.localStorage = {
  getItem: name => stored[name] ?? null,
  setItem(name, value) { stored[name] = value; },
};
const blobs = [];
globalThis.Blob = class { constructor(parts) { blobs.push(parts.join("")); } };
URL.createObjectURL = () => "blob:x";
URL.revokeObjectURL = () => {};
globalThis.setTimeout = () => {};
const press = (key, more = {}) => fire("document", "keydown", {key, target: {tagName: "BODY"}, ...more});
const click = id => { if (!elements[id].disabled) fire(id, "click"); };
const point = (x, y) => ({button: 0, pointerId: 1, clientX: 100 + 2 * x, clientY: 50 + 2 * y});
const drag = (x0, y0, x1, y1) => {
  fire("boxes", "pointerdown", point(x0, y0));
  fire("boxes", "pointermove", point(x1, y1));
  fire("boxes", "pointerup", point(x1, y1));
};
const drawn = name => elements.boxes.children.filter(rect => rect.attributes.class.split(" ").includes(name)).map(rect => {
  const [x, y, w, h] = ["x", "y", "width", "height"].map(key => Number(rect.attributes[key]));
  return [x, y, x + w, y + h];
});
