// Part of the xgrammar library (cmake/xgrammar.cmake), which calls it.
#include <stdexcept>
#include <string>

// xgrammar's own printing is switched off (cmake/xgrammar.cmake): its errors come here as exceptions that hold the sentence
// alone, and its warnings about parts of a schema that it leaves to the model are dropped.
namespace xgrammar {
[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string&, int, int, const std::string&) {}
}  // namespace xgrammar
