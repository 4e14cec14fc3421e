"""How a summary is drawn as text and HTML, and how notebooks show a module."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import InvalidInstanceModuleError
from linen_like.summary import summarize, tabulate
from linen_like.summary.html import mimebundle, module_html
from tests.linen.test_summary import KEY, Encoder, Lifted, X, f32

# treescope looks at every public name of JAX, those that an older one deprecates among them.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")

# -- text --------------------------------------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in names else find(name, *rest))


def test_the_plain_table(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "rich")
    table = tabulate(Encoder(), KEY)(X, scale=2.0)
    expected = [
        "                                      Encoder Summary",
        "path   module     inputs          outputs       params                batch_stats",
        "-----  ---------  --------------  ------------  --------------------  ----------------",
        "       Encoder    - float32[5,3]  float32[5,2]",
        "                  - scale: 2.0",
        "-----  ---------  --------------  ------------  --------------------  ----------------",
        "first  Dense      float32[5,3]    float32[5,4]  bias: float32[4]",
        "                                                kernel: float32[3,4]",
        "",
        "                                                16 (64 B)",
        "-----  ---------  --------------  ------------  --------------------  ----------------",
        "norm   BatchNorm  float32[5,4]    float32[5,4]  bias: float32[4]      mean: float32[4]",
        "                                                scale: float32[4]     var: float32[4]",
        "",
        "                                                8 (32 B)              8 (32 B)",
        "-----  ---------  --------------  ------------  --------------------  ----------------",
        "last   Dense      float32[5,4]    float32[5,2]  bias: float32[2]",
        "                                                kernel: float32[4,2]",
        "",
        "                                                10 (40 B)",
        "-----  ---------  --------------  ------------  --------------------  ----------------",
        "                                  Total         34 (136 B)            8 (32 B)",
        "",
        "Total Parameters: 34 (136 B), all variables: 42 (168 B)",
    ]
    lines = table.splitlines()
    assert lines[1].strip() == expected[0].strip()
    assert [lines[0], *lines[2:]] == ["", *expected[1:]]
    assert str(summarize(Encoder(), KEY)(X, scale=2.0)) == table.strip("\n")


def test_the_table_of_rich_has_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    tabulated = tabulate(Lifted(), KEY, console_kwargs={"width": 250, "force_terminal": False}, compute_flops=True)
    drawn = tabulated(X)
    without(monkeypatch, "rich")
    plain = tabulated(X)
    frame = str.maketrans(dict.fromkeys("┏━┳┓┃┡╇┩│├─┼┤└┴┘-", " "))
    assert sorted(drawn.translate(frame).split()) == sorted(plain.translate(frame).split())


def test_options_reach_rich() -> None:
    pytest.importorskip("rich")
    text = tabulate(
        nn.Dense(2),
        KEY,
        console_kwargs={"width": 120, "force_terminal": False},
        table_kwargs={"title": "A title"},
        column_kwargs={"min_width": 20},
    )(X)
    assert "A title" in text
    assert "Dense Summary" not in text
    assert len(text.splitlines()[2]) > 100
    assert "\x1b" not in text
    assert "\x1b" in tabulate(nn.Dense(2), KEY)(X)


def test_brackets_in_values_are_no_markup() -> None:
    class Says(nn.Module):
        def __call__(self, word: str) -> str:
            return word

    assert "[bold]" in tabulate(Says(), KEY, console_kwargs={"force_terminal": False})("[bold]")


def test_methods_and_nested_values_are_shown() -> None:
    text = str(summarize(Encoder(), KEY, method="half")(X))
    assert "Encoder (half)" in text
    assert "half: float32[5,4]" in text

    class Takes(nn.Module):
        def __call__(self, *args: Any) -> Any:
            return {"pairs": [(1, None)]}

    lines = str(summarize(Takes(), KEY)("x" * 100, nn.Dense(2), jax.nn.relu)).splitlines()
    assert any("pairs:" in line for line in lines)
    assert any("- - 1" in line for line in lines)
    assert any("…" in line for line in lines)
    assert any("- Dense" in line for line in lines)
    assert lines[-1] == "Total Parameters: 0"


def test_large_sizes_have_units() -> None:
    text = str(summarize(nn.Dense(1000, use_bias=False), KEY)(f32(1, 2_000_000)))
    assert "2,000,000,000 (8.0 GB)" in text


def test_arguments_of_tabulate_may_be_those_of_the_method() -> None:
    assert "half" in tabulate(Encoder(), KEY, method="half")(X)
    assert "half" in tabulate(Encoder(), KEY)(X, method="half")
    assert "scale: 3.0" in tabulate(Encoder(), KEY, scale=3.0)(X)


def test_a_class_is_no_module() -> None:
    with pytest.raises(InvalidInstanceModuleError) as caught:
        tabulate(nn.Dense, KEY)(X)  # type: ignore[arg-type]
    assert str(caught.value).startswith(
        "a summary of a module: expected an instance of a Module class as the first argument, given the class Dense."
    )
    assert "nn.tabulate(MyModule(…), key)(…)" in str(caught.value)


# -- html --------------------------------------------------------------------------------------------------------------


class Tagged(nn.Module):
    word: str = "<b>"
    parts: Any = ()

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return nn.Dense(2, name="last")(x)


def test_a_module_is_shown_as_plain_html(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "treescope")
    model = Tagged(parts=[nn.Dense(4)])
    text = module_html(model)
    assert "word = '&lt;b&gt;'" in text
    assert "<b>'" not in text
    assert "features = 4" in text
    assert "last" not in text
    assert text.count("<details") == text.count("</details>") == 2
    bound = model.bind(model.init(KEY, jnp.ones((5, 3))))
    bound(jnp.ones((5, 3)))
    text = module_html(bound)
    assert "<b>Dense</b> 'last'" in text
    assert "params/last/kernel: float32[4,2]" in text
    assert "kernel_init = default_kernel_init" in text


def test_a_module_is_shown_by_treescope() -> None:
    pytest.importorskip("treescope")
    model = Tagged()
    unbound, bound = module_html(model), module_html(model.bind(model.init(KEY, jnp.ones((5, 3)))))
    assert "treescope" in unbound
    assert len(bound) > len(unbound)


def test_notebooks_get_text_and_html() -> None:
    bundle = mimebundle(Tagged())
    assert bundle["text/plain"] == "Tagged()"
    assert bundle["text/html"].startswith("<")


def test_a_summary_is_shown_as_html() -> None:
    summary = summarize(Tagged(), KEY)(X)
    text = summary._repr_html_()
    assert text.count("<tr>") == len(summary.rows) + 2
    assert "kernel: float32[3,2]" in text
