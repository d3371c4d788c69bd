// How channels of the global model were carried onto those of clients.

const SHADES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const DISTANCES = [
  ["delta_p", null, "received model against global model"],
  ["delta_ot", "7 4", "carried back against upload"],
];

function showPlans(page, all) {
  const hasDistances = (run) => DISTANCES.some(([name]) => run.series[name]);
  const isTold = (run) => run.plans.length || run.moved.layers.length || hasDistances(run);
  const runs = all.filter(isTold);
  if (!runs.length) return fill("plans");
  const host = make("div");
  const show = (run) => host.replaceChildren(...heatMaps(run), ...movedByRound(run), ...distances(run));
  const first = Math.max(0, runs.findIndex((run) => run.plans.length));
  show(runs[first]);
  const options = runs.map((run, i) => [i, run.label]);
  return fill("plans",
    make("div", { class: "controls" }, chooser("run", options, first, (i) => show(runs[i]))), host);
}

function heatMaps({ plans }) {
  if (!plans.length) return [];
  const grid = make("div", { class: "grid" });
  const show = (plan) => grid.replaceChildren(...plan.layers.map((layer) => heatMap(layer, plan)));
  const narrowest = plans.length - 1; // There most has to be merged.
  show(plans[narrowest]);
  const options = plans.map((plan, i) => [i, `${plan.client} (pruning rate ${plan.pruning_rate})`]);
  const left = plans[0].num_layers - plans[0].layers.length;
  return [
    make("p", {}, `As the models stood after round ${plans[0].round}: channels of the global model go ` +
      "down, those of the client go across, and the stronger a cell, the more of the client's channel " +
      "comes from there. “Moved” is the share that comes from a channel of another number." +
      (left ? ` ${left} layers between are not shown.` : "")),
    make("div", { class: "controls" }, chooser("client", options, narrowest, (i) => show(plans[i]))),
    grid,
  ];
}

function heatMap({ layer, shape, grid, cells, moved }, { client }) {
  const [rows, columns] = grid;
  const rects = [...cells].map((shade, i) => {
    const [row, column, share] = [Math.floor(i / columns), i % columns, SHADES.indexOf(shade) / 63];
    if (!share) return null;
    const from = channelsOf(row, rows, shape[0]);
    const to = channelsOf(column, columns, shape[1]);
    const opacity = (0.15 + 0.85 * share).toFixed(2);
    return draw("rect", { x: column, y: row, width: 1, height: 1, "fill-opacity": opacity },
      draw("title", {}, `global ${from} to client ${to}: ${Math.round(100 * share)} %`));
  });
  const change = `${(100 * moved).toFixed(1)} %`;
  const label = `Plan of ${layer} for client ${client}: ${shape[0]} channels onto ${shape[1]}, ${change} moved`;
  const frame = { viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: "none" };
  return make("figure", { class: "plan" },
    draw("svg", { ...frame, role: "img", "aria-label": label }, ...rects),
    make("figcaption", {},
      make("b", {}, layer), make("br"), `${shape[0]} → ${shape[1]}, moved ${change}`));
}

// The channels that one of so many parts of an axis stands for.
function channelsOf(part, parts, size) {
  const first = Math.ceil((part * size) / parts);
  const last = Math.ceil(((part + 1) * size) / parts) - 1;
  return first === last ? `channel ${first}` : `channels ${first} to ${last}`;
}

// A table with a strip per layer, from the first round to the last: the darker, the more moved.
function movedByRound({ moved: { layers, rounds, shares } }) {
  if (!layers.length) return [];
  const share = (value) => given(value, (v) => `${(100 * v).toFixed(1)} %`);
  const most = Math.max(...shares.flat());
  const opacity = (value) => (most ? (value / most).toFixed(3) : 0);
  const inRound = (place) => ({
    title: `round ${rounds.at(place)}`,
    value: ([, row]) => row.at(place),
    text: ([, row]) => share(row.at(place)),
  });
  const strip = ([layer, row]) => draw("svg", {
    class: "strip", viewBox: `0 0 ${row.length} 1`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Share of ${layer} that moved, by round`,
  }, ...row.map((value, i) => draw("rect", { x: i, y: 0, width: 1, height: 1, "fill-opacity": opacity(value) },
    draw("title", {}, `round ${rounds[i]}: ${share(value)}`))));
  const between = { title: "all rounds", isText: true, value: ([, row]) => mean(row), cell: strip };
  return [
    make("h3", {}, "How much moved, by layer and round"),
    make("p", {}, "The share of what clients receive that comes from a channel of another number, as a mean " +
      `over the clients of a round. What is blank stayed; the darkest is ${share(most)}.`),
    table("Share moved by layer and round", [
      { title: "layer", isText: true, value: ([layer]) => layer },
      inRound(0), between, ...(rounds.length > 1 ? [inRound(-1)] : []),
    ], layers.map((layer, i) => [layer, shares[i]])),
  ];
}

function distances({ series }) {
  const found = DISTANCES.filter(([name]) => series[name]);
  if (!found.length || series.round.length < 2) return [];
  const axes = { xLabel: "round", leastStep: 1, xText: String, yText: short };
  const chart = new LineChart("How far models moved", axes);
  const lines = found.map(([name, dash, about], i) => ({
    name: `${name}: ${about}`, colour: colour(i), dash, x: series.round, y: series[name],
  }));
  chart.show(lines);
  return [
    make("h3", {}, "How far models moved, by round"),
    make("p", {}, "Squared distances, means over the clients of a round."),
    chart.element,
    make("div", { class: "legend plain" }, ...lines.map((line) => make("span", {}, swatch(line), line.name))),
  ];
}
