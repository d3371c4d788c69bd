// Clients of one run against those of another, and what each of them could hold.

function rowsOf({ clients }) {
  const columns = Object.entries(clients);
  const row = (i) => Object.fromEntries(columns.map(([name, values]) => [name, values[i]]));
  return (clients.client ?? []).map((_, i) => row(i));
}

function haveSameClients(one, other) {
  return JSON.stringify(one.same_clients) === JSON.stringify(other.same_clients);
}

function showClients(page, all) {
  const runs = all.filter((run) => rowsOf(run).some((row) => row.trained !== null));
  if (!runs.length) return fill("clients");
  const controls = make("div", { class: "controls" });
  const host = make("div");

  function show(run, baseline) {
    const others = runs.filter((other) => other !== run && haveSameClients(run, other));
    const base = others.includes(baseline) ? baseline : others[0] ?? null;
    const byLabel = (list) => list.map((one) => [runs.indexOf(one), one.label]);
    controls.replaceChildren(
      chooser("run", byLabel(runs), runs.indexOf(run), (i) => show(runs[i], base)),
      ...(base ? [chooser("against", byLabel(others), runs.indexOf(base), (i) => show(run, runs[i]))] : []));
    const rows = compared(run, base);
    host.replaceChildren(...(base ? [verdict(rows), differences(rows, run, base)] : [
      make("p", { class: "hint" }, "There is no other run on the same clients to compare it with.")]),
      clientTable(rows, base));
  }

  const [first, ...others] = runs;
  show(others.find((run) => haveSameClients(run, first)) ?? first, first);
  return fill("clients", controls, host);
}

// Clients count as the same if they were tested on as many examples.
function compared(run, base) {
  const other = new Map(base ? rowsOf(base).map((row) => [row.client, row]) : []);
  return rowsOf(run).map((row) => {
    const match = other.get(row.client);
    const theirs = match && match.num_test === row.num_test ? match.trained : null;
    const isBoth = theirs !== null && row.trained !== null;
    return { ...row, theirs, difference: isBoth ? row.trained - theirs : null };
  });
}

function verdict(rows) {
  const found = rows.map((row) => row.difference).filter((value) => value !== null);
  const gain = found.filter((value) => value > 0).length;
  const lose = found.filter((value) => value < 0).length;
  return make("p", { class: "verdict" }, make("strong", {}, `${gain} gain, ${lose} lose`),
    `, ${found.length - gain - lose} are as before; on average ${points(mean(found))} points.`);
}

function differences(rows, run, base) {
  const found = rows.filter((row) => row.difference !== null).sort((a, b) => b.difference - a.difference);
  const [width, height] = [720, 200];
  const most = Math.max(0, ...found.map((row) => Math.abs(row.difference)));
  const y = (value) => height / 2 - (value / (most || 1)) * (height / 2 - 14);
  const each = width / Math.max(1, found.length);
  const bars = found.map((row, i) => draw("rect", {
    class: ["loss", "even", "gain"][Math.sign(row.difference) + 1],
    x: i * each + each * 0.1, width: each * 0.8,
    y: Math.min(y(0), y(row.difference)) - 0.5, height: Math.abs(y(row.difference) - y(0)) + 1,
  }, draw("title", {}, `client ${row.client}: ${points(row.difference)} points`)));
  const label = `Difference of every client's accuracy, ${run.label} against ${base.label}`;
  const frame = { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" };
  return make("figure", {},
    draw("svg", { class: "differences", ...frame, role: "img", "aria-label": label },
      draw("line", { class: "rule", x1: 0, x2: width, y1: y(0), y2: y(0) }), ...bars),
    make("figcaption", {}, "One bar per client, from the largest gain to the largest loss; " +
      `the longest is ${(100 * most).toFixed(2)} points.`));
}

function clientTable(rows, base) {
  return table("Accuracy of every client", [
    { title: "client", value: (row) => row.client },
    { title: "trained", value: (row) => row.trained, text: (row) => percent(row.trained) },
    ...(base ? [
      { title: "baseline", value: (row) => row.theirs, text: (row) => percent(row.theirs) },
      { title: "difference", value: (row) => row.difference, text: (row) => points(row.difference) },
    ] : []),
    { title: "extracted", value: (row) => row.extracted, text: (row) => percent(row.extracted) },
    { title: "pruning rate", value: (row) => row.pruning_rate },
    { title: "test examples", value: (row) => row.num_test, text: (row) => whole(row.num_test) },
  ], rows, { isTall: true, sortBy: base ? "difference" : null });
}

function showWidths(page, all) {
  const runs = all.filter((run) => rowsOf(run).length);
  if (!runs.length) return fill("widths");
  const host = make("div");
  const show = (run) => host.replaceChildren(widthTable(rowsOf(run)),
    make("details", {}, make("summary", {}, "Every client"), budgetTable(rowsOf(run))));
  show(runs[0]);
  const options = runs.map((run, i) => [i, run.label]);
  return fill("widths",
    make("div", { class: "controls" }, chooser("run", options, 0, (i) => show(runs[i]))), host);
}

function widthTable(rows) {
  const rates = [...new Set(rows.map((row) => row.pruning_rate))].sort((a, b) => a - b);
  const each = rates.map((rate) => {
    const own = rows.filter((row) => row.pruning_rate === rate);
    const average = (name) => mean(own.map((row) => row[name]).filter((value) => value != null));
    const names = ["num_examples", "trained", "parameters", "multiply_adds", "bytes"];
    return { rate, clients: own.length, ...Object.fromEntries(names.map((name) => [name, average(name)])) };
  });
  return table("Means over the clients of one width", [
    { title: "width", value: (row) => 1 - row.rate, text: (row) => `${short(100 * (1 - row.rate))} %` },
    { title: "clients", value: (row) => row.clients },
    { title: "trained", value: (row) => row.trained, text: (row) => percent(row.trained) },
    { title: "examples", value: (row) => row.num_examples, text: (row) => whole(row.num_examples) },
    { title: "parameters", bar: true, value: (row) => row.parameters, text: (row) => whole(row.parameters) },
    {
      title: "multiply-adds", bar: true,
      value: (row) => row.multiply_adds, text: (row) => whole(row.multiply_adds),
    },
    { title: "MB sent", bar: true, value: (row) => row.bytes, text: (row) => megabytes(row.bytes) },
  ], each);
}

function budgetTable(rows) {
  return table("What every client could hold", [
    { title: "client", value: (row) => row.client },
    { title: "pruning rate", value: (row) => row.pruning_rate },
    { title: "examples", value: (row) => row.num_examples, text: (row) => whole(row.num_examples) },
    { title: "parameters", bar: true, value: (row) => row.parameters, text: (row) => whole(row.parameters) },
    { title: "multiply-adds", value: (row) => row.multiply_adds, text: (row) => whole(row.multiply_adds) },
    { title: "MB sent", value: (row) => row.bytes, text: (row) => megabytes(row.bytes) },
    { title: "rounds", value: (row) => row.rounds },
    { title: "rejected", value: (row) => row.rejected },
  ], rows, { isTall: true });
}
