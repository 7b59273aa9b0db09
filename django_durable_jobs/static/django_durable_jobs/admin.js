"use strict";

document.addEventListener("DOMContentLoaded", () => {
  // A second click while the first is on its way sends nothing.
  for (const form of document.querySelectorAll(".ddj-confirm")) {
    form.addEventListener("submit", (event) => {
      if (form.dataset.ddjSent) event.preventDefault();
      form.dataset.ddjSent = "yes";
    });
    window.addEventListener("pageshow", () => delete form.dataset.ddjSent);
  }

  const button = document.querySelector("[data-ddj-preview]");
  const place = document.getElementById("ddj-preview");
  if (!button || !place) return;
  const form = button.form;
  let asked = 0;

  const preview = async () => {
    const mine = ++asked;
    const data = new FormData(form);
    for (const [name, value] of [...data]) if (value instanceof File) data.delete(name);
    data.set(button.name, button.value);
    place.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(button.dataset.ddjPreview, { method: "POST", body: data });
      if (!answer.ok || answer.redirected) throw new Error(answer.status);
      const html = await answer.text();
      if (mine === asked) place.innerHTML = html; // made, and escaped, by the server
    } catch {
      if (mine === asked) place.textContent = button.dataset.ddjFailed;
    } finally {
      if (mine === asked) place.removeAttribute("aria-busy");
    }
  };

  // So that Enter in a field saves, as on every page of the admin.
  button.type = "button";
  button.addEventListener("click", preview);
  const rule = /^(cron|every|baseline|timezone|enabled|next_run_at_[01])$/;
  form.addEventListener("change", (event) => {
    if (rule.test(event.target.name)) preview();
  });
});
