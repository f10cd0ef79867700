"""What a request may wish for beyond its prompt, on the real engine: the shape of the answer, the effort of thinking."""

import concurrent.futures
import json
import re

import pytest
from conftest import DEMO
from server import Server

CHAT, USER = "/v1/chat/completions", [{"role": "user", "content": "Say this: seven green lamps"}]
TOOL = {"type": "function", "function": {"name": "find", "strict": True, "parameters": {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}}}


@pytest.fixture(scope="module")
def server(perigee):
  with Server(perigee) as one:
    yield one
    assert one.process.poll() is None, "the server died: " + "".join(one.log[-20:])


def is_small_object(text):
  return set(json.loads(text)) == {"a"} and json.loads(text)["a"] in (1, 2)


WISHES = [({"choice": ["red", "green and blue"]}, lambda text: text in ("red", "green and blue")),
          ({"regex": "[a-c]{3,5}x"}, lambda text: re.fullmatch("[a-c]{3,5}x", text)),
          ({"grammar": 'root ::= "1" ("+" "1")? "="'}, lambda text: text in ("1=", "1+1=")),
          ({"json": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}},
           is_small_object)]


@pytest.mark.parametrize("outputs,holds", WISHES)
def test_structured_outputs_of_a_chat(server, outputs, holds):
  """In the response alone: the thinking before it is free."""
  body = {"messages": USER, "temperature": 1.0, "structured_outputs": outputs, "max_tokens": 1500}
  for seed in range(4):
    for thinking in ("enabled", "disabled"):
      choice = server.answer(CHAT, {**body, "seed": seed, "thinking": {"type": thinking}})["choices"][0]
      if choice["finish_reason"] != "stop":
        assert choice["finish_reason"] == "length" and thinking == "enabled"  # never came to its response
        continue
      assert holds(choice["message"]["content"]), choice
  events = server.post(CHAT, {**body, "seed": 1, "thinking": {"type": "disabled"}, "stream": True}).text.split("\n\n")
  deltas = [json.loads(e[6:])["choices"][0]["delta"] for e in events if e.startswith("data: {")]
  assert holds("".join(d.get("content") or "" for d in deltas)), events


def test_structured_outputs_beside_tools(server):
  body = {"messages": USER, "temperature": 1.0, "thinking": {"type": "disabled"}, "tools": [TOOL], "tool_choice": "required",
          "max_tokens": 500, "structured_outputs": {"choice": ["well"]}}
  for seed in range(4):
    choice = server.answer(CHAT, {**body, "seed": seed})["choices"][0]
    assert choice["message"]["content"] in (None, "", "well"), choice
    if choice["finish_reason"] == "tool_calls":
      assert all(isinstance(json.loads(c["function"]["arguments"])["n"], int) for c in choice["message"]["tool_calls"])


@pytest.mark.parametrize("effort,prompt_of", [("minimal", "low"), ("xhigh", "max")])
def test_efforts_of_other_servers(server, effort, prompt_of):
  ids = [server.answer("/tokenize", {"messages": USER, "reasoning_effort": e})["tokens"] for e in (effort, prompt_of)]
  assert ids[0] == ids[1]


def test_no_effort_is_no_thinking(server):
  body = {"messages": USER, "temperature": 0, "max_tokens": 20}
  off = server.answer(CHAT, {**body, "reasoning_effort": "none"})
  assert off["choices"] == server.answer(CHAT, {**body, "thinking": {"type": "disabled"}})["choices"]
  assert "reasoning" not in off["choices"][0]["message"]
  refused = server.post(CHAT, {**body, "reasoning_effort": "medium"})
  assert refused.status_code == 400 and refused.json()["error"]["param"] == "reasoning_effort"
  assert "low, high" in refused.json()["error"]["message"]


def test_a_full_queue_is_429(perigee):
  with Server(perigee, "--max-num-seqs", 1, "--max-num-waiting", 1, "--drain-timeout", 1) as one:
    body = {"prompt": "The", "max_tokens": 400, "ignore_eos": True, "temperature": 1}
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
      made = list(pool.map(lambda seed: one.post("/v1/completions", {**body, "seed": seed}), range(6)))
    assert {reply.status_code for reply in made} == {200, 429}, [reply.status_code for reply in made]
    for reply in made:
      if reply.status_code == 429:
        assert reply.headers["retry-after"] and reply.json()["error"]["type"] == "rate_limit_error"
    assert one.post("/v1/completions", {**body, "max_tokens": 2}).status_code == 200


def test_preemption_changes_no_bit(perigee):
  """Long requests of different lengths that together outgrow the cache: some are put back and computed again."""
  row_bytes = perigee.json("plan", DEMO, "--pool-bytes", 1 << 30)["row_bytes"]
  # Each begins with a row of 512 tokens and two for its state, for each a row more is kept free; at its end it needs five.
  with Server(perigee, "--kv-cache-memory-bytes", 17 * row_bytes, "--max-model-len", 1280, "--no-enable-prefix-caching") as one:
    bodies = [{"prompt": [5 + i] * (502 + 2 * i), "max_tokens": 530 + 15 * i, "ignore_eos": True, "temperature": 1, "seed": i,
               "logprobs": 2, "return_token_ids": True} for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
      together = list(pool.map(lambda body: one.answer("/v1/completions", body)["choices"][0], bodies))
    preempted = one.gauge("vllm:num_preemptions_total")
    assert preempted > 0, "nothing was preempted, so nothing was tested"
    for body, choice in zip(bodies, together):
      assert len(choice["token_ids"]) == body["max_tokens"] and choice["finish_reason"] == "length"
      assert choice == {**one.answer("/v1/completions", body)["choices"][0], "index": 0}
    assert one.gauge("vllm:num_preemptions_total") == preempted  # alone, nobody is in the way
    assert one.gauge("vllm:kv_cache_usage_perc") == 0
