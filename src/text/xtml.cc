#include "text/xtml.h"

#include <algorithm>

namespace perigee::text::xtml {

namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string_view::npos;
       at = found + from.size()) {
    out += text.substr(at, found - at);
    out += to;
  }
  out += text.substr(at);
  return out;
}

}  // namespace

std::string escape_attribute(std::string_view value) {
  return replace_all(replace_all(value, "&", "&amp;"), "\"", "&quot;");
}

std::string unescape_attribute(std::string_view value) {
  return replace_all(replace_all(value, "&quot;", "\""), "&amp;", "&");
}

const std::string* Header::find(std::string_view key) const {
  for (const auto& [name, value] : attributes) {
    if (name == key) return &value;
  }
  return nullptr;
}

Header parse_header(std::string_view text) {
  Header header;
  const size_t tag_end = std::min(text.find(' '), text.size());
  header.tag = text.substr(0, tag_end);
  text.remove_prefix(tag_end);
  while (text.starts_with(' ')) {
    const size_t quote = text.find("=\"");
    if (quote == std::string_view::npos) break;
    const size_t value_from = quote + 2;
    const size_t value_end = text.find('"', value_from);
    if (value_end == std::string_view::npos) break;
    header.attributes.emplace_back(
        text.substr(1, quote - 1),
        unescape_attribute(text.substr(value_from, value_end - value_from)));
    text.remove_prefix(value_end + 1);
  }
  return header;
}

}  // namespace perigee::text::xtml
