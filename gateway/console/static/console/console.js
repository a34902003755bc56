// What the pages need beyond htmx: copy a secret, pause a live region, speak a summary now and then.
"use strict";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  const word = button.querySelector("[data-word]");
  const before = word.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    word.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source); // no clipboard without https: leave it selected
    word.textContent = "Selected: press Ctrl-C";
  }
  setTimeout(() => { word.textContent = before; }, 3000);
});

let paused = false;
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-pause]");
  if (!button) return;
  paused = !paused;
  button.setAttribute("aria-pressed", String(paused));
  button.querySelector("[data-word]").textContent = paused ? "Resume" : "Pause";
  button.querySelector("use").setAttribute("href", button.dataset[paused ? "play" : "pause"]);
});
document.addEventListener("htmx:sse:before:message", (event) => {
  const leaves = (event.detail.message.event || "") !== "";
  const inside = event.target.contains(document.activeElement) && document.activeElement !== event.target;
  if (!leaves && (paused || inside)) event.preventDefault();
});
document.addEventListener("signed-out", () => location.assign("/console/login/"));

const spoken = document.getElementById("spoken");
if (spoken) {
  setInterval(() => {
    const summary = document.querySelector("[data-summary]");
    if (summary && !paused && !document.hidden) spoken.textContent = summary.dataset.summary;
  }, 10000);
}
