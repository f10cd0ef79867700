"""Each test that docs/known-bugs.md names is in the tree."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "known-bugs.md").read_text()


def names_in(path):
  text = path.read_text()
  if path.suffix == ".py":
    return set(re.findall(r"^def (test_\w+)\(", text, re.M))
  return {f"{suite}.{name}" for suite, name in
          re.findall(r"^(?:TEST|TEST_F|TEST_P|RC_GTEST_PROP)\((\w+),\s*(\w+)", text, re.M)}


def test_every_named_test_exists():
  files = {}
  for path in [*(ROOT / "src").rglob("*_test.cc"), *(ROOT / "tests").rglob("test_*.py")]:
    files.setdefault(path.name, []).append(path)
  named = re.findall(r"`([\w.]+)::([\w.]+)`", PAGE)
  assert len(named) > 80
  wrong = [f"{file}::{name}" for file, name in named
           if not any(name in names_in(path) for path in files.get(file, []))]
  assert not wrong, "\n".join(wrong)


def test_every_row_names_a_test_or_says_why_not():
  wrong = []
  for line in PAGE.split("\n"):
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if not line.startswith("| ") or cells[0] in ("reported", "found"):
      continue
    if "::" not in cells[-1] and not cells[1].startswith(("not yet: ", "no, ")):
      wrong.append(line)
  assert not wrong, "\n".join(wrong)
