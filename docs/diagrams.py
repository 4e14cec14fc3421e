"""Draws the pictures of the documents as SVG: `python docs/diagrams.py`.

Each picture is plain text with a style of its own, so that a forge shows it in its light or dark colors. In the site
the pictures are part of the page and take the colors of the chosen theme (`docs/assets/site.css`).
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import linen_like as nn
from liftcore import ExplainedLift

__all__ = ["ASSETS", "PICTURES", "Picture", "pictures"]

DOCS = Path(__file__).parent
ASSETS = DOCS / "assets"

STYLE = """
svg {
  --ink: #24292f; --soft: #57606a; --line: #6e7781;
  --outside: #eef1f4; --inside: #dbeafe; --value: #fff3c4; --gone: #f3f3f3;
}
@media (prefers-color-scheme: dark) {
  svg {
    --ink: #e6edf3; --soft: #b1bac4; --line: #8b949e;
    --outside: #30363d; --inside: #1f3a5f; --value: #4d4118; --gone: #22262b;
  }
}
.d-text { fill: var(--ink); font: 13px system-ui, sans-serif; }
.d-code { fill: var(--ink); font: 12px ui-monospace, monospace; }
.d-small { fill: var(--soft); font: 12px system-ui, sans-serif; }
.d-head { fill: var(--ink); font: 600 13px system-ui, sans-serif; }
.d-line { stroke: var(--line); stroke-width: 1.4; fill: none; }
.d-tip { fill: var(--line); }
.d-outside { fill: var(--outside); stroke: var(--line); }
.d-inside { fill: var(--inside); stroke: var(--line); }
.d-value { fill: var(--value); stroke: var(--line); }
.d-gone { fill: var(--gone); stroke: var(--line); stroke-dasharray: 4 3; }
"""


class Picture:
    """One picture, made of boxes, arrows and texts at given places.

    Args:
        title: a description for readers who cannot see the picture.
        width: of the picture, in pixels; it shrinks with the page.
        height: of the picture.
    """

    def __init__(self, title: str, width: int, height: int) -> None:
        self.title, self.width, self.height = title, width, height
        self.parts: list[str] = []

    def rect(self, x: int, y: int, w: int, h: int, kind: str, rx: int = 6) -> Picture:
        """A rectangle; `rx` is the radius of its corners."""
        self.parts.append(f'<rect class="d-{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{rx}"/>')
        return self

    def box(self, x: int, y: int, w: int, h: int, *lines: str, kind: str = "outside") -> Picture:
        """A box with centered lines. A line that begins with ` is code, with * a heading, and with ~ small."""
        self.rect(x, y, w, h, kind)
        first = y + h / 2 - 9 * (len(lines) - 1) + 4
        for number, line in enumerate(lines):
            self.text(x + w // 2, round(first + 18 * number), line, "middle")
        return self

    def frame(self, x: int, y: int, w: int, h: int, line: str, kind: str = "inside") -> Picture:
        """A box around others, with its name at the top left."""
        self.rect(x, y, w, h, kind)
        return self.text(x + 12, y + 20, line)

    def text(self, x: int, y: int, line: str, anchor: str = "start", kind: str = "text") -> Picture:
        """One line of text."""
        kind = {"`": "code", "*": "head", "~": "small"}.get(line[:1], kind)
        shown = escape(line.lstrip("`*~"), quote=False)
        self.parts.append(f'<text class="d-{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{shown}</text>')
        return self

    def arrow(self, *points: tuple[int, int], label: str = "") -> Picture:
        """A line through points, with a tip at the end and a label above its middle."""
        path = " ".join(f"{x},{y}" for x, y in points)
        (x0, y0), (x1, y1) = points[-2:]
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        corners = [(x1 - 8 * ux - 4 * side * uy, y1 - 8 * uy + 4 * side * ux) for side in (1, -1)]
        tip = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x1, y1), *corners])
        self.parts.append(f'<polyline class="d-line" points="{path}"/><polygon class="d-tip" points="{tip}"/>')
        if label:
            self.text((points[0][0] + points[1][0]) // 2, min(points[0][1], points[1][1]) - 7, f"~{label}", "middle")
        return self

    def svg(self) -> str:
        """The whole file."""
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" class="diagram" role="img">\n<title>{escape(self.title, quote=False)}</title>\n'
            f"<style>{STYLE}</style>\n{body}\n</svg>\n"
        )


# -- the whole ---------------------------------------------------------------------------------------------------------


def stages() -> Picture:
    """One call of a lifted function."""
    p = Picture("The six stages of one call of a lifted function", 760, 300)
    p.box(10, 20, 130, 50, "*scopes", "~variables, keys")
    p.arrow((140, 45), (180, 45)).box(180, 20, 140, 50, "*1 dedupe", "~outermost scopes")
    p.arrow((320, 45), (360, 45)).box(360, 20, 190, 50, "*2 filter", "~variables and keys in groups")
    p.frame(180, 105, 570, 90, "*3 transform")
    p.text(290, 125, "~jax.vmap, jax.lax.scan, jax.checkpoint, … or your own function")
    p.arrow((445, 70), (445, 105))
    p.box(195, 138, 170, 46, "*4 reconstruct", "~scopes at the same paths")
    p.arrow((365, 161), (390, 161)).box(390, 138, 150, 46, "`fn(scope, x)", "~your model")
    p.arrow((540, 161), (580, 161)).box(580, 138, 155, 46, "*5 repack", "~what changed")
    p.arrow((657, 195), (657, 230)).box(580, 230, 155, 50, "*6 commit", "~written back, checked")
    p.arrow((580, 255), (75, 255), (75, 70))
    p.text(330, 247, "~new values, created variables, names, counts of keys", "middle")
    return p


# -- each stage --------------------------------------------------------------------------------------------------------


def dedupe() -> Picture:
    """Scopes that are equal, or below one another."""
    p = Picture("Dedupe: four given scopes become two outermost ones, with a route to each", 760, 190)
    p.text(10, 18, "*given").text(320, 18, "*outermost").text(560, 18, "*routes")
    given = [("`a: /encoder", 52), ("`b: /encoder/dense", 52), ("`c: /encoder", 52), ("`d: /decoder", 132)]
    for number, (line, goal) in enumerate(given):
        y = 30 + 40 * number
        p.box(10, y, 180, 30, line).arrow((190, y + 15), (320, goal))
    p.box(320, 37, 160, 30, "`0: /encoder", kind="inside").box(320, 117, 160, 30, "`1: /decoder", kind="inside")
    for number, line in enumerate(("a, c: scope 0", 'b: scope 0, then "dense"', "d: scope 1")):
        p.text(560, 50 + 26 * number, line)
    return p


def filter_() -> Picture:
    """Variables and streams into groups."""
    p = Picture("Filter: the first filter that matches takes a variable; the others stay outside", 760, 210)
    p.text(10, 18, "*variables and streams").text(330, 18, "*groups")
    rows = [
        ("`params/w", '`"params"', "value"),
        ("`params/b", "", "value"),
        ("`cache/k", '`"cache"', "value"),
        ("`intermediates/y", "", "gone"),
    ]
    for number, (line, _, kind) in enumerate(rows):
        p.box(10, 30 + 42 * number, 190, 32, line, kind=kind)
    p.arrow((200, 46), (330, 60)).arrow((200, 88), (330, 74)).arrow((200, 130), (330, 130))
    p.box(330, 42, 190, 50, '`"params"', "~w and b, on axis 0", kind="inside")
    p.box(330, 112, 190, 36, '`"cache"', kind="inside")
    p.text(330, 178, "matches no filter: it stays outside,").text(330, 196, "and using it inside is an error")
    p.arrow((200, 172), (322, 174))
    p.box(570, 42, 180, 50, '`rngs "params"', "~split, one key for each", kind="inside")
    p.box(570, 112, 180, 36, '`rngs "dropout"', kind="inside")
    return p


def transform() -> Picture:
    """The groups go through JAX."""
    p = Picture("Transform: JAX maps, scans or compiles a pure function of the groups", 760, 150)
    p.box(10, 20, 170, 50, "*variable groups", "~arrays", kind="value").box(
        10, 85, 170, 50, "*rng groups", "~keys", kind="value"
    )
    p.arrow((180, 45), (250, 60)).arrow((180, 110), (250, 95))
    p.box(
        250,
        35,
        260,
        85,
        "*jax.vmap, jax.lax.scan, …",
        "~a pure function:",
        "~all state is in the groups",
        kind="inside",
    )
    p.arrow((510, 60), (580, 45)).arrow((510, 95), (580, 110))
    p.box(580, 20, 170, 50, "*result", kind="value").box(
        580, 85, 170, 50, "*output groups", "~values, created", kind="value"
    )
    return p


def reconstruct() -> Picture:
    """Groups become scopes inside."""
    p = Picture("Reconstruct: inside the transformation the groups become live scopes", 760, 140)
    p.box(10, 45, 190, 50, "*groups of one element", "`w: (3, 2), key", kind="value")
    p.frame(280, 10, 470, 120, "*inside the transformation")
    p.arrow((200, 70), (300, 70), label="`scope_fn").box(
        300, 45, 190, 50, "*scope at /encoder", "~same path as outside"
    )
    p.arrow((490, 70), (550, 70)).box(550, 45, 180, 50, "`fn(scope, x)", "~reads, draws, writes")
    return p


def repack() -> Picture:
    """What changed comes out."""
    p = Picture("Repack: only what the body wrote or created is returned", 760, 190)
    p.text(10, 18, "*the body …").text(300, 18, "*its output group")
    p.box(10, 30, 200, 36, "read params/w", kind="gone")
    p.box(10, 82, 200, 36, "wrote state/n", kind="value").box(10, 134, 200, 36, "created params/b", kind="value")
    p.text(300, 53, "nothing: what is only read is not copied")
    p.arrow((210, 48), (292, 48)).arrow((210, 100), (300, 100)).arrow((210, 152), (300, 152))
    p.box(300, 82, 200, 36, "`values: state/n", kind="inside").box(
        300, 134, 200, 36, "`created: params/b", kind="inside"
    )
    p.text(520, 105, "~its last value").text(520, 157, "~its first value")
    return p


def commit() -> Picture:
    """All or nothing."""
    p = Picture("Commit: the results are written to the scopes outside; after an error nothing is", 760, 150)
    p.box(10, 20, 180, 50, "*output groups", "~values, created", kind="value")
    p.box(10, 90, 180, 50, "*record", "~names taken, keys drawn", kind="value")
    p.arrow((190, 45), (280, 65)).arrow((190, 115), (280, 95))
    p.box(280, 50, 170, 60, "*6 commit", "~checks, then writes", kind="inside")
    p.arrow((450, 65), (560, 45)).arrow((450, 95), (560, 115))
    p.box(560, 20, 190, 50, "*scopes outside", "~changed as a whole")
    p.box(560, 90, 190, 50, "*scopes inside", "~ended", kind="gone")
    return p


# -- what happens to … -------------------------------------------------------------------------------------------------


def variable() -> Picture:
    """A variable through a lift with an axis."""
    p = Picture("A variable with axis 0 goes through vmap", 760, 200)
    p.text(10, 18, "*a variable")
    p.box(10, 60, 150, 50, "`state/n", "~outside: shape (5, 3)", kind="value")
    p.frame(240, 10, 280, 180, "*vmap over 5 elements")
    for number in range(3):
        y = 40 + 46 * number
        name = ("element 0", "element 1", "element 4")[number]
        p.box(260, y, 110, 40, f"~{name}", "`(3,)", kind="value").arrow((370, y + 20), (410, y + 20))
        p.box(410, y, 90, 40, "`n += 1")
    p.arrow((160, 85), (240, 85), label="slice").arrow((520, 85), (600, 85), label="stack")
    p.box(600, 60, 150, 50, "`state/n", "~outside: shape (5, 3)", kind="value")
    p.text(600, 135, "~written back by commit")
    p.text(10, 135, "~axis None: the same value").text(10, 151, "~for all; no axis: an error")
    return p


def key() -> Picture:
    """A key through a lift."""
    p = Picture("An RNG stream is split, passed on, or not lifted", 760, 210)
    p.text(10, 18, "*a key").box(10, 80, 150, 50, '`rngs["dropout"]', "~the root key", kind="value")
    rows = [
        ('`split_rngs={"dropout": True}', "another key in each element"),
        ('`split_rngs={"dropout": False}', "the same key in all elements"),
        ("`not named in split_rngs", "drawing is an error"),
    ]
    for number, (line, what) in enumerate(rows):
        y = 30 + 60 * number
        p.arrow((160, 105), (225, y + 22)).box(
            225, y, 245, 44, line, f"~{what}", kind="gone" if number == 2 else "inside"
        )
    p.box(540, 30, 210, 62, '`make_rng("dropout")', "~folds in the path of the scope", "~and the number of keys drawn")
    p.arrow((470, 52), (540, 58)).arrow((470, 112), (540, 70))
    p.text(540, 120, "~Lifts are not in the path, so").text(540, 138, "~jit and remat change no key.")
    return p


def created() -> Picture:
    """A value that the body creates."""
    p = Picture("A variable that a body creates is made outside the transformation, before it runs", 760, 210)
    p.text(10, 18, "*a created value, in init")
    p.box(10, 40, 210, 56, '`scope.param("w", init_fn)', "~the trace tags its value", kind="inside")
    p.arrow((220, 68), (280, 68)).box(280, 36, 200, 64, "*prologue", "~init_fn(key), outside;", "~mapped for axis 0")
    p.arrow((480, 68), (540, 68)).box(540, 40, 210, 56, "*remainder", "~takes w as an input", kind="inside")
    p.arrow((380, 100), (380, 140)).box(280, 140, 200, 50, "*commit", "~params/w is created outside")
    p.arrow((280, 165), (220, 165)).box(
        10, 140, 210, 50, "`params/w: (5, 3, 2)", "~as it comes from init", kind="value"
    )
    return p


def prologue() -> Picture:
    """One trace, cut in two."""
    p = Picture("One trace of the body is cut into a prologue and a remainder", 760, 230)
    p.text(10, 18, "*one trace of the body").text(290, 18, "*prologue: runs first").text(540, 18, "*remainder: loops")
    rows = ["`k = fold_in(key, …)", "`w = normal(k, (3, 2))", "`h = x @ w", "`y = tanh(h)"]
    for number, line in enumerate(rows):
        y = 32 + 44 * number
        first = number < 2
        p.box(10, y, 200, 34, line, kind="value" if first else "inside")
        x, goal = (290, y) if first else (540, y)
        p.arrow((210, y + 17), (x, goal + 17)).box(x, goal, 190, 34, line, kind="value" if first else "inside")
    p.arrow((480, 93), (510, 93), (510, 128), (540, 128)).text(518, 112, "~w")
    p.text(290, 222, "~what initial values need").text(540, 222, "~under jax.lax.scan, jit, …")
    return p


# -- the architecture --------------------------------------------------------------------------------------------------


def levels() -> Picture:
    """The levels of liftcore, from the top down, with the styles above them."""
    p = Picture("The levels of liftcore: each imports only from those below it", 760, 306)
    for number, style in enumerate(("linen_like", "equinox_like", "pax_like", "nnx_like")):
        p.box(10 + 187 * number, 10, 177, 36, f"`{style}")
    p.text(380, 68, "~import only public names of liftcore", "middle")
    rows = [
        ("`lift/", "~one transformation per file: its options, and one runner"),
        ("`runners/", "~how a body is run: mapped, in a loop, as a branch, compiled, …"),
        ("`pipeline/", "~six stages, and a body in two parts"),
        ("`scopes/", "~variables, names and RNG streams of one place"),
        ("`filters/  rng  meta  rest  errors  …", "~values without a model"),
    ]
    beside = ["`nn/  diagnostics/", "", "`entry  checkpoints/", "`saving/", ""]
    for number, ((name, what), other) in enumerate(zip(rows, beside, strict=True)):
        y = 80 + 44 * number
        p.box(10, y, 560 if other else 740, 38, name, what, kind="inside")
        if other:
            p.box(580, y, 170, 38, other)
    return p


def three_lifts() -> Picture:
    """A parameter through `scan(vmap(jit(f)))`."""
    p = Picture(
        "A parameter w in the init of scan(vmap(jit(f))): traced inward, computed and committed outward", 760, 346
    )
    p.frame(10, 10, 740, 326, "*scan: traces its body, on types", kind="outside")
    p.frame(26, 44, 708, 218, "*vmap: traces its body, for one element", kind="inside")
    p.frame(42, 78, 676, 112, "*jit: traces f", kind="outside")
    p.box(54, 112, 160, 62, '`scope.param("w", …)', "~draws a key,", "~tags the value", kind="value")
    rows = [
        (112, "~the equations of w", "~jax.jit; takes w", "~w in the scope of vmap"),
        (200, "~those equations, mapped", "~jax.vmap; takes w", "~w in the scope of scan"),
        (276, "~once, before the loop", "~jax.lax.scan; takes w", "~w in the scope of init"),
    ]
    for y, prologue, remainder, commit in rows:
        p.arrow((214, y + 27), (232, y + 27)) if y == 112 else p.text(60, y + 30, "~on the way out:")
        p.box(232, y, 156, 50, "*prologue", prologue, kind="value").arrow((388, y + 25), (404, y + 25))
        p.box(404, y, 142, 50, "*remainder", remainder).arrow((546, y + 25), (562, y + 25))
        p.box(562, y, 148, 50, "*commit", commit, kind="value")
    return p


def crossing() -> Picture:
    """Objects of `nnx_like` through a lift."""
    p = Picture("The crossing of objects into a scope, through a lift, and back", 760, 210)
    p.box(10, 30, 120, 50, "*objects", "~may be shared").arrow((130, 55), (214, 55), label="walk")
    p.box(214, 20, 180, 70, "*definition, values", "~the static part as a Ref,", "~the values by group", kind="value")
    p.arrow((394, 55), (440, 55))
    p.frame(440, 10, 310, 190, "*one lift of liftcore")
    p.box(456, 42, 278, 36, "scope: each group is a collection", kind="outside")
    p.arrow((595, 78), (595, 92)).box(456, 92, 278, 36, "objects made of the inner scope", kind="outside")
    p.arrow((595, 128), (595, 142)).box(
        456, 142, 278, 46, "`fn", "~then a second walk finds what changed", kind="value"
    )
    p.arrow((440, 165), (394, 165)).box(
        214, 135, 180, 60, "*changes", "~values, attributes,", "~new objects", kind="value"
    )
    p.arrow((214, 165), (70, 165), (70, 80)).text(142, 158, "~leave", "middle")
    return p


# -- what tabulate and explain show ------------------------------------------------------------------------------------

LINE, PAD, LETTER = 18, 9, 7.3
"""Sizes in a table: the height of a line, the space around the text of a cell, and the width of a character."""

TREATMENTS = {"axis": "inside", "split": "inside", "broadcast": "value", "carry": "outside"}
"""The color of each treatment by a lift, by its first word. Other treatments have no color."""


def run_block(page: str, start: str) -> dict[str, Any]:
    """Run the first block of a page that contains a text, and return the names that it defines."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = {"__name__": "__main__", "jax": jax, "jnp": jnp, "nn": nn, "key": jax.random.key(0)}
    code = next(block for block in blocks if start in block)
    exec(compile(code, page, "exec", dont_inherit=True), names)  # its annotations are evaluated, unlike those here
    return names


def tabulated() -> Picture:
    """The table of the model in the tutorial."""
    model = run_block("getting-started.md", "class Classifier(")["Classifier"]()
    summary = nn.summarize(model, jax.random.key(0), depth=1)(jnp.ones((1, 64)))
    html = ElementTree.fromstring(summary._repr_html_())
    title, _, caption = html.findtext("caption", "").partition(". ")
    rows = [[(cell.text or "").split("\n") for cell in row] for row in html.iter("tr")]
    longest = [max(len(line) for cell in column for line in cell) for column in zip(*rows, strict=True)]
    widths = [round(LETTER * length) + 2 * PAD for length in longest]
    left, y, middle = 10, 30, 10 + sum(widths) // 2
    p = Picture(f"{title}: the table of nn.tabulate", sum(widths) + 2 * left, 0)
    p.text(middle, 18, f"*{title}", "middle")
    for number, row in enumerate(rows):
        kind, mark = {0: ("inside", "*"), len(rows) - 1: ("outside", "`")}.get(number, ("line", "`"))
        height = LINE * max(map(len, row)) + PAD
        x = left
        for width, cell in zip(widths, row, strict=True):
            p.rect(x, y, width, height, kind, rx=0)
            for below, line in enumerate(cell, 1):
                if line:
                    p.text(x + PAD, y + LINE * below, mark + line)
            x += width
        y += height
    p.text(middle, y + 24, f"*{caption}", "middle")
    p.height = y + 36
    return p


def explained() -> Picture:
    """The lifts of the model on the page about `explain`."""
    found = run_block("seeing.md", "nn.explain(")["found"]
    p = Picture(f"The lifts of {found.name}, and how each treats every variable", 790, 0)
    for x, line in ((28, "variable"), (262, "type"), (372, "filter"), (440, "treatment"), (562, "effect of the body")):
        p.text(x, 18, f"*{line}")
    y = 30
    for lift in found.lifts:
        y = _explained(p, lift, 10, y) + 10
    p.height = y
    return p


def _explained(p: Picture, lift: ExplainedLift, x: int, top: int) -> int:
    """Draw a lift with those inside it, and return the bottom of its frame."""
    rows = [("/".join(one.path), one.type, one.group, one.treatment, one.fate) for one in lift.variables]
    rows += [(f"rng {one.name}", "", one.group, one.treatment, f"{one.drawn} drawn") for one in lift.streams]
    y = top + 32
    for name, type_, group, treatment, effect in rows:
        p.text(x + 18, y + 16, f"`{name}").text(262, y + 16, f"`{type_}").text(372, y + 16, f"`{group or '-'}")
        short = re.split(", | between ", treatment)[0]
        kind = TREATMENTS.get(short.split()[0])
        if kind:
            p.rect(440, y + 1, 110, 22, kind)
        p.text(495, y + 16, f"~{short}", "middle").text(562, y + 16, f"~{effect}")
        y += 27
    for inner in lift.lifts:
        y = _explained(p, inner, x + 14, y + 5) + 5
    bottom = y + 5
    p.frame(x, top, p.width - 2 * x, bottom - top, f"*{lift.name} at {lift.where}", kind="line")
    return bottom


# -- what it costs -----------------------------------------------------------------------------------------------------

MEASURED = {
    "trace a transformer of 24 blocks": "trace of `apply`, transformer of 24 blocks",
    "trace and lower a scan over 24 blocks": "trace and lower, `scan` over 24 blocks",
    "trace four nested scans": "trace of `apply`, 4 nested scans",
    "call 50 layers without jit": "`apply` without `jit`, 50 dense layers",
}
"""For each group of bars, the row of the first table in `docs/performance.md` that has its numbers."""
STEP = {"linen_like": "linen_like, the same operations", "flax.linen": "flax.linen, the same operations"}
"""The rows of the table of accelerators in which the time of a training step stands."""
KINDS = {"linen_like": "inside", "flax.linen": "outside", "Equinox": "gone"}
"""The color of each library."""
END = 4.0
"""The longest bar; those of larger numbers are cut off."""


def costs() -> Picture:
    """Times relative to hand-written JAX, as the tables in `docs/performance.md` have them."""
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|"))
    cells = {row[0]: row[1:] for row in rows}
    groups = {}
    for label, row in MEASURED.items():
        _, linen, flax, equinox = (float(cell.rstrip("x ")) if cell else None for cell in cells[row][:4])
        groups[label] = {"linen_like": linen, "flax.linen": flax, "Equinox": equinox}
    by_hand, *_ = _milliseconds(cells["JAX by hand, attention by cuDNN (two runs)"][0])
    groups["a training step on an H200"] = {
        name: _milliseconds(cells[row][0])[0] / by_hand for name, row in STEP.items()
    }
    p = Picture("Times relative to hand-written JAX: shorter bars are faster", 760, 0)
    y = 30
    p.text(282, 18, "~1 x is hand-written JAX; a shorter bar is faster")
    for label, times in groups.items():
        p.text(10, y + 14, label)
        for name, time in times.items():
            if time is not None:
                width = round(84 * min(time, END))
                p.rect(282, y, width, 16, KINDS[name], rx=2)
                p.text(288 + width, y + 13, f"~{'… ' if time > END else ''}{time:.2f} x {name}")
                y += 20
        y += 12
    p.parts.append(f'<polyline class="d-line" points="366,24 366,{y - 8}" stroke-dasharray="3 3"/>')
    p.height = y
    return p


def _milliseconds(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) ms", cell)]


# -- the examples ------------------------------------------------------------------------------------------------------


def four_styles() -> Picture:
    """The model of `examples/four_styles.py`."""
    p = Picture("One model in four styles: a function of a scope, a Linen-style module, an object, a pytree", 760, 216)
    p.box(10, 52, 150, 70, "*stem", "~a function of a scope", "`liftcore")
    p.arrow((160, 87), (196, 87))
    p.frame(196, 16, 370, 120, "`nn.scan(nn.remat(Block), length=4)")
    p.box(210, 52, 160, 70, "*dense", "~a Linen-style module", "`linen_like")
    p.arrow((370, 87), (392, 87)).box(392, 52, 160, 70, "*residual", "~an object", "`nnx_like")
    p.arrow((566, 87), (600, 87)).box(600, 52, 150, 70, "*head", "~a pytree", "`equinox_like")
    p.text(10, 24, "~The lift in_bfloat16").text(10, 40, "~is around all four parts.")
    for x in (85, 290, 472, 675):
        p.arrow((x, 122), (x, 166))
    return p.box(10, 166, 740, 40, "*one checkpoint", kind="value")


def shards() -> Picture:
    """A kernel of `examples/sharded_training.py` on two meshes."""
    p = Picture("A kernel on a mesh of 4 x 2 devices, and the same kernel on a mesh of 2 x 4 devices", 760, 236)
    for left, rows, columns, what in ((90, 4, 2, "trained"), (470, 2, 4, "restored")):
        width, height = 280 // columns, 176 // rows
        p.text(left + 140, 18, f"*{what} on data {rows} x model {columns}", "middle")
        p.text(left + 140, 40, "~mlp, 64: over model", "middle")
        p.text(left - 8, 134, "~embed, 32:", "end").text(left - 8, 150, "~over data", "end")
        for place in range(rows * columns):
            row, column = divmod(place, columns)
            shard = f"`{32 // rows} x {64 // columns}"
            kind = ("value", "inside")[(row + column) % 2]
            p.box(left + width * column, 50 + height * row, width, height, shard, kind=kind)
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "lift-stages.svg": stages,
    "lift-1-dedupe.svg": dedupe,
    "lift-2-filter.svg": filter_,
    "lift-3-transform.svg": transform,
    "lift-4-reconstruct.svg": reconstruct,
    "lift-5-repack.svg": repack,
    "lift-6-commit.svg": commit,
    "lift-variable.svg": variable,
    "lift-key.svg": key,
    "lift-created.svg": created,
    "lift-prologue.svg": prologue,
    "architecture-levels.svg": levels,
    "three-lifts.svg": three_lifts,
    "costs.svg": costs,
    "crossing.svg": crossing,
    "explain.svg": explained,
    "four-styles.svg": four_styles,
    "shards.svg": shards,
    "tabulate.svg": tabulated,
}
"""The function that draws each file of `docs/assets`."""


def pictures() -> dict[str, str]:
    """The text of each file, by its name."""
    return {name: draw().svg() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    for name, text in pictures().items():
        (ASSETS / name).write_text(text, encoding="utf-8")
