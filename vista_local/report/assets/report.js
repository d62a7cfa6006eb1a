// The report as a whole: header, navigation by address, keyboard, help.

function go(at, turn, claim) {
  const hash = linkTo(at, turn, claim);
  if (location.hash === hash) route();
  else location.hash = hash;
}

/** Select a claim (or none) of the open conversation, and say so in the address. */
function select(turn, claim) {
  const earlier = open.turn;
  open.turn = turn;
  open.claim = claim;
  for (const index of new Set([earlier, turn])) if (turnViews.has(index)) drawClaims(index);
  try { history.replaceState(null, "", linkTo(open.at, claim === null ? null : turn, claim)); } catch { /* some browsers refuse on file:// */ }
  focusSelected();
}

function focusSelected() {
  if (open.claim === null) return;
  const element = document.getElementById(`claim-${open.turn}-${open.claim}`);
  if (!element) return;
  element.querySelector(".claim-text")?.focus({ preventScroll: true });
  element.scrollIntoView({ block: "nearest" });
  const source = document.querySelector(`#turn-${open.turn} mark.on`);
  const box = source && source.closest(".source-text");
  if (box) box.scrollTop = Math.max(0, source.offsetTop - box.offsetTop - 40);
}

/** Show what the address says. */
function route() {
  let wanted;
  try { wanted = new URLSearchParams(location.hash.slice(1)); } catch { wanted = new URLSearchParams(); }
  const id = wanted.get("c");
  const at = id === null ? -1 : DATA.conversations.findIndex((c) => c.id.toWellFormed() === id);
  document.body.classList.toggle("has-open", at >= 0);
  if (at < 0) {
    open.at = open.turn = open.claim = null;
    turnViews.clear();
    view.replaceChildren(overview());
    if (id !== null) say("No conversation of this name is in the report");
  } else {
    const moved = open.at !== at;
    open.at = at;
    open.turn = wanted.has("t") ? Number(wanted.get("t")) : null;
    open.claim = wanted.has("k") ? Number(wanted.get("k")) : null;
    if (shown.includes(at)) cursor = shown.indexOf(at);
    if (moved || !turnViews.size) drawConversation();
    else redrawConversation();
  }
  view.scrollTop = 0;
  showCursor();
  if (open.claim !== null) focusSelected();
  else if (at >= 0) {
    if (open.turn !== null) document.getElementById(`turn-${open.turn}`)?.scrollIntoView({ block: "start" });
    view.querySelector("h1")?.focus({ preventScroll: true });
  }
}

/** Another conversation of the list as it is filtered. */
function step(by) {
  const from = open.at === null ? -1 : shown.indexOf(open.at);
  const to = from < 0 ? cursor : from + by;
  if (to < 0 || to >= shown.length) return;
  cursor = to;
  go(shown[to]);
}

/** The next or previous claim of the open conversation. */
function stepClaim(by) {
  const all = [];
  for (const [index, { turn, conversation }] of turnViews) {
    if (!turn.r.unreferenced) current(conversation, turn).forEach((_, k) => all.push([index, k]));
  }
  if (!all.length) return;
  const here = all.findIndex(([t, k]) => t === open.turn && k === open.claim);
  let to = here + by;
  if (here < 0) {
    const first = all.findIndex(([t]) => open.turn !== null && t >= open.turn);
    to = by > 0 ? Math.max(0, first) : all.length - 1;
  }
  if (to >= 0 && to < all.length) select(...all[to]);
}

const KEYS = [
  ["j / k", "next or previous claim; in the list: conversation"],
  ["n / p", "next or previous conversation"],
  ["Enter", "open the conversation, or the claim"],
  ["/", "search"],
  ["1 … 5", `label of the selected claim: ${LABELS.map((l) => l.name).join(", ").replaceAll("_", " ").toLowerCase()}`],
  ["e, s, d", "edit, split or delete the selected claim"],
  ["a", "add a claim to the turn"],
  ["f", "mark the turn as fine"],
  ["u", "undo the turn's changes"],
  ["o", "overview"],
  ["x", "export corrections"],
  ["?", "this help"],
];

const help = h("dialog", { id: "help", "aria-labelledby": "help-title" },
  h("h2", { id: "help-title" }, "Keyboard"),
  h("table", { class: "keys" }, h("tbody", {}, KEYS.map(([key, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, what))))),
  h("h2", {}, "Correcting"),
  h("p", {}, "What you change is kept in this browser until you export it. A turn in which you change anything counts as reviewed as a whole: look at all of its claims, or mark the turn as fine where they are right. The exported file is applied with ",
    h("code", {}, "vista-local merge OUT.jsonl corrections.jsonl -o MERGED.jsonl"), "."),
  h("form", { method: "dialog" }, h("button", { type: "submit" }, "Close")));

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (open.claim !== null) select(open.turn, null);
    return;
  }
  if (typing) {
    if (event.key === "Enter" && event.target === controls.search) {
      searchNow(); // what was typed last may not have been looked for yet
      if (shown.length) { cursor = 0; go(shown[0]); }
    }
    return;
  }
  const inTalk = open.at !== null;
  const there = inTalk && open.turn !== null ? turnViews.get(open.turn) : undefined;
  const claim = there && open.claim !== null ? current(there.conversation, there.turn)[open.claim] : undefined;
  const inList = !inTalk || document.activeElement === list.box;
  const moves = {
    j: () => (inList ? moveCursor(1) : stepClaim(1)),
    k: () => (inList ? moveCursor(-1) : stepClaim(-1)),
    n: () => step(1),
    p: () => step(-1),
    "/": () => { controls.search.focus(); controls.search.select(); },
    "?": () => help.showModal(),
    o: () => { location.hash = ""; },
    x: exportCorrections,
    a: () => there && !there.turn.r.unreferenced && addClaim(open.turn),
    f: () => { if (there && !there.turn.r.unreferenced) { markFine(there.conversation, there.turn); drawClaims(open.turn); focusSelected(); } },
    u: () => { if (there) { undoTurn(there.conversation, there.turn); drawClaims(open.turn); focusSelected(); } },
    e: () => claim && editClaim(open.turn, open.claim, false),
    s: () => claim && editClaim(open.turn, open.claim, true),
    d: () => claim && removeClaim(there.turn, open.claim),
    Delete: () => claim && removeClaim(there.turn, open.claim),
  };
  const label = Number(event.key) - 1;
  if (claim && event.key.length === 1 && label >= 0 && label < LABELS.length) setLabel(there.turn, open.claim, label);
  else if (document.activeElement === list.box && ["ArrowDown", "ArrowUp"].includes(event.key)) moveCursor(event.key === "ArrowDown" ? 1 : -1);
  else if (event.key === "Enter" && inList && !event.target.closest("button, a, summary")) { if (shown.length) go(shown[cursor]); }
  else if (Object.hasOwn(moves, event.key)) moves[event.key]();
  else return;
  event.preventDefault();
}

function moveCursor(by) {
  cursor = Math.max(0, Math.min(shown.length - 1, cursor + by));
  showCursor();
}

function start() {
  const leftOut = recall();
  const exporter = button("Export corrections", exportCorrections, { id: "export", class: "quiet" });
  const onChange = () => {
    exporter.textContent = reviews.size ? `Export ${count(reviews.size, "reviewed turn")}` : "Export corrections";
    exporter.classList.toggle("strong", reviews.size > 0);
    document.getElementById("not-kept").hidden = storable || !reviews.size;
  };
  listeners.push(onChange, () => { texts.delete(open.at); sureness.delete(open.at); drawFigures(); drawRows(); });
  document.getElementById("app").replaceChildren(
    h("a", { class: "skip", href: "#view", on: { click: (e) => { e.preventDefault(); view.focus(); } } }, "Skip to the content"),
    h("header", { class: "top" },
      h("a", { class: "brand", href: "#" }, h("span", { class: "logo", "aria-hidden": "true" }, "V"), h("span", { class: "brand-name" }, h("b", {}, "vista-local"), "  ", DATA.title)),
      h("span", { class: "grow" }),
      exporter,
      button("?", () => help.showModal(), { class: "quiet", "aria-label": "Keyboard and help", id: "help-button" }),
      themeButton()),
    h("p", { class: "notice warn", id: "not-kept", hidden: true }, "This browser keeps nothing for this page: export before you close it."),
    h("p", { class: "notice warn", id: "left-out", hidden: !leftOut }, `${count(leftOut, "remembered correction")} did not fit these results and ${leftOut === 1 ? "was" : "were"} left out.`),
    h("div", { class: "columns" },
      h("nav", { class: "side", "aria-label": "Conversations" }, filterPanel(), list.status, list.box),
      view),
    help);
  refreshList();
  route();
  onChange();
  window.addEventListener("hashchange", route);
  document.addEventListener("keydown", onKey);
  window.addEventListener("beforeprint", () => document.querySelectorAll("#view details").forEach((d) => { d.open = true; }));
  document.documentElement.dataset.ready = "yes";
}

start();
