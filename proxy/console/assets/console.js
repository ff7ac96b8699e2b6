// What a page does beyond its forms: times that stay true while it is open, and copying a key.
// Everything works without it.
"use strict";

const UNITS = [["s", 1, 60], ["min", 60, 3600], ["h", 3600, 172800], ["days", 86400, Infinity]];

function duration(gap) {
  const [name, size] = UNITS.find(([, , below]) => gap < below);
  return `${Math.floor(gap / size)} ${name}`;
}

function relative(at, now) {
  const gap = Math.abs(now - at) / 1000;
  if (gap < 10) return at > now ? "now" : "just now";
  return at > now ? `in ${duration(gap)}` : `${duration(gap)} ago`;
}

// The proxy's clock counts, not this machine's.
const skew = Number(document.documentElement.dataset.now) * 1000 - Date.now();

function tick() {
  const now = Date.now() + skew;
  for (const element of document.querySelectorAll("time[datetime]")) {
    const at = Date.parse(element.dateTime);
    const lasting = "lasting" in element.dataset;
    element.textContent = lasting ? duration(Math.max(0, now - at) / 1000) : relative(at, now);
  }
}

for (const element of document.querySelectorAll("time[datetime]")) {
  const local = new Date(element.dateTime).toLocaleString();
  element.title = `${local} (${element.title})`;
}
tick();
setInterval(tick, 10000);

for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

// A form that is sent twice by a double click would find itself stale.
for (const form of document.forms) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
}
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});
