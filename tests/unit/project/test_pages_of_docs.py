"""Tests that links and tables in the README and the docs are not broken."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
PAGES = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").rglob("*.md"))]


def links_of(page: Path) -> list[str]:
    """Yields the relative links and pictures of a page, except those in code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in links if not link.startswith(("https://", "http://"))]


def anchors_of(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and GitLab generate them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(REPO), link
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_a_link_that_shows_the_name_of_a_file_leads_to_it(page: Path) -> None:
    shown = r"\[`(?:[\w./-]*/)?([\w-]+\.(?:md|py|toml|yaml))`\]\(([^)#\s]+)\)"
    for name, link in re.findall(shown, page.read_text(encoding="utf-8")):
        assert Path(link).name == name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_table_has_a_head_and_rows_of_one_width(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, line, *rows = [re.sub(r"`[^`]*`|\\\|", "", row) for row in [*table.splitlines(), ""]]
        assert re.fullmatch(r"\|[ :|-]+\|", line), f"no line below {head!r}: is there an empty line in the table?"
        assert {row.count("|") for row in [line, *rows[:-1]]} == {head.count("|")}, f"rows unlike {head!r}"


def test_every_page_of_the_docs_can_be_reached_from_the_readme() -> None:
    reached, ahead = set[Path](), [REPO / "README.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links_of(page)}
        ahead += [target for target in targets if target.suffix == ".md" and target not in reached]
    assert {page for page in PAGES if page.is_relative_to(REPO / "docs")} <= reached


def test_files_that_the_text_names_exist() -> None:
    folders = "a2rl|agents|docs|flows|scripts|stages|tasks|tests"
    for page in PAGES:
        for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text(encoding="utf-8")):
            assert (REPO / path).exists(), f"{page.name}: {path}"
