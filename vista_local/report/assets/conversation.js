// One conversation as a chat: claims under their turn, the reference with its evidence, the memory as it stood.

const open = { at: null, turn: null, claim: null };
const view = h("main", { id: "view", tabindex: "-1" });
const turnViews = new Map();

function linkTo(at, turn, claim) {
  const parts = [`c=${encodeURIComponent(DATA.conversations[at].id.toWellFormed())}`];
  if (turn !== undefined && turn !== null) parts.push(`t=${turn}`);
  if (claim !== undefined && claim !== null) parts.push(`k=${claim}`);
  return `#${parts.join("&")}`;
}

function verdict(name, value) {
  return h("span", { class: `verdict ${value ? "yes" : "no"}` }, value ? "✓ " : "✗ ", name, hidden(value ? "passed" : "failed"));
}

function turnScore(conversation, turn) {
  const claims = current(conversation, turn);
  const safe = claims.filter((c) => c.label !== null && LABELS[c.label].safe).length;
  const strict = claims.every((c) => c.label === 0);
  return { score: claims.length ? safe / claims.length : null, strict, safe: safe === claims.length };
}

function drawConversation() {
  const conversation = DATA.conversations[open.at];
  turnViews.clear();
  const position = shown.indexOf(open.at);
  const head = h("header", { class: "talk-head" },
    h("div", {},
      h("a", { href: "#", class: "back" }, "← Overview"),
      h("h1", { tabindex: "-1", dir: "auto" }, conversation.id.slice(0, 300))),
    h("div", { class: "talk-figures", id: "talk-figures" }),
    h("div", { class: "talk-moves" },
      button("Previous", () => step(-1), { class: "quiet", disabled: position <= 0, "aria-keyshortcuts": "p" }),
      button("Next", () => step(1), { class: "quiet", disabled: position < 0 || position >= shown.length - 1, "aria-keyshortcuts": "n" })));
  const turns = conversation.turns.map((turn) => (turn.role === "user" ? userTurn(turn) : assistantTurn(conversation, turn)));
  view.replaceChildren(h("article", { class: "talk" }, head,
    conversation.error && h("p", { class: "notice bad" }, `This conversation could not be scored: ${conversation.error}`),
    !conversation.passages && h("p", { class: "notice" }, "The results were made with --compact: the conversation itself isn't in the file, its claims stand alone."),
    conversation.background && h("details", { class: "card background" }, h("summary", {}, count(conversation.background.length, "background fact")), h("ul", {}, conversation.background.map((b) => h("li", { dir: "auto" }, b)))),
    h("ol", { class: "turns plain", id: "turns" }, turns)));
  drawFigures();
}

function drawFigures() {
  const box = document.getElementById("talk-figures");
  if (!box) return;
  const conversation = DATA.conversations[open.at];
  const scored = conversation.turns.filter((t) => t.r && !t.r.unreferenced && !t.r.unscored);
  const score = scoreOf(open.at);
  const strict = scored.filter((t) => turnScore(conversation, t).strict).length;
  box.replaceChildren(h("span", { class: "big" }, percent(score, 0)), h("span", { class: "note" }, `VISTA score · ${strict} of ${count(scored.length, "scored turn")} strict`));
}

function userTurn(turn) {
  return h("li", { class: "turn user" }, h("div", { class: "who" }, `User · turn ${turn.i + 1}`), textBlock("div", { class: "bubble" }, turn.text));
}

function assistantTurn(conversation, turn) {
  const left = h("div", { class: "said" },
    h("div", { class: "who" }, `Assistant · turn ${turn.i + 1}`),
    turn.text === null ? null : textBlock("div", { class: "bubble" }, turn.text));
  const item = h("li", { class: "turn assistant", id: `turn-${turn.i}` }, left);
  if (!turn.r) return item;
  const claims = h("div", { class: "claims" });
  const side = h("aside", { class: "sources", "aria-label": `What turn ${turn.i + 1} was judged by` });
  left.append(claims);
  item.append(side);
  turnViews.set(turn.i, { turn, claims, side, conversation });
  drawClaims(turn.i);
  return item;
}

function drawClaims(index) {
  const { turn, claims, side, conversation } = turnViews.get(index);
  const r = turn.r;
  if (r.unreferenced) {
    claims.replaceChildren(h("p", { class: "aside" }, "No reference: this turn was not scored."), r.claims.length ? h("ul", { class: "plain" }, r.claims.map((c) => h("li", { class: "aside", dir: "auto" }, c.t))) : null);
    side.remove();
    return;
  }
  const now = current(conversation, turn);
  const score = turnScore(conversation, turn);
  const kept = new Set(now.map((c) => c.from));
  const rows = now.map((c, k) => claimRow(conversation, turn, c, k));
  // Deleted claims stay in their place, struck through, so that nothing vanishes without a trace.
  r.claims.forEach((c, k) => {
    if (kept.has(k)) return;
    const before = now.findIndex((x) => x.from === null || x.from > k);
    const gone = h("li", { class: "claim gone" }, badge(c.l), h("div", { class: "claim-body" }, h("del", { dir: "auto" }, c.t), " ",
      button("Restore", () => { revise(conversation, turn, (list) => [...list, { text: c.t, label: c.l, from: k }]); drawClaims(turn.i); }, { class: "link" })));
    rows.push({ gone, before });
  });
  const lists = h("ol", { class: "plain claim-list", "aria-label": `Claims of turn ${turn.i + 1}` });
  const goneRows = rows.filter((x) => x.gone);
  rows.filter((x) => !x.gone).forEach((element, k) => {
    for (const g of goneRows) if (g.before === k) lists.append(g.gone);
    lists.append(element);
  });
  for (const g of goneRows) if (g.before < 0) lists.append(g.gone);
  const reviewed = isReviewed(conversation, turn);
  claims.replaceChildren(...[
    h("div", { class: "turn-head" },
      r.unscored && !reviewed ? h("span", { class: "verdict no" }, `unscored: ${r.unscored}`) : [
        h("span", { class: "turn-score" }, score.score === null ? "no claims" : percent(score.score, 0)),
        verdict("strict", score.strict), verdict("safe", score.safe)],
      r.windows ? h("span", { class: "aside" }, `reference read in ${r.windows} windows`) : null,
      r.chunks ? h("span", { class: "aside" }, `turn read in ${r.chunks} parts`) : null,
      h("span", { class: "grow" }),
      reviewed && h("span", { class: "reviewed" }, isChanged(conversation, turn) ? "corrected" : isFine(conversation, turn) ? "marked as fine" : "reviewed earlier"),
      button(isFine(conversation, turn) ? "✓ Fine" : "Mark as fine", () => { markFine(conversation, turn); drawClaims(turn.i); }, { class: "quiet fine", "aria-pressed": String(isFine(conversation, turn)), "aria-keyshortcuts": "f" }),
      reviews.has(turnKey(conversation, turn)) && button("Undo", () => { undoTurn(conversation, turn); drawClaims(turn.i); }, { class: "quiet undo" })),
    now.length || goneRows.length ? lists : h("p", { class: "aside" }, "This turn makes no claim."),
    (r.apart || []).length ? h("ul", { class: "plain apart" }, r.apart.map((t) => h("li", { class: "aside" }, h("span", { class: "badge l-none", title: "kept apart" }, "?"), h("span", { dir: "auto" }, t), " (says more than the turn: kept apart, not scored)"))) : null,
    (r.notes || []).length ? r.notes.map((t) => h("p", { class: "aside" }, `note: ${t}`)) : null,
    button("+ Add a claim", () => addClaim(turn.i), { class: "link add", "aria-keyshortcuts": "a" }),
  ].flat().filter(Boolean));
  drawSources(index);
}

function claimRow(conversation, turn, claim, k) {
  const before = claim.from === null ? {} : turn.r.claims[claim.from];
  const selected = open.turn === turn.i && open.claim === k;
  const p = confidenceNow(claim, before);
  const changed = claim.from === null || before.t !== claim.text || before.l !== claim.label;
  const hit = wantsClaim() && claimMatches(claim, turn, before, conversation);
  const details = [];
  if (claim.label === null) details.push(h("span", { class: "why" }, `unscored: ${before.why || "not labelled"}`));
  else details.push(h("span", { class: "label-word" }, title(claim.label)));
  if (p !== null) {
    const meter = h("span", { class: `meter l-${claim.label}`, "aria-hidden": "true" }, h("span", {}));
    meter.firstChild.style.width = `${100 * p}%`;
    details.push(h("span", { class: "p" }, meter, percent(p, 0)));
  }
  if (before.g !== undefined && !(changed && before.t !== claim.text)) {
    details.push(before.g === claim.label ? h("span", { class: "gold same" }, "= gold") : h("span", { class: "gold" }, "gold: ", badge(before.g, "small"), title(before.g)));
  }
  if (changed) details.push(h("span", { class: "changed" }, claim.from === null ? "added" : before.t !== claim.text ? "text changed" : before.l === null ? "labelled" : ["was ", badge(before.l, "small"), title(before.l)]));
  else if (before.c) details.push(h("span", { class: "changed" }, before.c.a === "add" ? "added by a reviewer" : before.c.l === null ? "corrected earlier" : ["model: ", badge(before.c.l, "small"), title(before.c.l)]));
  const element = h("li", {
    class: `claim ${selected ? "selected" : ""} ${changed ? "is-changed" : ""} ${hit ? "wanted" : ""}`, id: `claim-${turn.i}-${k}`,
  },
    badge(claim.label),
    h("div", { class: "claim-body" },
      h("button", { type: "button", class: "claim-text", dir: "auto", "aria-expanded": String(selected), on: { click: () => select(turn.i, selected ? null : k) } },
        marked(claim.text.length > LONG ? claim.text.slice(0, LONG).toWellFormed() + " …" : claim.text, filter.query.toLowerCase())),
      h("div", { class: "claim-details" }, details),
      selected && chances(claim, before),
      selected && evidenceText(conversation, before, claim),
      selected && toolbar(conversation, turn, claim, k)));
  return element;
}

/** All probabilities of the selected claim. */
function chances(claim, before) {
  if (!before.p || before.t !== claim.text) return null;
  const rows = Object.entries(before.p).sort((a, b) => b[1] - a[1]).map(([name, p]) => {
    const label = LABELS.findIndex((l) => l.name === name);
    const meter = h("span", { class: `meter wide ${label < 0 ? "l-none" : "l-" + label}`, "aria-hidden": "true" }, h("span", {}));
    meter.firstChild.style.width = `${100 * p}%`;
    return h("div", { class: "chance" }, h("span", {}, label < 0 ? "Unverifiable" : title(label)), meter, h("span", { class: "p" }, percent(p)));
  });
  return h("div", { class: "chances" }, rows);
}

function earlierClaim(conversation, turn, claim) {
  if (turn === -1) return (conversation.background || [])[claim];
  const there = conversation.turns.find((t) => t.i === turn);
  const found = there && there.r && there.r.claims[claim];
  return found && found.t;
}

function evidenceText(conversation, before, claim) {
  if (!before.ev || before.t !== claim.text) return null;
  return h("ul", { class: "plain evidence" }, before.ev.map((e) => {
    const where = e.s === "reference" ? `Reference, sentence ${e.n + 1}`
      : e.s === "background" ? `Background fact ${e.k + 1}`
        : `${e.stated ? "Said, not verified, in" : "Established in"} turn ${e.t + 1}`;
    const text = e.s === "reference" ? null : earlierClaim(conversation, e.s === "background" ? -1 : e.t, e.k);
    return h("li", {}, h("span", { class: "where" }, where, ` · ${percent(e.p, 0)}`), text && h("q", { dir: "auto" }, text));
  }));
}

/** Reference and memory beside a turn; sentences that decide a claim carry its number. */
function drawSources(index) {
  const { turn, side, conversation } = turnViews.get(index);
  const now = current(conversation, turn);
  const users = (match) => now.map((c, k) => [c, k]).filter(([c]) => {
    const before = c.from === null ? {} : turn.r.claims[c.from];
    return (before.ev || []).some(match);
  });
  const chosen = open.turn === index ? open.claim : null;
  const mark = (parts, uses) => {
    if (!uses.length) return parts;
    const on = uses.some(([, k]) => k === chosen);
    return h("mark", { class: `ev ${on ? "on" : ""}` }, parts, uses.map(([c, k]) => h("button", {
      type: "button", class: `ref-no ${c.label === null ? "l-none" : "l-" + c.label}`, "aria-label": `Claim ${k + 1} rests on this`, on: { click: () => select(index, k) },
    }, `${LABELS[c.label ?? 0].letter}${k + 1}`)));
  };
  const boxes = [];
  if (turn.ref) {
    let sentence = 0;
    const passages = turn.ref.map((p) => {
      const pieces = conversation.passages[p];
      const long = pieces.reduce((n, x) => n + x.length, 0) > LONG;
      const first = sentence;
      sentence += (pieces.length - 1) / 2;
      const paint = (limit) => {
        const nodes = [];
        let left = limit;
        for (let i = 0; i < pieces.length && left > 0; i += 1) {
          const shownText = pieces[i].length > left ? pieces[i].slice(0, left).toWellFormed() : pieces[i];
          left -= pieces[i].length;
          const n = first + (i - 1) / 2;
          nodes.push(i % 2 ? mark(shownText, users((e) => e.s === "reference" && e.n === n)) : shownText);
        }
        return nodes;
      };
      const element = h("p", { class: "passage", dir: "auto" }, paint(long ? LONG : Infinity));
      if (long) element.append(button("Show the whole passage", () => element.replaceChildren(...h("p", {}, paint(Infinity)).childNodes), { class: "more" }));
      return element;
    });
    boxes.push(h("section", { class: "source" }, h("h3", {}, "Reference"), h("div", { class: "source-text" }, passages.length ? passages : h("p", { class: "aside" }, "None was given: the turn is judged by the conversation's memory alone."))));
  }
  const memory = (turn.r.mem || []).map(([t, k]) => {
    const text = earlierClaim(conversation, t, k);
    const there = conversation.turns.find((x) => x.i === t);
    const stated = there && there.r && there.r.claims[k] && there.r.claims[k].l !== null && LABELS[there.r.claims[k].l].name === "OUT_OF_SCOPE";
    const uses = users((e) => (t === -1 ? e.s === "background" && e.k === k : e.s === "memory" && e.t === t && e.k === k));
    return h("li", { dir: "auto" }, mark([text === undefined ? "(not in this file)" : text], uses), " ",
      h("span", { class: "from" }, t === -1 ? "background" : stated ? `stated in turn ${t + 1}` : `turn ${t + 1}`));
  });
  if (memory.length || turn.r.omitted) {
    boxes.push(h("section", { class: "source" }, h("h3", {}, "Memory at this turn"), h("ul", { class: "source-text memory" }, memory),
      turn.r.omitted ? h("p", { class: "aside" }, `${count(turn.r.omitted, "older entry", "older entries")} did not fit and ${turn.r.omitted === 1 ? "was" : "were"} not shown to the model.`) : null));
  }
  side.replaceChildren(...boxes);
}

function redrawConversation() {
  if (open.at === null) return;
  for (const index of turnViews.keys()) drawClaims(index);
  drawFigures();
}
