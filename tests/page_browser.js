// As much of a browser as a page touches; the page's script follows this text, then what a test does with it.
const saved = [], blobs = [], stored = {}, elements = {}, windowListeners = {};
let clock = 0;
const element = id => ({
  id, tagName: "DIV", textContent: "", value: "", checked: false, disabled: false, hidden: false, className: "", style: {},
  attributes: {}, children: [], listeners: {}, clientWidth: 800,
  setAttribute(name, value) { this.attributes[name] = String(value); },
  getAttribute(name) { return this.attributes[name] ?? null; },
  addEventListener(kind, act) { (this.listeners[kind] ??= []).push(act); },
  append(child) { this.children.push(child); },
  replaceChildren(...children) { this.children = children; },
  setPointerCapture() {},
  focus() {},
  getBoundingClientRect() { return {left: 100, top: 50, width: 240, height: 180}; },  // twice the size of the pictures
  click() { saved.push(this.download); },
});
const page_ = element("document");
Object.assign(page_, {
  getElementById(id) { if (!(id in elements)) throw new Error("the page has no " + id); return elements[id]; },
  createElementNS(_, tag) { return element(tag); },
  createElement(tag) { return element(tag); },
});
for (const id of IDS) elements[id] = element(id);
elements.data.textContent = DATA;
globalThis.document = page_;
globalThis.innerHeight = 600;
globalThis.addEventListener = (kind, act) => { (windowListeners[kind] ??= []).push(act); };
globalThis.localStorage = {
  getItem: name => stored[name] ?? null,
  setItem(name, value) { stored[name] = value; },
};
Object.defineProperty(globalThis, "performance", {value: {now: () => clock += 700}, configurable: true});
globalThis.Blob = class { constructor(parts) { blobs.push(parts.join("")); } };
URL.createObjectURL = () => "blob:x";
URL.revokeObjectURL = () => {};
globalThis.setTimeout = () => {};
const fire = (one, kind, event = {}) => {
  for (const act of one.listeners[kind] ?? []) act({target: one, preventDefault() {}, ...event});
};
const press = (key, more = {}) => fire(page_, "keydown", {key, target: {tagName: "BODY"}, ...more});
const click = id => { if (!elements[id].disabled) fire(elements[id], "click"); };
const leave = () => { let asks = false; for (const act of windowListeners.beforeunload) act({preventDefault() { asks = true; }}); return asks; };
const point = (x, y) => ({button: 0, pointerId: 1, clientX: 100 + 2 * x, clientY: 50 + 2 * y});
const drag = (x0, y0, x1, y1) => {
  fire(elements.boxes, "pointerdown", point(x0, y0));
  fire(elements.boxes, "pointermove", point(x1, y1));
  fire(elements.boxes, "pointerup", point(x1, y1));
};
const drawn = name => elements.boxes.children.filter(rect => rect.attributes.class.split(" ").includes(name)).map(rect => {
  const [x, y, w, h] = ["x", "y", "width", "height"].map(key => Number(rect.attributes[key]));
  return [x, y, x + w, y + h];
});
