"""Style and script of a questionnaire, kept apart from what fills it.

What stands above `if (typeof document …)` is pure. Nothing is stored or sent: answers live in the page until their
participant saves them as a file.
"""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --warn: #c60; }
body { font: 17px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 56rem; padding: 1rem 1.2rem 2rem; }
h1, h2 { font-size: 1.3rem; margin: 0 0 .5rem; }
h2:focus { outline: none; }
.consent { white-space: pre-wrap; border-left: .3rem solid var(--line); background: var(--soft); padding: .6rem 1rem; }
.pair { display: flex; gap: 1rem; justify-content: center; margin: .8rem 0; }
.pair img { width: min(45%, 20rem); aspect-ratio: 1; background: var(--soft); }
.controls { display: flex; flex-wrap: wrap; gap: .6rem; justify-content: center; margin: .8rem 0; }
button { font: inherit; padding: .5rem 1.2rem; min-width: 6rem; } input { font: inherit; }
button:focus-visible, input:focus-visible { outline: .2rem solid Highlight; outline-offset: .1rem; }
progress { width: 100%; } kbd { border: 1px solid var(--line); padding: 0 .3em; }
#message { min-height: 1.5em; font-weight: 600; color: var(--warn); } [hidden] { display: none !important; }
"""

SCRIPT = r"""
"use strict";
const ANSWERS = ["yes", "no", "unsure"];
// 32 bits of a text (FNV-1a).
function hash(text) {
  let h = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) h = Math.imul(h ^ byte, 0x01000193) >>> 0;
  return h;
}
// Whole numbers below 2^32, the same for the same seed (mulberry32).
function numbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return (t ^ (t >>> 14)) >>> 0;
  };
}
// The order in which somebody sees the questions (Fisher-Yates), drawn from their code and the questionnaire.
function order(count, questionnaire, code) {
  const out = Array.from({length: count}, (_, k) => k), next = numbers(hash(questionnaire + "\n" + code));
  for (let k = count - 1; k > 0; k--) {
    const other = Math.floor(next() / 4294967296 * (k + 1));
    [out[k], out[other]] = [out[other], out[k]];
  }
  return out;
}
function begin(page, code) {
  const clean = code.trim();
  if (!/^[\w.-]{1,64}$/.test(clean)) throw new Error("A code is 1 to 64 letters, digits, dots or hyphens.");
  return {code: clean, order: order(page.items.length, page.questionnaire, clean), at: 0, answers: {}};
}
function done(state) { return state.at >= state.order.length; }
function answer(state, page, word, seconds) {
  if (done(state) || !ANSWERS.includes(word)) return state;
  const id = page.items[state.order[state.at]].id, before = state.answers[id]?.seconds ?? 0;
  const said = {answer: word, seconds: Math.round((before + seconds) * 10) / 10};
  return {...state, at: state.at + 1, answers: {...state.answers, [id]: said}};
}
function back(state) { return {...state, at: Math.max(0, state.at - 1)}; }
function exported(state, page) {
  const given = state.order.map(k => page.items[k].id).filter(id => id in state.answers);
  return {schema: page.schema, questionnaire: page.questionnaire, participant: state.code, consent: true,
    finished: given.length === page.items.length, answers: given.map(id => ({item: id, ...state.answers[id]}))};
}
if (typeof document !== "undefined") {
  const at = id => document.getElementById(id), page = JSON.parse(at("data").textContent);
  let state = null, since = 0, saved = true;
  const drawn = new Uint32Array(2);
  crypto.getRandomValues(drawn);
  at("code").value = [...drawn].map(n => n.toString(16).padStart(8, "0")).join("");
  const show = id => { for (const part of ["welcome", "question", "end"]) at(part).hidden = part !== id; };
  const draw = () => {
    if (done(state)) { show("end"); at("thanks").focus(); return; }
    const item = page.items[state.order[state.at]], count = state.order.length;
    at("left").src = page.pictures[item.left];
    at("right").src = page.pictures[item.right];
    at("progress").max = count;
    at("progress").value = state.at;
    at("place").textContent = "Question " + (state.at + 1) + " of " + count;
    at("back").disabled = state.at === 0;
    show("question");
    at("ask").focus();
    since = performance.now();
  };
  const give = word => {
    if (!state || done(state)) return;
    state = answer(state, page, word, (performance.now() - since) / 1000);
    saved = false;
    draw();
  };
  const goBack = () => { if (state && state.at > 0) { state = back(state); draw(); } };
  const save = () => {
    if (!state) return;
    const link = document.createElement("a");
    const blob = new Blob([JSON.stringify(exported(state, page), null, 1) + "\n"], {type: "application/json"});
    link.href = URL.createObjectURL(blob);
    link.download = "answers-" + page.questionnaire + "-" + state.code + ".json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    saved = true;
  };
  at("start").addEventListener("click", () => {
    at("message").textContent = "";
    try {
      if (!at("agree").checked) throw new Error("Without your consent the questions cannot begin.");
      state = begin(page, at("code").value);
    } catch (error) { at("message").textContent = error.message; return; }
    draw();
  });
  for (const word of ANSWERS) at(word).addEventListener("click", () => give(word));
  at("back").addEventListener("click", goBack);
  at("review").addEventListener("click", goBack);
  at("stop").addEventListener("click", save);
  at("save").addEventListener("click", save);
  document.addEventListener("keydown", event => {
    if (!state || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    const words = {y: "yes", n: "no", u: "unsure"}, key = event.key.toLowerCase();
    if (key in words) { event.preventDefault(); give(words[key]); }
    else if (key === "b") { event.preventDefault(); goBack(); }
  });
  addEventListener("beforeunload", event => { if (state && !saved) event.preventDefault(); });
}
"""
