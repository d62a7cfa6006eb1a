// The tools of the selected claim: another label, text, split, delete; and adding a claim to a turn.

function act(turn, run, next) {
  const { conversation } = turnViews.get(turn.i);
  revise(conversation, turn, run);
  drawClaims(turn.i);
  if (next !== undefined) select(turn.i, next);
  else focusSelected();
}

function setLabel(turn, k, label) {
  act(turn, (claims) => { claims[k].label = label; return claims; });
}

function removeClaim(turn, k) {
  const { conversation } = turnViews.get(turn.i);
  const left = current(conversation, turn).length - 1;
  act(turn, (claims) => claims.filter((_, i) => i !== k), left ? Math.min(k, left - 1) : null);
}

function toolbar(conversation, turn, claim, k) {
  return h("div", { class: "tools" },
    h("div", { class: "label-keys", role: "group", "aria-label": "Label of this claim" }, LABELS.map((label, i) => h("button", {
      type: "button", class: "chip", "aria-pressed": String(claim.label === i), "aria-keyshortcuts": String(i + 1), title: `${title(i)} (key ${i + 1})`,
      on: { click: () => setLabel(turn, k, i) },
    }, badge(i), h("kbd", {}, String(i + 1))))),
    h("div", { class: "label-keys" },
      button("Edit", () => editClaim(turn.i, k, false), { class: "quiet", "aria-keyshortcuts": "e" }),
      button("Split", () => editClaim(turn.i, k, true), { class: "quiet", "aria-keyshortcuts": "s" }),
      button("Delete", () => removeClaim(turn, k), { class: "quiet", "aria-keyshortcuts": "d" }),
      button("Copy link", () => copyLink(turn.i, k), { class: "quiet" })));
}

function copyLink(turn, k) {
  const link = location.href.split("#")[0] + linkTo(open.at, turn, k);
  const copied = navigator.clipboard ? navigator.clipboard.writeText(link) : Promise.reject();
  copied.then(() => say("Link copied"), () => say("The link is in the address bar"));
}

/** A form in place of a claim: its text, or one claim a line to split it. */
function editor(box, text, label, hintText, done) {
  const area = h("textarea", { rows: 3, dir: "auto", "aria-label": hintText });
  area.value = text;
  const choice = label === undefined ? h("select", { "aria-label": "Label" }, LABELS.map((l, i) => h("option", { value: i }, `${l.letter} ${title(i)}`))) : null;
  const close = () => { drawClaims(open.turn); focusSelected(); };
  const save = () => {
    const value = area.value.trim();
    if (!value) { say("A claim needs a text"); return; }
    done(value, choice ? Number(choice.value) : label);
  };
  const form = h("form", { class: "editor", on: {
    submit: (e) => { e.preventDefault(); save(); },
    keydown: (e) => {
      e.stopPropagation();
      if (e.key === "Escape") close();
      else if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); save(); }
    },
  } }, h("p", { class: "note" }, hintText), area, h("div", { class: "label-keys" }, choice, h("button", { type: "submit" }, "Save"), button("Cancel", close, { class: "quiet" }), h("span", { class: "note" }, "Ctrl + Enter saves, Esc cancels")));
  box.replaceChildren(form);
  area.focus();
  area.setSelectionRange(text.length, text.length);
}

function editClaim(index, k, split) {
  const { turn, conversation } = turnViews.get(index);
  const claim = current(conversation, turn)[k];
  const body = document.querySelector(`#claim-${index}-${k} .claim-body`);
  const hintText = split ? "One claim a line. Each keeps the label; change it afterwards." : "Text of the claim";
  editor(body, claim.text, claim.label, hintText, (value) => {
    const parts = split ? value.split("\n").map((x) => x.trim()).filter(Boolean) : [value.replace(/\s*\n\s*/g, " ")];
    if (split && parts.length < 2) { say("Write at least two lines to split the claim"); return; }
    act(turn, (claims) => claims.flatMap((c, i) => (i === k ? parts.map((text) => ({ ...c, text })) : [c])));
    if (claim.label === null && claim.from !== null) say("The claim has no label yet: give it one");
  });
}

function addClaim(index) {
  const { turn, claims } = turnViews.get(index);
  if (open.turn !== index) { open.turn = index; open.claim = null; }
  const box = h("div", { class: "claim new" });
  claims.querySelector(".add").replaceWith(box);
  editor(box, "", undefined, "A claim that the turn makes and the list lacks", (text, label) => {
    const { conversation } = turnViews.get(index);
    act(turn, (list) => [...list, { text: text.replace(/\s*\n\s*/g, " "), label, from: null }], current(conversation, turn).length);
  });
}
