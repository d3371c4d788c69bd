"""What the README shows works as shown."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_in_the_readme_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def test_the_readme_has_python_and_no_dead_links() -> None:
    assert BLOCKS
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    for link in links:
        assert (Path(__file__).parents[1] / link).exists(), link
