"""The report page in a real browser: it opens, it answers, and its numbers are the records'."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import report, write_run

from subflot.reporting.page import render
from subflot.results import RunRecord, find_runs

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver import ActionChains, Keys  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no Chromium with chromedriver: apt-get install chromium chromium-driver",
)

HOSTILE = "<script>window.isHacked = true</script><img src=x onerror='window.isHacked = true'>"
MINUS = "\N{MINUS SIGN}"
METHODS = ("fedavg", "heterofl", "subflot")


class Page:
    """A page in the browser, and how a reader gets at it."""

    def __init__(self, browser: Any, records: list[RunRecord], path: Path) -> None:
        self.browser, self.records, self.path = browser, records, path

    def all(self, selector: str) -> list[WebElement]:
        found: list[WebElement] = self.browser.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> WebElement:
        (found,) = self.all(selector)
        return found

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def button(self, name: str, within: str) -> WebElement:
        (found,) = [one for one in self.all(f"{within} button") if one.text.strip() == name]
        return found

    def choose(self, section: str, number: int, text: str) -> None:
        select = self.all(f"#{section} select")[number]
        (option,) = [o for o in select.find_elements("tag name", "option") if o.text == text]
        option.click()

    def rows(self, table: str) -> list[dict[str, tuple[str, str]]]:
        """Each row of a table: column -> value and text."""
        script = """
            const read = (cell) => [cell.dataset.column, cell.dataset.value, cell.textContent];
            const rows = [...document.querySelectorAll(arguments[0] + " tbody tr")];
            return rows.map((row) => [...row.children].map(read));
        """
        found = self.browser.execute_script(script, f"[aria-label='{table}']")
        return [{column: (value, text) for column, value, text in row} for row in found]

    def hover(self, share: float) -> None:
        """Point at the curves, so far from left to right."""
        plot = self.one("#curves .plot")
        width = plot.size["width"] - 66  # Without the margins.
        offset = 52 + share * width - plot.size["width"] / 2
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
        ActionChains(self.browser).move_to_element_with_offset(plot, round(offset), 0).perform()

    def values(self) -> dict[str, str]:
        """What the box beside the cursor says: name -> value."""
        names, values = self.texts("#curves .values .name"), self.texts("#curves .values .value")
        return dict(zip(names, values, strict=True))

    def lines(self) -> list[str]:
        return [str(line.get_attribute("data-line")) for line in self.all("#curves [data-line]")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    profile = tmp_path_factory.mktemp("profile")
    # No sandbox: tests may run as root. No shared memory: containers have little.
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


CHANNELS = {
    "ignores_budgets": False,
    "model": "net",
    "data": "digits",
    "rates": [0.0, 0.5],
    "spaces": [
        {"name": "conv", "channels": 4, "kept": [4, 2], "num_tensors": 3, "frozen": ""},
        {"name": "head", "channels": 10, "kept": [10, 10], "num_tensors": 2, "frozen": "output"},
    ],
    "tensors": [["conv.weight", "4 x 1", "conv | -"]],
}
PICTURE = {
    "layer": "conv.weight",
    "shape": [4, 2],
    "grid": [4, 2],
    "cells": "_00__000",
    "moved": 0.25,
}
PLAN = {"client": 3, "pruning_rate": 0.5, "round": 5, "num_layers": 1, "layers": [PICTURE]}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RunRecord], Path]:
    root = tmp_path_factory.mktemp("runs")
    for i, method in enumerate(METHODS):
        rounds = [
            [report(c, 2 + 2 * number + 2 * c + i * (c - 1)) for c in range(4)]
            for number in range(5)
        ]
        channels = {**CHANNELS, "ignores_budgets": method == "fedavg"}
        plans = [PLAN] if method == "subflot" else []
        noted: dict[str, Any] = {"channels": channels, "plans": plans}
        write_run(root / method, rounds, algorithm=method, name=HOSTILE, **noted)
    records = list(find_runs(root))
    path = root / "report.html"
    path.write_text(render(records, root))
    return records, path


@pytest.fixture
def page(browser: Any, file: tuple[list[RunRecord], Path]) -> Callable[..., Page]:
    def opened(width: int = 1280, scheme: str = "light") -> Page:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get("about:blank")
        browser.get_log("browser")  # Reading the log empties it.
        browser.get(file[1].as_uri())
        return Page(browser, *file)

    return opened


def number(text: str) -> float:
    return float(text.replace("%", "").replace(",", "").replace(MINUS, "-").strip())


def test_it_opens_without_errors_and_asks_for_nothing(page: Callable[..., Page]) -> None:
    shown = page()
    assert shown.browser.get_log("browser") == []
    requests = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert [r for r in shown.browser.execute_script(requests) if not r.startswith("data:")] == []
    sections = [s.get_attribute("id") for s in shown.all("main section") if s.is_displayed()]
    expected = "overview curves clients widths cost phases channels plans settings"
    assert sections == expected.split()
    assert len(shown.all("nav a")) == len(sections)


def test_markup_in_records_is_shown_and_not_run(page: Callable[..., Page]) -> None:
    shown = page()
    assert shown.browser.execute_script("return window.isHacked") is None
    assert HOSTILE in shown.one("#settings").text
    assert shown.all("main img") == []


def test_the_overview_holds_the_numbers_of_the_records(page: Callable[..., Page]) -> None:
    shown = page()
    rows = shown.rows("Runs")
    assert [row["run"][1] for row in rows] == ["fedavg *", "heterofl", "subflot"]
    for row, record in zip(rows, shown.records, strict=True):
        summary = record.summary()
        for name in ("trained", "worst", "extracted", "global"):
            assert float(row[name][0]) == summary[name]
            assert number(row[name][1]) == pytest.approx(100 * summary[name], abs=0.00501)
        sent = summary["bytes_down"] + summary["bytes_up"]
        assert number(row["parameters"][1]) == round(summary["parameters"])
        assert float(row["MB sent"][0]) == sent
        assert number(row["MB sent"][1]) == pytest.approx(sent / 1e6, abs=0.0501)
        assert float(row["seconds"][0]) == summary["seconds"]
        assert (row["rounds"][1], row["seed"][1]) == ("5", "0")


def test_cost_and_phases_hold_the_numbers_of_the_records(page: Callable[..., Page]) -> None:
    shown = page()
    tables = shown.rows("Cost of the runs"), shown.rows("Seconds by phase")
    for cost, phases, record in zip(*tables, shown.records, strict=True):
        summary = record.summary()
        assert float(cost["multiply-adds"][0]) == summary["multiply_adds"]
        assert float(cost["MB down"][0]) == summary["bytes_down"]
        assert float(cost["MB up"][0]) == summary["bytes_up"]
        for phase, seconds in summary["phases"].items():
            assert float(phases[phase][0]) == seconds


def test_clients_are_compared_one_by_one(page: Callable[..., Page]) -> None:
    shown = page()
    shown.choose("clients", 0, "subflot")
    shown.choose("clients", 1, "heterofl")
    last = {r.folder.name: r.rounds[-1]["clients"] for r in shown.records}
    rows = shown.rows("Accuracy of every client")
    assert len(rows) == 4
    differences = []
    for row in rows:
        place = last["subflot"]["client"].index(int(row["client"][0]))
        ours, theirs = (last[m]["trained_correct"][place] / 20 for m in ("subflot", "heterofl"))
        assert float(row["trained"][0]) == ours
        assert float(row["baseline"][0]) == theirs
        assert number(row["difference"][1]) == pytest.approx(100 * (ours - theirs))
        differences.append(ours - theirs)
    assert differences == sorted(differences, reverse=True)
    gain, lose = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    assert gain > 0
    assert lose > 0
    assert shown.one("#clients .verdict strong").text == f"{gain} gain, {lose} lose"
    assert len(shown.all("#clients rect.gain")) == gain
    assert len(shown.all("#clients rect.loss")) == lose


def test_hovering_shows_the_values_of_the_round(page: Callable[..., Page]) -> None:
    shown = page()
    for share, line in ((0.0, 0), (0.5, 2), (0.98, 4)):
        shown.hover(share)
        assert shown.one("#curves .values strong").text == f"round {line + 1}"
        found = shown.values()
        assert set(found) == set(METHODS)
        for record in shown.records:
            expected = 100 * record.rounds[line]["trained"]["mean"]
            assert number(found[record.folder.name]) == pytest.approx(expected, abs=0.00501)


def test_runs_and_accuracies_can_be_switched_off_and_on(page: Callable[..., Page]) -> None:
    shown = page()
    assert shown.lines() == list(METHODS)
    heterofl = shown.button("heterofl", "#curves")
    heterofl.click()
    assert heterofl.get_attribute("aria-pressed") == "false"
    assert shown.lines() == ["fedavg", "subflot"]
    shown.button("global", "#curves").click()
    shown.button("trained", "#curves").click()
    shown.hover(1.0)
    for record in (shown.records[0], shown.records[2]):
        expected = 100 * record.rounds[-1]["global"]["accuracy"]
        assert number(shown.values()[record.folder.name]) == pytest.approx(expected, abs=0.00501)
    shown.button("No run", "#curves").click()
    assert shown.lines() == []
    shown.button("All runs", "#curves").click()
    assert shown.lines() == list(METHODS)
    assert shown.browser.get_log("browser") == []


def test_curves_can_be_drawn_against_bytes(page: Callable[..., Page]) -> None:
    shown = page()
    shown.choose("curves", 0, "MB sent")
    shown.hover(1.0)
    (sent,) = {sum(x["bytes_down"] + x["bytes_up"] for x in r.rounds) for r in shown.records}
    label = shown.one("#curves .values strong").text.removeprefix("MB sent ")
    assert float(label) == pytest.approx(sent / 1e6, rel=1e-3)


def ticks(shown: Page) -> list[str]:
    return [text for text in shown.texts("#curves .plot > text") if text.isdigit()]


def test_dragging_zooms_and_a_button_shows_all_again(page: Callable[..., Page]) -> None:
    shown = page()
    assert ticks(shown) == ["1", "2", "3", "4", "5"]
    shown.hover(0.4)
    ActionChains(shown.browser).click_and_hold().move_by_offset(400, 0).release().perform()
    assert ticks(shown) == ["3"]
    shown.button("Zoom out", "#curves").click()
    assert len(ticks(shown)) > 1
    shown.button("Show all", "#curves").click()
    assert ticks(shown) == ["1", "2", "3", "4", "5"]


def test_of_many_runs_one_experiment_is_shown_at_first(browser: Any, tmp_path: Path) -> None:
    for i in range(62):
        write_run(tmp_path / f"run{i:02}", [[report(0, 5)]], name=f"half{i % 2}", seed=i)
    records = list(find_runs(tmp_path))
    path = tmp_path / "report.html"
    path.write_text(render(records, tmp_path))
    browser.get(path.as_uri())
    shown = Page(browser, records, path)
    shown.button("Each run", "#overview").click()
    assert {row["run"][0].partition(":")[0] for row in shown.rows("Runs")} == {"half0"}
    (every,) = [one for one in shown.all("#filter option") if one.text == "all experiments"]
    every.click()
    shown.button("Each run", "#overview").click()
    assert len(shown.rows("Runs")) == 62
    assert browser.get_log("browser") == []


def test_curves_answer_to_keys(page: Callable[..., Page]) -> None:
    shown = page()
    plot = shown.one("#curves .plot")
    plot.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert shown.one("#curves .values strong").text == "round 2"
    plot.send_keys("+")
    assert ticks(shown) == ["1", "2", "3"]
    plot.send_keys("0", Keys.ESCAPE)
    assert ticks(shown) == ["1", "2", "3", "4", "5"]
    assert not shown.one("#curves .values").is_displayed()


def test_a_heading_sorts_its_column_both_ways_by_keyboard(page: Callable[..., Page]) -> None:
    shown = page()
    expected = sorted(shown.records, key=lambda record: float(record.summary()["trained"]))
    names = [record.folder.name for record in expected]
    shown.button("trained", "#overview").send_keys(Keys.ENTER)
    assert [row["run"][0] for row in shown.rows("Runs")] == names[::-1]
    ActionChains(shown.browser).send_keys(Keys.ENTER).perform()  # The heading kept the focus.
    assert [row["run"][0] for row in shown.rows("Runs")] == names
    assert shown.one("#overview th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_the_tab_key_reaches_every_control_and_each_has_a_name(page: Callable[..., Page]) -> None:
    shown = page()
    script = """
        const seen = [...document.querySelectorAll("a, button, select, summary, [tabindex]")];
        const isShown = (element) => element.checkVisibility();
        const own = (e) => (e.tagName === "SELECT" ? "" : e.textContent); // Options name no list.
        const label = (e) => e.closest("label")?.firstChild.textContent;
        const name = (e) => e.getAttribute("aria-label") || label(e) || own(e);
        return seen.filter(isShown).map((element) => [element.tabIndex, name(element).trim()]);
    """
    controls = shown.browser.execute_script(script)
    assert len(controls) > 30
    assert [name for index, name in controls if index != 0 or not name] == []
    ActionChains(shown.browser).send_keys(Keys.TAB).perform()
    assert shown.browser.switch_to.active_element.text == "Skip to the runs"
    ActionChains(shown.browser).send_keys(Keys.TAB).perform()
    assert shown.browser.switch_to.active_element.get_attribute("id") == "theme"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_switched(
    page: Callable[..., Page], scheme: str
) -> None:
    shown = page(scheme=scheme)
    script = "return getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    other = "dark" if scheme == "light" else "light"
    assert shown.browser.execute_script(script) == colours[scheme]
    shown.one("#theme").click()
    assert shown.browser.execute_script(script) == colours[other]
    assert shown.one("#theme").text.lower() == scheme


def test_a_phone_scrolls_down_and_not_sideways(page: Callable[..., Page]) -> None:
    shown = page(width=360)
    script = "return [document.documentElement.scrollWidth, innerWidth]"
    assert shown.browser.execute_script(script) == [360, 360]
    shown.one("#widths summary").click()
    assert shown.browser.execute_script(script) == [360, 360]


def test_plans_and_channel_maps_are_drawn(page: Callable[..., Page]) -> None:
    shown = page()
    cells = shown.all("#plans .plan rect")
    places = [(cell.get_attribute("y"), cell.get_attribute("x")) for cell in cells]
    assert places == [("0", "0"), ("1", "1"), ("2", "0")]  # Cells 0, 3 and 4 of four rows by two.
    assert shown.one("#plans figcaption").text == "conv.weight\n4 → 2, moved 25.0 %"
    (row,) = shown.rows("Share moved by layer and round")
    told = row["layer"][1], row["round 1"][1], row["round 5"][1]
    assert told == ("conv.weight", "18.8 %", "18.8 %")  # The mean of none to three eighths.
    strip = shown.all("#plans .strip rect")
    assert [cell.get_attribute("fill-opacity") for cell in strip] == ["1.000"] * 5
    rows = shown.rows("Channel spaces of net")
    assert [row["at rate 0.5"][1] for row in rows] == ["2", "10"]
    assert [row["cut?"][1] for row in rows] == ["yes", "no: output"]
