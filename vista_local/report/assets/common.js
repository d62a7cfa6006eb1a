// Elements, text that can't act, and the theme. All text of conversations goes through `textNodes`.

const DATA = JSON.parse(document.getElementById("data").textContent);
const LABELS = DATA.labels;
const SVG = "http://www.w3.org/2000/svg";

// Control and direction characters would hide or reorder what stands beside them: they are shown by their numbers.
// Joiners (U+200C, U+200D) stay, scripts and emoji need them. With the flag "u", \ud800-\udfff are lone halves only.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]/u;
const EACH_UNSEEN = new RegExp(UNSEEN.source, "gu");

/** An element: attributes by name, `on` for listeners, children as elements or text. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) element.append(child);
    else textNodes(element, String(child));
  }
}

/** Append `text` as text; what can't be seen is shown as a small mark. */
function textNodes(element, text) {
  if (!UNSEEN.test(text)) {
    element.append(text);
    return;
  }
  let at = 0;
  for (const match of text.matchAll(EACH_UNSEEN)) {
    if (match.index > at) element.append(text.slice(at, match.index));
    const code = "U+" + match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const mark = document.createElement("span");
    mark.className = "unseen";
    mark.title = `character ${code}, shown by its number`;
    mark.textContent = code;
    element.append(mark);
    at = match.index + match[0].length;
  }
  if (at < text.length) element.append(text.slice(at));
}

const LONG = 12000;

/** A block of conversation text; very long text is shown in pieces, on demand. */
function textBlock(tag, attributes, text) {
  const block = h(tag, { dir: "auto", ...attributes });
  let shown = 0;
  const more = h("button", { type: "button", class: "more" });
  const grow = () => {
    let end = Math.min(text.length, shown + (shown ? 20 * LONG : LONG));
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end -= 1;
    more.remove();
    textNodes(block, text.slice(shown, end));
    shown = end;
    if (shown < text.length) {
      more.textContent = `Show more (${number(text.length - shown)} characters left)`;
      block.append(more);
    }
  };
  more.addEventListener("click", grow);
  grow();
  return block;
}

function number(value) {
  return value.toLocaleString("en-GB");
}

function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(digits) + " %";
}

function count(value, one, many) {
  return `${number(value)} ${value === 1 ? one : many || one + "s"}`;
}

function title(label) {
  const words = LABELS[label].name.replaceAll("_", " ").toLowerCase();
  return words[0].toUpperCase() + words.slice(1);
}

/** The letter of a label in its colour; `null` stands for a claim without a label. */
function badge(label, extra) {
  const name = label === null ? "Unscored" : title(label);
  const attributes = { class: `badge ${label === null ? "l-none" : "l-" + label} ${extra || ""}`, title: name };
  return h("span", attributes, h("span", { "aria-hidden": "true" }, label === null ? "–" : LABELS[label].letter), hidden(name));
}

function hidden(text) {
  return h("span", { class: "sr" }, text);
}

function button(text, run, attributes) {
  return h("button", { type: "button", ...attributes, on: { click: run } }, text);
}

const say = (() => {
  const region = h("div", { class: "toast", role: "status", "aria-live": "polite" });
  document.body.append(region);
  let timer = 0;
  return (text) => {
    region.textContent = text;
    region.classList.add("shown");
    clearTimeout(timer);
    timer = setTimeout(() => region.classList.remove("shown"), 3500);
  };
})();

/** Storage that fails soft: on file:// or in a private window a browser may refuse it. */
const store = {
  get(key) {
    try { return localStorage.getItem(key); } catch { return null; }
  },
  set(key, value) {
    try {
      if (value === null) localStorage.removeItem(key);
      else localStorage.setItem(key, value);
      return true;
    } catch { return false; }
  },
};

const THEMES = ["auto", "light", "dark"];

function themeButton() {
  let theme = store.get("vista-local:theme");
  if (!THEMES.includes(theme)) theme = "auto";
  const control = h("button", { type: "button", class: "quiet", id: "theme" });
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    control.textContent = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" }[theme];
    control.setAttribute("aria-label", `Colours: ${theme}. Change`);
  };
  control.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    store.set("vista-local:theme", theme);
    apply();
  });
  apply();
  return control;
}

/** Text with every place of `needle` (lower case) marked. */
function marked(text, needle) {
  if (!needle) return [text];
  const parts = [];
  const low = text.toLowerCase();
  // Lower case can be longer than the text itself (İ); then places don't correspond and nothing is marked.
  if (low.length !== text.length) return [text];
  let at = 0;
  for (let found = low.indexOf(needle); found >= 0; found = low.indexOf(needle, at)) {
    if (found > at) parts.push(text.slice(at, found));
    parts.push(h("mark", { class: "hit" }, text.slice(found, found + needle.length)));
    at = found + needle.length;
  }
  parts.push(text.slice(at));
  return parts;
}

function runTable() {
  const rows = [];
  for (const run of DATA.runs || []) {
    for (const [key, value] of Object.entries(run)) {
      const text = typeof value === "object" ? JSON.stringify(value) : String(value);
      rows.push(h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, text)));
    }
  }
  return h("table", { class: "facts" }, h("tbody", {}, rows));
}
