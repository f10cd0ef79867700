// What users of other servers reported and no other file of tests shows here. docs/known-bugs.md has the whole list.
#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <set>
#include <thread>

#include "serve/http_testing.h"
#include "serve/testing.h"
#include "text/grammar.h"

namespace perigee::serve {
namespace {

using engine::RequestEnd;
using namespace testing;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kStrictTool =
    R"("name":"find","strict":true,"parameters":{"type":"object","properties":{"q":{"enum":["red","blue"]},)"
    R"("n":{"type":"integer","minimum":1,"maximum":9}},"required":["q","n"],"additionalProperties":false})";

const text::Tokenizer& tokenizer() { return text::testing::demo_tokenizer(); }

std::string ask(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"Hi"}],)" + more + "}";
}

ApiOptions options_with_grammar() {
  ApiOptions options = default_options();
  const auto compiler = std::make_shared<text::GrammarCompiler>(tokenizer(), text::GrammarCompiler::Options{});
  options.make_constraint = [compiler](const ConstraintSpec& spec) { return compiler->for_chat(*spec.chat); };
  return options;
}

// Ids that the constraint lets through: first the thoughts, then the shortest way out as often as it is allowed, else any.
std::vector<int32_t> draw_under(text::Constraint& constraint, const std::vector<int32_t>& thoughts, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids;
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer().vocab_size()) + 31) / 32);
  const int32_t end = *tokenizer().special_id("<|end_of_msg|>");
  while (ids.size() < 2000 && (ids.empty() || ids.back() != end)) {
    std::vector<int32_t> allowed;
    const bool bound = constraint.fill_mask(mask);
    EXPECT_TRUE(bound);
    for (int32_t id = 0; id < tokenizer().vocab_size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (ids.size() < thoughts.size()) {
      const int32_t id = thoughts[ids.size()];
      EXPECT_TRUE(std::find(allowed.begin(), allowed.end(), id) != allowed.end()) << id;
      allowed = {id};
    }
    if (allowed.empty()) return ids;
    const bool special = tokenizer().is_special(allowed.back());
    ids.push_back(special ? allowed.back() : allowed[random() % allowed.size()]);
    constraint.accept(ids.back());
  }
  return ids;
}

// What a chat stream's client puts together.
struct Joined {
  std::string content, reasoning, finish;
  std::vector<std::string> calls;
  friend bool operator==(const Joined&, const Joined&) = default;
};
Joined joined(const std::string& body) {
  Joined out;
  for (const Json& event : events_of(body)) {
    const Json one = at(event, "choices.0");
    if (at(one, "delta.content").is_string()) out.content += text_at(one, "delta.content");
    if (at(one, "delta.reasoning").is_string()) out.reasoning += text_at(one, "delta.reasoning");
    if (const Json call = at(one, "delta.tool_calls.0"); !call.is_null()) {
      if (!at(call, "id").is_null()) out.calls.push_back(text_at(call, "id") + text_at(call, "function.name"));
      out.calls.back() += text_at(call, "function.arguments");
    }
    if (!at(one, "finish_reason").is_null()) out.finish = text_at(one, "finish_reason");
  }
  return out;
}
Joined joined_whole(const Json& reply) {
  Joined out;
  if (at(reply, "choices.0.message.content").is_string()) out.content = text_at(reply, "choices.0.message.content");
  if (at(reply, "choices.0.message.reasoning").is_string()) out.reasoning = text_at(reply, "choices.0.message.reasoning");
  if (const Json calls = at(reply, "choices.0.message.tool_calls"); calls.is_array()) {
    for (const Json& call : calls.items()) {
      out.calls.push_back(text_at(call, "id") + text_at(call, "function.name") + text_at(call, "function.arguments"));
    }
  }
  out.finish = text_at(reply, "choices.0.finish_reason");
  return out;
}

TEST(Reported, ResponsesWithStrictToolsThinkFreelyAndCallByTheSchema) {
  const std::string thought = R"(I may say {"q": 7} or <|open| here.)";
  for (uint64_t seed = 0; seed < 12; ++seed) {
    ApiBench bench(options_with_grammar());
    bench.backend.script = [&](const engine::TokenRequest& request, size_t) {
      EXPECT_NE(request.constraint, nullptr);
      return Script{.ids = draw_under(*request.constraint, ApiBench::ids(thought + "<|close|>think<|sep|>"), seed)};
    };
    const std::string body = std::string(R"({"input":"Hi","tool_choice":"required","tools":[{"type":"function",)") + kStrictTool +
                             "}]";
    const Json whole = bench.post_json("/v1/responses", body + "}");
    ASSERT_EQ(text_at(whole, "status"), "completed") << text::print_json(whole);
    std::string reasoning, arguments;
    for (const Json& item : at(whole, "output").items()) {
      if (text_at(item, "type") == "reasoning") reasoning += text_at(item, "content.0.text");
      if (text_at(item, "type") == "function_call") arguments = text_at(item, "arguments");
    }
    EXPECT_EQ(reasoning, thought) << "the grammar does not hold in thoughts, and nothing else is in them";
    const Json made = json_of(arguments);
    EXPECT_TRUE(text_at(made, "q") == "red" || text_at(made, "q") == "blue") << arguments;
    EXPECT_GE(at(made, "n").as_int64().value(), 1) << arguments;
    EXPECT_LE(at(made, "n").as_int64().value(), 9) << arguments;
    EXPECT_EQ(made.members().size(), 2u) << arguments;
    const std::vector<Json> events = events_of(bench.post("/v1/responses", body + R"(,"stream":true})")->body());
    std::string streamed;
    for (const Json& event : events) {
      if (text_at(event, "type") == "response.reasoning_text.delta") streamed += text_at(event, "delta");
    }
    EXPECT_EQ(streamed, thought);
  }
}

TEST(Reported, RequiredAndNamedCallsKeepReasoningAndFinishAsToolCalls) {
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"find"}})"}) {
    ApiBench bench(options_with_grammar());
    bench.backend.script = [](const engine::TokenRequest& request, size_t number) {
      return Script{.ids = draw_under(*request.constraint, ApiBench::ids("Because.<|close|>think<|sep|>"), number)};
    };
    const Json reply = bench.post_json(kChat, ask(std::string(R"("n":3,"tool_choice":)") + choice +
                                                  R"(,"tools":[{"type":"function","function":{)" + kStrictTool + "}}]"));
    std::set<std::string> call_ids;
    for (const Json& one : at(reply, "choices").items()) {
      EXPECT_EQ(text_at(one, "finish_reason"), "tool_calls");
      EXPECT_EQ(text_at(one, "message.reasoning"), "Because.");
      ASSERT_GE(at(one, "message.tool_calls").items().size(), 1u);
      for (const Json& call : at(one, "message.tool_calls").items()) {
        EXPECT_TRUE(call_ids.insert(text_at(call, "id")).second) << "one id for two calls";
      }
    }
  }
}

TEST(Reported, ChoicesUnderOneConstraintAllBeginAtItsBeginning) {
  ApiBench bench(options_with_grammar());
  bench.backend.script = [](const engine::TokenRequest& request, size_t number) {
    return Script{.ids = draw_under(*request.constraint, ApiBench::ids("<|close|>think<|sep|>"), number)};
  };
  const Json reply = bench.post_json(kChat, ask(R"("n":8,"response_format":{"type":"json_schema","json_schema":{"name":"a",
      "schema":{"enum":["red","blue"]}}})"));
  ASSERT_EQ(at(reply, "choices").items().size(), 8u);
  for (const Json& one : at(reply, "choices").items()) {
    const std::string content = text_at(one, "message.content");
    EXPECT_TRUE(content == "\"red\"" || content == "\"blue\"") << content;
  }
}

TEST(Reported, SixteenStreamsOfDifferentAnswersAreEachTheirWholeAnswer) {
  const auto script_of = [](size_t number) {
    std::string text = "t" + std::to_string(number) + "<|close|>think<|sep|><|open|>response<|sep|>r" + std::to_string(number) +
                       "<|close|>response<|sep|>";
    if (number % 2 == 0) text += "<|open|>tools<|sep|>";
    for (size_t call = 0; number % 2 == 0 && call <= number % 5; ++call) {
      text += fmt::format("<|open|>call tool=\"f{}\" index=\"1\"<|sep|><|open|>argument key=\"k\" type=\"string\"<|sep|>v{}"
                          "<|close|>argument<|sep|><|close|>call<|sep|>", number, call);
    }
    if (number % 2 == 0) text += "<|close|>tools<|sep|>";
    return ApiBench::ids(text + "<|close|>message<|sep|><|end_of_msg|>");
  };
  const auto body_of = [](size_t number, bool stream) {
    return ask(R"("tools":[{"type":"function","function":{"name":"f)" + std::to_string(number) + R"("}}],"stream":)" +
               (stream ? "true" : "false"));
  };
  ApiBench bench;
  bench.backend.script = [&](const auto&, size_t number) { return Script{.ids = script_of(number), .by_hand = true}; };
  std::vector<std::shared_ptr<RecordingReply>> replies;
  for (size_t i = 0; i < 16; ++i) replies.push_back(bench.send("POST", kChat, body_of(i, true)));
  std::vector<std::thread> players;  // engines give updates from one thread; four make it harder
  for (size_t part = 0; part < 4; ++part) {
    players.emplace_back([&, part] {
      for (size_t at = 0; at < 400; ++at) {
        for (size_t i = part; i < 16; i += 4) {
          const size_t size = script_of(i).size();
          if (at < size) bench.backend.play(i, 1, at + 1 == size ? std::optional(RequestEnd::kStop) : std::nullopt);
        }
      }
    });
  }
  for (std::thread& player : players) player.join();
  bench.api.settle();
  for (size_t i = 0; i < 16; ++i) {
    ApiBench alone;
    alone.backend.script = [&](const auto&, size_t) { return Script{.ids = script_of(i)}; };
    const Joined whole = joined_whole(alone.post_json(kChat, body_of(i, false)));
    EXPECT_EQ(joined(replies[i]->body()), whole) << i;
    EXPECT_EQ(whole.finish, i % 2 == 0 ? "tool_calls" : "stop");
    EXPECT_EQ(whole.calls.size(), i % 2 == 0 ? i % 5 + 1 : 0);
  }
}

TEST(Reported, AMegabyteOfArgumentsStreamsFromItsFirstStepInLinearTime) {
  const std::string head =
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"find\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"q\" type=\"string\"<|sep|>";
  const std::string tail =
      "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
  std::string big;
  while (big.size() < (1u << 20)) big += "a \"word\" and\n";
  std::vector<int32_t> ids = ApiBench::ids(head);
  const size_t before = ids.size();
  for (const std::string& part : {big, tail}) {
    const std::vector<int32_t> more = ApiBench::ids(part);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  ApiBench bench;
  bench.backend.mutable_info().max_model_len = 8 << 20;
  bench.backend.script = [&](const auto&, size_t) { return Script{.ids = ids, .by_hand = true}; };
  const std::string body = ask(R"("stream":true,"tools":[{"type":"function","function":{"name":"find"}}])");
  const auto reply = bench.send("POST", kChat, body);
  bench.backend.play(0, before + 1);
  bench.api.settle();
  EXPECT_EQ(joined(reply->body()).calls.at(0).substr(joined(reply->body()).calls.at(0).find('{'), 6), "{\"q\":\"");
  const std::clock_t start = std::clock();
  for (size_t at = before + 1; at < ids.size(); at += 64) bench.backend.play(0, 64);
  bench.backend.finish(0, RequestEnd::kStop);
  bench.api.settle();
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
  const Joined stream = joined(reply->body());
  const std::string arguments = stream.calls.at(0).substr(stream.calls.at(0).find('{'));
  EXPECT_EQ(text_at(json_of(arguments), "q"), big);
  EXPECT_EQ(stream.finish, "tool_calls");
}

TEST(Reported, EmptyContentsFollowOneTable) {
  const std::string call = R"({"role":"assistant","content":null,"tool_calls":[{"id":"a",)"
                           R"("function":{"name":"f","arguments":"{}"}}]})";
  const std::string user = R"({"role":"user","content":"x"})";
  const std::vector<std::pair<std::string, int>> rows = {
      {"", 400},
      {R"({"role":"user","content":[]})", 400},
      {R"({"role":"user","content":null})", 400},
      {R"({"role":"user"})", 400},
      {R"({"role":"user","content":""})", 200},
      {R"({"role":"user","content":[{"type":"text","text":""}]})", 200},
      {user + "," + call, 200},
      {user + "," + call + R"(,{"role":"tool","tool_call_id":"a","content":""})", 200},
      {user + "," + call + R"(,{"role":"tool","tool_call_id":"a","content":null})", 400},
      {user + R"(,{"role":"assistant","content":null},)" + user, 200},  // as an answer that ended in its thoughts comes back
      {user + R"(,{"role":"assistant","content":""},)" + user, 200},
      {R"({"role":"tool","tool_call_id":"a","content":"x"})", 400},
      {R"({"role":"system","content":"x"})", 200},
  };
  for (const auto& [messages, status] : rows) {
    ApiBench bench;
    bench.answer("<|close|>think<|sep|><|open|>response<|sep|>Hi<|end_of_msg|>");
    EXPECT_EQ(bench.post(kChat, R"({"messages":[)" + messages + "]}")->status(), status) << messages;
  }
}

TEST(Reported, NewlinesAndQuotesInCallIdsAndNamesFindTheirResults) {
  ApiBench bench;
  bench.answer("<|close|>think<|sep|><|open|>response<|sep|>Hi<|end_of_msg|>");
  const auto prompt_of = [&](const std::string& first, const std::string& second) {
    const auto call = [](const std::string& id) {
      return R"({"id":")" + id + R"(","function":{"name":"f\n\"x\"","arguments":"{}"}})";
    };
    const auto result = [](const std::string& id, const char* text) {
      return R"({"role":"tool","tool_call_id":")" + id + R"(","content":")" + text + R"("})";
    };
    const std::string body = R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,)"
                             R"("tool_calls":[)" + call(first) + "," + call(second) + "]}," + result(second, "two") + "," +
                             result(first, "one") + "]}";
    EXPECT_EQ(bench.post(kChat, body)->status(), 200);
    return bench.backend.request(bench.backend.requests() - 1).prompt;
  };
  EXPECT_EQ(prompt_of(R"(a\n1)", R"(a\"2)"), prompt_of("p", "q")) << "ids are no part of the prompt, their order is";
}

TEST(Reported, TextThatNamesAnImageHasNoImage) {
  ApiBench bench;
  bench.answer("<|close|>think<|sep|><|open|>response<|sep|>Hi<|end_of_msg|>");
  for (const char* text : {"<|kimi_image_placeholder|>\\n<|media_pad|>", "plain"}) {
    bench.post(kChat, R"({"messages":[{"role":"user","content":")" + std::string(text) + R"("}]})");
  }
  const auto specials = [&](size_t number) {
    std::vector<int32_t> prompt = bench.backend.request(number).prompt;
    std::erase_if(prompt, [](int32_t id) { return !tokenizer().is_special(id); });
    return prompt;
  };
  EXPECT_EQ(specials(0), specials(1));
}

// Six megabytes with a word of one megabyte: read on a worker, in linear time, while streams go on and /load answers.
TEST(Reported, ASixMegabytePromptBlocksNoOtherStream) {
  ApiBench bench;
  std::string text;
  while (text.size() < (5u << 20)) text += "Some words of a long document. ";
  text += std::string(1 << 20, 'w');
  bench.backend.script = [](const engine::TokenRequest& request, size_t) {
    Script script{.ids = ApiBench::ids("tick"), .by_hand = request.prompt.size() < 100};
    for (int i = 0; i < 12; ++i) script.ids.insert(script.ids.end(), script.ids.begin(), script.ids.end());
    return script;
  };
  std::vector<Route> routes;
  for (ApiRoute& r : bench.api.routes()) {
    routes.push_back({r.method, r.path, std::move(r.handler), Access::kKey, r.heavy ? Where::kWorker : Where::kInline});
  }
  ServerOptions options;
  options.port = 0;
  auto server = Server::create(std::move(options), std::move(routes), {});
  ASSERT_TRUE(server.ok()) << server.error().message;
  (*server)->start();
  const auto send = [](Client& client, const std::string& body) {
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  Client stream((*server)->port());
  send(stream, R"({"prompt":"a","stream":true})");
  ASSERT_TRUE(eventually([&] { return bench.backend.requests() == 1; }));

  for (const bool fits : {false, true}) {
    bench.backend.mutable_info().max_model_len = fits ? 16 << 20 : 4096;
    Client large((*server)->port());
    send(large, R"({"prompt":")" + text + R"(","max_tokens":4})");
    std::atomic<bool> answered = false;
    Response reply;
    const std::clock_t cpu = std::clock();
    std::thread reader([&] {
      reply = large.response();
      answered = true;
    });
    double longest = 0;
    size_t ticks = 0;
    do {
      const auto start = std::chrono::steady_clock::now();
      stream.received().clear();
      bench.backend.play(0, 1);
      EXPECT_TRUE(stream.wait_for("data: "));
      longest = std::max(longest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      ++ticks;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } while (!answered && ticks < 4000);
    reader.join();
    EXPECT_EQ(reply.status, fits ? 200 : 400) << reply.body.substr(0, 300);
    if (!fits) {
      EXPECT_NE(reply.body.find("context_length_exceeded"), std::string::npos);
    }
    EXPECT_LT(longest, 1.0) << "seconds until a token of another stream came";
    EXPECT_LT(std::clock() - cpu, 15 * CLOCKS_PER_SEC);
    RecordProperty(fits ? "longest_wait_ms_accepted" : "longest_wait_ms_refused", static_cast<int>(longest * 1000));
  }
  stream.close();
  EXPECT_TRUE(eventually([&] { return bench.backend.cancelled().size() == 1; }));
  (*server)->stop();
}

}  // namespace
}  // namespace perigee::serve
