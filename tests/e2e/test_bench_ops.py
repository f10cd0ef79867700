"""perigee bench ops: the report has the fields that readers rely on, and equal inputs give equal digests."""

import json

KEYS = ["op", "case", "time_us_median", "bytes", "flops", "percent_of_bandwidth", "percent_of_matrix_rate", "digest"]


def report(perigee, path, *arguments):
  done = perigee.run("bench", "ops", "--only", "gemm M=1 N=2048", "--seconds", 0.01, "--json", path, *arguments)
  assert done.returncode == 0, done.stderr
  return done.stdout, json.loads(path.read_text())


def test_report(perigee, tmp_path):
  text, made = report(perigee, tmp_path / "a.json")
  assert list(made) == ["machine", "method", "results"]
  assert made["machine"]["device"] == "cpu" and made["machine"]["bytes_per_s"] > 0
  [row] = made["results"]
  assert list(row) == KEYS
  assert row["op"] == "gemm" and row["case"] == "M=1 N=2048 K=2048"
  assert row["flops"] == 2 * 2048 * 2048 and row["bytes"] == 2 * 2048 * 2048 + 2 * (2048 + 2048)
  assert row["time_us_median"] > 0 and row["percent_of_bandwidth"] > 0
  assert row["digest"] in text and made["method"]["text"] in text
  # Neither the number of runs nor the instructions change a bit.
  _, again = report(perigee, tmp_path / "b.json", "--threads", 1, "--isa", "generic")
  assert again["results"][0]["digest"] == row["digest"]


def test_refusals(perigee):
  assert "--only is 'juggle'" in perigee.refusal("bench", "ops", "--only", "juggle")
  assert "--device is 'abacus'" in perigee.refusal("bench", "ops", "--device", "abacus")
  assert "--device is 'reference'" in perigee.refusal("bench", "ops", "--device", "reference")
