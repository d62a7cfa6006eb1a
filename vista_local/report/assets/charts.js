// Charts as inline SVG: axes, points, bars and the reliability diagram. Each has a text alternative.

function figure(name, note, chart, alternative) {
  return h("figure", { class: "card chart" },
    h("figcaption", {}, h("h3", {}, name), note && h("p", { class: "note" }, note)),
    chart,
    alternative && h("details", { class: "as-table" }, h("summary", {}, "As a table"), alternative));
}

function table(heads, rows) {
  return h("div", { class: "scroll" }, h("table", { class: "figures" },
    h("thead", {}, h("tr", {}, heads.map((x) => h("th", { scope: "col" }, x)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((x, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, x)))))));
}

function line(x1, y1, x2, y2, kind) {
  return svg("line", { x1, y1, x2, y2, class: kind });
}

function caption(x, y, text, kind, anchor) {
  const element = svg("text", { x, y, class: kind, "text-anchor": anchor || "middle" });
  element.textContent = text;
  return element;
}

function hint(text) {
  const element = svg("title", {});
  element.textContent = text;
  return element;
}

const FRAME = { width: 460, height: 220, left: 42, right: 12, top: 14, bottom: 42 };

function frame(name, xName, height) {
  const size = { ...FRAME, height: height || FRAME.height };
  const root = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": name });
  const x = (v) => size.left + v * (size.width - size.left - size.right);
  const y = (v) => size.height - size.bottom - v * (size.height - size.top - size.bottom);
  for (const v of [0, 0.25, 0.5, 0.75, 1]) {
    root.append(line(x(0), y(v), x(1), y(v), v ? "grid" : "axis"));
    root.append(caption(x(0) - 8, y(v) + 4, `${100 * v}`, "tick", "end"));
  }
  root.append(caption((x(0) + x(1)) / 2, size.height - 4, xName, "axis-name"));
  return { root, x, y };
}

/** VISTA score at each turn number, the number of claims beneath. */
function turnChart(points) {
  const name = `VISTA score in per cent by turn number: ${points.map((p) => `${p.turn}: ${percent(p.score, 0)}`).join(", ")}`;
  const { root, x, y } = frame(name, "assistant turn (number of claims beneath)");
  const place = (i) => x((i + 0.5) / points.length);
  const drawn = points.map((p, i) => ({ ...p, i })).filter((p) => p.score !== null);
  let path = "";
  let last = -2;
  for (const p of drawn) {
    path += `${p.i === last + 1 ? "L" : "M"}${place(p.i).toFixed(1)},${y(p.score).toFixed(1)}`;
    last = p.i;
  }
  root.append(svg("path", { d: path, class: "trend" }));
  const largest = Math.max(1, ...drawn.map((p) => p.claims));
  for (const p of drawn) {
    const dot = svg("circle", { cx: place(p.i), cy: y(p.score), r: 3 + 4 * Math.sqrt(p.claims / largest), class: "dot" });
    dot.append(hint(`turn ${p.turn}: ${percent(p.score)} of ${count(p.claims, "claim")}`));
    root.append(dot);
    if (points.length <= 8) {
      root.append(caption(place(p.i), y(p.score) + (p.score > 0.85 ? 20 : -12), percent(p.score, 0), "value"));
    }
  }
  const compact = points.length > 8;
  points.forEach((p, i) => {
    root.append(caption(place(i), y(0) + 15, p.turn, "tick"));
    root.append(caption(place(i), y(0) + 27, compact && p.claims > 999 ? `${Math.round(p.claims / 1000)}k` : number(p.claims), "tick faint"));
  });
  return root;
}

/** How many conversations have which score: ten bars. */
function histogram(scores) {
  const bins = new Array(10).fill(0);
  for (const score of scores) bins[Math.min(9, Math.floor(score * 10 + 1e-9))] += 1;
  const largest = Math.max(1, ...bins);
  const size = FRAME;
  const name = `Conversations by VISTA score: ${bins.map((n, i) => `${10 * i} to ${10 * i + 10} per cent: ${n}`).join(", ")}`;
  const root = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": name });
  const width = (size.width - size.left - size.right) / 10;
  const bottom = size.height - size.bottom;
  bins.forEach((n, i) => {
    const height = (n / largest) * (bottom - size.top - 12);
    const bar = svg("rect", { x: size.left + i * width + 2, y: bottom - height, width: width - 4, height, rx: 2, class: "bar" });
    bar.append(hint(`${10 * i} to ${10 * i + 10} %: ${count(n, "conversation")}`));
    root.append(bar);
    if (n) root.append(caption(size.left + (i + 0.5) * width, bottom - height - 5, number(n), "value"));
    root.append(caption(size.left + i * width, bottom + 15, `${10 * i}`, "tick"));
  });
  root.append(caption(size.left + 10 * width, bottom + 15, "100", "tick"));
  root.append(line(size.left, bottom, size.width - size.right, bottom, "axis"));
  root.append(caption((size.left + size.width - size.right) / 2, size.height - 4, "VISTA score, %", "axis-name"));
  return root;
}

/** Accuracy against confidence; the diagonal is perfect calibration, bars below show how many claims. */
function reliability(calibration) {
  const filled = calibration.bins.filter((b) => b.n);
  const name = `Reliability diagram: ${filled.map((b) => `confidence ${percent(b.confidence, 0)}: right ${percent(b.accuracy, 0)}`).join(", ")}`;
  const { root, x, y } = frame(name, "confidence of the label, %", 260);
  root.append(line(x(0), y(0), x(1), y(1), "diagonal"));
  const largest = Math.max(...filled.map((b) => b.n), 1);
  for (const b of filled) {
    const height = (y(0) - y(0.3)) * (b.n / largest);
    const bar = svg("rect", { x: x(b.low) + 1, y: y(0) - height, width: x(b.high) - x(b.low) - 2, height, class: "mass" });
    bar.append(hint(`${count(b.n, "claim")} between ${percent(b.low, 0)} and ${percent(b.high, 0)}`));
    root.append(bar);
  }
  root.append(svg("path", { d: filled.map((b, i) => `${i ? "L" : "M"}${x(b.confidence)},${y(b.accuracy)}`).join(""), class: "trend" }));
  for (const b of filled) {
    const dot = svg("circle", { cx: x(b.confidence), cy: y(b.accuracy), r: 4.5, class: "dot" });
    dot.append(hint(`${count(b.n, "claim")}: confidence ${percent(b.confidence)}, right ${percent(b.accuracy)}`));
    root.append(dot);
  }
  for (const v of [0, 0.25, 0.5, 0.75, 1]) root.append(caption(x(v), y(0) + 15, `${100 * v}`, "tick"));
  return root;
}

/** A matrix of label counts; darker is more within its row. `rows` and `columns` name the sides. */
function matrix(counts, rows, columns, extra, onCell) {
  const heads = LABELS.map((x, i) => h("th", { scope: "col" }, badge(i)));
  const body = counts.map((row, g) => {
    const whole = row.reduce((a, b) => a + b, 0) + (extra ? extra[g] : 0);
    const cells = row.map((n, p) => {
      const cell = h("td", { class: g === p ? "same" : "", title: `${rows} ${LABELS[g].name}, ${columns} ${LABELS[p].name}: ${n}` });
      cell.style.setProperty("--share", whole ? n / whole : 0);
      if (onCell && n) cell.append(button(number(n), () => onCell(g, p), { "aria-label": `${n} claims: ${rows} ${title(g)}, ${columns} ${title(p)}` }));
      else cell.append(n ? number(n) : "·");
      return cell;
    });
    return h("tr", {}, h("th", { scope: "row" }, badge(g), " ", title(g)), cells, extra && h("td", {}, extra[g] || "·"));
  });
  return h("div", { class: "scroll" }, h("table", { class: "matrix" },
    h("caption", {}, `rows: ${rows}, columns: ${columns}`),
    h("thead", {}, h("tr", {}, h("td", {}), heads, extra && h("th", { scope: "col" }, "unscored"))),
    h("tbody", {}, body)));
}
