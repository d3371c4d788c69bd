// Settings in which the runs differ, those they share, what they were made with, and what is odd.

function showSettings(page, runs) {
  const keys = Object.keys(runs[0].settings);
  const isOdd = (key) => new Set(runs.map((run) => JSON.stringify(run.settings[key]))).size > 1;
  const odd = keys.filter(isOdd);
  const shared = keys.filter((key) => !isOdd(key)).map((key) => [key, runs[0].settings[key]]);
  const common = { ...page.common, ...Object.fromEntries(shared) };
  const parts = [];
  if (odd.length) {
    parts.push(make("h3", {}, "Where runs differ"), table("Settings that differ", [
      { title: "run", isText: true, value: (run) => run.label },
      ...odd.map((key) => ({ title: key, isText: true, value: (run) => plain(run.settings[key]) })),
      { title: "folder", isText: true, value: (run) => run.path },
    ], runs));
  }
  parts.push(make("h3", {}, odd.length ? "The same in all" : "Settings"), pairs(common));
  const places = [...new Set(runs.map((run) => run.environment))];
  for (const place of places) {
    const own = runs.filter((run) => run.environment === place).map((run) => run.label);
    const title = places.length > 1 ? `Environment of ${named(own)}` : "Environment";
    parts.push(make("h3", {}, title), pairs(page.environments[place]));
  }
  fill("settings", ...parts);
}

function named(runs) {
  return runs.length > 3 ? `${runs.length} runs` : runs.join("; ");
}

function pairs(values) {
  return make("dl", { class: "pairs" }, ...Object.entries(values).map(([key, value]) =>
    make("div", {}, make("dt", {}, key), make("dd", {}, plain(value)))));
}

function showNotices(page, runs) {
  const namesOf = (list) => new Set(list.flatMap((run) => [run.label, run.group_label]));
  const [shown, every] = [namesOf(runs), namesOf(page.runs)];
  const isShown = (name) => shown.has(name) || !every.has(name);
  const found = page.notices
    .map(({ about, text }) => ({ about: about.filter(isShown), text }))
    .filter(({ about }) => about.length);
  const items = found.map(({ about, text }) => make("li", {},
    make("b", {}, named(about)), `: ${text}`));
  fill("notices", ...(items.length ? [make("ul", { class: "notice" }, ...items)] : []));
}

function showPictures(page) {
  fill("pictures", ...page.pictures.map(({ caption, source }) => make("figure", { class: "picture" },
    make("img", { src: source, alt: caption }), make("figcaption", {}, caption))));
}
