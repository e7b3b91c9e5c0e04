// Theme first, before the page is painted; then shortcuts, copying and the live tail. Pages work without scripts.
(() => {
  "use strict";
  const root = document.documentElement;
  const storedTheme = (() => { try { return localStorage.getItem("mulligan-theme"); } catch { return null; } })();
  if (storedTheme === "light" || storedTheme === "dark") root.dataset.theme = storedTheme;
  root.classList.add("has-script");

  const one = (selector) => document.querySelector(selector);
  const is_typing = (target) => target.closest("input, select, textarea, [contenteditable]") !== null;

  // Theme

  function choose(theme) {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try { localStorage.setItem("mulligan-theme", theme); } catch { /* no storage: the theme applies to this page only */ }
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "theme") choose(event.target.value);
  });

  // Shortcuts

  let is_going = false;
  let going;

  function rows() {
    return [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a[href]") && row.offsetParent);
  }

  function walk(by) {
    const all = rows();
    if (!all.length) return;
    const focused = all.indexOf(document.activeElement.closest("tr"));
    const at = focused >= 0 ? focused : all.findIndex((row) => row.classList.contains("here"));
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    all.forEach((row) => row.classList.toggle("here", row === next));
    next.querySelector("a[href]").focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || is_typing(event.target) || one("dialog[open]")) return;
    if (is_going) {
      is_going = false;
      clearTimeout(going);
      const link = [...document.querySelectorAll("header nav a[data-key]")].find((candidate) => candidate.dataset.key === event.key);
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
      if (more) { event.preventDefault(); more.open = true; more.querySelector("input, select").focus(); }
    }
  });

  // Times: the page has them in UTC, the browser shows them in its own time zone.

  const pad = (number) => String(number).padStart(2, "0");
  const formatClock = (at) => [at.getHours(), at.getMinutes(), at.getSeconds()].map(pad).join(":");

  function showLocalTimes() {
    document.querySelectorAll("time[datetime]").forEach((element) => {
      const at = new Date(element.dateTime);
      const day = element.querySelector("span");
      if (Number.isNaN(at.getTime()) || !day) return;
      day.textContent = [at.getFullYear(), at.getMonth() + 1, at.getDate()].map(pad).join("-");
      day.nextSibling.textContent = ` ${formatClock(at)}`;
    });
    const zone = one("#zone");
    if (zone) zone.textContent = `${Intl.DateTimeFormat().resolvedOptions().timeZone || "local"}`;
  }

  // A swapped page: its times are local too, and the focus stays in it although the focused field is gone.

  document.addEventListener("htmx:afterSettle", () => {
    showLocalTimes();
    if (document.activeElement === document.body) one("#main").focus({ preventScroll: true });
  });
  // A page that waits for the first run is replaced only when it says something else, so that it can be copied from.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const waiting = event.detail.requestConfig.elt.dataset.waiting;
    if (waiting && event.detail.serverResponse.includes(`data-waiting="${waiting}"`)) event.detail.shouldSwap = false;
  });

  // The menu of the navigation closes when the focus or a click is elsewhere.

  const closeMenus = (target) => document.querySelectorAll("details.menu[open]").forEach((menu) => {
    if (!menu.contains(target)) menu.open = false;
  });
  document.addEventListener("click", (event) => closeMenus(event.target));
  document.addEventListener("focusin", (event) => closeMenus(event.target));
  document.addEventListener("keydown", (event) => {
    const menu = one("details.menu[open]");
    if (event.key !== "Escape" || !menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });

  // Copying

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-from], [data-open]");
    if (!button) return;
    if (button.dataset.open) { one(button.dataset.open).showModal(); return; }
    const text = button.dataset.copyFrom
      ? await (await fetch(button.dataset.copyFrom, { headers: { accept: "application/json" } })).text()
      : document.getElementById(button.dataset.copy).textContent;
    const before = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Copy blocked"; }
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  // Live: values are inserted as text, never as markup.

  const MAX_ROWS = 300;

  function buildRow(event) {
    const row = document.createElement("tr");
    row.dataset.key = event.key;
    const addCell = (text, cssClass) => {
      const cell = document.createElement("td");
      if (cssClass) cell.className = cssClass;
      cell.textContent = text;
      row.append(cell);
      return cell;
    };
    addCell(formatClock(new Date(event.at)), "n");
    const mark = { lost: "bad", won: "good" }[event.look] || "quiet";
    addCell(event.mark, mark);
    const name = addCell("", "name");
    const link = document.createElement("a");
    link.href = event.href;
    link.textContent = event.name;
    name.append(link);
    if (event.attempt > 1) name.append(` attempt ${event.attempt}`);
    addCell(event.agent, "short hide").title = event.agent;
    addCell(event.text, "name said-last");
    addCell(event.took, "n hide");
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

    // After a reconnect the server sends the newest events again. Rows that exist already are skipped.
    const isShown = (event) => [...body.rows].some((row) => row.dataset.key === event.key);
    const filled = () => { one("#tail").hidden = !body.rows.length; one("#nothing").hidden = body.rows.length > 0; };
    const show = (event) => {
      if (isShown(event)) return;
      body.prepend(buildRow(event));
      while (body.rows.length > MAX_ROWS) body.deleteRow(-1);
      filled();
    };
    const setState = (text) => { state.textContent = text; };
    const open = () => {
      if (source) return;
      source = new EventSource(body.dataset.from);
      source.addEventListener("ready", () => { if (!is_paused) setState("connected"); filled(); });
      source.onmessage = (message) => {
        const event = JSON.parse(message.data);
        if (is_paused) { waiting = [...waiting, event].slice(-MAX_ROWS); setState(`paused, ${waiting.length} new`); }
        else show(event);
      };
      source.onerror = () => setState("connection lost, reconnecting…");
    };
    const close = () => { if (source) { source.close(); source = null; } };

    pause.addEventListener("click", () => {
      is_paused = !is_paused;
      pause.textContent = is_paused ? "Resume" : "Pause";
      pause.setAttribute("aria-pressed", String(is_paused));
      if (!is_paused) { waiting.forEach(show); waiting = []; }
      setState(is_paused ? "paused" : "connected");
    });
    // A hidden tab closes its connection. When it is visible again, the server sends the recent events again.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) close();
      else { body.replaceChildren(); open(); }
    });
    open();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const theme = one("#theme");
    if (theme) theme.value = storedTheme === "light" || storedTheme === "dark" ? storedTheme : "system";
    showLocalTimes();
    listen();
  });
})();
