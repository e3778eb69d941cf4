// How new faces are drawn: the settings for all files, or for one.

import {at, attempt, call, desk, h, modeList, select} from "./base.js";

export const choose = (label, options, value, run, hint) =>
  h("label", {}, label, select(options, value, run), hint ? h("span", {class: "hint"}, hint) : null);

export function buildControls(panel, values, change, film) {
  const now = {...values}, send = (name, value) => { now[name] = value; change({...now}); };
  const layers = desk.info.layers || 8;
  const strength = h("input", {type: "range", min: 0, max: layers - 1, step: 1, value: layers - 1 - values.layer});
  const told = () => strength.value == layers - 1 ? "all of the new face" : `${layers - 1 - strength.value} of ${layers} layers stay the source's: weaker`;
  const hint = h("span", {class: "hint"}, told());
  strength.addEventListener("input", () => { hint.textContent = told(); });
  strength.addEventListener("change", () => send("layer", layers - 1 - Number(strength.value)));
  const people = h("input", {type: "number", min: 2, max: desk.info.people || 100000, step: 1, value: values.k, onchange: event => send("k", Number(event.target.value))});
  const psis = [["auto", "automatic"], ["0", "0: the average face"], ["0.3", "0.3"], ["0.6", "0.6"], ["1", "1: as people differ"], ["1.2", "1.2"]];
  if (!psis.some(([key]) => key === String(values.psi))) psis.push([String(values.psi), String(values.psi)]);
  const kinds = [["ethnicity,gender,age", "ethnic group, gender, age"], ["gender,age", "gender, age"], ["gender", "gender"], ["none", "nothing: hides most"]];
  if (!kinds.some(([key]) => key === values.keep_kind)) kinds.push([values.keep_kind, values.keep_kind]);
  const wanted = new Map(values.attributes.split(",").filter(Boolean).map(name => name.startsWith("-") ? [name.slice(1), "-"] : [name, "+"]));
  const chosen = h("details", {class: "wide"}, h("summary", {}, "Attributes of the new faces" + (wanted.size ? ` (${values.attributes})` : "")));
  const list = h("div", {class: "attributes"});
  const age = name => Number.isNaN(parseInt(name)) ? 1000 : parseInt(name);
  for (const name of [...desk.info.attributes || []].sort((a, b) => age(a) - age(b) || a.localeCompare(b)))
    list.append(choose(name.replaceAll("_", " "), [["", "any"], ["+", "only with"], ["-", "only without"]], wanted.get(name) || "", value => {
      if (value) wanted.set(name, value); else wanted.delete(name);
      send("attributes", [...wanted].map(([word, sign]) => (sign === "-" ? "-" : "") + word).join(","));
    }));
  chosen.append(list);
  const covers = modeList(desk.info.modes.filter(mode => mode !== "keep"));
  panel.replaceChildren(h("div", {class: "form"},
    film ? "" : choose("Faces", covers, values.mode, value => send("mode", value)),
    film === "photo" ? choose("Faces of this photo", covers, values.mode, value => send("mode", value)) : "",
    h("label", {}, "Strength", strength, hint),
    h("label", {}, "People averaged (k)", people),
    choose("Diversity (ψ)", psis, String(values.psi), value => send("psi", value === "auto" ? value : Number(value))),
    choose("Kind that stays", kinds, values.keep_kind, value => send("keep_kind", value), "Read from looks, kept as a group, stored nowhere."),
    choose("Where none is possible", [["plain", "one colour"], ["black", "black"], ["blur", "blur"], ["mosaic", "mosaic"]], values.fallback, value => send("fallback", value)),
    film && film !== "film" ? "" : choose(film ? "Sound" : "Sound of films", [["copy", "keep"], ["drop", "leave out"]], values.audio, value => send("audio", value), "A voice identifies, too."),
    chosen));
}

let builtFrom = "";
export function buildAllControls() {
  const key = JSON.stringify([desk.info.controls, desk.info.layers, desk.info.attributes]);
  if (key === builtFrom || !desk.info.controls || at("all-controls").contains(document.activeElement) && builtFrom && document.activeElement.tagName !== "SUMMARY" && desk.info.layers === undefined) return;
  builtFrom = key;
  const opened = at("all-controls").querySelector("details")?.open;
  buildControls(at("all-controls").querySelector(".panel"), desk.info.controls, values => attempt(async () => { await call("POST", "/controls", values); await desk.poll(); }));
  const inner = at("all-controls").querySelector("details");
  if (opened && inner) inner.open = true;
}
