// The theme first, before anything is drawn; then keys, copying and the live tail. Pages work without all of it.
(() => {
  "use strict";
  const root = document.documentElement;
  const kept = (() => { try { return localStorage.getItem("mulligan-theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  root.classList.add("has-script");

  const one = (selector) => document.querySelector(selector);
  const is_typing = (target) => target.closest("input, select, textarea, [contenteditable]") !== null;

  // Theme

  function choose(theme) {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try { localStorage.setItem("mulligan-theme", theme); } catch { /* it is for this page then */ }
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "theme") choose(event.target.value);
  });

  // Keys

  let is_going = false;
  let going;

  function rows() {
    return [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a[href]") && row.offsetParent);
  }

  function walk(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains("here"));
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    all.forEach((row) => row.classList.toggle("here", row === next));
    next.querySelector("a[href]").focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || is_typing(event.target)) return;
    if (is_going) {
      is_going = false;
      clearTimeout(going);
      const link = [...document.querySelectorAll("header nav a[data-key]")].find((each) => each.dataset.key === event.key);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") {
      is_going = true;
      going = setTimeout(() => { is_going = false; }, 1200);
    } else if (event.key === "/") {
      event.preventDefault();
      one("#search").focus();
    } else if (event.key === "j" || event.key === "k") {
      walk(event.key === "j" ? 1 : -1);
    } else if (event.key === "?") {
      one("#keys").showModal();
    } else if (event.key === ".") {
      const more = one("#filters");
      if (more) { more.open = true; more.querySelector("input, select").focus(); }
    }
  });

  // Copying

  document.addEventListener("click", async (event) => {
    const asked = event.target.closest("[data-copy], [data-copy-from], [data-open]");
    if (!asked) return;
    if (asked.dataset.open) { one(asked.dataset.open).showModal(); return; }
    const text = asked.dataset.copyFrom
      ? await (await fetch(asked.dataset.copyFrom, { headers: { accept: "application/json" } })).text()
      : document.getElementById(asked.dataset.copy).textContent;
    const before = asked.textContent;
    try { await navigator.clipboard.writeText(text); asked.textContent = "Copied"; } catch { asked.textContent = "Not allowed"; }
    setTimeout(() => { asked.textContent = before; }, 1500);
  });

  // Live: texts are put where texts stand, never as markup.

  const MOST = 300;

  function told(event) {
    const row = document.createElement("tr");
    row.dataset.key = event.key;
    const cell = (text, sort) => {
      const made = document.createElement("td");
      if (sort) made.className = sort;
      made.textContent = text;
      row.append(made);
      return made;
    };
    cell(event.at, "n");
    const mark = { lost: "bad", won: "good" }[event.look] || "quiet";
    cell(event.mark, mark);
    const name = cell("", "name");
    const link = document.createElement("a");
    link.href = event.href;
    link.textContent = event.name;
    name.append(link);
    if (event.attempt > 1) name.append(` attempt ${event.attempt}`);
    cell(event.agent, "short hide").title = event.agent;
    cell(event.said, "name said-last");
    cell(event.took, "n hide");
    return row;
  }

  function listen() {
    const body = one("#events");
    if (!body) return;
    const state = one("#live-state");
    const pause = one("#pause");
    let source = null;
    let waiting = [];
    let is_paused = false;

    // After a broken connection the newest are told once more: what is there already is left where it is.
    const is_here = (event) => [...body.rows].some((row) => row.dataset.key === event.key);
    const filled = () => { one("#tail").hidden = !body.rows.length; one("#nothing").hidden = body.rows.length > 0; };
    const show = (event) => {
      if (is_here(event)) return;
      body.prepend(told(event));
      while (body.rows.length > MOST) body.deleteRow(-1);
      filled();
    };
    const say = (text) => { state.textContent = text; };
    const open = () => {
      if (source) return;
      source = new EventSource(body.dataset.from);
      source.addEventListener("ready", () => { if (!is_paused) say("listening"); filled(); });
      source.onmessage = (message) => {
        const event = JSON.parse(message.data);
        if (is_paused) { waiting = [...waiting, event].slice(-MOST); say(`paused, ${waiting.length} waiting`); }
        else show(event);
      };
      source.onerror = () => say("the server does not answer; trying again");
    };
    const close = () => { if (source) { source.close(); source = null; } };

    pause.addEventListener("click", () => {
      is_paused = !is_paused;
      pause.textContent = is_paused ? "Go on" : "Pause";
      pause.setAttribute("aria-pressed", String(is_paused));
      if (!is_paused) { waiting.forEach(show); waiting = []; }
      say(is_paused ? "paused" : "listening");
    });
    // A tab nobody looks at asks for nothing; what it missed is told again when it is looked at.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) close();
      else { body.replaceChildren(); open(); }
    });
    open();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const theme = one("#theme");
    if (theme) theme.value = kept === "light" || kept === "dark" ? kept : "system";
    listen();
  });
})();
