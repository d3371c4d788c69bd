// One line per run, or per group of runs that differ in their seed alone.

const ACCURACIES = ["trained", "worst", "extracted", "global"];
const COSTS = [
  ["parameters", "parameters", whole],
  ["bytes", "MB sent", megabytes],
  ["seconds", "seconds", seconds],
];

function showOverview(page, runs) {
  const groups = page.groups.filter((_, i) => runs.some((run) => run.group === i));
  const host = make("div");
  const byRun = () => host.replaceChildren(runTable(runs));
  const bySeed = () => host.replaceChildren(groupTable(groups));
  const hasSeeds = groups.some((group) => group.num_runs > 1);
  const kinds = [["mean", "Mean over seeds"], ["each", "Each run"]];
  const rows = choice("Rows", kinds, "mean", (kind) => (kind === "mean" ? bySeed : byRun)());
  const note = make("p", { class: "hint" }, "* ignores budgets: every client trains the full model");
  (hasSeeds ? bySeed : byRun)();
  fill("overview",
    ...(hasSeeds ? [rows] : []),
    host,
    ...(runs.some((run) => run.ignores_budgets) ? [note] : []));
}

function runTable(runs) {
  return table("Runs", [
    { title: "run", isText: true, value: (run) => run.label, text: marked },
    ...ACCURACIES.map((name) => ({
      title: name, best: bestWithin(runs),
      value: (run) => run.summary[name], text: (run) => percent(run.summary[name]),
    })),
    ...COSTS.map(([name, title, text]) => ({
      title, value: (run) => run.summary[name], text: (run) => text(run.summary[name]),
    })),
    { title: "rounds", value: (run) => run.summary.round, text: roundsOf },
    { title: "seed", value: (run) => run.seed },
  ], runs);
}

function groupTable(groups) {
  const spread = (group, name, text) => {
    const around = group[`${name}_spread`];
    const value = text(group[name]);
    return around === null ? value : `${value.replace(" %", "")} ± ${text(around)}`;
  };
  const column = (name, title, text, best) => ({
    title, best, value: (group) => group[name], text: (group) => spread(group, name, text),
  });
  return table("Means over seeds, with standard deviations", [
    { title: "run", isText: true, value: (group) => group.label, text: marked },
    ...ACCURACIES.map((name) => column(name, name, percent, bestWithin(groups))),
    ...COSTS.map(([name, title, text]) => column(name, title, text)),
    { title: "seeds", value: (group) => group.num_finished, text: seedsOf },
  ], groups);
}

// Accuracies on different data have no best.
function bestWithin(rows) {
  return new Set(rows.map((row) => row.experiment)).size === 1 ? "high" : null;
}

function marked({ label, ignores_budgets: isMarked }) {
  return isMarked ? `${label} *` : label;
}

function roundsOf({ summary, rounds, is_finished: isFinished }) {
  return isFinished ? `${summary.round}` : `${summary.round} of ${rounds}`;
}

function seedsOf({ num_finished: finished, num_runs: all }) {
  return finished === all ? `${all}` : `${finished} of ${all}`;
}
