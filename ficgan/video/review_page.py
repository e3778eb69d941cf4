"""Style and script of the review page, kept apart from what fills it."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --warn: #c60; --keep: #c22; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem 1.5rem 3rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 0; }
.warning { border-left: .3rem solid var(--warn); background: var(--soft); padding: .6rem 1rem; }
.timeline { max-height: 22rem; overflow-y: auto; border: 1px solid var(--line); border-radius: .4rem; }
svg { display: block; width: 100%; } svg text { font: 9px system-ui, sans-serif; fill: currentColor; }
svg path { fill: none; stroke-width: 7; } .seen { stroke: #2a78d0; } .filled { stroke: #7ab3ee; }
.padded { stroke: #bbb; } svg path.kept { stroke: var(--keep); stroke-width: 2; } .cut { stroke: var(--warn); }
section { border: 1px solid var(--line); border-radius: .4rem; margin: 1rem 0; padding: .8rem 1rem; }
.track { border-top: 1px solid var(--line); margin-top: .7rem; padding-top: .7rem; }
.track img { height: 96px; max-width: 100%; border-radius: .3rem; margin-right: .5rem; vertical-align: top; }
.controls { display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; margin-top: .4rem; }
.note { color: var(--warn); } small { opacity: .8; } input[type=number] { width: 5rem; }
textarea { box-sizing: border-box; width: 100%; min-height: 9rem; font: 13px/1.4 ui-monospace, monospace; }
#problem { color: var(--keep); font-weight: 600; }
"""

SCRIPT = """
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
    link.href = URL.createObjectURL(new Blob([at("result").value + "\\n"], {type: "application/json"}));
    link.download = "decisions.json"; link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  update();
}
"""
