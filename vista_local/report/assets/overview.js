// The first page: figures, label chart, charts by turn and score, gold figures, where to look first, the run.

function stat(name, value, note, kind) {
  return h("div", { class: `stat ${kind || ""}` }, h("dt", {}, name), h("dd", {}, value), note && h("p", { class: "note" }, note));
}

function rate(part, whole) {
  return whole ? percent(part / whole) : "–";
}

function notices() {
  const s = DATA.summary;
  const list = [];
  const push = (kind, text) => list.push(h("p", { class: `notice ${kind}` }, text));
  if (s.failed) push("bad", `${count(s.failed, "conversation")} could not be scored.`);
  if (s.unscored_turns) push("bad", `${count(s.unscored_turns, "turn")} could not be scored; the figures leave them out, turn coverage counts them.`);
  if (s.unscored_claims) push("warn", `${count(s.unscored_claims, "claim")} could not be labelled. They count as neither verified nor safe.`);
  if (s.mostly_unreferenced) push("warn", `${number(s.unreferenced_turns)} of ${number(s.scored_turns + s.unreferenced_turns + s.unscored_turns)} assistant turns have no reference and were not scored. Score with --unreferenced verify to judge them by the conversation's memory.`);
  if (DATA.conversations.length < s.conversations) push("", `The list shows the ${number(DATA.conversations.length)} conversations with the lowest scores; the figures are of all ${number(s.conversations)}.`);
  if (DATA.runs.length > 1) push("warn", `The file holds results of ${DATA.runs.length} runs with different models or settings.`);
  if (s.corrected_claims || s.reviewed_turns) push("", `${count(s.reviewed_turns, "turn")} of this file were reviewed and ${count(s.corrected_claims, "claim")} corrected; the scores count the corrected labels.`);
  return list;
}

function labelChart() {
  const counts = LABELS.map((l) => DATA.summary.labels[l.name]);
  const unscored = DATA.summary.unscored_claims;
  const whole = counts.reduce((a, b) => a + b, 0) + unscored;
  if (!whole) return h("section", { class: "card" }, h("h3", {}, "Claims by label"), h("p", { class: "empty" }, "No turn has a claim."));
  const bar = h("div", { class: "stack", "aria-hidden": "true" });
  counts.forEach((n, i) => {
    if (!n) return;
    const part = h("span", { class: `l-${i}`, title: `${title(i)}: ${number(n)}` }, n / whole > 0.04 ? LABELS[i].letter : "");
    part.style.flexGrow = n;
    bar.append(part);
  });
  if (unscored) {
    const part = h("span", { class: "l-none", title: `Unscored: ${number(unscored)}` });
    part.style.flexGrow = unscored;
    bar.append(part);
  }
  const rows = LABELS.map((label, i) => h("li", {},
    h("button", { type: "button", class: "label-row", disabled: !counts[i], on: { click: () => showLabel(i) } },
      badge(i),
      h("span", { class: "label-name" }, title(i), h("small", {}, label.meaning)),
      h("span", { class: "label-count" }, number(counts[i])),
      h("span", { class: "label-share" }, rate(counts[i], whole)))));
  if (unscored) {
    rows.push(h("li", {}, h("div", { class: "label-row" }, badge(null), h("span", { class: "label-name" }, "Unscored", h("small", {}, "could not be labelled")),
      h("span", { class: "label-count" }, number(unscored)), h("span", { class: "label-share" }, rate(unscored, whole)))));
  }
  return h("section", { class: "card labels", "aria-labelledby": "labels-title" },
    h("h3", { id: "labels-title" }, "Claims by label"),
    h("p", { class: "note" }, "Choose a label to see the conversations that have it."), bar, h("ul", { class: "plain" }, rows));
}

/** Contradictions the model is surest of, most doubtful turns first in a reader's mind. */
function lookFirst() {
  const found = [];
  DATA.conversations.forEach((c, at) => c.turns.forEach((t) => {
    if (t.r && !t.r.unreferenced) t.r.claims.forEach((claim, k) => {
      if (claim.l !== null && LABELS[claim.l].name === "CONTRADICTED") found.push({ at, t, k, claim, p: confidence(claim) ?? 0 });
    });
  }));
  found.sort((a, b) => b.p - a.p);
  const shown = found.slice(0, 6).map((x) => h("li", {},
    h("a", { href: linkTo(x.at, x.t.i, x.k), class: "look" }, badge(x.claim.l),
      h("span", { class: "look-text", dir: "auto" }, x.claim.t.slice(0, 300)),
      h("span", { class: "look-where" }, `${DATA.conversations[x.at].id.slice(0, 60)} · turn ${x.t.i + 1}`),
      h("span", { class: "look-p" }, percent(x.p, 0)))));
  return h("section", { class: "card" }, h("h3", {}, "Where to look first"),
    h("p", { class: "note" }, found.length ? `Contradicted claims, the surest first (${number(found.length)} in all).` : ""),
    shown.length ? h("ol", { class: "plain" }, shown) : h("p", { class: "empty" }, "No claim contradicts its reference or the conversation. "));
}

function goldSection() {
  const g = DATA.gold;
  if (!g) return null;
  const c = g.calibration;
  const interval = g.accuracy_interval;
  const between = interval ? `95 % interval ${(100 * interval[0]).toFixed(1)} to ${(100 * interval[1]).toFixed(1)}, by conversation` : "";
  const left = [
    g.unmatched_claims && `${count(g.unmatched_claims, "claim")} without a gold claim of the same text`,
    g.unmatched_gold && `${count(g.unmatched_gold, "gold claim")} that the model did not list`,
  ].filter(Boolean);
  return h("section", { class: "block", "aria-labelledby": "gold-title" },
    h("h2", { id: "gold-title" }, "Against gold labels"),
    h("dl", { class: "stats three" },
      stat("Claim accuracy", percent(g.accuracy), between),
      stat("Macro-F1", percent(g.macro_f1), "five labels, absent ones count as 0"),
      stat("Claims compared", number(g.n), left.length ? `Not compared: ${left.join("; ")}.` : `in ${count(g.conversations, "conversation")}`)),
    h("div", { class: "grid" },
      c ? figure("Is the confidence right?", `Expected calibration error ${percent(c.ece)} over ${count(c.n, "claim")}. On the diagonal, of the claims labelled with 80 % confidence 80 % are right; the bars show how many claims there are.`,
        reliability(c),
        table(["confidence", "claims", "mean confidence", "right"], c.bins.filter((b) => b.n).map((b) => [`${percent(b.low, 0)} to ${percent(b.high, 0)}`, number(b.n), percent(b.confidence), percent(b.accuracy)]))) : null,
      h("section", { class: "card" }, h("h3", {}, "What is taken for what"),
        h("p", { class: "note" }, "Choose a number to see these claims."),
        matrix(g.confusion.counts, "gold", "result", g.confusion.unscored.some(Boolean) ? g.confusion.unscored : null, (gold, label) => showConfusion(gold, label)))));
}

function overview() {
  const s = DATA.summary;
  const interval = s.interval ? `95 % interval ${(100 * s.interval[0]).toFixed(1)} to ${(100 * s.interval[1]).toFixed(1)}, bootstrapped by conversation` : "no claim was scored";
  const scores = DATA.conversations.map((c) => c.score).filter((x) => x !== null);
  const everyTurn = s.scored_turns + s.unreferenced_turns + s.unscored_turns;
  return h("div", { class: "overview" },
    h("h1", { tabindex: "-1" }, DATA.title),
    h("p", { class: "lead" }, `${count(s.conversations, "conversation")}, ${count(everyTurn, "assistant turn")}, ${count(s.claims, "claim")}.`),
    notices(),
    h("dl", { class: "stats" },
      stat("VISTA score", percent(s.vista_score), `claims that do no harm: verified, out of scope or abstention; ${interval}`, "main"),
      stat("Strict turns", percent(s.strict_rate), `${number(s.strict_turns)} of ${count(s.scored_turns, "turn")}: every claim verified`),
      stat("Safe turns", percent(s.safe_rate), `${number(s.safe_turns)} of ${count(s.scored_turns, "turn")}: no claim contradicted or without evidence`),
      stat("Coverage", percent(s.coverage), `${number(s.claims - s.unscored_claims)} of ${count(s.claims, "claim")} labelled${s.unreferenced_turns ? `; ${count(s.unreferenced_turns, "turn")} without reference, not scored` : ""}`)),
    h("div", { class: "grid" },
      labelChart(),
      lookFirst(),
      s.claims ? figure("Does the score fall with the length of the conversation?", "VISTA score of the claims of each assistant turn, first to last, in per cent.",
        turnChart(DATA.by_turn),
        table(["turn", "score", "claims", "turns", ...LABELS.map((l) => l.letter)], DATA.by_turn.map((p) => [p.turn, percent(p.score), number(p.claims), number(p.turns), ...p.labels.map(number)]))) : null,
      scores.length ? figure("Conversations by score", "How many conversations have which VISTA score.", histogram(scores)) : null),
    goldSection(),
    h("section", { class: "block" }, h("h2", {}, "How this was made"),
      h("p", { class: "note" }, `Labels were given by a model, which can be wrong: each claim shows how sure it is, and can be corrected here. File ${DATA.source}, vista-local ${DATA.version}.`),
      h("details", { class: "card" }, h("summary", {}, "Models, settings and versions"), runTable())));
}
