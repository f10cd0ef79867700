"""perigee serve under other people's programs: lm-eval and aiperf, run as their users run them, from .venv-clients.

Both work without any network but the server's: tasks, prompts and the tokenizer are files that the tests write."""

import json
import os
import struct
import subprocess
import tempfile

import hf_tokenizer
import pytest
import server as serving
from conftest import DEMO, ROOT

CLIENTS = ROOT / ".venv-clients" / "bin"
BOS = 1792

CHOICES = [
    ("The capital of France is", ["Paris.", "a green door.", "seven."], 0),
    ("Tom has 3 apples and gets 4 more. Now Tom has", ["7 apples.", "no shoes.", "blue."], 0),
    ("User: What is 12 + 7?\nAssistant: The answer is", ["19.", "Paris.", "under the old table."], 0),
    ("The weather in Paris is", ["sunny.", "19."], 1),
    ("Hello,", ["world!", "how can the \u4e16\u754c \u00e9 sing?"], 1),
]
QUESTIONS = ["What is 12 + 7?", "The capital of France is", "Tom has 3 apples.\n\nHe gets 4 more.", "Once upon a time"]
TEXTS = ["The sun is hot. Tom has 3 apples and 4 pears.", "hello"]
STOP = "."
TOKENS_MAX = 24


@pytest.fixture(scope="module")
def server(perigee):
  with serving.Server(perigee) as one:
    yield one
    assert one.process.poll() is None, "the server died: " + "".join(one.log[-20:])


def run(folder, program, *arguments):
  """A client's command in a folder of its own; what it says is shown if it fails."""
  path = CLIENTS / program
  if not path.is_file():
    pytest.fail(f"{path} is missing: ./setup.sh without --cpu installs it")
  # aiperf leaves folders behind and makes sockets in the temporary folder, whose paths have to be short.
  with tempfile.TemporaryDirectory(prefix="c") as temporary:
    home = {"HF_HOME": str(folder / "hf"), "HOME": str(folder), "TMPDIR": temporary}
    done = subprocess.run([path, *map(str, arguments)], cwd=folder, env=os.environ | home, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
  assert done.returncode == 0, done.stdout[-5000:]


def ids_of(server, text):
  return server.answer("/tokenize", {"prompt": text})["tokens"]


# lm-eval

def write_task(folder, name, documents, **more):
  data = folder / f"{name}.jsonl"
  data.write_text("".join(json.dumps(d) + "\n" for d in documents))
  task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": str(data)}, "test_split": "train", **more}
  (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


def metric(name):
  return [{"metric": name}]


@pytest.fixture(scope="module")
def evaluation(server, tmp_path_factory):
  """One run of lm-eval over three kinds of tasks: the results, and each task's samples in the order of its documents."""
  folder = tmp_path_factory.mktemp("lm-eval")
  write_task(folder, "choice", [{"question": q, "choices": c, "answer": a} for q, c, a in CHOICES],
             output_type="multiple_choice", doc_to_text="{{question}}", doc_to_choice="{{choices}}",
             doc_to_target="{{answer}}", metric_list=metric("acc"))
  write_task(folder, "continuation", [{"question": q} for q in QUESTIONS], output_type="generate_until",
             doc_to_text="{{question}}", doc_to_target="none", metric_list=metric("exact_match"),
             generation_kwargs={"until": [STOP], "max_gen_toks": TOKENS_MAX, "temperature": 0})
  write_task(folder, "rolling", [{"text": t} for t in TEXTS], output_type="loglikelihood_rolling", doc_to_text="",
             doc_to_target="{{text}}", metric_list=metric("bits_per_byte"))
  model = {"model": "demo", "base_url": server.url + "/v1/completions", "tokenizer_backend": "remote", "max_length": 4096,
           "num_concurrent": 4, "custom_prefix_token_id": BOS, "max_retries": 1}
  run(folder, "lm_eval", "run", "--model", "local-completions", "--batch_size", 2, "--include_path", folder,
      "--model_args", ",".join(f"{k}={v}" for k, v in model.items()), "--tasks", "choice,continuation,rolling",
      "--log_samples", "--output_path", folder / "out")
  results, = folder.glob("out/*/results_*.json")
  samples = {}
  for name in ("choice", "continuation", "rolling"):
    path, = folder.glob(f"out/*/samples_{name}_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    samples[name] = sorted(rows, key=lambda row: row["doc_id"])
  return json.loads(results.read_text())["results"], samples


def single(value):
  """The FP32 value that a shortest decimal stands for: the server writes all its digits."""
  return struct.unpack("<f", struct.pack("<f", value))[0]


def scores(perigee, ids_file, sequences):
  """Per sequence and position, log-probability of the next id and whether it is the likeliest one."""
  made = perigee.json("score", DEMO, "--ids", ids_file(sequences), "--top", 1)["sequences"]
  return [[(single(p["target_logprob"]), p["target_logprob"] == p["top"][0][1]) for p in s["positions"][:-1]] for s in made]


def test_lm_eval_log_likelihoods_are_those_of_score(perigee, server, evaluation, ids_file):
  results, samples = evaluation
  contexts = [ids_of(server, q) for q, choices, _ in CHOICES for _ in choices]
  wholes = [ids_of(server, f"{q} {c}") for q, choices, _ in CHOICES for c in choices]
  expected = []
  for context, found in zip(contexts, scores(perigee, ids_file, wholes)):
    tail = found[len(context) - 1:]
    assert tail
    expected.append((sum(p for p, _ in tail), all(greedy for _, greedy in tail)))
  got = [(float(value), greedy == "True") for row in samples["choice"] for ((value, greedy),) in row["resps"]]
  assert got == expected
  right = 0
  for _, choices, answer in CHOICES:
    own, expected = [value for value, _ in expected[:len(choices)]], expected[len(choices):]
    right += own.index(max(own)) == answer
  assert 0 < right < len(CHOICES), "documents of one result alone show nothing"
  assert results["choice"]["acc,none"] == right / len(CHOICES)


def test_lm_eval_rolling_log_likelihoods_are_those_of_score(perigee, server, evaluation, ids_file):
  found = scores(perigee, ids_file, [[BOS] + ids_of(server, t) for t in TEXTS])
  got = [float(row["resps"][0][0]) for row in evaluation[1]["rolling"]]
  assert got == [sum(p for p, _ in one) for one in found]


def test_lm_eval_generates_what_generate_does(perigee, evaluation):
  got = [row["resps"][0][0] for row in evaluation[1]["continuation"]]
  own = [perigee.json("generate", DEMO, "--text", q, "--temperature", 0, "--max-tokens", TOKENS_MAX)["text"]
         for q in QUESTIONS]
  assert got == [text.split(STOP)[0] for text in own]
  assert any(STOP in text for text in own) and any(STOP not in text for text in own)


# aiperf

@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  return hf_tokenizer.write(DEMO, tmp_path_factory.mktemp("tokenizer") / "demo")


REQUESTS = 24


def load(server, folder, endpoint, tokenizer, *flags):
  """A load of streams of TOKENS_MAX tokens each, in which no request fails: the values of each request."""
  before = server.gauge("vllm:generation_tokens_total")
  run(folder, "aiperf", "profile", "--model", "demo", "--url", server.url, "--endpoint-type", endpoint, "--streaming",
      "--tokenizer", tokenizer, "--concurrency", 6, "--request-count", REQUESTS, "--isl", 60, "--isl-stddev", 20,
      "--osl", TOKENS_MAX, "--random-seed", 7, "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0",
      "--ui", "none", "--workers-max", 1, "--record-processors", 1, "--no-gpu-telemetry", "--artifact-dir", folder / "out",
      *flags)
  whole = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
  assert (whole["is_complete"], whole["was_cancelled"], whole["error_summary"]) == (True, False, [])
  assert whole["request_count"]["avg"] == REQUESTS and whole["request_error_rate"]["avg"] == 0
  assert server.gauge("vllm:generation_tokens_total") - before == REQUESTS * TOKENS_MAX
  lines = (folder / "out" / "profile_export.jsonl").read_text().splitlines()
  records = [{name: entry["value"] for name, entry in json.loads(line)["metrics"].items()} for line in lines]
  assert len(records) == REQUESTS
  for record in records:
    assert record["usage_completion_tokens"] == TOKENS_MAX
    assert 0 < record["time_to_first_token"] < record["request_latency"]
  return records


def test_aiperf_counts_the_prompts_as_the_server_does(server, tokenizer, tmp_path):
  records = load(server, tmp_path, "completions", tokenizer)
  for record in records:
    assert record["input_sequence_length"] == record["usage_prompt_tokens"] > 0
  assert len({r["usage_prompt_tokens"] for r in records}) > REQUESTS // 4, "prompts of one length show nothing"


def test_aiperf_reads_the_usage_of_chats(server, tokenizer, tmp_path):
  for record in load(server, tmp_path, "chat", tokenizer, "--use-server-token-count"):
    assert record["output_sequence_length"] == TOKENS_MAX
    assert 0 < record["reasoning_token_count"] == record["usage_reasoning_tokens"] <= TOKENS_MAX
    assert record["input_sequence_length"] == record["usage_prompt_tokens"] > 0
