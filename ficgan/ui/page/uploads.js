// Files that are added: dropped, or chosen.

import {at, attempt, call, desk} from "./base.js";

/** How many of those that were added last are done. */
export const uploads = {done: 0, all: 0};
const pending = [];
let running = 0;

function add(files) {
  const taken = [...files].filter(file => !file.name.startsWith("."));
  if (!taken.length) return;
  if (uploads.done >= uploads.all) uploads.done = uploads.all = 0;
  uploads.all += taken.length;
  pending.push(...taken);
  while (running < 2 && pending.length) work();
  desk.showStatus();
}

async function work() {
  running += 1;
  while (pending.length) {
    const file = pending.shift();
    await attempt(() => call("POST", "/upload?name=" + encodeURIComponent(file.name), file));
    uploads.done += 1;
    desk.showStatus();
    if (uploads.done % 10 === 0) desk.poll();
  }
  running -= 1;
  if (!running) desk.poll();
}

async function dropped(list) {
  const entries = [...list].map(one => one.webkitGetAsEntry?.() || one.getAsFile()).filter(Boolean), files = [];
  const walk = async entry => {
    if (entry instanceof File) files.push(entry);
    else if (entry.isFile) files.push(await new Promise((good, bad) => entry.file(good, bad)));
    else {
      const reader = entry.createReader();
      for (;;) {
        const part = await new Promise((good, bad) => reader.readEntries(good, bad));
        if (!part.length) break;
        for (const inner of part) if (!inner.name.startsWith(".")) await walk(inner);
      }
    }
  };
  for (const entry of entries) await walk(entry);
  add(files);
}

addEventListener("dragover", event => { event.preventDefault(); at("drop").hidden = ![...event.dataTransfer.types].includes("Files"); });
addEventListener("dragleave", event => { if (!event.relatedTarget) at("drop").hidden = true; });
addEventListener("drop", event => { event.preventDefault(); at("drop").hidden = true; attempt(() => dropped(event.dataTransfer.items)); });
for (const id of ["pick", "pick-folder"]) at(id).addEventListener("change", event => { add(event.target.files); event.target.value = ""; });
