// The editor of a film.

import {MODE_WORDS, at, attempt, call, clock, desk, fit, h, loaded, place, stateOf} from "./base.js";
import {choose} from "./controls.js";
import {exportLink, headOf} from "./head.js";
import {boxDrawer} from "./stage.js";

const {items} = desk;

export function filmEditor(id) {
  let film = null, item = null, seen = -1, now = null, working = 0, playing = null, asked = 0;
  let wanted = {time: 0};  // the place last asked for: what is loaded anew meanwhile goes there, not back to what is shown
  const frame = h("img", {alt: "Frame of the film", draggable: false});
  const video = h("video", {class: "over", playsInline: true, preload: "none", hidden: true, tabIndex: -1});
  const boxes = h("div", {}), stage = h("div", {class: "stage"}, frame, video, boxes);
  const seek = h("input", {type: "range", min: 0, max: 1, step: "any", value: 0, "aria-label": "Place in the film"});
  const time = h("span", {class: "state"}, "0:00.0");
  const play = h("button", {type: "button"}, "Play");
  const view = h("select", {"aria-label": "What is shown"}, h("option", {value: "before"}, "Original"), h("option", {value: "preview"}, "Preview of this frame"), h("option", {value: "after"}, "Result"));
  const draw = h("button", {type: "button"}, "Draw a box over a missed face");
  const stop = boxDrawer(stage, () => [film.width, film.height], draw, box => { pause(); askRegion(box); });
  const timeline = h("div", {class: "timeline", role: "group", "aria-label": "People over time"});
  const legend = h("p", {class: "legend"}, h("span", {}, "replaced"), h("span", {class: "kept"}, "kept"), h("span", {class: "covered"}, "covered"), h("span", {class: "cuts"}, "cut"));
  const list = h("ul", {class: "faces people", "aria-label": "People"}), notes = h("div", {class: "notes"}), form = h("div", {});
  const save = h("button", {type: "button", class: "primary", id: "save", onclick: () => run("POST", "/save")}, "Render");
  const cancel = h("button", {type: "button", onclick: () => run("POST", "/cancel")}, "Cancel");
  const download = exportLink(id);
  const remove = h("button", {type: "button", onclick: () => attempt(async () => { await call("DELETE", "/items/" + id); desk.leave(); await desk.poll(); })}, "Remove from the list");
  const {head, state, mark} = headOf(id, [remove, download, cancel, save]);
  const bar = h("progress", {hidden: true, "aria-label": "Progress"}), waiting = h("p", {class: "hint"});
  const player = h("div", {class: "work"}, h("div", {class: "frame"}, stage),
    seek, h("div", {class: "player"}, h("button", {type: "button", "aria-label": "One frame back", title: "One frame back", onclick: () => step(-1)}, "‹"), play, h("button", {type: "button", "aria-label": "One frame on", title: "One frame on", onclick: () => step(1)}, "›"), time, view, draw),
    form, timeline, legend, notes);
  at("editor").append(head, h("div", {class: "work"}, waiting, bar, player), h("div", {class: "side"}, list));

  async function run(method, path, body = {}) {
    working += 1;
    const told = await attempt(() => call(method, "/items/" + id + path, body));
    working -= 1;
    if (told && Array.isArray(told.people)) { film = told; build(); await goTo(wanted, true); }
    await desk.poll();
    await refresh(true);
  }

  async function goTo(where, force) {
    if (!film) return;
    wanted = where.frame === undefined ? where : {frame: Math.min(Math.max(where.frame, 0), film.frames - 1)};
    const ask = ++asked, query = where.frame !== undefined ? "frame=" + where.frame : "time=" + where.time;
    const told = await attempt(() => call("GET", `/items/${id}/at?${query}`));
    if (!told || ask !== asked) return;
    const fresh = force || !now || now.frame !== told.frame;
    now = told;
    wanted = {frame: told.frame};
    showTime(told.time);
    if (fresh) await loaded(frame, `/api/items/${id}/frame/${told.frame}${{before: "", preview: "?after&v=" + seen, after: "?result&v=" + seen}[view.value]}`);
    if (ask !== asked) return;
    at("editor").dataset.frame = told.frame;
    boxes.replaceChildren(...(view.value === "before" ? told.boxes : []).map(box => place(
      h("button", {type: "button", class: "box" + (box.mode === "keep" ? " kept" : ""), title: box.mode === "keep" ? "Click to hide this person" : "Click to keep this person",
        "aria-label": `${who(box.person, box.track)}: ${box.mode === "keep" ? "kept, hide" : "hidden, keep"}`, onclick: () => decide(box.person, box.track, box.mode === "keep" ? "" : "keep")},
        h("span", {class: "number"}, box.person ? String(box.person) : "?")), box.box, film.width, film.height)),
      ...(view.value === "after" ? [] : told.regions).map(box => place(h("div", {class: "box region"}), box.box, film.width, film.height)));
  }

  function showTime(seconds) {
    seek.value = seconds;
    time.textContent = `${clock(seconds)} of ${clock(film.duration)}`;
    for (const line of timeline.querySelectorAll(".head-line")) line.style.left = 100 * seconds / Math.max(film.duration, 1e-6) + "%";
  }

  const who = (person, track) => {
    const kind = film.people.flatMap(each => each.tracks).find(each => each.id === track)?.kind;
    return person ? "Person " + person : (kind || "Unknown") + " " + track;
  };
  const decide = (person, track, mode) => run("PATCH", "/film", person ? {people: {[person]: mode}} : {tracks: {[track]: mode}});
  const step = by => { pause(); if (now) goTo({frame: (wanted.frame ?? now.frame) + by}); };

  function pause() {
    if (!playing) return;
    clearInterval(playing);
    playing = null;
    const at = video.hidden ? null : video.currentTime;
    video.pause();
    video.hidden = true;
    boxes.hidden = false;
    play.textContent = "Play";
    goTo(at === null ? {frame: now.frame} : {time: at});
  }

  play.addEventListener("click", async () => {
    if (playing) return pause();
    const after = view.value === "after" && item.saved ? "?after&v=" + seen : "";
    if (!video.src.endsWith(`/video${after}`)) video.src = `/api/items/${id}/video${after}`;
    play.textContent = "Pause";
    boxes.hidden = true;
    playing = setInterval(() => {
      if (video.hidden) { if (now.frame + 1 >= film.frames) pause(); else goTo({frame: now.frame + Math.max(1, Math.round(film.frames / Math.max(film.duration, 0.1) / 8))}); }
      else { showTime(video.currentTime); if (video.ended) pause(); }
    }, 125);
    try {
      video.currentTime = now ? now.time : 0;
      await video.play();
      if (playing) video.hidden = false;
    } catch { video.hidden = true; }  // a format the browser does not know: frame by frame
  });
  seek.addEventListener("input", () => { if (playing) pause(); goTo({time: Number(seek.value)}); });
  seek.addEventListener("keydown", event => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (by) { event.preventDefault(); step(by); }
  });
  view.addEventListener("change", () => { pause(); goTo(wanted, true); });

  function askRegion(box) {
    const from = h("input", {type: "number", min: 0, max: film.duration, step: 0.1, value: Math.max(0, now.time - 2).toFixed(1)});
    const to = h("input", {type: "number", min: 0, max: film.duration.toFixed(1), step: 0.1, value: Math.min(film.duration, now.time + 2).toFixed(1)});
    const mode = h("select", {});
    for (const key of ["plain", "black", "blur", "mosaic"]) mode.append(h("option", {value: key}, MODE_WORDS[key]));
    const shown = place(h("div", {class: "box region"}), box, film.width, film.height);
    boxes.append(shown);
    const done = () => { form.replaceChildren(); shown.remove(); draw.focus(); };
    const take = h("button", {type: "button", class: "primary", onclick: async () => {
      take.disabled = true;
      await run("POST", "/regions", {box, frame: now.frame, from: Number(from.value), to: Number(to.value), mode: mode.value});
      done();
    }}, "Cover it");
    form.replaceChildren(h("div", {class: "region-form"}, h("h3", {}, "Cover this box"),
      h("div", {class: "row"}, h("label", {}, "from ", from, " s"), h("label", {}, "to ", to, " s"), h("label", {}, "with ", mode)),
      h("div", {class: "row"}, take, h("button", {type: "button", onclick: done}, "Leave it"))));
    take.focus();
  }

  function build() {
    seek.max = film.duration;
    const end = Math.max(film.duration, 1e-6), share = seconds => 100 * seconds / end + "%";
    const lane = (name, bars) => {
      const rail = h("div", {class: "rail", onclick: event => { pause(); goTo({time: film.duration * event.offsetX / rail.clientWidth}); }});
      for (const [from, to, kind, words] of bars) {
        const node = h("div", {class: "bar " + kind, title: words});
        node.style.left = share(from);
        node.style.width = 100 * (to - from + film.duration / Math.max(film.frames, 1)) / end + "%";
        node.style.pointerEvents = "none";
        rail.append(node);
      }
      for (const cut of film.cuts) { const line = h("div", {class: "cut"}); line.style.left = share(cut); line.style.pointerEvents = "none"; rail.append(line); }
      const line = h("div", {class: "head-line"});
      line.style.pointerEvents = "none";
      rail.append(line);
      return h("div", {class: "lane"}, h("span", {class: "who", title: name}, name), rail);
    };
    timeline.replaceChildren(
      ...film.people.map(one => lane(who(one.person, one.tracks[0].id), one.tracks.map(track => [track.from, track.to, (one.mode || film.default) === "keep" ? "kept" : (one.mode || film.default) === "ficgan" ? "" : "covered", `${clock(track.from)} – ${clock(track.to)}`]))),
      ...film.regions.map((one, n) => lane("Box " + (n + 1), [[one.from, one.to, "covered", `${clock(one.from)} – ${clock(one.to)}`]])));
    if (!timeline.children.length) timeline.append(h("p", {class: "hint"}, "No face was found in this film."));
    const focus = document.activeElement?.dataset?.key;
    const modes = [["", "As all others"], ...desk.info.modes.map(mode => [mode, MODE_WORDS[mode]])];
    const everybody = choose("People on whom nothing else is decided", modes.filter(([key]) => key && key !== "keep"), film.default, value => run("PATCH", "/film", {default: value}));
    list.replaceChildren(h("li", {class: "face"}, everybody),
      ...film.people.map(one => {
        const select = h("select", {"aria-label": "What happens to " + who(one.person, one.tracks[0].id), onchange: event => decide(one.person, one.tracks[0].id, event.target.value)});
        for (const [key, word] of modes) select.append(h("option", {value: key, selected: key === one.mode}, word));
        if (one.mode && !modes.some(([key]) => key === one.mode)) select.append(h("option", {value: one.mode, selected: true}, one.mode));
        select.dataset.key = "person" + one.person + "-" + one.tracks[0].id;
        const first = one.tracks[0], last = one.tracks[one.tracks.length - 1], told = one.tracks.flatMap(track => track.notes);
        const join = choose("is the same as", [["", "nobody else"], ...film.people.filter(other => other.person && other.person !== one.person).map(other => [String(other.person), "Person " + other.person])], "",
          value => run("PATCH", "/film", {link: Object.fromEntries(one.tracks.map(track => [track.id, Number(value)])), ...(one.person ? {people: {[one.person]: ""}} : {tracks: {[first.id]: ""}})}));
        join.className = "row hint";
        return h("li", {class: "face"},
          ...one.tracks.slice(0, 2).flatMap(track => [h("img", {class: "strip", alt: `${who(one.person, track.id)}, before`, loading: "lazy", src: `/api/items/${id}/track/${track.id}`}),
            track.after ? h("img", {class: "strip", alt: `${who(one.person, track.id)}, after`, loading: "lazy", src: `/api/items/${id}/track/${track.id}?after&v=${seen}`}) : null]),
          h("div", {class: "facts"}, h("h3", {}, who(one.person, first.id)), h("span", {class: "hint"}, `${clock(first.from)} – ${clock(last.to)}, best score ${Math.max(...one.tracks.map(track => track.score))}`),
            told.length ? h("span", {class: "state warn"}, told.join("; ")) : ""),
          h("div", {class: "row"}, select, h("button", {type: "button", onclick: () => { pause(); goTo({time: (first.from + first.to) / 2}); }}, "Show")),
          film.people.length > 1 ? join : null);
      }),
      ...film.regions.map((one, n) => h("li", {class: "face"}, h("div", {class: "facts"}, h("h3", {}, "Box " + (n + 1)), h("span", {class: "hint"}, `${clock(one.from)} – ${clock(one.to)}, ${MODE_WORDS[one.mode]}`)),
        h("div", {class: "row"}, h("button", {type: "button", onclick: () => { pause(); goTo({time: one.from}); }}, "Show"), h("button", {type: "button", onclick: () => run("DELETE", "/regions/" + n)}, "Remove box")))));
    if (focus) at("editor").querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({preventScroll: true});
  }

  async function refresh(force) {
    item = items.get(id) || item;
    const [tone, words] = stateOf(item), busy = item.state === "waiting" || item.state === "working";
    state.className = "state " + tone;
    state.textContent = words;
    mark();
    save.disabled = cancel.hidden = !busy ? false : true;
    cancel.hidden = !item.progress;
    save.disabled = busy || item.state === "failed";
    remove.hidden = !item.upload || busy;
    bar.hidden = !(item.progress && item.progress[1]);
    if (!bar.hidden) { bar.max = item.progress[1]; bar.value = item.progress[0]; }
    view.options[2].disabled = !item.saved;
    at("editor").dataset.busy = working || busy ? "yes" : "no";
    if (!force && (working || item.revision === seen)) return;
    const first = !film;
    seen = item.revision;
    player.hidden = list.hidden = download.hidden = first && item.state !== "ready";
    waiting.textContent = first && item.state !== "ready" ? (item.state === "failed" ? item.error : "The faces of this film are still to be looked for; other files can be reviewed meanwhile.") : "";
    if (first && item.state !== "ready") return;
    const told = await attempt(() => call("GET", `/items/${id}/film`));
    if (!told || !desk.open || desk.open.id !== id) return;
    film = told;
    fit(stage.parentNode, film);
    notes.replaceChildren(...item.notes.map(note => h("p", {}, note)), item.saved ? h("p", {class: "hint"}, "Last saved as ", h("code", {}, item.saved)) : "");
    build();
    if (first) await goTo({time: 0}); else if (!playing) await goTo(wanted, true);
  }
  return {id, kind: "film", refresh, edit: run, close: () => { stop(); if (playing) { clearInterval(playing); playing = null; video.pause(); } video.removeAttribute("src"); }};
}
