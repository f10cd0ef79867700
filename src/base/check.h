// What    Always-on checks of program bugs: print the expression, its values and the place, then abort.
// Owner   base.
// Threads Any.
// Errors  Aborts; bad input is a Result (result.h), never a CHECK.
#pragma once

#include <fmt/format.h>

#include <string>

namespace perigee {

// Prints "CHECK failed: <text> at <file>:<line>" on stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const std::string& text);

template <class A, class B>
std::string check_text(const char* expression, const A& a, const B& b) {
  return fmt::format("{} ({} against {})", expression, a, b);
}

}  // namespace perigee

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) ::perigee::check_failed(__FILE__, __LINE__, #condition);      \
  } while (false)

#define PERIGEE_CHECK_OP(a, op, b)                                                  \
  do {                                                                              \
    const auto& check_a = (a);                                                      \
    const auto& check_b = (b);                                                      \
    if (!(check_a op check_b))                                                      \
      ::perigee::check_failed(__FILE__, __LINE__,                                   \
                              ::perigee::check_text(#a " " #op " " #b, check_a, check_b)); \
  } while (false)

#define CHECK_EQ(a, b) PERIGEE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) PERIGEE_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) PERIGEE_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) PERIGEE_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) PERIGEE_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) PERIGEE_CHECK_OP(a, >=, b)
