"""perigee serve as its clients see it: OpenAI's and Anthropic's own client libraries, and ids over HTTP.

The requests of test_evaluation_requests are those that lm-eval's `local-completions` makes (echo, logprobs 1, max_tokens 1,
batches of token lists or strings); the harness itself runs in test_clients.py."""

import json
import struct
import threading

import anthropic
import openai
import pytest
from conftest import DEMO
from server import Server

SUM = "What is 12 + 7?"
WEATHER = "What is the weather in Paris?"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city",
                                         "parameters": CITY}}
ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
          "required": ["answer", "sure"], "additionalProperties": False}


def user(text):
  return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def server(perigee):
  with Server(perigee) as one:
    yield one
    assert one.process.poll() is None, "the server died: " + "".join(one.log[-20:])


@pytest.fixture(scope="module")
def client(server):
  return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def claude(server):
  return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def chat(client, text=SUM, **more):
  wanted = {"model": "demo", "messages": user(text), "temperature": 0, "max_tokens": 300, **more}
  return client.chat.completions.create(**wanted)


def bits(value):
  return struct.pack("<f", value)


# OpenAI's client

def test_models(client):
  assert [m.id for m in client.models.list().data] == ["demo"]
  assert client.models.retrieve("demo").id == "demo"
  with pytest.raises(openai.NotFoundError, match="other"):
    client.models.retrieve("other")


def test_chat_streamed_and_whole_are_the_same_text(client):
  whole = chat(client).choices[0]
  content, reasoning, reason = "", "", None
  for chunk in chat(client, stream=True):
    for choice in chunk.choices:
      content += choice.delta.content or ""
      reasoning += getattr(choice.delta, "reasoning_content", None) or ""
      reason = choice.finish_reason or reason
  assert whole.message.content and whole.message.reasoning_content
  assert (content, reasoning, reason) == (whole.message.content, whole.message.reasoning_content, "stop")
  assert whole.finish_reason == "stop"


def test_tools(client):
  whole = chat(client, WEATHER, tools=[TOOL]).choices[0]
  assert whole.finish_reason == "tool_calls" and whole.message.content is None
  call = whole.message.tool_calls[0]
  assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}
  name, arguments, reason = "", "", None
  for chunk in chat(client, WEATHER, tools=[TOOL], stream=True):
    for choice in chunk.choices:
      for part in choice.delta.tool_calls or []:
        name += part.function.name or ""
        arguments += part.function.arguments or ""
      reason = choice.finish_reason or reason
  assert (name, arguments, reason) == ("get_weather", call.function.arguments, "tool_calls")
  reply = user(WEATHER) + [whole.message.model_dump(exclude_none=True),
                           {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
  assert "sunny" in chat(client, messages=reply, tools=[TOOL]).choices[0].message.content


@pytest.mark.parametrize("seed", range(3))
def test_json_schema(client, seed):
  schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER, "strict": True}}
  choice = chat(client, temperature=1, seed=seed, response_format=schema, max_tokens=500).choices[0]
  assert choice.finish_reason == "stop"
  found = json.loads(choice.message.content)
  assert set(found) == {"answer", "sure"} and type(found["answer"]) is int and type(found["sure"]) is bool


def test_seeds(client):
  def texts(seed):
    made = client.completions.create(model="demo", prompt="The", max_tokens=20, n=3, temperature=1, seed=seed)
    return [c.text for c in made.choices]
  first = texts(5)
  assert len(set(first)) == 3
  assert texts(5) == first and texts(6) != first


def test_log_probabilities(client):
  whole = chat(client, logprobs=True, top_logprobs=3, max_tokens=20)
  entries = whole.choices[0].logprobs.content
  assert len(entries) == whole.usage.completion_tokens == 20
  for entry in entries:
    tops = [t.logprob for t in entry.top_logprobs]
    assert len(tops) == 3 and tops == sorted(tops, reverse=True)
    assert entry.logprob == tops[0] <= 0  # temperature 0 takes the most likely token
    assert entry.token == entry.top_logprobs[0].token


def test_stop_strings(client):
  whole = chat(client).choices[0].message.content
  word = whole.split()[2]
  cut = chat(client, stop=[word, "never"]).choices[0]
  assert cut.finish_reason == "stop" and cut.message.content == whole[:whole.index(word)]


def test_the_limit_within_thinking(client):
  choice = chat(client, max_tokens=5).choices[0]
  assert choice.finish_reason == "length" and choice.message.content is None and choice.message.reasoning_content


@pytest.mark.parametrize("field,more", [
    ("temperature", {"temperature": -1}), ("n", {"n": 100000}), ("top_logprobs", {"logprobs": True, "top_logprobs": 10**6}),
    ("stop", {"stop": ["a"] * 5000}), ("messages", {"messages": [{"role": "pope", "content": "x"}]}),
    ("max_tokens", {"max_tokens": 0}), ("tools", {"tools": [{"type": "function"}]})])
def test_errors_name_the_field(client, field, more):
  with pytest.raises(openai.BadRequestError) as caught:
    chat(client, **more)
  assert field in str(caught.value) and (caught.value.param or "").startswith(field)


def test_unknown_model_and_too_long_a_context(client):
  with pytest.raises(openai.NotFoundError) as missing:
    chat(client, model="other")
  assert missing.value.param == "model"
  with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
    chat(client, max_tokens=10**9)
  assert caught.value.code == "context_length_exceeded"


def test_cached_tokens_of_the_second_call(client):
  text = "Tom has 21 apples. He gets 8 more. How many apples does Tom have?"
  first, second = chat(client, text), chat(client, text)
  assert second.choices[0].message == first.choices[0].message
  assert 0 < second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens


def test_the_same_long_prompt_four_times(server):
  """A model whose states are hit as well as its latents: no request after the first computes the prompt again."""
  prompt = [5 + (7 * i + i // 300) % 1500 for i in range(5000)]
  made = [server.answer("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True})
          for _ in range(4)]
  cached = [m["usage"]["prompt_tokens_details"]["cached_tokens"] for m in made]
  assert cached[0] == 0 and all(4900 < c < 5000 for c in cached[1:]), cached
  assert len({m["choices"][0]["text"] for m in made}) == 1


def test_responses(client):
  whole = client.responses.create(model="demo", input=SUM, temperature=0, max_output_tokens=300)
  assert whole.status == "completed" and whole.output_text == chat(client).choices[0].message.content
  text, last = "", None
  for event in client.responses.create(model="demo", input=SUM, temperature=0, max_output_tokens=300, stream=True):
    text += event.delta if event.type == "response.output_text.delta" else ""
    last = event
  assert last.type == "response.completed" and text == last.response.output_text == whole.output_text


@pytest.mark.parametrize("as_ids", [False, True])
def test_evaluation_requests(server, client, as_ids):
  texts = ["The sun is hot.", "Tom has 3 apples and 4 pears.", "hello"]
  ids = [server.answer("/tokenize", {"model": "demo", "prompt": t})["tokens"] for t in texts]
  made = client.completions.create(model="demo", prompt=ids if as_ids else texts, echo=True, logprobs=1, max_tokens=1,
                                   temperature=0, seed=1234)
  assert [c.index for c in made.choices] == [0, 1, 2]
  for choice, text, own in zip(made.choices, texts, ids):
    assert choice.text.startswith(text)
    found = choice.logprobs
    assert len(found.token_logprobs) == len(found.tokens) == len(found.top_logprobs) == len(own) + 1
    assert found.token_logprobs[0] is None and all(p <= 0 for p in found.token_logprobs[1:])
    assert all(p <= max(top.values()) for p, top in zip(found.token_logprobs[1:], found.top_logprobs[1:]))


# Anthropic's client, which no longer has an argument for the temperature

GREEDY = {"temperature": 0}


def message(claude, text=SUM, **more):
  return claude.messages.create(model="demo", messages=user(text), max_tokens=1500, extra_body=GREEDY, **more)


def test_messages_streamed_and_whole(client, claude):
  whole = message(claude, thinking={"type": "enabled", "budget_tokens": 1024})
  assert [b.type for b in whole.content] == ["thinking", "text"] and whole.stop_reason == "end_turn"
  own = chat(client).choices[0].message
  assert (whole.content[0].thinking, whole.content[1].text) == (own.reasoning_content, own.content)
  with claude.messages.stream(model="demo", messages=user(SUM), max_tokens=1500, extra_body=GREEDY,
                              thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
    final = stream.get_final_message()
  assert [b.model_dump(exclude={"signature"}) for b in final.content] == [
      b.model_dump(exclude={"signature"}) for b in whole.content]
  assert final.usage.output_tokens == whole.usage.output_tokens


def test_messages_with_tools(claude):
  tool = {"name": "get_weather", "description": "Get the weather of a city", "input_schema": CITY}
  made = message(claude, WEATHER, tools=[tool])
  assert made.stop_reason == "tool_use"
  call = next(b for b in made.content if b.type == "tool_use")
  assert (call.name, call.input) == ("get_weather", {"city": "Paris"})


def test_count_tokens(claude):
  made = message(claude)
  usage = made.usage
  counted = claude.messages.count_tokens(model="demo", messages=user(SUM)).input_tokens
  assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_of_messages(claude):
  with pytest.raises(anthropic.BadRequestError, match="temperature"):
    claude.messages.create(model="demo", messages=user(SUM), max_tokens=5, extra_body={"temperature": 7})


# Ids

def test_tokenize_and_back(server):
  text = "Hello, world: 12 + 7 = 19! \u00e9\u4e16"
  ids = server.answer("/tokenize", {"prompt": text})["tokens"]
  assert server.answer("/detokenize", {"tokens": ids})["prompt"] == text


def test_bits_equal_those_of_generate_and_score(perigee, server, ids_file):
  prompt = server.answer("/tokenize", {"messages": user(SUM)})["tokens"]
  path = ids_file(prompt)
  alone = perigee.json("generate", DEMO, "--prompt-ids", path, "--max-tokens", 40, "--seed", 11)
  mates = [threading.Thread(target=server.answer, args=("/v1/completions", {
      "prompt": [5 + i] * (20 + i), "max_tokens": 60, "ignore_eos": True, "seed": i})) for i in range(8)]
  for mate in mates:
    mate.start()
  made = server.answer("/inference/v1/generate", {
      "token_ids": prompt, "sampling_params": {"max_tokens": 40, "seed": 11, "temperature": 1, "logprobs": 0}})
  for mate in mates:
    mate.join()
  choice = made["choices"][0]
  assert choice["token_ids"] == alone["ids"]
  got = [bits(e["logprob"]) for e in choice["logprobs"]["content"]]
  assert got == [bits(p) for p in alone["logprobs"]]
  positions = perigee.json("score", DEMO, "--ids", ids_file(prompt + choice["token_ids"]))["positions"]
  assert got == [bits(p["target_logprob"]) for p in positions[len(prompt) - 1:-1]]
