// What the reviewer changed. A turn is in `reviews` once something was changed or it was marked as fine; then it
// holds all of its claims: {text, label, from}, and what they were. Python's vista_local/corrections.py reads what
// `exported` writes.

const reviews = new Map();
// A run's id doesn't depend on its input, and ids of conversations may be numbers: the digest is of ids and claims.
const STORE_KEY = `vista-local:corrections:${DATA.runs.map((r) => r.id).join("+")}:${DATA.source}:${DATA.digest}`;
let storable = true;
let unsaved = false;
const listeners = [];

const turnKey = (conversation, turn) => JSON.stringify([conversation.id, turn.i]);

function original(turn) {
  return turn.r.claims.map((c, k) => ({ text: c.t, label: c.l, from: k }));
}

function reviewOf(key, turn) {
  return reviews.get(key) || { was: original(turn), claims: original(turn), fine: false };
}

/** The claims of a turn as they now stand. */
function current(conversation, turn) {
  const review = reviews.size ? reviews.get(turnKey(conversation, turn)) : undefined;
  return review ? review.claims : original(turn);
}

function isFine(conversation, turn) {
  const review = reviews.get(turnKey(conversation, turn));
  return Boolean(review && review.fine);
}

function differs(turn, claims) {
  const before = original(turn);
  return before.length !== claims.length
    || before.some((c, k) => c.text !== claims[k].text || c.label !== claims[k].label || claims[k].from !== k);
}

function isChanged(conversation, turn) {
  const review = reviews.get(turnKey(conversation, turn));
  return Boolean(review) && differs(turn, review.claims);
}

function isReviewed(conversation, turn) {
  return Boolean(turn.r && (turn.r.reviewed || (reviews.size && reviews.has(turnKey(conversation, turn)))));
}

/** Change a turn's claims by a function from claims to claims. */
function revise(conversation, turn, change) {
  const key = turnKey(conversation, turn);
  const review = reviewOf(key, turn);
  const claims = ordered(change(review.claims.map((c) => ({ ...c }))));
  if (!differs(turn, claims) && !review.fine) reviews.delete(key);
  else reviews.set(key, { ...review, claims });
  keep();
}

/** Claims in the order of those they come from, added ones last. */
function ordered(claims) {
  const place = (c) => (c.from === null ? Infinity : c.from);
  return claims.map((c, i) => [c, i]).sort((a, b) => (place(a[0]) === place(b[0]) ? a[1] - b[1] : place(a[0]) - place(b[0]))).map(([c]) => c);
}

function markFine(conversation, turn) {
  const key = turnKey(conversation, turn);
  const review = reviewOf(key, turn);
  const fine = !review.fine;
  if (fine && review.claims.some((c) => c.label === null)) {
    say("Give every claim of the turn a label first");
    return;
  }
  if (!fine && !differs(turn, review.claims)) reviews.delete(key);
  else reviews.set(key, { ...review, fine });
  keep();
}

function undoTurn(conversation, turn) {
  reviews.delete(turnKey(conversation, turn));
  keep();
}

function keep() {
  unsaved = true;
  const content = reviews.size ? JSON.stringify([...reviews]) : null;
  storable = store.set(STORE_KEY, content);
  for (const run of listeners) run();
}

/** Whether a remembered review was made on the turn as it is now. */
function fits(turn, review) {
  return Boolean(turn) && Array.isArray(review.was) && !differs(turn, review.was)
    && review.claims.every((c) => typeof c.text === "string" && (c.from === null || c.from < turn.r.claims.length));
}

/** Take up what was kept; returns how many remembered reviews don't fit these results and were left out. */
function recall() {
  let leftOut = 0;
  if (store.get(STORE_KEY) === null) return leftOut;
  const turns = new Map();
  for (const c of DATA.conversations) for (const t of c.turns) if (t.r) turns.set(turnKey(c, t), t);
  try {
    for (const [key, review] of JSON.parse(store.get(STORE_KEY) || "[]")) {
      if (fits(turns.get(key), review)) reviews.set(key, review);
      else leftOut += 1;
    }
  } catch { /* what was stored isn't ours: begin anew */ }
  return leftOut;
}

function inputOf(conversation) {
  if (!conversation.passages) return undefined;
  const passages = conversation.passages.map((pieces) => pieces.join(""));
  const turns = conversation.turns.map((t) => ({
    role: t.role,
    text: t.text,
    ...(t.ref ? { reference: t.ref.map((p) => passages[p]) } : {}),
  }));
  return { turns, background: conversation.background || [] };
}

/** The corrections file: a line for each conversation with a reviewed turn. */
function exported() {
  const lines = [];
  for (const conversation of DATA.conversations) {
    const turns = [];
    for (const turn of conversation.turns) {
      const review = reviews.get(turnKey(conversation, turn));
      if (!review) continue;
      const was = turn.r.claims.map((c) => ({ text: c.t, label: c.l === null ? null : LABELS[c.l].name }));
      const claims = review.claims.map((c) => ({ text: c.text, label: c.label === null ? null : LABELS[c.label].name, from: c.from }));
      turns.push({ index: turn.i, was, claims });
    }
    if (turns.length) {
      lines.push(JSON.stringify({ schema: "vista-local-corrections/1", run: conversation.run, id: conversation.id, turns, input: inputOf(conversation) }));
    }
  }
  return lines.join("\n") + "\n";
}

function exportCorrections() {
  if (!reviews.size) {
    say("Nothing is corrected yet: change a label, or mark a turn as fine");
    return;
  }
  const url = URL.createObjectURL(new Blob([exported()], { type: "application/x-ndjson" }));
  const link = h("a", { href: url, download: "corrections.jsonl" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  unsaved = false;
  say(`${count(reviews.size, "reviewed turn")} written to corrections.jsonl`);
}

window.addEventListener("beforeunload", (event) => {
  if (unsaved && !storable && reviews.size) event.preventDefault();
});
