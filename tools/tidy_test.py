"""The style rules that a program can check, run as tests: sizes, include directions, forbidden words, the map."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = (".h", ".cc", ".cu", ".cuh")
COLUMNS_MAX = 130
LINES_MAX = 500

# Longer files need a reason.
LONG_FILES = {
    "src/text/output_parser_test.cc",  # one table of cases for one state machine
}

# What each room may include (docs/map.md).
ROOMS = {
    "base": [],
    "cache": ["base"],
    "sched": ["base", "cache"],
    "num": ["base"],
    "tensor": ["base", "num"],
    "ops": ["base", "num", "tensor"],
    "load": ["base", "num", "tensor"],
    "cache": ["base"],
    "model": ["base", "num", "tensor", "ops", "load", "cache"],
    "text": ["base"],
    "sched": ["base", "cache"],
    "engine": ["base", "num", "tensor", "ops", "load", "cache", "model", "text", "sched"],
    "serve": ["base", "text", "sched", "engine"],
    # bench: what `perigee bench` runs lies beside src/
    "apps": ["base", "num", "tensor", "ops", "load", "cache", "model", "text", "sched", "engine", "serve", "bench"],
}

# word -> where it may stand; the reason is the rule of the same line.
FORBIDDEN = {
    r"\bgetenv\b": [],  # one options struct, no hidden configuration
    r"\bassert\(": [],  # CHECK is always on
    r"\bmalloc\(": [],  # arenas and containers
    r"-ffast-math|\bfast-math\b": [],  # one arithmetic
    # free functions between a call and its kernel; interfaces only where tests and clients put something else behind them
    r"\bvirtual\b": ["engine/backend.h", "serve/exchange.h", "text/constraint.h"],
    r"#\s*define\s": ["base/check.h", "num/simd.h", "text/pretokenizer.cc"],  # checks, the inline attribute, PCRE2's own
}


def tracked(*endings):
  names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, text=True, check=True).stdout.split("\n")
  return [ROOT / n for n in names if n.endswith(endings) and (ROOT / n).is_file()]


def code_files():
  return [p for p in tracked(*SOURCES) if "src" in p.relative_to(ROOT).parts]


def without_comments(text):
  text = re.sub(r"//[^\n]*", "", text)
  return re.sub(r'R"\w*\(.*?\)\w*"|"(?:[^"\\\n]|\\.)*"', '""', text, flags=re.S)


def test_lines_and_files_are_short():
  wrong = []
  for path in code_files() + tracked(".py", ".sh"):
    name = str(path.relative_to(ROOT))
    lines = path.read_text().split("\n")
    wrong += [f"{name}:{i + 1}: {len(line)} columns" for i, line in enumerate(lines) if len(line) > COLUMNS_MAX]
    if len(lines) > LINES_MAX and name not in LONG_FILES:
      wrong.append(f"{name}: {len(lines)} lines")
  assert not wrong, "\n".join(wrong)


def test_rooms_include_only_what_they_may():
  wrong = []
  for path in code_files():
    room = path.relative_to(ROOT / "src").parts[0]
    for name in re.findall(r'#include "([^"]+)"', path.read_text()):
      other = name.split("/")[0]
      if "/" in name and other != room and other not in ROOMS[room]:
        wrong.append(f"{path.relative_to(ROOT)} includes {name}")
  assert not wrong, "\n".join(wrong)


def test_vector_code_includes_only_num():
  """Otherwise the linker may share a function compiled for wider vectors with everybody (docs/map.md)."""
  wrong = []
  for path in code_files():
    if not re.search(r"_(simd|amx|avx512)\.(cc|h)$", path.name):
      continue
    for name in re.findall(r'#include "([^"]+)"', path.read_text()):
      vector_header = re.search(r"_(simd|amx|avx512|micro|cases)\.h$", name)
      if not name.startswith("num/") and not vector_header:
        wrong.append(f"{path.relative_to(ROOT)} includes {name}")
  assert not wrong, "\n".join(wrong)


def test_forbidden_words():
  wrong = []
  for path in code_files():
    name = str(path.relative_to(ROOT / "src"))
    text = without_comments(path.read_text())
    for pattern, places in FORBIDDEN.items():
      if name not in places and re.search(pattern, text):
        wrong.append(f"{name}: {pattern}")
  assert not wrong, "\n".join(wrong)


def test_headers_say_what_they_are_for():
  wrong = []
  for path in code_files():
    if path.suffix != ".h":
      continue
    first = path.read_text().split("\n")[0]
    if not first.startswith("// "):
      wrong.append(str(path.relative_to(ROOT)))
    elif "#pragma once" not in path.read_text():
      wrong.append(f"{path.relative_to(ROOT)}: no #pragma once")
  assert not wrong, "\n".join(wrong)


def test_every_room_and_operation_is_built_and_every_room_is_on_the_map():
  page = (ROOT / "docs" / "map.md").read_text()
  rooms = sorted({p.relative_to(ROOT / "src").parts[0] for p in code_files()})
  assert [r for r in rooms if f"`{r}`" not in page] == []
  listed = (ROOT / "src" / "ops" / "CMakeLists.txt").read_text()
  operations = {p.parent.name for p in code_files() if p.parent.parent.name == "ops"}
  assert sorted(o for o in operations if not re.search(rf"\b{o}\b", listed)) == []


def test_no_unfinished_work_is_hidden_in_the_code():
  marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
  wrong = [f"{p.relative_to(ROOT)}" for p in code_files() if marks.search(p.read_text())]
  assert not wrong, "\n".join(wrong)
