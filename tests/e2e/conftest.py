"""Shared pieces of the end-to-end tests: the program under test and ways to call it."""

import json
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"


def pytest_addoption(parser):
  parser.addoption("--perigee", default=str(ROOT / "build" / "cpu" / "perigee"), help="the program under test")


class Perigee:
  """Runs sub-commands; keeps nothing between calls."""

  def __init__(self, path):
    self.path = path

  def run(self, *arguments, stdin=""):
    return subprocess.run([self.path, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=600)

  def json(self, *arguments):
    done = self.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

  def refusal(self, *arguments):
    """The one sentence of a refused call."""
    done = self.run(*arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture(scope="session")
def perigee(request):
  return Perigee(request.config.getoption("--perigee"))


@pytest.fixture
def ids_file(tmp_path):
  """Writes ids (or lists of ids) to a fresh JSON file."""
  count = iter(range(1000))

  def write(ids):
    path = tmp_path / f"ids{next(count)}.json"
    path.write_text(json.dumps(ids))
    return path

  return write
