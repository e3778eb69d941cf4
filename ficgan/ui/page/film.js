// The editor of a film: its frames with boxes, the time line, and what is decided on its people.

import {MODE_WORDS, at, attempt, button, call, clock, desk, fit, h, loaded, modeList, place, rebuilt, select, stateOf} from "./base.js";
import {buildControls, choose} from "./controls.js";
import {extent, movedMarks} from "./extent.js";
import {maybePicture} from "./face.js";
import {drawButton, exportLink, headOf, removeButton, zoomButtons} from "./head.js";
import {key} from "./keys.js";
import {nameOf, personCard, regionCard} from "./people.js";
import {boxDrawer, handles, zoomer} from "./stage.js";
import {timeline} from "./timeline.js";

const {items} = desk;
const AROUND = 2, PATIENCE = 300;  // seconds that a new box lasts on either side; ms until the original stands in for a frame that is drawn
const WORDS = {before: "Original", preview: "As decided", after: "Result"};
const kept = {settings: false, boxes: true};

export function filmEditor(id) {
  let film = null, item = null, whole = null, seen = -1, now = null, working = 0, playing = null, asked = 0, chosen = null, saved = null, drawnFrom = "", version = 0, drawn = 0, drawing = 0;
  let wanted = {time: 0};  // the place last asked for: what is loaded anew meanwhile goes there, not back to what is shown
  const frame = h("img", {alt: "Frame of the film", draggable: false}), video = h("video", {class: "over", playsInline: true, preload: "none", hidden: true, tabIndex: -1});
  const boxes = h("div", {class: "boxes"}), stage = h("div", {class: "stage"}, frame, video, boxes);
  const tag = h("span", {class: "tag right", role: "status"}), view = h("div", {class: "view"}, stage, tag);
  const time = h("span", {class: "state"}, "0:00.0"), percent = h("span", {class: "state"});
  const zoom = zoomer(view, stage, () => [film?.width || 1, film?.height || 1], (times, share) => { percent.textContent = Math.round(100 * share) + " %"; });
  const play = button("Play", "Play or pause (Space)", () => toggle());
  const which = select(Object.entries(WORDS), "before", kind => setView(kind), {"aria-label": "What is shown"});
  const hide = button("Boxes", "Show or hide the boxes (B)", () => toggleBoxes(), {"aria-pressed": String(kept.boxes)});
  const draw = drawButton();
  const drawer = boxDrawer(stage, () => [film.width, film.height], draw, box => addRegion(box), () => whole?.controls.fallback || "plain");
  const line = timeline({seek: seconds => { pause(); goTo({time: seconds}); }, step: by => step(by), choose: one => pick(one, true)});
  const list = h("ul", {class: "faces people", "aria-label": "People and boxes"}), notes = h("div", {class: "notes"}), findings = h("ul", {class: "findings", "aria-label": "Places to be looked at"});
  const panel = h("div", {class: "panel"}), settings = h("details", {open: kept.settings, ontoggle: event => { kept.settings = event.target.open; }}, h("summary", {}, "How new faces of this film are drawn"), panel);
  const save = button("Render", "S", () => edit("POST", "/save"), {class: "primary", id: "save"});
  const cancel = button("Cancel", "", () => edit("POST", "/cancel")), download = exportLink(id), remove = removeButton(id);
  const {head, state, mark} = headOf(id, [remove, download, cancel, save]), everybody = h("div", {class: "face"});
  const bar = h("progress", {hidden: true, "aria-label": "Progress"}), waiting = h("p", {class: "hint"});
  const tools = h("div", {class: "player"}, button("‹", "One frame back (←)", () => step(-1), {"aria-label": "One frame back"}), play, button("›", "One frame on (→)", () => step(1), {"aria-label": "One frame on"}), time, which,
    h("span", {class: "row", role: "group", "aria-label": "Zoom"}, ...zoomButtons(percent, () => zoom)), hide, draw);
  const frameBox = h("div", {class: "frame"}, view), player = h("div", {class: "work film"}, frameBox, tools, line.node, line.legend, findings, notes);
  const side = h("div", {class: "side"}, settings, everybody, list);
  at("editor").append(head, h("div", {class: "work"}, waiting, bar, player), side);
  boxes.hidden = !kept.boxes;

  // -- decisions ------------------------------------------------------------------------------------------------------

  async function edit(method, path, body = {}) {
    working += 1;
    showState();
    await attempt(() => call(method, "/items/" + id + path, body));
    await desk.poll();
    await refresh(true);
    working -= 1;
    showState();
  }

  /** Change decisions; what is shown afterwards is what they lead to. */
  async function decide(change) {
    if (which.value !== "preview") which.value = "preview";
    return edit("PATCH", "/film", change);
  }

  const entry = one => film.people.find(other => other.key === one);
  const isRegion = one => typeof one === "number";

  function setPerson(one, values) {
    const {mode, draw: number, drawing: own} = {...one, ...values}, said = {mode, draw: number, drawing: own, reason: mode && "chosen in the review"};
    const choice = Object.fromEntries(Object.entries(said).filter(([, value]) => value));
    decide({[one.person ? "people" : "tracks"]: {[one.person || one.tracks[0].id]: Object.keys(choice).length ? choice : null}});
  }

  const plain = region => ({first: region.first, last: region.last, mode: region.mode, reason: region.reason || undefined, box: region.box || undefined, keys: region.keys?.length ? region.keys : undefined});
  const setRegions = change => decide({regions: change(film.regions.map(plain))});
  const frameAt = async seconds => (await call("GET", `/items/${id}/at?time=${Math.max(0, seconds)}`)).frame;

  async function changeRegion(n, values) {
    const told = {...plain(film.regions[n]), ...("mode" in values ? {mode: values.mode} : {})};
    if ("from" in values) told.first = Math.min(await frameAt(values.from), told.last);
    if ("to" in values) told.last = Math.max(await frameAt(values.to - 0.5 / film.rate), told.first);
    if ("first" in values) told.first = Math.min(values.first, told.last);
    if ("last" in values) told.last = Math.max(values.last, told.first);
    if (told.keys) {
      const inside = told.keys.filter(one => one.frame >= told.first && one.frame <= told.last);
      if (inside.length) told.keys = inside; else { told.box = told.keys[0].box; delete told.keys; }
    }
    await setRegions(all => all.map((one, k) => k === n ? told : one));
  }

  async function addRegion(box) {
    pause();
    const [first, last] = [await frameAt(now.time - AROUND), await frameAt(now.time + AROUND)], mode = whole.controls.fallback;
    chosen = film.regions.length;
    await setRegions(all => [...all, {first: Math.min(first, now.frame), last: Math.max(last, now.frame), mode, box, reason: "drawn in the review"}]);
  }

  function removeRegion(n) { chosen = null; return setRegions(all => all.filter((one, k) => k !== n)); }

  /** A box was moved in this frame: that is where it is here, and it goes over evenly to where it is set elsewhere. */
  function setBox(box) {
    if (isRegion(chosen)) {
      const region = plain(film.regions[chosen]), keys = (region.keys || (region.first === now.frame ? [] : [{frame: region.first, box: region.box}])).filter(one => one.frame !== now.frame);
      const told = {...region, box: undefined, keys: [...keys, {frame: now.frame, box}].sort((a, b) => a.frame - b.frame)};
      return setRegions(all => all.map((one, k) => k === chosen ? told : one));
    }
    const track = shownTrack();
    if (track) return decide({keys: {[track.track]: [...keysOf(track.track).filter(one => one.frame !== now.frame), {frame: now.frame, box}].sort((a, b) => a.frame - b.frame)}});
  }

  const shows = mode => !["keep", "ficgan"].includes(mode);
  const shownTrack = () => now?.boxes.find(box => keyOf(box) === chosen);
  const keyOf = box => box.person ? String(box.person) : String(-box.track);
  const trackOf = number => film.people.flatMap(one => one.tracks).find(one => one.id === number);
  const keysOf = number => trackOf(number)?.keys || [];

  function forgetKey() {
    if (isRegion(chosen)) {
      const region = plain(film.regions[chosen]);
      if (!region.keys?.some(one => one.frame === now.frame)) return false;
      const keys = region.keys.filter(one => one.frame !== now.frame), told = keys.length > 1 ? {...region, keys} : {...region, keys: undefined, box: (keys[0] || region.keys[0]).box};
      setRegions(all => all.map((one, k) => k === chosen ? told : one));
      return true;
    }
    const track = shownTrack();
    if (!track?.key) return false;
    const keys = keysOf(track.track).filter(one => one.frame !== now.frame);
    decide({keys: {[track.track]: keys.length ? keys : null}});
    return true;
  }

  // -- what is shown --------------------------------------------------------------------------------------------------

  const address = (kind, number) => `/api/items/${id}/frame/${number}${{before: "", preview: "?after&v=" + version, after: "?result&v=" + saved}[kind]}`;

  async function goTo(where, force) {
    if (!film) return;
    wanted = where.frame === undefined ? where : {frame: Math.min(Math.max(where.frame, 0), film.frames - 1)};
    const ask = ++asked, query = where.frame !== undefined ? "frame=" + wanted.frame : "time=" + where.time;
    const told = await attempt(() => call("GET", `/items/${id}/at?${query}`));
    if (!told || ask !== asked) return;
    const fresh = force || !now || now.frame !== told.frame, moved = now?.frame !== told.frame;
    now = told;
    wanted = {frame: told.frame};
    showTime(told.time, told.frame);
    showBoxes();
    at("editor").dataset.frame = told.frame;
    if (fresh) await showPicture(told.frame, moved, ask);
  }

  async function showPicture(number, moved, ask) {
    const kind = which.value;
    if (kind !== "preview") { tag.textContent = WORDS[kind].toLowerCase(); return loaded(frame, address(kind, number)); }
    const current = () => ask === asked && which.value === "preview";
    drawing += 1;
    showState();
    let done = false;
    const meanwhile = setTimeout(async () => {
      if (done || !current()) return;
      tag.textContent = moved ? "original; this frame is being drawn…" : "being drawn anew…";
      if (moved) await loaded(frame, address("before", number), () => !done && current());
    }, PATIENCE);
    const shown = await loaded(frame, address("preview", number), current);
    done = true;
    clearTimeout(meanwhile);
    drawing -= 1;
    if (current()) { tag.textContent = shown ? "as decided" : "could not be drawn"; showFaces(); }
    showState();
  }

  /** New faces that were drawn just now, in the cards. */
  function showFaces() {
    const fresh = now.boxes.filter(box => box.mode === "ficgan").map(box => entry(keyOf(box))).filter(one => one && !one.pictures.includes(one.draw));
    for (const one of fresh) one.pictures.push(one.draw);
    drawn += 1;
    if (fresh.length) return build();
    for (const box of now.boxes) if (box.mode === "ficgan") for (const holder of list.querySelectorAll(`[data-one="${keyOf(box)}"] .now`)) {
      const one = entry(keyOf(box));
      holder.replaceChildren(maybePicture(`/api/items/${id}/people/${one.key}/${one.draw}?v=${version}-${drawn}`));
    }
  }

  function setView(kind) { which.value = kind; pause(); return goTo(wanted, true); }
  const swap = () => setView(which.value === "before" ? (which.options[2].disabled || item.changed ? "preview" : "after") : "before");

  function showTime(seconds, number) {
    time.textContent = `${clock(seconds)} of ${clock(film.duration)}`;
    line.show(seconds, number);
  }

  function showBoxes() {
    const size = [film.width, film.height], cover = extent(...size);
    const finish = box => { cover.node.remove(); setBox(box); };
    const make = (one, box, mode, words, label, names, marks) => {
      const lit = one === chosen, node = h("button", {type: "button", class: `box ${names}${lit ? " lit" : ""}${box[1] < film.height / 16 ? " low" : ""}`, title: words, "aria-label": words, "aria-pressed": String(lit), "data-key": "box" + one, onclick: () => pick(one)}, h("span", {class: "number"}, label));
      if (lit) handles(node, stage, () => size, box, finish, moving => { if (shows(mode)) { boxes.prepend(cover.node); cover.show(moving, mode, movedMarks(marks, box, moving)); } });
      return place(node, box, ...size);
    };
    rebuilt(boxes, () => boxes.replaceChildren(...now.boxes.map(box => {
      const one = entry(keyOf(box)), done = box.mode === "keep" ? "kept" : box.mode === "ficgan" ? "replaced" : "covered";
      return make(keyOf(box), box.box, box.mode, `${one ? nameOf(one) : "Unknown"}, ${done}`, box.person ? String(box.person) : "?", (box.mode === "keep" ? "kept" : "") + (box.key ? " keyed" : ""), box.marks);
    }), ...now.regions.map(box => make(box.number, box.box, box.mode, `Box ${box.number + 1}, ${(MODE_WORDS[box.mode] || box.mode).toLowerCase()}`, "□ " + (box.number + 1), "region", []))));
  }

  // -- the chosen person (its key) or box (its number) -----------------------------------------------------------------

  function pick(one, go) {
    chosen = one;
    for (const card of list.children) card.classList.toggle("lit", card.dataset.one === String(one));
    line.lit(one);
    const card = [...list.children].find(other => other.dataset.one === String(one));
    if (innerWidth > 820) card?.scrollIntoView({block: "nearest"});
    if (now) showBoxes();
    if (go && one !== null && now && !(isRegion(one) ? now.regions.some(box => box.number === one) : shownTrack())) show(one);
  }

  function show(one) {
    pause();
    chosen = one;
    pick(one);
    if (isRegion(one)) return goTo({frame: film.regions[one].first});
    return goTo({frame: entry(one).tracks[0].best});
  }

  const rows = () => [...film.people.map(one => one.key), ...film.regions.map((one, n) => n)];

  function walk(by) {
    const all = rows();
    if (!all.length) return;
    const place = all.indexOf(chosen);
    pick(all[place < 0 ? (by > 0 ? 0 : all.length - 1) : (place + by + all.length) % all.length], true);
  }

  function setMode(mode) {
    if (chosen === null) return false;
    if (isRegion(chosen)) { if (["", "keep", "ficgan"].includes(mode)) return false; changeRegion(chosen, {mode}); } else setPerson(entry(chosen), {mode});
    return true;
  }

  function another() {
    const one = isRegion(chosen) || chosen === null ? null : entry(chosen);
    if (!one || one.tracks[0].kind || (one.mode || film.default) !== "ficgan") return false;
    setPerson(one, {draw: Math.max(...one.draws) + 1});
    return true;
  }

  function moveBox() {
    const box = isRegion(chosen) ? now.regions.find(one => one.number === chosen) : shownTrack();
    if (!box) return false;
    pause();
    drawer.edit(box.box, "Move the box to where it belongs in this frame.", setBox, {cover: () => shows(box.mode) ? box.mode : "", landmarks: box.marks || []});
    return true;
  }

  const end = values => { if (!isRegion(chosen)) return false; changeRegion(chosen, values); return true; };

  function jump(times, by) {
    const gap = 0.5 / film.rate, next = by > 0 ? times.find(one => one > now.time + gap) : times.findLast(one => one < now.time - gap);
    if (next === undefined) return false;
    pause();
    goTo({time: next + gap / 10});
    return true;
  }

  function toggleBoxes() { kept.boxes = !kept.boxes; boxes.hidden = !kept.boxes || !video.hidden; hide.setAttribute("aria-pressed", String(kept.boxes)); }

  // -- playing: by the browser, or where it does not know the format, and as decided, frame by frame --------------------

  const step = by => { pause(); if (now) goTo({frame: (wanted.frame ?? now.frame) + by}); };

  function pause() {
    if (!playing) return;
    clearInterval(playing.timer);
    playing = null;
    const place = video.hidden ? null : video.currentTime;
    video.pause();
    video.hidden = true;
    boxes.hidden = !kept.boxes;
    play.textContent = "Play";
    goTo(place === null ? {frame: now.frame} : {time: place});
  }

  async function frames(run) {
    while (playing === run && now.frame + 1 < film.frames) {
      const begun = performance.now(), next = now.frame + Math.max(1, which.value === "preview" ? 1 : Math.round(film.rate / 8));
      await goTo({frame: next});
      await new Promise(done => setTimeout(done, Math.max(0, 1000 / film.rate - (performance.now() - begun))));
    }
    if (playing === run) pause();
  }

  async function toggle() {
    if (playing) return pause();
    if (now && now.frame + 1 >= film.frames) await goTo({frame: 0});
    const run = playing = {timer: 0}, after = which.value === "after" ? "?after&v=" + saved : "";
    play.textContent = "Pause";
    if (which.value === "preview") return frames(run);
    if (!video.src.endsWith(`/video${after}`)) video.src = `/api/items/${id}/video${after}`;
    try {
      video.currentTime = now ? now.time : 0;
      await video.play();
      if (playing !== run) return;
      video.hidden = false;
      boxes.hidden = true;
      run.timer = setInterval(() => { showTime(video.currentTime); if (video.ended) pause(); }, 60);
    } catch { if (playing === run) frames(run); }  // a format the browser does not know
  }

  // -- the lists --------------------------------------------------------------------------------------------------------

  function build() {
    rebuilt(at("editor"), buildLists);
  }

  function buildLists() {
    const half = film.duration / Math.max(film.frames, 1) / 2, keyed = frames => frames.map(one => (one.frame + 0.5) * film.duration / film.frames);
    line.build(film, [
      ...film.people.map(one => ({key: one.key, name: nameOf(one), spans: one.spans, marks: keyed(one.tracks.flatMap(track => track.keys))})),
      ...film.regions.map((one, n) => ({key: n, name: "Box " + (n + 1), spans: [[one.from, one.to, one.mode]], marks: keyed(one.keys || [])}))]);
    const covers = modeList(desk.info.modes.filter(mode => mode !== "keep"));
    everybody.replaceChildren(choose("Everybody on whom nothing else is decided", covers, film.default, value => decide({default: value})));
    list.replaceChildren(
      ...film.people.map(one => { const card = personCard({id, one, film, controls: whole.controls, version: version + "-" + drawn, set: values => { pick(one.key); setPerson(one, values); }, link: link => decide({link}), show: () => show(one.key), choose: () => pick(one.key)}); card.dataset.one = one.key; return card; }),
      ...film.regions.map((one, n) => { const card = regionCard({film, n, change: values => changeRegion(n, values), remove: () => removeRegion(n), show: () => show(n), choose: () => pick(n)}); card.dataset.one = n; return card; }));
    if (!panel.contains(document.activeElement)) buildControls(panel, whole.controls, values => { which.value = "preview"; edit("POST", "/controls", values); }, "film");
    findings.replaceChildren(...film.findings.slice(0, 20).map(one => h("li", {}, button(`${clock(one.time)}: ${one.reason}`, "F", () => { pause(); goTo({time: one.time + half / 10}); }))));
    player.style.setProperty("--line", line.node.offsetHeight + "px");
    if (isRegion(chosen) ? chosen >= film.regions.length : chosen !== null && !entry(chosen)) chosen = null;
    pick(chosen);
  }

  function showState() {
    const brief = items.get(id) || item || {}, [tone, words] = stateOf(brief), busy = brief.state === "waiting" || brief.state === "working";
    state.className = "state " + tone;
    state.textContent = words;
    mark();
    cancel.hidden = brief.state !== "working";
    save.disabled = busy || brief.state === "failed";
    remove.hidden = !brief.upload || busy;
    bar.hidden = !(busy && brief.progress && brief.progress[1]);
    if (!bar.hidden) { bar.max = brief.progress[1]; bar.value = brief.progress[0]; }
    which.options[2].disabled = !brief.saved;
    at("editor").dataset.busy = working || busy || drawing ? "yes" : "no";
  }

  async function refresh(force) {
    item = items.get(id) || item;
    showState();
    if (!force && (working || item.revision === seen)) return;
    const first = !film;
    player.hidden = side.hidden = download.hidden = first && item.state !== "ready";
    waiting.textContent = first && item.state !== "ready" ? (item.state === "failed" ? item.error : "The faces of this film are still to be looked for; other files can be reviewed meanwhile.") : "";
    if (first && item.state !== "ready") { seen = item.revision; return; }
    const told = await attempt(() => Promise.all([call("GET", `/items/${id}/film`), call("GET", `/items/${id}`)]));
    if (!told || !desk.open || desk.open.id !== id) return;
    const basis = JSON.stringify([{...told[0], findings: 0, people: told[0].people.map(one => ({...one, pictures: 0}))}, told[1].controls]), changed = basis !== drawnFrom, rendered = told[1].saved !== saved;
    [film, whole] = told;
    seen = item.revision;
    if (changed) version = seen;
    drawnFrom = basis;
    fit(frameBox, film);
    notes.replaceChildren(...item.notes.map(note => h("p", {}, note)), whole.saved ? h("p", {class: "hint"}, "Last saved as ", h("code", {}, whole.saved)) : "");
    if (rendered && whole.saved && !whole.changed) which.value = "after";
    saved = whole.saved;
    showState();
    if (!changed && !rendered && !first) return;
    build();
    if (first) await goTo({time: 0}); else if (!playing) await goTo(wanted, true);
  }

  return {id, kind: "film", refresh, edit, zoom, step, toggle, walk, setMode, another, moveBox, forgetKey, toggleBoxes, swap, end, setView,
    ready: () => now, draw: () => draw.click(), save: () => { if (!save.disabled) save.click(); }, jump: by => jump(film.cuts, by), finding: by => jump(film.findings.map(one => one.time), by),
    go: where => { pause(); goTo(where); }, second: by => step(by * Math.round(film.rate)), last: () => film.frames - 1,
    drop: () => { if (forgetKey()) return true; if (!isRegion(chosen)) return false; removeRegion(chosen); return true; },
    unchoose: () => { if (chosen === null) return false; pick(null); return true; },
    close: () => { drawer.stop(); zoom.close(); asked += 1; if (playing) { clearInterval(playing.timer); playing = null; video.pause(); } video.removeAttribute("src"); }};
}

const film = run => event => desk.open.ready() ? run(desk.open, event) : false;
key("film", ["ArrowRight"], "the next frame", film(open => open.step(1)));
key("film", ["ArrowLeft"], "the frame before", film(open => open.step(-1)));
key("film", ["Shift+ArrowRight", "Shift+ArrowLeft"], "a second on, or back", film((open, event) => open.second(event.key === "ArrowRight" ? 1 : -1)));
key("film", ["Home", "End"], "the first frame, or the last", film((open, event) => open.go({frame: event.key === "Home" ? 0 : open.last()})));
key("film", ["Space"], "play, or pause", film(open => open.toggle()));
key("film", ["m"], "move the chosen box in this frame (drag its handles, too)", film(open => open.moveBox()));
key("film", ["[", "]"], "the chosen drawn box begins here, or ends", film((open, event) => open.end(event.key === "[" ? {first: open.ready().frame} : {last: open.ready().frame})));
key("film", ["Delete", "Backspace"], "forget where the box was set in this frame, else remove the drawn box", film(open => open.drop()));
key("film", ["c"], "the next cut (Shift: the one before)", film((open, event) => open.jump(event.shiftKey ? -1 : 1)));
key("film", ["f"], "the next place to be looked at", film(open => open.finding(1)));
