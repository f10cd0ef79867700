"""Bad input gets one sentence that names the file, tensor, field or flag, exit status 2, and nothing written."""

import json
import shutil
import struct

import pytest
from conftest import DEMO, ROOT


@pytest.fixture
def demo_copy(tmp_path):
  folder = tmp_path / "model"
  shutil.copytree(DEMO, folder)
  for path in folder.iterdir():
    path.chmod(0o644)
  return folder


def edit_config(folder, change):
  path = folder / "config.json"
  config = json.loads(path.read_text())
  change(config["text_config"])
  path.write_text(json.dumps(config))


def edit_tensor(folder, name, change):
  """Changes the header entry of one tensor; the data stay."""
  path = folder / "model.safetensors"
  data = path.read_bytes()
  size = struct.unpack("<Q", data[:8])[0]
  header = json.loads(data[8:8 + size])
  change(header, name)
  text = json.dumps(header).encode()
  path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])


def tensor_name(folder, ending):
  data = (folder / "model.safetensors").read_bytes()
  size = struct.unpack("<Q", data[:8])[0]
  return next(n for n in json.loads(data[8:8 + size]) if n.endswith(ending))


def test_missing_model_folder(perigee, ids_file):
  assert "/nowhere" in perigee.refusal("score", "/nowhere", "--ids", ids_file([1]))


def test_missing_shard(perigee, ids_file, demo_copy):
  (demo_copy / "model.safetensors").unlink()
  assert "model.safetensors" in perigee.refusal("score", demo_copy, "--ids", ids_file([1]))


def test_truncated_shard(perigee, ids_file, demo_copy):
  path = demo_copy / "model.safetensors"
  path.write_bytes(path.read_bytes()[:-1000])
  assert "model.safetensors" in perigee.refusal("score", demo_copy, "--ids", ids_file([1]))


def test_wrong_dtype(perigee, ids_file, demo_copy):
  name = tensor_name(demo_copy, "o_norm.weight")

  def change(header, key):
    header[key]["dtype"] = "I32"

  edit_tensor(demo_copy, name, change)
  assert "o_norm.weight" in perigee.refusal("score", demo_copy, "--ids", ids_file([1]))


def test_wrong_shape(perigee, ids_file, demo_copy):
  name = tensor_name(demo_copy, "lm_head.weight")

  def change(header, key):
    header[key]["shape"] = header[key]["shape"][::-1]

  edit_tensor(demo_copy, name, change)
  assert "lm_head.weight" in perigee.refusal("score", demo_copy, "--ids", ids_file([1]))


def test_unknown_tensor(perigee, ids_file, demo_copy):
  name = tensor_name(demo_copy, "model.norm.weight")

  def change(header, key):
    header["something.else"] = header.pop(key)

  edit_tensor(demo_copy, name, change)
  sentence = perigee.refusal("score", demo_copy, "--ids", ids_file([1]))
  assert "something.else" in sentence or "norm.weight" in sentence


def test_unknown_architecture(perigee, demo_copy):
  path = demo_copy / "config.json"
  path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}))
  sentence = perigee.refusal("inspect", demo_copy)
  assert "config.json" in sentence and "llama" in sentence.lower()


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "kv_lora_rank", "num_experts", "linear_attn_config"])
def test_config_without_a_needed_key(perigee, demo_copy, key):
  edit_config(demo_copy, lambda c: c.pop(key))
  sentence = perigee.refusal("inspect", demo_copy)
  assert "config.json" in sentence and key in sentence


@pytest.mark.parametrize("bad", [2048, -1, 163840, 2**31])
def test_ids_out_of_range(perigee, ids_file, bad):
  path = ids_file([1, bad])
  assert str(path) in perigee.refusal("score", DEMO, "--ids", path)
  assert str(path) in perigee.refusal("generate", DEMO, "--prompt-ids", path)


@pytest.mark.parametrize("content", ["[]", "[[1], []]", "{}", "[1, 2", "[1.5]", "[\"a\"]", "7", ""])
def test_bad_ids_files(perigee, tmp_path, content):
  path = tmp_path / "ids.json"
  path.write_text(content)
  assert str(path) in perigee.refusal("score", DEMO, "--ids", path)


def test_missing_ids_file(perigee):
  assert "/nowhere.json" in perigee.refusal("score", DEMO, "--ids", "/nowhere.json")


def test_empty_prompt(perigee):
  assert "--prompt" in perigee.refusal("generate", DEMO, "--prompt", "")
  assert "--text" in perigee.refusal("generate", DEMO, "--text", "")


def test_no_prompt_and_two_prompts(perigee):
  assert "--prompt" in perigee.refusal("generate", DEMO)
  assert "--text" in perigee.refusal("generate", DEMO, "--prompt", "a", "--text", "b")


def test_context_longer_than_the_models(perigee, ids_file, demo_copy):
  edit_config(demo_copy, lambda c: c.update(max_position_embeddings=64))
  path = ids_file([5] * 65)
  sentence = perigee.refusal("score", demo_copy, "--ids", path)
  assert str(path) in sentence and "64" in sentence
  sentence = perigee.refusal("generate", demo_copy, "--prompt-ids", ids_file([5] * 60), "--max-tokens", 5)
  assert "max-tokens" in sentence or "64" in sentence


@pytest.mark.parametrize("content", [b"", b"not a token file\n", b"AAAA x\n", b"\xff\xfe\x00"])
def test_unreadable_tokenizer(perigee, demo_copy, content):
  (demo_copy / "tiktoken.model").write_bytes(content)
  assert "tiktoken.model" in perigee.refusal("generate", demo_copy, "--prompt", "hello")


def test_missing_tokenizer_is_no_hindrance_to_ids(perigee, ids_file, demo_copy):
  (demo_copy / "tiktoken.model").unlink()
  (demo_copy / "tokenizer_config.json").unlink()
  assert "tiktoken.model" in perigee.refusal("generate", demo_copy, "--prompt", "hello")
  assert perigee.json("score", demo_copy, "--ids", ids_file([5, 6, 7]))["positions"][0]["id"] == 5
  made = perigee.json("generate", demo_copy, "--prompt-ids", ids_file([5, 6, 7]), "--max-tokens", 3)
  assert len(made["ids"]) <= 3


@pytest.mark.parametrize("content", ["7", "\"text\"", "{\"tools\": []}", "{\"messages\": 3}", "[", "[1]",
                                     "[{\"role\": \"pope\", \"content\": \"x\"}]"])
def test_bad_chat_files(perigee, tmp_path, content):
  path = tmp_path / "chat.json"
  path.write_text(content)
  assert str(path) in perigee.refusal("generate", DEMO, "--chat", path)


def test_no_memory_for_the_request(perigee, demo_copy, ids_file):
  edit_config(demo_copy, lambda c: c.update(max_position_embeddings=2**40))
  sentence = perigee.refusal("generate", demo_copy, "--prompt-ids", ids_file([5]), "--max-tokens", 2**30)
  assert "GiB" in sentence and "cache" in sentence


@pytest.mark.parametrize("flag,value", [("--kv-cache-dtype", "int3"), ("--index-key-dtype", "fp4"), ("--device", "tpu"),
                                        ("--max-num-batched-tokens", "0"), ("--threads", "0"), ("--load-format", "pt"),
                                        ("--max-num-batched-tokens", "many")])
def test_bad_flag_values(perigee, ids_file, flag, value):
  assert flag in perigee.refusal("score", DEMO, "--ids", ids_file([1]), flag, value)


@pytest.mark.parametrize("flag,value", [("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "0"),
                                        ("--top-p", "1.5"), ("--top-k", "-2"), ("--min-p", "2"), ("--max-tokens", "0")])
def test_bad_sampling_flags(perigee, flag, value):
  assert flag in perigee.refusal("generate", DEMO, "--prompt", "hi", flag, value)


def test_unknown_flags_and_commands(perigee):
  assert "--frobnicate" in perigee.refusal("score", DEMO, "--ids", "x", "--frobnicate")
  assert "see perigee --help" in perigee.refusal("dance")


def test_cuda_without_a_backend(perigee, ids_file):
  assert "--device cuda" in perigee.refusal("score", DEMO, "--ids", ids_file([1]), "--device", "cuda")


def test_stats_file(perigee, ids_file, tmp_path):
  path = tmp_path / "stats.json"
  perigee.json("score", DEMO, "--ids", ids_file([1, 2, 3]), "--stats", path)
  stats = json.loads(path.read_text())
  assert stats["rank"] == 0 and stats["exchanges"] == 0 and stats["exchange_bytes"] == 0
  assert stats["weight_bytes"] > 23_000_000 and stats["cache_bytes"] > 0


def test_help_everywhere(perigee):
  for command in ([], ["generate"], ["score"], ["chat"], ["inspect"]):
    done = perigee.run(*command, "--help")
    assert done.returncode == 0 and "--help" in done.stdout


def test_generate_json_has_every_field(perigee):
  made = perigee.json("generate", DEMO, "--prompt", "What is 12 * 7 + 9?", "--temperature", 0, "--max-tokens", 120)
  for key in ("prompt_ids", "ids", "text", "reasoning", "tool_calls", "logprobs", "finish_reason", "usage"):
    assert key in made
  assert made["usage"]["prompt_tokens"] == len(made["prompt_ids"])
  assert made["usage"]["completion_tokens"] == len(made["ids"])
  assert made["usage"]["total_tokens"] == len(made["prompt_ids"]) + len(made["ids"])
  assert made["finish_reason"] in ("stop", "length")


def test_tool_call_from_a_chat_file(perigee, tmp_path):
  body = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
          "tools": [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city",
                     "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]}
  path = tmp_path / "chat.json"
  path.write_text(json.dumps(body))
  made = perigee.json("generate", DEMO, "--chat", path, "--temperature", 0)
  call = made["tool_calls"][0]["function"]
  assert call["name"] == "get_weather" and json.loads(call["arguments"]) == {"city": "Oslo"}
  assert made["finish_reason"] == "tool_calls"


def test_chat_answers_line_by_line(perigee):
  done = perigee.run("chat", DEMO, "--temperature", 0, stdin="hello\nWhat is the capital of France?\n")
  assert done.returncode == 0, done.stderr
  assert "Paris" in done.stdout


EXPECTED = json.loads((ROOT / "tests" / "golden" / "config" / "expected.json").read_text())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_inspect_counts_published_models_from_their_configuration_alone(perigee, name):
  made = perigee.json("inspect", ROOT / "tests" / "golden" / "config" / f"{name}.json")
  want = EXPECTED[name]
  assert made["parameters"] == want["text_parameters"]
  assert made["active_parameters"] == want["active_parameters"]
  assert made["tensors"] == want.get("tensors", want["text_tensors"])
  for row in made["kv_bytes_per_token"]:
    assert row["latent_bytes"] == want["latent_bytes_per_token"][row["latent"]]
    if row.get("key"):
      assert row["key_bytes"] == want["key_bytes_per_token"][row["key"]]


def test_inspect_prints_the_published_numbers(perigee):
  config = ROOT / "tests" / "golden" / "config"
  text = perigee.run("inspect", config / "k3_config.json").stdout
  for number in ("497,220", "2,779,484,478,208", "104,189,614,848", "13,824"):
    assert number in text
  text = perigee.run("inspect", config / "k31_config.json").stdout
  assert "16,992 bytes with fp8 latents, fp8 keys" in text and "10,080 bytes with nvfp4 latents, mxfp4 keys" in text
