"""What MkDocs is told beside mkdocs.yml: which pages there are, and where links to files outside
docs/ lead.

Kept results are pages of the site too. Other files of the repository (sources, README) are named
without a link.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
Config = Any
Nav = list[Any]


def on_config(config: Config) -> Config:
    docs = Path(config.docs_dir)
    nav = _present(config.nav, docs)
    named = set(re.findall(r"[\w./-]+\.md", str(nav)))
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    others = [page for page in pages if page not in named]
    agents = [page for page in others if page.startswith("agents/")]
    nav = [{"Agents": agents} if "Agents" in entry else entry for entry in nav]
    rest = [page for page in others if page not in agents]
    config.nav = [*nav, {"More": rest}] if rest else nav
    return config


def _present(nav: Nav, docs: Path) -> Nav:
    """Without the pages that are not there."""
    entries: Nav = []
    for (title, target), *_ in (list(entry.items()) for entry in nav):
        if isinstance(target, list):
            entries.append({title: _present(target, docs)})
        elif (docs / target).exists():
            entries.append({title: target})
    return entries


def on_files(files: Files, config: Config) -> Files:
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in {".md", ".svg"} and path.name != "README.md":
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for file in files:
        if file.src_uri.startswith("results/"):
            file.inclusion = file.inclusion.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Page, config: Config, files: Files) -> str:
    """Links as they are in the repository, made to hold in the site."""
    # a page under results/ lies beside docs/ in the repository, within it in the site
    inside = page.file.src_uri.startswith("results/")
    folder = Path(page.file.src_uri).parent if inside else Path("docs", page.file.src_uri).parent

    def moved(match: re.Match[str]) -> str:
        picture, text, link = match.groups()
        target, _, anchor = link.partition("#")
        if not target or "://" in target:
            return match[0]
        path = _normal(folder / target)
        name = path.removeprefix("docs/")
        if files.get_file_from_path(name) is None:
            elsewhere = (ROOT / path).exists() and not path.startswith("docs/")
            return text if elsewhere else match[0]  # MkDocs warns of what is nowhere
        where = _relative(name, page.file.src_uri) + (f"#{anchor}" if anchor else "")
        return f"{picture}[{text}]({where})"

    return LINK.sub(moved, markdown)


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _relative(name: str, source: str) -> str:
    depth = source.count("/")
    return "../" * depth + name
