#include "text/utf8.h"

#include <array>

namespace perigee::text {

namespace {

struct LeadByte {
  int length = 0;  // 0: cannot begin a sequence
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

LeadByte lead_byte(unsigned char b) {
  if (b < 0x80) return {1};
  if (b < 0xC2) return {0};  // continuation bytes, and C0/C1 whose values fit in one byte
  if (b < 0xE0) return {2};
  if (b == 0xE0) return {3, 0xA0, 0xBF};  // no overlong forms
  if (b == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (b < 0xF0) return {3};
  if (b == 0xF0) return {4, 0x90, 0xBF};  // no overlong forms
  if (b < 0xF4) return {4};
  if (b == 0xF4) return {4, 0x80, 0x8F};  // nothing above U+10FFFF
  return {0};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(at);
  const LeadByte lead = lead_byte(first);
  if (lead.length == 1) return {Utf8Step::Kind::kValid, first, 1};
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, 0, 1};
  char32_t code_point = first & (0xFF >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    const size_t place = at + static_cast<size_t>(i);
    if (place == bytes.size()) return {Utf8Step::Kind::kIncomplete, 0, place - at};
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte(place) < low || byte(place) > high) {
      return {Utf8Step::Kind::kInvalid, 0, place - at};
    }
    code_point = (code_point << 6) | (byte(place) & 0x3F);
  }
  return {Utf8Step::Kind::kValid, code_point, static_cast<size_t>(lead.length)};
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, at);
    if (step.kind != Utf8Step::Kind::kValid) return false;
    at += step.bytes;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.push(bytes);
  out += stream.flush();
  return out;
}

bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  if (c >= 0x2000 && c <= 0x200A) return true;
  static constexpr std::array<char32_t, 8> kOthers = {0x85,   0xA0,   0x1680, 0x2028,
                                                      0x2029, 0x202F, 0x205F, 0x3000};
  for (const char32_t other : kOthers) {
    if (c == other) return true;
  }
  return false;
}

bool is_blank(std::string_view utf8) {
  for (size_t at = 0; at < utf8.size();) {
    const Utf8Step step = utf8_step(utf8, at);
    if (step.kind != Utf8Step::Kind::kValid || !is_python_space(step.code_point)) return false;
    at += step.bytes;
  }
  return true;
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string joined;
  std::string_view text = bytes;
  if (!held_.empty()) {
    joined = std::move(held_);
    joined += bytes;
    text = joined;
    held_.clear();
  }
  std::string out;
  out.reserve(text.size());
  size_t good_from = 0;  // start of the run of valid text not yet copied
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (step.kind == Utf8Step::Kind::kValid) {
      at += step.bytes;
      continue;
    }
    out += text.substr(good_from, at - good_from);
    if (step.kind == Utf8Step::Kind::kIncomplete) {
      held_ = text.substr(at);
      return out;
    }
    out += kReplacementCharacter;
    at += step.bytes;
    good_from = at;
  }
  out += text.substr(good_from);
  return out;
}

std::string Utf8Stream::flush() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace perigee::text
