// What    Server-sent events from the bytes of a stream, however these are cut.
// Owner   serve, the client's side.
// Threads One stream, one thread.
// Errors  feed() of an event beyond kSseEventBytesMax; the reader cannot go on after that. An event whose blank line never came
//         is no event.
// Source  WHATWG HTML, 9.2.6 "Interpreting an event stream". The fields id and retry serve reconnecting and are passed over.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace perigee::serve {

inline constexpr size_t kSseEventBytesMax = size_t{16} << 20;  // no honest event comes near it

struct SseEvent {
  std::string name;  // empty: none was given
  std::string data;  // its lines, joined by line feeds

  friend bool operator==(const SseEvent&, const SseEvent&) = default;
};

class SseReader {
 public:
  // Appends the events that these bytes complete.
  Status feed(std::string_view bytes, std::vector<SseEvent>& events);

 private:
  void end_line(std::vector<SseEvent>& events);

  std::string line_;  // the part of it that is here
  SseEvent event_;
  bool has_data_ = false;
  bool first_line_ = true;
  bool after_cr_ = false;  // a line feed now belongs to the line that is over
};

}  // namespace perigee::serve
