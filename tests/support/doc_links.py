"""Links and what they lead to, in Markdown and in the site that is made of it."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", re.M | re.S)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
_LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(\S+)", re.M)
_ATTRIBUTE = re.compile(r"(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?) *#*$", re.M)
_EXPLICIT = re.compile(r"<a (?:id|name)=\"([^\"]+)\"|\{ ?#([^ }]+)[^}]*\}")
_REFERENCE = re.compile(r"^::: (\S+)$", re.M)


def markdown_links(text: str) -> list[str]:
    """Those of a page, but not in its code."""
    prose = _CODE.sub("``", _FENCED.sub("", text))
    found = [one or other for one, other in _LINK.findall(prose)]
    return found + _ATTRIBUTE.findall(prose)


def markdown_anchors(text: str) -> set[str]:
    """What `page.md#...` may name, as a forge and as the site have it."""
    prose = _FENCED.sub("", text)
    anchors = {one or other for one, other in _EXPLICIT.findall(prose)}
    anchors |= set(_REFERENCE.findall(prose))
    seen: dict[str, int] = {}
    for heading in _HEADING.findall(prose):
        title = re.sub(r"\{ ?#[^}]*\}$", "", heading).strip()
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        anchors.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        anchors.add(f"{slug}_{seen[slug]}")
    return anchors


def is_outside(link: str) -> bool:
    """Whether it leads elsewhere."""
    return bool(urlsplit(link).scheme or link.startswith("//"))


def broken_in_markdown(page: Path, root: Path) -> list[str]:
    """Links of a page that lead nowhere in the repository."""
    broken = []
    for link in markdown_links(page.read_text()):
        path, _, anchor = link.partition("#")
        if is_outside(link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(root):
            broken.append(f"{link}: no such file")
        elif (
            anchor
            and target.suffix == ".md"
            and anchor not in markdown_anchors(target.read_text())
        ):
            broken.append(f"{link}: no such heading")
    return broken


@dataclass
class HtmlPage(HTMLParser):
    """What a page of the site links to, loads, and can be linked by."""

    text: str
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag == "link" and attributes.get("rel") not in ("canonical", "alternate"):
            self.loads.append(attributes["href"])
        elif "src" in attributes:
            self.loads.append(attributes["src"])


class Site:
    """A site that has been built.

    Args:
        directory: Where.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pages = {
            path.relative_to(directory).as_posix(): HtmlPage(path.read_text())
            for path in sorted(directory.rglob("*.html"))
        }

    def broken(self, name: str) -> list[str]:
        """Links of a page, and what it loads, that lead nowhere in the site."""
        page = self.pages[name]
        return [
            link
            for link in dict.fromkeys(page.links + page.loads)
            if not is_outside(link) and not self._leads_somewhere(name, link)
        ]

    def _leads_somewhere(self, name: str, link: str) -> bool:
        path, _, anchor = unquote(link).partition("#")
        path = path.partition("?")[0]
        if path.startswith("/"):
            target = path.removeprefix("/")
        else:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if not path:
            target = name
        file = self.directory / target
        if file.is_dir():
            file /= "index.html"
        if not file.exists():
            return False
        if not anchor or file.suffix != ".html" or anchor.startswith("__"):
            return True
        return anchor in self.pages[file.relative_to(self.directory).as_posix()].ids
