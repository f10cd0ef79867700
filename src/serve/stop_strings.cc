#include "serve/stop_strings.h"

#include "base/check.h"

namespace perigee::serve {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)), nodes_(1) {
  for (size_t i = 0; i < strings_.size(); ++i) add(i);
  link();
}

uint32_t StopStrings::child(uint32_t node, unsigned char byte) const {
  for (const auto& [label, to] : nodes_[node].next) {
    if (label == byte) return to;
  }
  return 0;
}

uint32_t StopStrings::step(uint32_t node, unsigned char byte) const {
  while (true) {
    const uint32_t to = child(node, byte);
    if (to != 0 || node == 0) return to;
    node = nodes_[node].fail;
  }
}

void StopStrings::add(size_t index) {
  CHECK(!strings_[index].empty());
  uint32_t node = 0;
  for (const char c : strings_[index]) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t to = child(node, byte);
    if (to == 0) {
      to = static_cast<uint32_t>(nodes_.size());
      nodes_[node].next.emplace_back(byte, to);
      Node& made = nodes_.emplace_back();
      made.depth = nodes_[node].depth + 1;
    }
    node = to;
  }
  if (nodes_[node].string < 0) nodes_[node].string = static_cast<int32_t>(index);
}

// Breadth first, so that a node's shorter ends are linked before it.
void StopStrings::link() {
  std::vector<uint32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t node = order[i];
    for (const auto& [byte, to] : nodes_[node].next) {
      nodes_[to].fail = node == 0 ? 0 : step(nodes_[node].fail, byte);
      if (nodes_[to].string < 0) nodes_[to].string = nodes_[nodes_[to].fail].string;
      order.push_back(to);
    }
  }
}

std::optional<size_t> StopMatcher::push(std::string_view text, bool include, std::string& out) {
  if (strings_ == nullptr || strings_->empty()) {
    out += text;
    return std::nullopt;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    node_ = strings_->step(node_, static_cast<unsigned char>(text[i]));
    const int32_t found = strings_->nodes_[node_].string;
    if (found < 0) continue;
    held_ += text.substr(0, i + 1);
    if (!include) held_.resize(held_.size() - strings_->at(static_cast<size_t>(found)).size());
    out += held_;
    held_.clear();
    return static_cast<size_t>(found);
  }
  held_ += text;
  const size_t free = held_.size() - strings_->nodes_[node_].depth;
  out.append(held_, 0, free);
  held_.erase(0, free);
  return std::nullopt;
}

void StopMatcher::pass(std::string_view text, std::string& out) {
  out += held_;
  out += text;
  held_.clear();
  node_ = 0;
}

}  // namespace perigee::serve
