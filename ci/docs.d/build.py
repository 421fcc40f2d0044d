"""Builds the documentation and checks it against the program and files: see ci/docs.

Reads its repository, writes into one folder, and ends with 1 if a statement of a
page is wrong.
"""

import html
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse

from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin

PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md",
         "ci/**/README.md", "thresholds/README.md", "tests/recorded/README.md", "reports/*.md"]
STYLE = """body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color:#1a1a1a}
pre{background:#f4f4f4;padding:.8rem;overflow:auto}code{font:14px/1.4 ui-monospace,monospace}
table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3rem .5rem;text-align:left;vertical-align:top}
img{max-width:100%}nav{font-size:14px;border-bottom:1px solid #ccc;padding-bottom:.5rem}
@media print{nav{display:none}}"""


def slug(title):
    """GitHub's anchor of a heading."""
    kept = "".join(c for c in title.strip().lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def parser():
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).use(
        anchors_plugin, max_level=6, slug_func=slug)


class Page:
    def __init__(self, path):
        self.path = path
        self.text = path.read_text()
        self.tokens = parser().parse(self.text)
        self.anchors = {t.attrs["id"] for t in self.tokens if t.type == "heading_open"}
        first = next((i for i, t in enumerate(self.tokens) if t.type == "heading_open"), None)
        self.title = self.tokens[first + 1].content if first is not None else str(path)

    def inline(self):
        for token in self.tokens:
            if token.type == "inline":
                line = (token.map or [0])[0] + 1
                for child in token.children:
                    yield line, child

    def links(self):
        for line, token in self.inline():
            for name in ("href", "src"):
                if name in token.attrs:
                    yield line, token.attrs[name]

    def commands(self):
        """fabricgate's command lines: in blocks, and in sentences."""
        for token in self.tokens:
            if token.type in ("fence", "code_block"):
                start = token.map[0] + (2 if token.type == "fence" else 1)
                joined, at = "", start
                for offset, line in enumerate(token.content.split("\n")):
                    if not joined:
                        at = start + offset
                    joined += line
                    if joined.endswith("\\"):
                        joined = joined[:-1] + " "
                        continue
                    yield at, joined
                    joined = ""
        for line, token in self.inline():
            if token.type == "code_inline":
                yield line, token.content


def words_of(line):
    """The arguments after `fabricgate`, or None for another line."""
    line = line.strip().removeprefix("$ ")
    # Of a synopsis: optional parts and alternatives are left out.
    line = re.sub(r"\[-[^\]]*\]", " ", re.sub(r" {4,}[^#\s].*", "", line))
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return None
    # Leading variables, and commands that run it as another user.
    while words and ("=" in words[0] and words[0].split("=")[0].isidentifier()):
        words = words[1:]
    if words[:2] == ["sudo", "-u"]:
        words = words[3:]
    if words[:2] == ["runuser", "-u"]:
        words = words[4:] if words[3:4] == ["--"] else words[3:]
    if words[:1] == ["sudo"]:
        words = words[1:]
    if words[:2] == ["cargo", "run"] and "--" in words:
        words = ["fabricgate"] + words[words.index("--") + 1:]
    if not words or words[0] not in ("fabricgate", "target/release/fabricgate", "/usr/bin/fabricgate"):
        return None
    kept = []
    for word in words[1:]:
        if word and word[0] in ";&|<>":
            break
        kept.append(word)
    return kept


def alternatives(line):
    """`a|b` in a synopsis stands for two commands."""
    parts = line.split(" ")
    for at, part in enumerate(parts):
        if "|" in part.strip("|") and part.replace("|", "").replace("-", "").isalpha():
            return [found for choice in part.split("|")
                    for found in alternatives(" ".join(parts[:at] + [choice] + parts[at + 1:]))]
    return [line]


def is_accepted(binary, words):
    # Placeholders are left out: `...`, `[--rounds]`.
    kept = [w for w in words if w != "..." and not (w.startswith("[-") or w in ("[NODE...]", "[NODE]..."))]
    kept = [w.removesuffix("...") for w in kept]
    front, behind = (kept[:kept.index("--")], kept[kept.index("--"):]) if "--" in kept else (kept, [])
    if not front and not behind:
        return None
    ran = subprocess.run([binary, *front, "--help", *behind], capture_output=True, text=True,
                         stdin=subprocess.DEVNULL, timeout=60, env={"COLUMNS": "100"})
    return None if ran.returncode == 0 else ran.stderr.strip().split("\n")[0]


def target(page, link, tracked):
    """The file of the repository that a link leads to, or None."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(link).path)
    if not path:
        return page.path
    found = pathlib.Path(*[]) / (page.path.parent / path)
    parts = []
    for part in found.parts:
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
        elif part == "..":
            return None
    found = pathlib.Path(*parts) if parts else pathlib.Path(".")
    is_folder = any(it.startswith(f"{found}/") for it in tracked)
    return found if str(found) in tracked or is_folder or found == pathlib.Path(".") else None


def render(page, pages):
    """The page, with links between pages led to the built ones."""
    for _, token in page.inline():
        link = token.attrs.get("href", "")
        parts = urllib.parse.urlsplit(link)
        if not parts.scheme and parts.path.endswith(".md"):
            token.attrs["href"] = urllib.parse.urlunsplit(parts._replace(path=parts.path[:-3] + ".html"))
    body = parser().renderer.render(page.tokens, parser().options, {})
    up = "../" * (len(page.path.parts) - 1)
    nav = f'<nav><a href="{up}README.html">fabricgate</a> · <a href="{up}docs/README.html">documentation</a></nav>'
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(page.title)}</title><style>{STYLE}</style>{nav}\n{body}</html>\n")


def main():
    out, binary = pathlib.Path(sys.argv[1]), str(pathlib.Path(sys.argv[2]).resolve())
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    tracked = {it for it in listed.stdout.split("\n") if it and pathlib.Path(it).exists()}
    paths = sorted({p for pattern in PAGES for p in pathlib.Path(".").glob(pattern) if str(p) in tracked})
    pages = {path: Page(path) for path in paths}
    wrong, external, links, commands, asked = [], set(), 0, 0, {}

    for page in pages.values():
        for line, link in page.links():
            if urllib.parse.urlsplit(link).scheme:
                external.add(f"{link}\t{page.path}")
                continue
            links += 1
            found = target(page, link, tracked)
            anchor = urllib.parse.urlsplit(link).fragment
            if found is None:
                wrong.append(f"{page.path}:{line}: {link}: there is no such file here")
            elif anchor and found in pages and anchor not in pages[found].anchors:
                wrong.append(f"{page.path}:{line}: {link}: {found} has no such heading")
        for line, text in page.commands():
            for text in alternatives(text):
                words = words_of(text)
                if not words or words[0].isupper():
                    continue
                commands += 1
                key = tuple(words)
                if key not in asked:
                    asked[key] = is_accepted(binary, words)
                if asked[key]:
                    wrong.append(f"{page.path}:{line}: `{text.strip()}`: {asked[key]}")

    entry = pages.get(pathlib.Path("docs/README.md"))
    maps = [entry, pages.get(pathlib.Path("docs/decisions/README.md"))]
    on_map = {str(target(page, link, tracked)) for page in maps if page for _, link in page.links()}
    for path in pages:
        if path.parts[0] == "docs" and path.name != "README.md" and str(path) not in on_map:
            wrong.append(f"{path}: it is not on the map, docs/README.md")

    shutil.rmtree(out, ignore_errors=True)
    for path, page in pages.items():
        place = out / path.with_suffix(".html")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(render(page, pages))
    for image in tracked:
        if image.startswith("docs/") and not image.endswith(".md"):
            (out / image).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(image, out / image)
    (out / "external.txt").write_text("".join(f"{it}\n" for it in sorted(external)))
    print(f"docs: {len(pages)} pages in {out}, {links} links and {commands} command lines checked "
          f"({len(asked)} different), {len(external)} external links listed in {out}/external.txt")
    for it in wrong:
        print(f"docs: {it}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


main()
