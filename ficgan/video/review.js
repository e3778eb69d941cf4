"use strict";
// What the controls say, as decisions.json wants it. `had`: the project has a decision there, so null must remove it.
function decisions(controls, rules, schema, analysis) {
  const out = {schema, analysis, default: "ficgan", only: null, people: {}, tracks: {}, spans: [], boxes: [], link: {}};
  const entries = {people: {}, tracks: {}}, shown = new Set(), chosen = [];
  let selecting = false;
  for (const c of controls) {
    if (c.kind === "film") {
      if (c.field === "default") out.default = c.value;
      if (c.field === "selecting") selecting = c.checked;
    } else if (c.field === "only") {
      if (c.checked) chosen.push(Number(c.number));
    } else if (c.field === "link") {
      const person = Number(c.value);
      if (c.value === "" || !Number.isInteger(person) || person < 0)
        throw new Error("track " + c.number + ": a person is a whole number from 0");
      shown.add(person);
      if (String(person) !== c.initial) out.link[c.number] = person;
    } else {
      const entry = entries[c.kind][c.number] ??= {mode: "", keep: false, reason: "", had: false};
      if (c.field === "mode") { entry.mode = c.value; entry.had = c.had; }
      if (c.field === "keep") entry.keep = c.checked;
      if (c.field === "reason") entry.reason = c.value.trim();
    }
  }
  for (const kind of ["people", "tracks"])
    for (const [number, e] of Object.entries(entries[kind])) {
      const mode = e.keep ? "keep" : e.mode, gone = kind === "people" && !shown.has(Number(number));
      if (mode && !gone) out[kind][number] = e.reason ? {mode, reason: e.reason} : {mode};
      else if (e.had) out[kind][number] = null;
    }
  if (selecting) {
    out.only = chosen.filter(person => shown.has(person));
    if (!out.only.length) throw new Error("tick at least one person to hide, or hide everybody");
  }
  const more = JSON.parse(rules.trim() || "{}");
  for (const key of Object.keys(more)) {
    if (key !== "spans" && key !== "boxes") throw new Error("rules: there is no " + key + ", only spans and boxes");
    if (!Array.isArray(more[key])) throw new Error("rules: " + key + " is a list: [...]");
    out[key] = more[key];
  }
  return out;
}
if (typeof document !== "undefined") {
  const at = id => document.getElementById(id);
  const update = () => {
    try {
      const controls = Array.from(document.querySelectorAll("[data-field]"), e => ({
        kind: e.dataset.kind, number: e.dataset.number, field: e.dataset.field, had: e.dataset.had === "1",
        initial: e.dataset.initial, value: e.value, checked: e.checked}));
      for (const e of document.querySelectorAll("[data-field=keep]"))
        at(e.id.replace("keep", "mode")).disabled = e.checked;
      const body = document.body.dataset;
      at("result").value = JSON.stringify(decisions(controls, at("rules").value, body.schema, body.analysis), null, 1);
      at("problem").textContent = ""; at("download").disabled = false;
    } catch (error) {
      at("problem").textContent = String(error.message); at("download").disabled = true;
    }
  };
  document.addEventListener("input", update);
  document.addEventListener("change", update);
  at("download").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([at("result").value + "\n"], {type: "application/json"}));
    link.download = "decisions.json"; link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  update();
}
