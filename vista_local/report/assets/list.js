// The list of conversations: filters, sort orders, and rows drawn only where they can be seen.

const ROW = 68;
const SORTS = [
  ["file", "File order", (a, b) => a - b],
  ["low", "Lowest score first", (a, b) => compareScores(a, b, 1)],
  ["high", "Highest score first", (a, b) => compareScores(a, b, -1)],
  ["unsure", "Least sure first", (a, b) => surest(a) - surest(b) || a - b],
  ["long", "Longest first", (a, b) => claimsOf(b).length - claimsOf(a).length || a - b],
];
const ONLY = [
  ["", "All claims", () => true],
  ["wrong", "Not as in gold", (c, t, x) => x.g !== undefined && x.g !== c.label],
  ["changed", "Corrected here", (c, t, x, conversation) => isReviewed(conversation, t)],
  ["todo", "Not reviewed yet", (c, t, x, conversation) => !isReviewed(conversation, t)],
];

const filter = { query: "", labels: new Set(), low: 0, high: 100, only: "", sort: "low", gold: null };
let shown = [];
let cursor = 0;

function compareScores(a, b, sign) {
  const [x, y] = [scoreOf(a), scoreOf(b)];
  if (x === y) return a - b;
  if (x === null) return 1; // without a score: always last
  if (y === null) return -1;
  return sign * (x - y);
}

/** Claims of a conversation as they now stand: [{text, label, from}, turn, original or {}]. */
function claimsOf(at) {
  const conversation = DATA.conversations[at];
  const list = [];
  for (const turn of conversation.turns) {
    if (!turn.r || turn.r.unreferenced) continue;
    for (const claim of current(conversation, turn)) list.push([claim, turn, claim.from === null ? {} : turn.r.claims[claim.from]]);
  }
  return list;
}

function scoreOf(at) {
  const conversation = DATA.conversations[at];
  if (!reviews.size || !conversation.turns.some((t) => t.r && reviews.has(turnKey(conversation, t)))) return conversation.score;
  const claims = claimsOf(at);
  return claims.length ? claims.filter(([c]) => c.label !== null && LABELS[c.label].safe).length / claims.length : null;
}

/** Probability of a claim's label, or null where there is none. */
function confidence(claim) {
  if (claim.l === null || claim.l === undefined || !claim.p) return null;
  const p = claim.p[LABELS[claim.l].name];
  return p === undefined ? null : p;
}

/** Probability of the label a claim now has, if its text is still the model's. */
function confidenceNow(claim, before) {
  return before.t === claim.text && before.l === claim.label && !before.c ? confidence(before) : null;
}

const sureness = new Map();
function surest(at) {
  if (!sureness.has(at)) {
    const values = claimsOf(at).map(([c, , x]) => confidenceNow(c, x)).filter((p) => p !== null);
    sureness.set(at, values.length ? Math.min(...values) : 2);
  }
  return sureness.get(at);
}

const texts = new Map();
function haystack(at) {
  if (!texts.has(at)) {
    const c = DATA.conversations[at];
    texts.set(at, [c.id, ...c.turns.map((t) => t.text || ""), ...claimsOf(at).map(([x]) => x.text)].join("\n").toLowerCase());
  }
  return texts.get(at);
}

function wantsClaim() {
  return filter.labels.size > 0 || filter.low > 0 || filter.high < 100 || filter.only !== "" || filter.gold !== null;
}

/** Whether a claim is one of those asked for (text apart). */
function claimMatches(claim, turn, before, conversation) {
  if (filter.labels.size && !(claim.label !== null && filter.labels.has(claim.label))) return false;
  if (filter.gold !== null && before.g !== filter.gold) return false;
  if (filter.low > 0 || filter.high < 100) {
    const p = confidenceNow(claim, before);
    if (p === null || 100 * p < filter.low || 100 * p > filter.high) return false;
  }
  return ONLY.find(([key]) => key === filter.only)[2](claim, turn, before, conversation);
}

function applyFilter() {
  const needle = filter.query.toLowerCase();
  const wants = wantsClaim();
  const chosen = shown[cursor];
  shown = DATA.conversations.map((_, at) => at).filter((at) => {
    if (needle && !haystack(at).includes(needle)) return false;
    return !wants || claimsOf(at).some(([c, t, x]) => claimMatches(c, t, x, DATA.conversations[at]));
  });
  shown.sort(SORTS.find(([key]) => key === filter.sort)[2]);
  cursor = Math.max(0, shown.indexOf(chosen));
}

const list = {
  box: h("div", { class: "rows", role: "listbox", tabindex: "0", "aria-label": "Conversations", id: "rows" }),
  inner: h("div", { class: "rows-inner" }),
  status: h("p", { class: "list-status", role: "status" }),
};
list.box.append(list.inner);

function miniBar(at) {
  const counts = new Array(LABELS.length).fill(0);
  const claims = claimsOf(at);
  for (const [c] of claims) if (c.label !== null) counts[c.label] += 1;
  const bar = h("span", { class: "mini", "aria-hidden": "true" });
  counts.forEach((n, i) => {
    if (!n) return;
    const part = h("span", { class: `l-${i}` });
    part.style.flexGrow = n;
    bar.append(part);
  });
  const letters = counts.map((n, i) => (n ? `${n}${LABELS[i].letter}` : "")).filter(Boolean).join(" ");
  return [bar, h("span", { class: "letters" }, letters || (DATA.conversations[at].error ? "failed" : "no claims"))];
}

function row(position) {
  const at = shown[position];
  const c = DATA.conversations[at];
  const first = c.turns.find((t) => t.text);
  const score = scoreOf(at);
  const element = h("div", {
    class: "row", role: "option", id: `row-${at}`, "aria-selected": String(at === open.at), "aria-posinset": position + 1,
    "aria-setsize": shown.length, on: { click: () => { cursor = position; go(at); } },
  },
    h("span", { class: `row-score ${score === null ? "none" : ""}` }, score === null ? "–" : `${Math.round(100 * score)}`, hidden("per cent")),
    h("span", { class: "row-main" },
      h("span", { class: "row-id" }, marked(c.id.slice(0, 120), filter.query.toLowerCase()), c.turns.some((t) => isReviewed(c, t)) && h("span", { class: "tick", title: "has reviewed turns" }, "✓", hidden("reviewed"))),
      h("span", { class: "row-text", dir: "auto" }, first ? marked(first.text.slice(0, 160), filter.query.toLowerCase()) : c.error ? "could not be scored" : ""),
      h("span", { class: "row-bar" }, miniBar(at))));
  element.style.top = `${position * ROW}px`;
  if (position === cursor) element.classList.add("at");
  return element;
}

function drawRows() {
  const from = Math.max(0, Math.floor(list.box.scrollTop / ROW) - 4);
  const to = Math.min(shown.length, Math.ceil((list.box.scrollTop + (list.box.clientHeight || 800)) / ROW) + 4);
  list.inner.style.height = `${shown.length * ROW}px`;
  const rows = [];
  for (let i = from; i < to; i += 1) rows.push(row(i));
  list.inner.replaceChildren(...rows);
  if (shown.length) list.box.setAttribute("aria-activedescendant", `row-${shown[cursor]}`);
  else {
    list.box.removeAttribute("aria-activedescendant");
    list.inner.append(h("div", { class: "empty" }, h("p", {}, DATA.conversations.length ? "No conversation matches." : "There is no conversation in this file."), DATA.conversations.length ? button("Clear the filters", clearFilter) : null));
  }
}

function refreshList(keepPlace) {
  applyFilter();
  if (!keepPlace) list.box.scrollTop = 0;
  list.status.textContent = shown.length === DATA.conversations.length
    ? count(shown.length, "conversation") : `${number(shown.length)} of ${count(DATA.conversations.length, "conversation")}`;
  drawRows();
}

function showCursor() {
  const top = cursor * ROW;
  if (top < list.box.scrollTop) list.box.scrollTop = top;
  else if (top + ROW > list.box.scrollTop + list.box.clientHeight) list.box.scrollTop = top + ROW - list.box.clientHeight;
  drawRows();
}

const controls = {};

function searchNow() {
  const query = controls.search.value.trim();
  if (query === filter.query) return;
  filter.query = query;
  refreshList();
  redrawConversation();
}

function filterPanel() {
  controls.search = h("input", {
    type: "search", id: "search", placeholder: "Search text and claims", "aria-label": "Search text and claims",
    on: { input: debounced(searchNow) },
  });
  controls.labels = LABELS.map((label, i) => h("button", {
    type: "button", class: "chip", "aria-pressed": "false", "aria-label": `Only ${title(i)}`,
    on: { click: () => { if (!filter.labels.delete(i)) filter.labels.add(i); filter.gold = null; filterChanged(); } },
  }, badge(i)));
  const range = (name, key) => h("input", {
    type: "number", min: 0, max: 100, step: 5, "aria-label": name, value: filter[key], id: `p-${key}`,
    on: { change: (e) => { filter[key] = Math.min(100, Math.max(0, Number(e.target.value) || 0)); filterChanged(); } },
  });
  controls.low = range("Lowest probability, per cent", "low");
  controls.high = range("Highest probability, per cent", "high");
  const choice = (id, name, options, key) => h("select", { id, "aria-label": name, on: { change: (e) => { filter[key] = e.target.value; filterChanged(); } } },
    options.map(([value, text]) => h("option", { value, selected: filter[key] === value }, text)));
  controls.sort = choice("sort", "Order", SORTS, "sort");
  controls.only = choice("only", "Which claims", ONLY.filter(([key]) => key !== "wrong" || DATA.gold), "only");
  controls.clear = button("Clear", clearFilter, { class: "quiet", id: "clear" });
  return h("div", { class: "filters", role: "search" },
    controls.search,
    h("div", { class: "chips", role: "group", "aria-label": "Labels" }, controls.labels),
    h("div", { class: "pair" }, controls.sort, controls.only),
    h("div", { class: "range" }, h("span", {}, "Probability"), controls.low, h("span", {}, "to"), controls.high, h("span", {}, "%"), controls.clear));
}

function filterChanged() {
  controls.labels.forEach((chip, i) => chip.setAttribute("aria-pressed", String(filter.labels.has(i))));
  controls.low.value = filter.low;
  controls.high.value = filter.high;
  controls.only.value = filter.only;
  controls.sort.value = filter.sort;
  controls.search.value = filter.query;
  refreshList();
  redrawConversation();
}

function clearFilter() {
  Object.assign(filter, { query: "", labels: new Set(), low: 0, high: 100, only: "", gold: null });
  filterChanged();
}

function showLabel(label) {
  clearFilter();
  filter.labels = new Set([label]);
  filterChanged();
  list.box.focus();
  say(`${count(shown.length, "conversation")} with ${title(label).toLowerCase()} claims`);
}

function showConfusion(gold, label) {
  clearFilter();
  filter.labels = new Set([label]);
  filter.gold = gold;
  filterChanged();
  if (shown.length) go(shown[0]);
}

function debounced(run) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(run, 80); };
}

list.box.addEventListener("scroll", () => requestAnimationFrame(drawRows));
window.addEventListener("resize", () => requestAnimationFrame(drawRows));
