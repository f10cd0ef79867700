// A driver for fuzz targets where libFuzzer is not at hand: it runs the corpus, then mutations of it for a while, from
// a seed, and prints how many inputs ran. An input that aborts the program is left in a file to be run again.
//
//   TARGET [--seconds S] [--seed N] [--runs N] [FILE or FOLDER]...
//
// --seconds 0 runs the corpus alone: `TARGET --seconds 0 smoke-crash.bin` repeats a failure.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kInputBytesMax = 4096;  // small inputs run often, and that finds more
constexpr const char* kCrashFile = "smoke-crash.bin";

const uint8_t* current_data = nullptr;  // for the signal handler
size_t current_size = 0;

// Only calls that are allowed in a signal handler.
void keep_input(int signal_number) {
  const int file = open(kCrashFile, O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (file >= 0) {
    const ssize_t written = write(file, current_data, current_size);
    const char note[] = "the input is in smoke-crash.bin\n";
    const ssize_t told = write(STDERR_FILENO, note, sizeof note - 1);
    (void)written, (void)told;
    close(file);
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void run_one(const Bytes& input) {
  const Bytes copy(
      input);  // exactly as large as the input, so that a sanitizer sees reads beyond it
  current_data = copy.data();
  current_size = copy.size();
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

class Mutator {
 public:
  Mutator(uint64_t seed, const std::vector<Bytes>& corpus) : random_(seed), corpus_(corpus) {}

  Bytes next() {
    Bytes input = corpus_.empty() || below(16) == 0 ? noise() : corpus_[below(corpus_.size())];
    const size_t changes = 1 + below(8);
    for (size_t i = 0; i < changes; ++i) change(input);
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    return input;
  }

 private:
  size_t below(size_t limit) { return static_cast<size_t>(random_() % limit); }
  std::ptrdiff_t place(const Bytes& input) {
    return static_cast<std::ptrdiff_t>(below(input.size() + 1));
  }

  uint8_t byte() {
    static constexpr uint8_t kTelling[] = {0,    1,   0x7F, 0x80, 0xC3, 0xED, 0xF0, 0xFF, '"',
                                           '\\', '{', '}',  '[',  ']',  ':',  ',',  '<',  '|',
                                           '>',  '-', 'e',  '.',  '0',  '9',  ' ',  '\n'};
    return below(2) == 0 ? kTelling[below(sizeof kTelling)] : static_cast<uint8_t>(random_());
  }

  Bytes noise() {
    Bytes out(below(64));
    for (uint8_t& b : out) b = byte();
    return out;
  }

  // A part of some input.
  Bytes part_of(const Bytes& input) {
    if (input.empty()) return {};
    const size_t from = below(input.size());
    const size_t size = 1 + below(std::min<size_t>(input.size() - from, 64));
    const auto start = input.begin() + static_cast<std::ptrdiff_t>(from);
    return Bytes(start, start + static_cast<std::ptrdiff_t>(size));
  }

  void change(Bytes& input) {
    switch (below(7)) {
      case 0:
        if (!input.empty()) input[below(input.size())] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (!input.empty()) input[below(input.size())] = byte();
        break;
      case 2:
        input.insert(input.begin() + place(input), byte());
        break;
      case 3:
        cut(input);
        break;
      case 4:
        insert(input, part_of(input));
        break;
      case 5:
        insert(input, part_of(corpus_.empty() ? input : corpus_[below(corpus_.size())]));
        break;
      default:
        write_number(input);
        break;
    }
  }

  void insert(Bytes& input, const Bytes& part) {
    input.insert(input.begin() + place(input), part.begin(), part.end());
  }

  void cut(Bytes& input) {
    if (input.empty()) return;
    const size_t from = below(input.size());
    const size_t size = 1 + below(std::min<size_t>(input.size() - from, 32));
    const auto start = input.begin() + static_cast<std::ptrdiff_t>(from);
    input.erase(start, start + static_cast<std::ptrdiff_t>(size));
  }

  // A little-endian number near a power of two over the bytes at some place: sizes and offsets of binary formats.
  void write_number(Bytes& input) {
    const uint64_t number = (uint64_t{1} << below(64)) + below(3) - 1;
    const size_t width = size_t{1} << below(4);
    if (input.size() < width) return;
    std::memcpy(input.data() + below(input.size() - width + 1), &number, width);
  }

  std::mt19937_64 random_;
  const std::vector<Bytes>& corpus_;
};

bool read_corpus(const std::filesystem::path& path, std::vector<Bytes>& corpus) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());  // the order of a folder is no one's promise
  } else {
    files.push_back(path);
  }
  for (const std::filesystem::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      std::fprintf(stderr, "cannot read the corpus file %s\n", file.c_str());
      return false;
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 3;
  uint64_t seed = 1, runs_max = UINT64_MAX;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--seconds" && has_value) {
      seconds = std::atof(argv[++i]);
    } else if (word == "--seed" && has_value) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--runs" && has_value) {
      runs_max = std::strtoull(argv[++i], nullptr, 10);
    } else if (word.starts_with("--")) {
      std::fprintf(stderr, "%s is unknown; use --seconds S, --seed N, --runs N and corpus files\n",
                   word.c_str());
      return 2;
    } else if (!read_corpus(word, corpus)) {
      return 2;
    }
  }
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    std::signal(signal_number, keep_input);

  uint64_t runs = 0;
  run_one({});
  for (const Bytes& input : corpus) run_one(input);
  runs += 1 + corpus.size();
  Mutator mutator(seed, corpus);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (uint64_t mutations = 0; mutations < runs_max && std::chrono::steady_clock::now() < end;
       ++mutations, ++runs) {
    run_one(mutator.next());
  }
  std::printf("%llu executions, %zu of them corpus, seed %llu\n",
              static_cast<unsigned long long>(runs), corpus.size() + 1,
              static_cast<unsigned long long>(seed));
  return 0;
}
