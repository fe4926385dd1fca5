"""Runs the examples of docs/python.md, and compares its recipes with those that are tested."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType, FunctionType

import pytest

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"^```python(?: (\w+))?\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.M | re.S)


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        names: dict[str, object] = {}
        for recipe, text in BLOCKS:
            if not recipe:
                code = compile(text, "docs/python.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                assert isinstance(code, CodeType)
                done = FunctionType(code, names)()
                if inspect.isawaitable(done):
                    await done

    asyncio.run(asyncio.wait_for(work(), 60))
    printed = capsys.readouterr().out
    assert "never" not in printed
    for words in ("mine", "held by", "max_hold after", "leading Leader", "here", "released None None"):
        assert words in printed, printed


def test_the_recipes_are_those_that_are_tested() -> None:
    recipes = {name: text for name, text in BLOCKS if name}
    files = {path.stem: path.read_text() for path in (ROOT / "bindings" / "python" / "recipes").glob("*.py")}
    assert recipes == files


def test_every_complaint_has_its_tests() -> None:
    bindings = ROOT / "bindings"
    in_python = "".join(path.read_text() for path in (bindings / "python" / "tests").glob("test_*.py"))
    in_typescript = "".join(path.read_text() for path in (bindings / "typescript" / "tests").glob("*.test.ts"))
    rows = [line.split("|") for line in (bindings / "COMPLAINTS.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    for complaint in rows[1:]:
        names = re.findall(r"`(\w+)`", complaint[3])
        assert names and all(f"def {name}(" in in_python for name in names), complaint
        title = re.escape(complaint[4].strip())
        assert re.search(rf"(?:onEach|test)\('(?:\w+: )?{title}'", in_typescript), complaint
