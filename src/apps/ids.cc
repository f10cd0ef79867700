#include "apps/ids.h"

#include "base/file.h"
#include "text/json.h"

namespace perigee::apps {
namespace {

Result<std::vector<int32_t>> id_list(const text::Json& array, const std::string& where) {
  std::vector<int32_t> ids;
  ids.reserve(array.items().size());
  for (size_t i = 0; i < array.items().size(); ++i) {
    const text::Json& item = array.items()[i];
    if (!item.is_number()) {
      return invalid_argument("{}: item {} is {}, a token id is needed", where, i, item.kind_name());
    }
    const Result<int64_t> id = item.as_int64();
    if (!id.ok() || *id < INT32_MIN || *id > INT32_MAX) {
      return invalid_argument("{}: item {} is {}, a token id is needed", where, i, item.number_lexeme());
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace

Result<IdLists> read_id_lists(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return text.error();
  const size_t values = text->size();  // as many as it holds
  const Result<text::Json> json = text::parse_json(*text, path, text::kJsonDepthMax, nullptr, values);
  if (!json.ok()) return json.error();
  if (!json->is_array()) {
    return invalid_argument("{} holds {}, an array of token ids (or of such arrays) is needed", path,
                            json->kind_name());
  }
  IdLists lists;
  lists.nested = !json->items().empty() && json->items()[0].is_array();
  if (!lists.nested) {
    Result<std::vector<int32_t>> ids = id_list(*json, path);
    if (!ids.ok()) return ids.error();
    lists.sequences.push_back(std::move(*ids));
    return lists;
  }
  for (size_t i = 0; i < json->items().size(); ++i) {
    const std::string where = fmt::format("{}, sequence {}", path, i);
    if (!json->items()[i].is_array()) {
      return invalid_argument("{} is {}, an array of token ids is needed", where, json->items()[i].kind_name());
    }
    Result<std::vector<int32_t>> ids = id_list(json->items()[i], where);
    if (!ids.ok()) return ids.error();
    lists.sequences.push_back(std::move(*ids));
  }
  return lists;
}

}  // namespace perigee::apps
