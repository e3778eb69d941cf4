// As much of a browser as a questionnaire touches; the page's script follows this text, then what a test does with it.
const listeners = {}, saved = [], blobs = [], focused = [];
let clock = 0;
const element = id => ({
  id, textContent: "", value: "", checked: false, disabled: false, hidden: false, src: "",
  addEventListener(kind, act) { (listeners[id + ":" + kind] ??= []).push(act); },
  focus() { focused.push(id); },
  click() { saved.push(this.download); },
});
const elements = {};
for (const id of IDS) elements[id] = element(id);
elements.data.textContent = DATA;
globalThis.document = {
  getElementById(id) { if (!(id in elements)) throw new Error("the page has no " + id); return elements[id]; },
  createElement(tag) { return element(tag); },
  addEventListener(kind, act) { (listeners["document:" + kind] ??= []).push(act); },
};
globalThis.addEventListener = (kind, act) => { (listeners["window:" + kind] ??= []).push(act); };
Object.defineProperty(globalThis, "performance", {value: {now: () => clock += 700}, configurable: true});
globalThis.Blob = class { constructor(parts) { blobs.push(parts.join("")); } };
URL.createObjectURL = () => "blob:x";
URL.revokeObjectURL = () => {};
globalThis.setTimeout = () => {};
const fire = (name, event = {}) => { for (const act of listeners[name] ?? []) act({preventDefault() {}, ...event}); };
const press = (key, more = {}) => fire("document:keydown", {key, ...more});
const click = id => { if (!elements[id].disabled) fire(id + ":click"); };
const leave = asks => { let asked = false; fire("window:beforeunload", {preventDefault() { asked = true; }}); asks.push(asked); };
