"""The documentation's pages: every link leads somewhere, and every page is reached from the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("", "docs", "manager", "kernels", "emulator")


def pages(root: Path) -> list[Path]:
    """The Markdown files that belong to the documentation, those in folders of `docs` included."""
    found = {path for folder in FOLDERS for path in (root / folder).glob("*.md")} | set((root / "docs").rglob("*.md"))
    return sorted(found)


def links(page: Path) -> list[str]:
    """What a page links to within the repository; code is left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    titles = re.findall(r"^#+ +(.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def problems(root: Path) -> list[str]:
    """Links that lead nowhere, and pages under `docs` that no path of links from README.md reaches."""
    said = []
    leads: dict[Path, set[Path]] = {}
    for page in pages(root):
        leads[page] = set()
        for link in links(page):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                said.append(f"{page.relative_to(root)}: {link} does not exist")
            elif anchor and target.suffix == ".md" and anchor not in headings(target):
                said.append(f"{page.relative_to(root)}: {link}: no such heading")
            leads[page].add(target / "README.md" if target.is_dir() else target)
    reached, ahead = set(), [root / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += leads.get(page, ())
    said += [f"{page.relative_to(root)}: not reached from README.md" for page in leads if page not in reached]
    return said


def test_every_link_leads_somewhere_and_every_page_is_reached() -> None:
    assert problems(ROOT) == []


@pytest.mark.parametrize(
    ("readme", "said"),
    [
        ("[a](docs/a.md) [b](docs/a.md#two-words)", []),
        ("[a](docs/)", ["docs/a.md: not reached from README.md"]),
        ("[a](docs/a.md) [c](docs/c.md)", ["README.md: docs/c.md does not exist"]),
        ("[a](docs/a.md#three)", ["README.md: docs/a.md#three: no such heading"]),
        ("`[a](docs/a.md)` [w](https://example.org)", ["docs/a.md: not reached from README.md"]),
    ],
)
def test_what_is_noticed(tmp_path: Path, readme: str, said: list[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(readme)
    (tmp_path / "docs" / "a.md").write_text("# One\n\n## Two words\n")
    assert problems(tmp_path) == said
