// What the runs cost: bytes, multiply-adds, and where the seconds went.

function showCost(page, all) {
  const runs = all.filter((run) => run.summary.bytes_down !== undefined);
  if (!runs.length) return fill("cost");
  const column = (title, name, text) => ({
    title, bar: true, value: (run) => run.summary[name], text: (run) => text(run.summary[name]),
  });
  return fill("cost", table("Cost of the runs", [
    { title: "run", isText: true, value: (run) => run.label },
    column("parameters", "parameters", whole),
    column("multiply-adds", "multiply_adds", whole),
    column("MB down", "bytes_down", megabytes),
    column("MB up", "bytes_up", megabytes),
    { title: "rejected uploads", value: (run) => run.summary.num_rejected },
  ], runs));
}

function showPhases(page, all) {
  const phasesOf = (run) => run.summary.phases ?? {};
  const runs = all.filter((run) => Object.keys(phasesOf(run)).length);
  if (!runs.length) return fill("phases");
  const phases = [...new Set(runs.flatMap((run) => Object.keys(phasesOf(run))))].sort();
  const total = (run) => Object.values(phasesOf(run)).reduce((sum, value) => sum + value, 0);
  const longest = Math.max(...runs.map(total));
  const legend = phases.map((phase, i) => make("span", {}, block(i), phase));
  const stack = (run) => make("span", { class: "stack", "aria-hidden": "true" },
    ...phases.map((phase, i) => block(i, (phasesOf(run)[phase] ?? 0) / longest)));
  return fill("phases", make("div", { class: "legend plain" }, ...legend), table("Seconds by phase", [
    { title: "run", isText: true, value: (run) => run.label },
    { title: "all phases", isText: true, value: total, cell: stack },
    ...phases.map((phase) => ({
      title: phase, value: (run) => phasesOf(run)[phase], text: (run) => seconds(phasesOf(run)[phase]),
    })),
    { title: "whole run", value: (run) => run.summary.seconds, text: (run) => seconds(run.summary.seconds) },
  ], runs));
}

// A block of a colour, as wide as a share of what it lies in.
function block(index, share = null) {
  const element = make("i", { class: "block", "aria-hidden": "true" });
  element.style.background = colour(index);
  if (share !== null) element.style.width = `${100 * share}%`;
  return element;
}
