#include <gmock/gmock.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "load/index.h"
#include "load/reader.h"
#include "load/safetensors.h"
#include "load/save.h"
#include "load/test_files.h"

namespace perigee::load {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The sentence that a file with this header and this much data is refused with.
std::string refusal(const std::string& header, size_t data_bytes) {
  const TempFolder folder;
  const std::string path = folder.write("x.safetensors", raw_safetensors(header, data_bytes));
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (file.ok()) return "it opens";
  EXPECT_THAT(file.error().message, HasSubstr("x.safetensors"));
  return file.error().message;
}

std::string braces(const std::string& inside) {
  return fmt::format("{{{}}}", inside);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& at) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     at);
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const TempFolder folder;
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "F32", "[2,1]", "[4,12]") + "," +
      entry("a", "BF16", "[2]", "[0,4]") + "," + entry("scalar", "U8", "[]", "[12,13]") + "," +
      entry("none", "F64", "[0,7]", "[13,13]") + "}   ";
  std::string text = raw_safetensors(header, 13);
  const float values[2] = {1.5f, -2.0f};
  std::memcpy(text.data() + 8 + header.size() + 4, values, sizeof(values));
  const Result<SafetensorsFile> file = SafetensorsFile::open(folder.write("x.safetensors", text));
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->find("c"), -1);
  const int64_t b = file->find("b");
  ASSERT_EQ(b, 1);  // in the order of their bytes
  const FileTensor& t = file->tensors()[1];
  EXPECT_EQ(t.dtype, FileDType::kF32);
  EXPECT_EQ(t.shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(std::memcmp(file->data(t), values, sizeof(values)), 0);
  EXPECT_EQ(file->tensors()[2].shape.size(), 0u);
}

TEST(Safetensors, RefusesBrokenHeaders) {
  EXPECT_THAT(refusal("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(" {}", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{\"a\":", 0), HasSubstr("not JSON at byte"));
  EXPECT_THAT(refusal("{} x", 0), HasSubstr("not JSON at byte"));
  EXPECT_THAT(refusal("{\"a\":3}", 0), HasSubstr("a holds a number"));
  EXPECT_THAT(refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1),
              AllOf(HasSubstr("tensor a"), HasSubstr("data_offsets")));
  EXPECT_THAT(refusal(braces(entry("a", "U9", "[1]", "[0,1]")), 1),
              AllOf(HasSubstr("tensor a"), HasSubstr("U9")));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[-1]", "[0,1]")), 1),
              AllOf(HasSubstr("tensor a"), HasSubstr("negative")));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[1.5]", "[0,1]")), 1), HasSubstr("fraction"));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[[1]]", "[0,1]")), 1), HasSubstr("an array"));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[1]", "[0]")), 1), HasSubstr("two data_offsets"));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[1]", "[0,1,1]")), 1),
              HasSubstr("two data_offsets"));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[1]", "[1,0]")), 1),
              AllOf(HasSubstr("tensor a"), HasSubstr("before its begin")));
  EXPECT_THAT(refusal(braces(entry("a", "F32", "[3]", "[0,8]")), 8),
              AllOf(HasSubstr("tensor a"), HasSubstr("needs 12 bytes")));
  EXPECT_THAT(refusal(braces(entry("a", "F4", "[3]", "[0,1]")), 1),
              HasSubstr("no whole number of bytes"));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[4294967296,4294967296,4]", "[0,0]")), 0),
              HasSubstr("too large"));
  EXPECT_THAT(refusal(braces(entry("a", "U8", "[99999999999999999999]", "[0,0]")), 0),
              HasSubstr("fraction"));
  EXPECT_THAT(
      refusal("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
              1),
      HasSubstr("two fields dtype"));
  EXPECT_THAT(refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"offset\":[0,1]}}", 1),
              HasSubstr("unknown field offset"));
  EXPECT_THAT(refusal("{\"__metadata__\":{\"a\":{}}}", 0), HasSubstr("an object"));
}

TEST(Safetensors, RefusesBytesThatDoNotAddUp) {
  const std::string a = entry("a", "U8", "[4]", "[0,4]");
  EXPECT_THAT(refusal(braces(a + "," + a), 4), HasSubstr("tensor a stands there twice"));
  EXPECT_THAT(refusal(braces(a + "," + entry("b", "U8", "[4]", "[2,6]")), 6),
              HasSubstr("tensors a and b overlap at byte 2"));
  EXPECT_THAT(refusal(braces(a + "," + entry("b", "U8", "[4]", "[5,9]")), 9),
              AllOf(HasSubstr("bytes 4 to 5"), HasSubstr("tensor b")));
  EXPECT_THAT(refusal(braces(a), 3), AllOf(HasSubstr("truncated"), HasSubstr("4 bytes")));
  EXPECT_THAT(refusal(braces(a), 6), HasSubstr("2 bytes after the last tensor"));
}

TEST(Safetensors, RefusesWrongLengths) {
  const TempFolder folder;
  const auto message = [&](const std::string& text) {
    return SafetensorsFile::open(folder.write("y.safetensors", text)).error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("truncated"));
  EXPECT_THAT(message("1234567"), HasSubstr("truncated"));
  EXPECT_THAT(message(std::string("\xff\x00\x00\x00\x00\x00\x00\x00{}", 10)),
              HasSubstr("needs 263 bytes"));
  EXPECT_THAT(message(std::string(8, '\xff') + "{}"), HasSubstr("the format allows 100000000"));
  EXPECT_THAT(SafetensorsFile::open(folder.file("absent")).error().message, HasSubstr("absent"));
}

TEST(Safetensors, EveryTruncationOfAWholeFileIsRefused) {
  const TempFolder folder;
  const std::string whole = raw_safetensors(braces(entry("a", "U8", "[4]", "[0,4]")), 4);
  for (size_t size = 0; size < whole.size(); ++size) {
    const Result<SafetensorsHeader> header =
        parse_safetensors(std::as_bytes(std::span(whole)).first(size), size, "cut");
    ASSERT_FALSE(header.ok()) << size;
  }
  ASSERT_TRUE(parse_safetensors(std::as_bytes(std::span(whole)), whole.size(), "whole").ok());
}

TEST(Save, ReadsBackWhatItWrote) {
  const TempFolder folder;
  const float values[3] = {1, 2, 3};
  const uint8_t codes[1] = {200};
  const SaveTensor tensors[] = {
      {"q \"uoted\" \xc3\xa9", FileDType::kF32, {3, 1}, std::as_bytes(std::span(values))},
      {"codes", FileDType::kU8, {}, std::as_bytes(std::span(codes))},
      {"empty", FileDType::kBF16, {0}, {}},
  };
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
  const std::string path = folder.file("s.safetensors");
  const Status saved = save_safetensors(path, tensors, metadata);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  for (const SaveTensor& t : tensors) {
    const int64_t i = file->find(t.name);
    ASSERT_GE(i, 0) << t.name;
    const FileTensor& read = file->tensors()[static_cast<size_t>(i)];
    EXPECT_EQ(read.dtype, t.dtype);
    EXPECT_EQ(read.shape, t.shape);
    ASSERT_EQ(read.bytes(), t.bytes.size());
    EXPECT_TRUE(std::equal(t.bytes.begin(), t.bytes.end(), file->data(read)));
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->data(file->tensors()[0])) % 8, 0u);
  EXPECT_FALSE(file_exists(path + ".partial"));
  EXPECT_THAT(save_safetensors(folder.file("no/such/folder"), tensors).error().message,
              HasSubstr("no/such/folder"));
}

std::string shard(const std::string& names) {
  std::vector<SaveTensor> tensors;
  static const std::byte zero[1] = {};
  for (const char name : names)
    tensors.push_back({std::string(1, name), FileDType::kU8, {1}, zero});
  std::string text = safetensors_header(tensors);
  return text + std::string(names.size(), '\0');
}

std::string checkpoint_refusal(const TempFolder& folder, const std::string& index) {
  folder.write(kIndexFile, index);
  const auto files = open_checkpoint(folder.path());
  return files.ok() ? "it opens" : files.error().message;
}

TEST(Index, OpensOneFileOrShards) {
  const TempFolder folder;
  EXPECT_THAT(open_checkpoint(folder.path()).error().message,
              AllOf(HasSubstr(folder.path()), HasSubstr(kSingleFile), HasSubstr(kIndexFile)));
  folder.write(kSingleFile, shard("ab"));
  ASSERT_EQ(open_checkpoint(folder.path())->size(), 1u);
  folder.write("1.safetensors", shard("ab"));
  folder.write("2.safetensors", shard("c"));
  EXPECT_EQ(checkpoint_refusal(folder,
                               R"({"metadata":{"total_size":3,"x":[{"weight_map":1}]},"weight_map":
      {"a":"1.safetensors","c":"2.safetensors","b":"1.safetensors"}})"),
            "it opens");
  EXPECT_EQ(open_checkpoint(folder.path())->size(), 2u);
}

TEST(Index, RefusesWhatDoesNotFit) {
  const TempFolder folder;
  folder.write("1.safetensors", shard("ab"));
  folder.write("2.safetensors", shard("c"));
  const auto map = [](const std::string& members) { return "{\"weight_map\":{" + members + "}}"; };
  const std::string ab = R"("a":"1.safetensors","b":"1.safetensors")";
  EXPECT_THAT(checkpoint_refusal(folder, map(ab + R"(,"c":"3.safetensors")")),
              AllOf(HasSubstr("3.safetensors is missing"), HasSubstr(kIndexFile)));
  EXPECT_THAT(checkpoint_refusal(folder, map(ab + R"(,"d":"2.safetensors")")),
              AllOf(HasSubstr("tensor d"), HasSubstr("2.safetensors, which does not hold it")));
  EXPECT_THAT(checkpoint_refusal(folder, map(R"("a":"1.safetensors")")),
              AllOf(HasSubstr("holds tensor b"), HasSubstr("1.safetensors")));
  EXPECT_THAT(checkpoint_refusal(folder, map(ab + "," + ab)),
              HasSubstr("tensor a stands in weight_map twice"));
  EXPECT_THAT(checkpoint_refusal(folder, map(R"("a":"../1.safetensors")")),
              AllOf(HasSubstr("tensor a"), HasSubstr("plain file name")));
  EXPECT_THAT(checkpoint_refusal(folder, map(R"("a":7)")), HasSubstr("tensor a names no shard"));
  EXPECT_THAT(checkpoint_refusal(folder, map(R"("a":{"b":"1.safetensors"})")),
              HasSubstr("tensor a names no shard"));
  EXPECT_THAT(checkpoint_refusal(folder, map("")), HasSubstr("names no tensor"));
  EXPECT_THAT(checkpoint_refusal(folder, "{}"), HasSubstr("no weight_map"));
  EXPECT_THAT(checkpoint_refusal(folder, "{\"weight_map\":3}"),
              HasSubstr("weight_map is not an object"));
  EXPECT_THAT(checkpoint_refusal(folder, "[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(checkpoint_refusal(folder, "{\"weight_map\":{"), HasSubstr("no JSON at byte"));
  std::filesystem::resize_file(folder.file("1.safetensors"),
                               std::filesystem::file_size(folder.file("1.safetensors")) - 1);
  EXPECT_THAT(checkpoint_refusal(folder, map(ab)),
              AllOf(HasSubstr("1.safetensors is truncated"), HasSubstr("fetch it again")));
}

TEST(FileReader, ReadsAnyRangeAndNamesAFileThatWasCutOff) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 40000; ++i) text.push_back(static_cast<char>(i * 7 + i / 251));
  const std::string path = folder.write("x.safetensors", text);
  EXPECT_THAT(FileReader::open(folder.file("y")).error().message, HasSubstr(folder.file("y")));
  for (const bool held : {true, false}) {
    Result<FileReader> reader = FileReader::open(path);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    ReadBuffer buffer;
    for (const auto& [begin, size] : {std::pair<size_t, size_t>{0, 1}, {0, 40000}, {4095, 2}, {4096, 4096}, {39999, 1}, {5, 0}}) {
      if (!held) {  // as far as the system lets go of it
        const int fd = ::open(path.c_str(), O_RDONLY);
        ::fsync(fd);
        ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        ::close(fd);
      }
      const Result<const std::byte*> got = reader->read(begin, size, buffer);
      ASSERT_TRUE(got.ok()) << got.error().message;
      EXPECT_EQ(std::memcmp(*got, text.data() + begin, size), 0) << begin << " " << size;
    }
    EXPECT_THAT(reader->read(39990, 11, buffer).error().message,
                AllOf(HasSubstr("x.safetensors ends at byte 40000"), HasSubstr("40001 is needed")));
  }
}

}  // namespace
}  // namespace perigee::load
