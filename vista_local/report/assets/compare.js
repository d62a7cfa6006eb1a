// Two results side by side: figures with intervals, where labels moved, and the claims that changed.

const wanted = { from: null, to: null, kind: "", query: "" };
const PAGE = 60;

const letter = (side) => h("span", { class: `letter ${side === "B" ? "b" : ""}`, "aria-hidden": "true" }, side);

function interval(pair, sign) {
  if (!pair) return "";
  const show = (x) => (sign && x > 0 ? "+" : "") + (100 * x).toFixed(1);
  return `${show(pair[0])} to ${show(pair[1])}`;
}

function figuresTable() {
  const rows = DATA.figures.map((f) => {
    const d = f.difference_interval;
    const kind = d && d[0] > 0 ? "clear-gain" : d && d[1] < 0 ? "clear-loss" : "";
    const name = f.name[0].toUpperCase() + f.name.slice(1);
    return h("tr", {}, h("th", { scope: "row" }, name),
      h("td", {}, h("b", {}, percent(f.first)), h("small", {}, interval(f.first_interval))),
      h("td", {}, h("b", {}, percent(f.second)), h("small", {}, interval(f.second_interval))),
      h("td", { class: kind }, h("b", {}, f.difference === null ? "–" : `${f.difference > 0 ? "+" : ""}${(100 * f.difference).toFixed(1)}`), h("small", {}, interval(d, true))));
  });
  return h("div", { class: "scroll" }, h("table", { class: "versus" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "95 % intervals by conversation"), h("th", { scope: "col" }, letter("A"), hidden("first file")), h("th", { scope: "col" }, letter("B"), hidden("second file")), h("th", { scope: "col" }, "B − A, points"))),
    h("tbody", {}, rows)));
}

function testLine() {
  const m = DATA.mcnemar;
  if (!m) return h("p", { class: "note verdict-line" }, "No claim has a gold label: the files are compared with each other, not with the truth. Add --gold to see which one is right.");
  const p = m.p_value < 0.0001 ? "< 0.0001" : `= ${m.p_value.toFixed(4)}`;
  const says = m.p_value >= 0.05 ? "No clear difference." : m.only_second > m.only_first ? "B is right more often." : "A is right more often.";
  return h("p", { class: "verdict-line" }, `${says} Of ${count(DATA.judged, "claim")} with a gold label, A alone has ${number(m.only_first)} right and B alone ${number(m.only_second)} (exact McNemar test, p ${p}; it takes claims as independent, so read it beside the intervals).`);
}

function leftOut() {
  const u = DATA.unaligned;
  const parts = [
    u.only_first_conversations && `${count(u.only_first_conversations, "conversation")} only in A`,
    u.only_second_conversations && `${count(u.only_second_conversations, "conversation")} only in B`,
    u.only_first_claims && `${count(u.only_first_claims, "claim")} only in A`,
    u.only_second_claims && `${count(u.only_second_claims, "claim")} only in B`,
  ].filter(Boolean);
  return parts.length ? h("p", { class: "notice" }, `Not aligned, and left out where claims are compared: ${parts.join(", ")}. Claims are the same if conversation, turn and text are.`) : null;
}

function changes() {
  const size = LABELS.length;
  const extra = DATA.transitions.slice(0, size).map((row) => row[size]);
  return h("section", { class: "card" }, h("h3", {}, "Where labels moved"),
    h("p", { class: "note" }, `${number(DATA.changed)} of ${count(DATA.claims, "claim")} have another label in B. Choose a number to see these claims.`),
    matrix(DATA.transitions.slice(0, size).map((row) => row.slice(0, size)), "A", "B", extra.some(Boolean) ? extra : null, (a, b) => {
      wanted.from = a;
      wanted.to = b;
      draw();
      examples.scrollIntoView({ block: "start" });
    }));
}

const KINDS = [
  ["", "All that changed", () => true],
  ["b", "B is right, A is not", (e) => e.gold === e.b.l],
  ["a", "A is right, B is not", (e) => e.gold === e.a.l],
  ["none", "Neither is right", (e) => e.gold !== undefined && e.gold !== e.a.l && e.gold !== e.b.l],
];
const examples = h("section", { class: "block", id: "examples" });
const shownBox = h("div", { class: "examples" });
const status = h("p", { class: "note", role: "status" });
let limit = PAGE;

function found() {
  const needle = wanted.query.toLowerCase();
  const kind = KINDS.find(([key]) => key === wanted.kind)[2];
  return DATA.examples.filter((e) => kind(e)
    && (wanted.from === null || e.a.l === wanted.from) && (wanted.to === null || e.b.l === wanted.to)
    && (!needle || `${e.id}\n${e.text}\n${e.said || ""}`.toLowerCase().includes(needle)));
}

function sideBox(side, e) {
  const claim = e[side];
  const right = e.gold !== undefined && e.gold === claim.l;
  return h("div", { class: right ? "right" : "" }, letter(side.toUpperCase()), badge(claim.l),
    h("span", {}, claim.l === null ? `Unscored${claim.why ? `: ${claim.why}` : ""}` : title(claim.l)),
    right && h("span", { class: "gold same" }, "✓ as in gold"),
    claim.p !== undefined && h("span", { class: "p" }, percent(claim.p, 0)));
}

function example(e) {
  const context = e.said === undefined ? null : h("details", { on: { toggle: (event) => {
    const box = event.target;
    if (!box.open || box.childElementCount > 1) return;
    box.append(h("div", { class: "context" },
      h("div", {}, e.asked && [h("h4", {}, "Before"), textBlock("div", {}, e.asked)], h("h4", {}, "The turn"), textBlock("div", {}, e.said)),
      h("div", {}, h("h4", {}, "Reference"), e.reference.length ? e.reference.map((r) => textBlock("div", {}, r)) : h("div", { class: "note" }, "none"))));
  } } }, h("summary", {}, "Turn and reference"));
  return h("article", { class: "card example" },
    h("div", { class: "example-where" }, `${e.id.slice(0, 120)} · turn ${e.turn + 1}`, e.gold !== undefined && [" · gold: ", badge(e.gold, "small"), title(e.gold)]),
    textBlock("div", { class: "example-claim" }, e.text),
    h("div", { class: "duel" }, sideBox("a", e), sideBox("b", e)), context);
}

function draw() {
  const all = found();
  const chosen = wanted.from === null ? "" : ` from ${title(wanted.from).toLowerCase()} to ${title(wanted.to).toLowerCase()}`;
  status.textContent = `${count(all.length, "claim")}${chosen}${DATA.examples.length < DATA.changed ? `; the page holds the first ${number(DATA.examples.length)} of ${number(DATA.changed)} that changed` : ""}`;
  reset.hidden = wanted.from === null && !wanted.kind && !wanted.query;
  shownBox.replaceChildren(...all.slice(0, limit).map(example));
  if (!all.length) shownBox.append(h("p", { class: "empty" }, DATA.changed ? "No claim matches." : "Both files give every common claim the same label."));
  if (all.length > limit) shownBox.append(button(`Show more (${number(all.length - limit)} left)`, () => { limit += 4 * PAGE; draw(); }));
}

const search = h("input", { type: "search", id: "search", placeholder: "Search claims and turns", "aria-label": "Search claims and turns", on: { input: () => { wanted.query = search.value.trim(); limit = PAGE; draw(); } } });
const kindChoice = h("select", { "aria-label": "Which claims", id: "kind", on: { change: () => { wanted.kind = kindChoice.value; limit = PAGE; draw(); } } },
  KINDS.filter(([key]) => !key || DATA.mcnemar).map(([key, name]) => h("option", { value: key }, name)));
const reset = button("Clear", () => {
  Object.assign(wanted, { from: null, to: null, kind: "", query: "" });
  search.value = kindChoice.value = "";
  draw();
}, { class: "quiet" });

examples.append(h("h2", {}, "Claims that changed"), h("div", { class: "bar-row" }, search, kindChoice, reset, status), shownBox);

document.getElementById("app").replaceChildren(
  h("header", { class: "top" }, h("span", { class: "brand" }, h("span", { class: "logo", "aria-hidden": "true" }, "V"), h("span", { class: "brand-name" }, h("b", {}, "vista-local"), "  Comparison")), h("span", { class: "grow" }), themeButton()),
  h("main", { class: "page" },
    h("h1", {}, "What changed between two results"),
    h("p", { class: "who-is-who" }, ["A", "B"].map((side, i) => h("span", { class: "side-name" }, letter(side), DATA.names[i])), h("span", {}, `${count(DATA.conversations, "conversation")} in both`)),
    leftOut(),
    h("div", { class: "grid" }, h("section", { class: "card" }, h("h3", {}, "Figures"), figuresTable(), testLine()), changes()),
    examples));
draw();
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  search.focus();
});
document.documentElement.dataset.ready = "yes";
