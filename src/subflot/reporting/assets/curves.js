// Accuracy curves: which runs, which of the accuracies, and against what.

const KINDS = [["trained", null], ["extracted", "7 4"], ["global", "2 3"], ["worst", "9 3 2 3"]];
const AGAINST = {
  round: { xLabel: "round", leastStep: 1, xText: String, read: (series) => series.round },
  bytes: { xLabel: "MB sent", leastStep: 0, xText: short, read: ({ bytes }) => bytes.map((b) => b / 1e6) },
  seconds: { xLabel: "seconds", leastStep: 0, xText: short, read: (series) => series.seconds },
};

function showCurves(page, all) {
  const runs = all.filter((run) => KINDS.some(([kind]) => run.series[kind]));
  if (!runs.length) return fill("curves");
  const shown = new Set(runs);
  const kinds = new Set(["trained"]);
  let against = AGAINST.round;
  let pointed = null;
  const chart = new LineChart("Accuracy curves", {
    ...against,
    yText: (share, isExact) => (isExact ? percent(share) : `${short(100 * share)} %`),
  });

  function update(changes = {}) {
    const drawn = runs.filter((run) => shown.has(run));
    const lines = drawn.flatMap((run) => curvesOf(run, kinds, against.read(run.series)));
    const isFaint = (line) => pointed !== null && shown.has(pointed) && line.run !== pointed;
    chart.show(lines.map((line) => ({ ...line, isFaint: isFaint(line) })), changes);
  }
  function put(set, item, isIn) {
    if (isIn) set.add(item);
    else set.delete(item);
    update();
  }
  function point(run) {
    pointed = run;
    update();
  }

  const legend = make("div", { class: "legend", role: "group", "aria-label": "Runs" });
  function showAll(isShown) {
    for (const run of runs) put(shown, run, isShown);
    legend.replaceChildren(...runs.map((run) => toggle(
      [swatch({ colour: colour(run.group), dash: null }), run.label],
      isShown, (isIn) => put(shown, run, isIn),
      { mouseenter: () => point(run), mouseleave: () => point(null) })));
  }
  showAll(true);
  const accuracies = KINDS.map(([kind, dash]) => toggle(
    [swatch({ colour: "var(--text)", dash }), kind], kinds.has(kind), (isIn) => put(kinds, kind, isIn)));
  const axes = Object.entries(AGAINST).map(([key, { xLabel }]) => [key, xLabel]);
  const axis = chooser("against", axes, "round", (key) => {
    against = AGAINST[key];
    update({ window: null, ...against });
  });
  const isSparse = runs.some((run) => run.series.round.length < run.summary.round);
  return fill("curves",
    make("div", { class: "controls" },
      make("div", { class: "choice", role: "group", "aria-label": "Accuracies" }, ...accuracies), axis),
    chart.element,
    legend,
    ...(runs.length > 2 ? [make("div", { class: "controls" },
      button("All runs", () => showAll(true)), button("No run", () => showAll(false)))] : []),
    ...(isSparse ? [make("p", { class: "hint" }, "Not every round has a point: " +
      "rounds without measurements are skipped, and long runs are thinned.")] : []));
}

function curvesOf(run, kinds, x) {
  return KINDS.filter(([kind]) => kinds.has(kind) && run.series[kind]).map(([kind, dash]) => ({
    run, name: kinds.size > 1 ? `${run.label}, ${kind}` : run.label,
    colour: colour(run.group), dash, x, y: run.series[kind],
  }));
}
