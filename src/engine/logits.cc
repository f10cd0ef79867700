#include "engine/logits.h"

#include <algorithm>
#include <limits>

namespace perigee::engine {
namespace {

template <class Real>
constexpr Real kBanned = -std::numeric_limits<Real>::infinity();

// Whether the made tokens end with all of `word` but its last token.
bool ends_with_start_of(std::span<const int32_t> made, const std::vector<int32_t>& word) {
  const size_t n = word.size() - 1;
  return made.size() >= n && std::equal(word.begin(), word.end() - 1, made.end() - static_cast<std::ptrdiff_t>(n));
}

}  // namespace

LogitEditor::LogitEditor(const TokenSampling& s, std::span<const int32_t> prompt, std::span<const int32_t> stop_ids,
                         std::shared_ptr<text::Constraint> constraint)
    : repetition_(s.repetition_penalty),
      presence_(s.presence_penalty),
      frequency_(s.frequency_penalty),
      bias_(s.logit_bias),
      allowed_(s.allowed_ids),
      bad_words_(s.bad_words),
      min_tokens_(s.min_tokens),
      stop_ids_(stop_ids.begin(), stop_ids.end()),
      constraint_(std::move(constraint)) {
  const bool penalties = repetition_ != 1.0 || presence_ != 0.0 || frequency_ != 0.0;
  active_ = penalties || !bias_.empty() || !allowed_.empty() || !bad_words_.empty() || min_tokens_ > 0 ||
            constraint_ != nullptr;
  if (repetition_ != 1.0) {
    for (const int32_t id : prompt) seen_.emplace(id, 0);
  }
}

void LogitEditor::accept(int32_t id) {
  if (!active_) return;
  ++seen_[id];
  if (constraint_ != nullptr) constraint_->accept(id);
}

template <class Real>
void LogitEditor::edit_row(Real* logits, int64_t vocab, std::span<const int32_t> made) {
  for (const auto& [id, times] : seen_) {
    Real& x = logits[id];
    if (repetition_ != 1.0) x = x > 0 ? x / static_cast<Real>(repetition_) : x * static_cast<Real>(repetition_);
    if (times > 0) x -= static_cast<Real>(presence_) + static_cast<Real>(frequency_) * static_cast<Real>(times);
  }
  for (const auto& [id, bias] : bias_) logits[id] += static_cast<Real>(bias);
  if (!allowed_.empty()) {
    std::vector<Real> kept;
    for (const int32_t id : allowed_) kept.push_back(logits[id]);
    std::fill(logits, logits + vocab, kBanned<Real>);
    for (size_t i = 0; i < allowed_.size(); ++i) logits[allowed_[i]] = kept[i];
  }
  for (const std::vector<int32_t>& word : bad_words_) {
    if (ends_with_start_of(made, word)) logits[word.back()] = kBanned<Real>;
  }
  if (static_cast<int64_t>(made.size()) < min_tokens_) {
    for (const int32_t id : stop_ids_) logits[id] = kBanned<Real>;
  }
  if (constraint_ == nullptr) return;
  mask_.assign(static_cast<size_t>((vocab + 31) / 32), 0);
  if (!constraint_->fill_mask(mask_)) return;
  for (int64_t id = 0; id < vocab; ++id) {
    if ((mask_[static_cast<size_t>(id / 32)] >> (id % 32) & 1) == 0) logits[id] = kBanned<Real>;
  }
}

void LogitEditor::edit(const tensor::Tensor& row, std::span<const int32_t> made) {
  if (!active_) return;
  if (row.dtype == tensor::DType::kF64) {
    edit_row(row.row<double>(0), row.dims[1], made);
  } else {
    edit_row(row.row<float>(0), row.dims[1], made);
  }
}

}  // namespace perigee::engine
