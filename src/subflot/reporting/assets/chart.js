// A chart of lines with hover, zoom and keys, drawn at the size it is shown in.
//
// A line is {name, colour, dash, x, y}; points without a y are gaps.

const MARGIN = { left: 52, right: 14, top: 12, bottom: 40 };
const MOST_NAMED = 14; // Lines that the box beside the cursor names.
const FEW_POINTS = 40; // Up to these, points are marked.
const MOST_ZOOM = 200; // Times that the whole is larger than what is seen.
let numCharts = 0;

class LineChart {
  // `leastStep` is the smallest distance of two marks on the x axis.
  constructor(label, { xLabel, xText, yText, leastStep = 0 }) {
    Object.assign(this, { xLabel, xText, yText, leastStep });
    Object.assign(this, { lines: [], window: null, cursor: null, drag: null });
    this.clip = `clip-${numCharts++}`;
    this.plot = draw("svg", {
      class: "plot", role: "application", tabindex: 0,
      "aria-label": `${label}. Left and right move along the curves, plus and minus zoom, 0 shows all.`,
      keydown: (event) => this.onKey(event),
      pointerdown: (event) => this.onPress(event),
      pointermove: (event) => this.onMove(event),
      pointerup: (event) => this.onRelease(event),
      pointercancel: () => this.stopDrag(),
      pointerleave: (event) => this.drag || event.pointerType === "touch" || this.pointTo(null),
      dblclick: () => this.zoomTo(null),
      blur: () => this.pointTo(null),
    });
    this.box = make("div", { class: "values", role: "status", "aria-live": "polite", hidden: true });
    this.tools = make("div", { class: "tools", role: "group", "aria-label": "Zoom" },
      button("Zoom in", () => this.zoomBy(0.5)),
      button("Zoom out", () => this.zoomBy(2)),
      button("Show all", () => this.zoomTo(null)));
    this.element = make("div", { class: "chart" },
      make("div", { class: "stage" }, this.plot, this.box),
      make("div", { class: "under" }, this.tools,
        make("span", { class: "hint" }, "Drag across the chart to zoom; double-click shows all.")));
    new ResizeObserver(() => this.redraw()).observe(this.plot);
  }

  show(lines, changes = {}) {
    Object.assign(this, { lines, cursor: null, ...changes });
    this.redraw();
  }

  // ----- what is seen

  get whole() {
    const [low, high] = extent(this.lines.flatMap((line) => line.x));
    return Number.isFinite(low) ? [low, high > low ? high : low + 1] : [0, 1];
  }

  get seen() {
    return this.window ?? this.whole;
  }

  zoomTo(range) {
    const [low, high] = this.whole;
    this.window = range && [Math.max(low, range[0]), Math.min(high, range[1])];
    if (this.window && this.window[0] <= low && this.window[1] >= high) this.window = null;
    this.redraw();
  }

  zoomBy(factor) {
    const [low, high] = this.seen;
    const middle = this.cursor ?? (low + high) / 2;
    const [first, last] = this.whole;
    const half = Math.max((high - low) * factor, (last - first) / MOST_ZOOM) / 2;
    this.zoomTo([middle - half, middle + half]);
  }

  // ----- drawing

  redraw() {
    const box = this.plot.getBoundingClientRect();
    if (!box.width) return;
    const [low, high] = this.seen;
    const values = this.lines.flatMap((line) => valuesWithin(line, low, high));
    const yTicks = ticks(...extent(values), box.height / 55);
    const isSeen = (x) => x >= low && x <= high;
    const xTicks = ticks(low, high, box.width / 80, this.leastStep).filter(isSeen);
    const width = box.width - MARGIN.left - MARGIN.right;
    const height = box.height - MARGIN.top - MARGIN.bottom;
    const [bottom, top] = [yTicks[0], yTicks.at(-1)];
    this.x = (value) => MARGIN.left + (width * (value - low)) / (high - low);
    this.y = (value) => MARGIN.top + height * (1 - (value - bottom) / (top - bottom));
    this.fromX = (pixel) => low + ((high - low) * (pixel - MARGIN.left)) / width;
    const frame = { y: MARGIN.top, height, visibility: "hidden" };
    const upright = { y1: MARGIN.top, y2: MARGIN.top + height, visibility: "hidden" };
    this.cursorLine = draw("line", { class: "cursor", ...upright });
    this.selection = draw("rect", { class: "selection", ...frame });
    this.dots = draw("g");
    // A little more than the plot, for marks at its edge.
    const inside = { x: MARGIN.left - 4, y: MARGIN.top - 4, width: width + 8, height: height + 8 };
    const centred = { "text-anchor": "middle" };
    this.plot.replaceChildren(
      draw("clipPath", { id: this.clip }, draw("rect", inside)),
      ...yTicks.map((value) => this.rule(value, box.width)),
      ...xTicks.map((value) =>
        draw("text", { ...centred, x: this.x(value), y: box.height - 22 }, this.xText(value))),
      draw("text", { ...centred, class: "axis", x: MARGIN.left + width / 2, y: box.height - 5 }, this.xLabel),
      draw("g", { "clip-path": `url(#${this.clip})` }, ...this.lines.map((line) => this.curve(line))),
      this.selection, this.cursorLine, this.dots);
    this.pointTo(this.cursor);
  }

  rule(value, width) {
    const y = this.y(value);
    return draw("g", {},
      draw("line", { class: "rule", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
      draw("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, this.yText(value)));
  }

  curve(line) {
    const parts = line.x.map((x, i) => (line.y[i] === null ? null : [this.x(x), this.y(line.y[i])]));
    const pen = (i) => (i && parts[i - 1] ? "L" : "M");
    const path = parts.map((p, i) => (p ? `${pen(i)}${p[0].toFixed(1)} ${p[1].toFixed(1)}` : ""));
    const curve = draw("path", { class: "line", d: path.join(""), "stroke-dasharray": line.dash });
    curve.style.stroke = line.colour;
    const marked = line.x.length <= FEW_POINTS ? parts.filter(Boolean) : [];
    return draw("g", { class: line.isFaint ? "faint" : null, "data-line": line.name },
      curve, ...marked.map((point) => mark(point, line.colour, 2.5)));
  }

  // ----- the cursor and the values beside it

  pointTo(x) {
    this.cursor = x;
    const beside = x === null ? [] : this.lines.map((line) => ({ line, i: nearest(line, x) }));
    const found = beside.filter(({ i }) => i !== null);
    this.box.hidden = !found.length;
    this.dots.replaceChildren();
    this.cursorLine.setAttribute("visibility", found.length ? "visible" : "hidden");
    if (!found.length) return;
    const at = this.x(x);
    this.cursorLine.setAttribute("x1", at);
    this.cursorLine.setAttribute("x2", at);
    for (const { line, i } of found) {
      this.dots.append(mark([this.x(line.x[i]), this.y(line.y[i])], line.colour, 4));
    }
    found.sort((one, other) => other.line.y[other.i] - one.line.y[one.i]);
    const rows = found.slice(0, MOST_NAMED).map(({ line, i }) => make("li", {},
      swatch(line),
      make("span", { class: "name" }, line.name),
      make("span", { class: "value" }, this.yText(line.y[i], true))));
    const more = found.length - rows.length;
    this.box.replaceChildren(
      make("strong", {}, `${this.xLabel} ${this.xText(x)}`),
      make("ul", {}, ...rows),
      more > 0 ? `and ${more} lower` : "");
    const isRight = at > this.plot.getBoundingClientRect().width / 2;
    this.box.style.left = isRight ? "" : `${at + 12}px`;
    this.box.style.right = isRight ? `calc(100% - ${at - 12}px)` : "";
  }

  // Where there are points in what is seen.
  get places() {
    const [low, high] = this.seen;
    return this.lines.flatMap(({ x, y }) =>
      x.filter((value, i) => y[i] !== null && value >= low && value <= high));
  }

  // The place of a point, for a cursor between points.
  snapped(x) {
    const closer = (best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best);
    return this.places.reduce(closer, this.places[0] ?? null);
  }

  step(direction) {
    const ordered = this.places.sort((a, b) => direction * (a - b));
    const isNext = (x) => this.cursor === null || direction * (x - this.cursor) > 0;
    const next = ordered.find(isNext);
    if (next !== undefined) this.pointTo(next);
  }

  // ----- hands

  onKey(event) {
    const actions = {
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      Escape: () => this.pointTo(null),
      "+": () => this.zoomBy(0.5),
      "=": () => this.zoomBy(0.5),
      "-": () => this.zoomBy(2),
      0: () => this.zoomTo(null),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  place(event) {
    return event.clientX - this.plot.getBoundingClientRect().left;
  }

  onPress(event) {
    this.drag = { from: this.place(event) };
    this.plot.setPointerCapture(event.pointerId);
    this.onMove(event);
  }

  onMove(event) {
    const at = this.place(event);
    if (this.drag && Math.abs(at - this.drag.from) > 6) {
      this.selection.setAttribute("x", Math.min(at, this.drag.from));
      this.selection.setAttribute("width", Math.abs(at - this.drag.from));
      this.selection.setAttribute("visibility", "visible");
    }
    this.pointTo(this.snapped(this.fromX(at)));
  }

  onRelease(event) {
    const [from, to] = [this.drag?.from, this.place(event)];
    this.stopDrag();
    if (from !== undefined && Math.abs(to - from) > 12) {
      this.zoomTo([this.fromX(Math.min(from, to)), this.fromX(Math.max(from, to))]);
    }
  }

  stopDrag() {
    this.drag = null;
    this.selection.setAttribute("visibility", "hidden");
  }
}

function mark([x, y], colour, radius) {
  const circle = draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: radius });
  circle.style.fill = colour;
  return circle;
}

// A short piece of a line, to tell which one is meant.
function swatch({ colour, dash }) {
  const ends = { x1: 0, x2: 22, y1: 5, y2: 5 };
  const line = draw("line", { ...ends, class: "line", "stroke-dasharray": dash });
  line.style.stroke = colour;
  return draw("svg", { class: "swatch", width: 22, height: 10, "aria-hidden": "true" }, line);
}

function nearest(line, x) {
  let best = null;
  line.x.forEach((value, i) => {
    const isCloser = best === null || Math.abs(value - x) < Math.abs(line.x[best] - x);
    if (line.y[i] !== null && isCloser) best = i;
  });
  return best;
}

// The smallest and the largest; of nothing, infinities. A long list is no list of arguments.
function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

// The values of a line that are seen, and those that it comes from and goes to.
function valuesWithin({ x, y }, low, high) {
  const isSeen = (i) => (x[i + 1] ?? x[i]) >= low && (x[i - 1] ?? x[i]) <= high;
  return y.filter((value, i) => value !== null && isSeen(i));
}

// Round numbers that enclose a range, about so many.
function ticks(low, high, count, leastStep = 0) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (low === high) {
    const around = (Math.abs(low) || 1) / 20;
    return ticks(low - around, high + around, count, leastStep);
  }
  const rough = (high - low) / Math.max(2, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(leastStep, power * [1, 2, 5, 10].find((factor) => factor * power >= rough));
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  const at = (i) => Number(((first + i) * step).toPrecision(12));
  return Array.from({ length: last - first + 1 }, (_, i) => at(i));
}
