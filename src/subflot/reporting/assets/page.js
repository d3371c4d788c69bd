// The page: read what it holds, then show it section by section.

const SECTIONS = [
  showNotices, showOverview, showCurves, showClients, showWidths, showCost, showPhases,
  showChannels, showPlans, showPictures, showSettings,
];

function show(page, experiment) {
  const runs = page.runs.filter((run) => !experiment || run.experiment === experiment);
  for (const section of SECTIONS) section(page, runs);
  const sections = [...document.querySelectorAll("main section")].filter((section) => !section.hidden);
  document.querySelector("nav").replaceChildren(...sections.map((section) =>
    make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent.replace(/:.*/, ""))));
}

function offerThemes() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const control = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { control.textContent = isDark() ? "Light" : "Dark"; };
  control.setAttribute("aria-label", "Switch between light and dark");
  control.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();
}

const MANY_RUNS = 60; // Beyond these, one experiment is shown at first.

const page = JSON.parse(document.getElementById("records").textContent);
const experiments = [...new Set(page.runs.map((run) => run.experiment))];
const shownAtFirst = page.runs.length > MANY_RUNS && experiments.length > 1 ? experiments[0] : "";
if (experiments.length > 1) {
  const options = [["", "all experiments"], ...experiments.map((name) => [name, name])];
  const filter = chooser("show", options, shownAtFirst, (chosen) => show(page, chosen));
  document.getElementById("filter").append(filter);
}
offerThemes();
show(page, shownAtFirst);
