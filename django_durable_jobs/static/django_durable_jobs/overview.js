"use strict";

// Keeps the overview up to date. What did not change stays the element that it is, so that scroll
// positions, the focus, open details and typed text stay; what is being selected is left alone.
document.addEventListener("DOMContentLoaded", () => {
  const root = document.getElementById("ddj-overview");
  const parts = document.getElementById("ddj-parts");
  if (!root || !parts || !window.fetch) return;
  const told = document.getElementById("ddj-told");
  const link = document.getElementById("ddj-refresh");
  const pause = document.getElementById("ddj-pause");
  const every = Number(root.dataset.ddjEvery) * 1000;
  let timer = 0;
  let paused = false;
  let busy = false;
  let failures = 0;
  let worked = stamp(); // by the server's clock and in its time zone, as all times on the page

  function stamp() {
    return document.getElementById("ddj-at").textContent;
  }

  function say(text, bad) {
    told.textContent = text;
    told.classList.toggle("ddj-stale", Boolean(bad));
    // A reader of the page is told of trouble, not every few seconds that all is well.
    told.setAttribute("aria-live", bad ? "polite" : "off");
  }

  function later() {
    clearTimeout(timer);
    if (paused || document.hidden) return;
    timer = setTimeout(refresh, every * Math.min(2 ** failures, 6));
  }

  async function refresh() {
    if (busy) return;
    busy = true;
    clearTimeout(timer);
    try {
      const url = new URL(window.location.href);
      url.searchParams.delete("find");
      url.searchParams.set("parts", "1");
      const answer = await fetch(url, { credentials: "same-origin", cache: "no-store" });
      if (answer.redirected) throw new Error(root.dataset.ddjOut);
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      const html = await answer.text();
      const fresh = new DOMParser().parseFromString(html, "text/html");
      follow(parts, fresh.body);
      failures = 0;
      worked = stamp();
      say(root.dataset.ddjWorked.replace("{time}", worked), false);
    } catch (error) {
      failures += 1;
      const reason = error instanceof TypeError ? root.dataset.ddjAway : error.message;
      const text = root.dataset.ddjFailed.replace("{time}", worked).replace("{reason}", reason);
      say(text, true);
    } finally {
      busy = false;
      later();
    }
  }

  // Make the children of one element those of another, changing as little as can be: an element
  // that is moved, or made anew, loses its scroll position and the focus.
  function follow(old, fresh) {
    const wanted = [...fresh.childNodes];
    const ids = new Set(wanted.map((node) => node.id).filter(Boolean));
    let at = old.firstChild;
    for (const node of wanted) {
      const found = seek(at, node);
      if (!found) {
        old.insertBefore(document.importNode(node, true), at);
        continue;
      }
      while (at !== found && !ids.has(at.id)) at = drop(at);
      if (at === found) at = at.nextSibling;
      else old.insertBefore(found, at);
      update(found, node);
    }
    while (at) at = drop(at);
  }

  // Return the first of these siblings that can become the node; a text only where it stands.
  function seek(at, node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return at && alike(at, node) ? at : null;
    while (at && !alike(at, node)) at = at.nextSibling;
    return at;
  }

  function drop(node) {
    const next = node.nextSibling;
    node.remove();
    return next;
  }

  function alike(old, fresh) {
    return old.nodeName === fresh.nodeName && (old.id || "") === (fresh.id || "");
  }

  function update(old, fresh) {
    if (old.isEqualNode(fresh) || selected(old)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    follow(old, fresh);
  }

  // Whether somebody is selecting in a section: it waits until that is over.
  function selected(node) {
    if (node.nodeName !== "SECTION") return false;
    const selection = window.getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(node, true);
  }

  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    refresh();
  });
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? root.dataset.ddjGo : root.dataset.ddjPause;
    if (paused) {
      clearTimeout(timer);
      say(root.dataset.ddjPaused.replace("{time}", worked), false);
    } else {
      refresh();
    }
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || paused) clearTimeout(timer);
    else refresh();
  });
  later();
});
