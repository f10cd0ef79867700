"""A served request leaves a record; replaying it gives every bit again, and a record with one changed bit is found out."""

import json
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

import pytest
from conftest import DEMO

ANSWER_TOKENS = 24


class Server:
  """perigee serve on a free port, with its log as lines."""

  def __init__(self, program, *flags):
    self.process = subprocess.Popen([program, "serve", DEMO, "--port", "0", *map(str, flags)], stderr=subprocess.PIPE, text=True)
    self.log = []
    self.port = None
    for line in self.process.stderr:
      self.log.append(line)
      found = re.search(r"listens on http://[^:]+:(\d+)", line)
      if found:
        self.port = int(found[1])
        break
    assert self.port, self.log
    self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
    self.reader.start()

  def post(self, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
      return json.loads(answer.read())

  def stop(self):
    self.process.send_signal(signal.SIGTERM)
    assert self.process.wait(timeout=60) == 0, self.log
    self.reader.join()


def wait_for_records(folder, count):
  for _ in range(200):
    found = sorted(folder.glob("*.json"))
    if len(found) >= count:
      return found
    time.sleep(0.05)
  raise AssertionError(f"{len(found)} records instead of {count}")


@pytest.fixture(scope="module")
def records(perigee, tmp_path_factory):
  """What four requests left: plain sampling, edited logits, an answer under a schema, and one that a stop string ended."""
  folder = tmp_path_factory.mktemp("records")
  server = Server(perigee.path, "--record", folder)
  try:
    wishes = [
        {"temperature": 1.0, "seed": 5, "top_p": 0.9},
        {"temperature": 0.8, "seed": 6, "presence_penalty": 0.5, "logit_bias": {"70": 3.5}},
        {"temperature": 1.0, "seed": 7, "response_format": {"type": "json_object"}},
        {"temperature": 0, "stop": ["green", " "], "thinking": {"type": "disabled"}, "max_tokens": 300},
    ]
    for number, wish in enumerate(wishes):
      body = {"model": str(DEMO), "messages": [{"role": "user", "content": "Say this: seven green lamps"}],
              "max_tokens": ANSWER_TOKENS, **wish}
      server.post("/v1/chat/completions", body)
      wait_for_records(folder, number + 1)
  finally:
    server.stop()
  assert not list(folder.glob("*.partial"))
  return wait_for_records(folder, len(wishes))


def changed(record, tmp_path, change):
  body = json.loads(record.read_text())
  change(body)
  path = tmp_path / "changed.json"
  path.write_text(json.dumps(body))
  return path


def test_records_replay_equal(perigee, records):
  for record in records[:2]:
    done = perigee.run("replay", record)
    count = len(json.loads(record.read_text())["ids"])
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout == f"generation: {count} tokens, all bits equal\nscoring: {count} tokens, all bits equal\n"
    report = perigee.json("replay", record, "--threads", 1, "--max-num-batched-tokens", 5)
    assert report == {"tokens": count, "equal": True, "generation": {"equal": True}, "scoring": {"equal": True}}


def test_what_a_grammar_chose_is_scored_only(perigee, records):
  assert json.loads(records[2].read_text())["constrained"]
  report = perigee.json("replay", records[2])
  assert report["equal"] and "grammar" in report["generation"]["skipped"] and report["scoring"] == {"equal": True}


def test_an_answer_that_a_stop_string_ended_replays_as_far_as_it_went(perigee, records):
  body = json.loads(records[3].read_text())
  assert body["finish"] == "length" and 0 < len(body["ids"]) < 300 and body["max_tokens"] == len(body["ids"])
  assert perigee.json("replay", records[3]) == {"tokens": len(body["ids"]), "equal": True, "generation": {"equal": True},
                                               "scoring": {"equal": True}}


def test_one_changed_bit_is_found(perigee, records, tmp_path):
  body = json.loads(records[0].read_text())
  at = len(body["ids"]) // 2

  def flip(record):
    record["logprob_bits"][at] = f"{int(record['logprob_bits'][at], 16) ^ 1:016x}"

  done = perigee.run("replay", changed(records[0], tmp_path, flip))
  assert done.returncode == 1, (done.stdout, done.stderr)
  position = len(body["prompt_ids"]) + at
  assert f"generation: first difference at position {position}: recorded id {body['ids'][at]} " in done.stdout
  assert f"scoring: first difference at position {position}: " in done.stdout
  assert body["logprob_bits"][at] in done.stdout


def test_one_changed_id_is_found(perigee, records, tmp_path):
  body = json.loads(records[0].read_text())

  def other(record):
    record["ids"][2] ^= 1

  done = perigee.run("replay", changed(records[0], tmp_path, other), "--json")
  assert done.returncode == 1, (done.stdout, done.stderr)
  report = json.loads(done.stdout)
  assert not report["equal"]
  assert report["generation"]["position"] == report["scoring"]["position"] == len(body["prompt_ids"]) + 2
  assert report["generation"]["recorded"]["id"] == body["ids"][2] ^ 1
  assert report["generation"]["now"] == {"id": body["ids"][2], "bits": body["logprob_bits"][2],
                                         "logprob": report["generation"]["now"]["logprob"]}


def test_another_model_device_or_format_is_refused_without_force(perigee, records, tmp_path):
  assert "latent format fp8, this run has bf16" in perigee.refusal("replay", records[0], "--kv-cache-dtype", "bf16")
  assert "device cpu, this run has reference" in perigee.refusal("replay", records[0], "--device", "reference",
                                                                "--kv-cache-dtype", "fp8")
  other = tmp_path / "model"
  shutil.copytree(DEMO, other)
  assert perigee.run("replay", records[0], "--model", other).returncode == 0  # where it lies does not matter
  shard = other / "model.safetensors"
  data = bytearray(shard.read_bytes())
  data[-1] ^= 1
  shard.write_bytes(data)
  assert "weights of digest" in perigee.refusal("replay", records[0], "--model", other)
  forced = perigee.run("replay", records[0], "--kv-cache-dtype", "bf16", "--force")
  assert forced.returncode == 1 and "first difference" in forced.stdout


def test_bad_files_and_folders_are_refused(perigee, records, tmp_path):
  text = records[0].read_text()
  cut = tmp_path / "cut.json"
  cut.write_text(text[:len(text) // 2])
  assert perigee.refusal("replay", cut) == f"perigee: {cut} is no JSON, or its end is missing"
  assert "no/such.json" in perigee.refusal("replay", "no/such.json")
  newer = changed(records[0], tmp_path, lambda r: r.update(perigee_record=2))
  assert "reads records of version 1" in perigee.refusal("replay", newer)
  outside = changed(records[0], tmp_path, lambda r: r["ids"].append(1 << 30))
  assert "field ids: entry" in perigee.refusal("replay", outside)
  assert "--record" in perigee.refusal("serve", DEMO, "--port", 0, "--record", tmp_path / "none")
  assert "--record" in perigee.refusal("serve", DEMO, "--port", 0, "--record", cut)


def test_a_lost_folder_does_not_hurt_requests(perigee, tmp_path):
  folder = tmp_path / "records"
  folder.mkdir()
  server = Server(perigee.path, "--record", folder)
  try:
    folder.rmdir()
    for _ in range(3):
      answer = server.post("/v1/completions", {"model": str(DEMO), "prompt": "hello", "max_tokens": 3})
      assert answer["usage"]["completion_tokens"] > 0
  finally:
    server.stop()
  assert len([line for line in server.log if "was not recorded" in line]) == 1, server.log
