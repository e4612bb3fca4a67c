#include "data/files/document_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "data/files/input_kind.hpp"
#include "data_files.hpp"

namespace llmtrain {
namespace {

using test::Folder;
using testing::ElementsAre;

constexpr int64_t no_limit = int64_t{1} << 40;

std::vector<DocumentSegment> parts_of(const std::string& path, const std::string& separator = "") {
  const InputFile file = find_input_files({path}, {separator}).front();
  DocumentReader reader(file, no_limit);
  std::vector<DocumentSegment> segments;
  DocumentSegment segment;
  while (reader.next(segment)) segments.push_back(segment);
  return segments;
}

std::vector<std::string> texts_of(const std::string& path, const std::string& separator = "") {
  std::vector<std::string> texts;
  for (const DocumentSegment& segment : parts_of(path, separator)) texts.push_back(segment.text);
  return texts;
}

std::string joined(const std::vector<DocumentSegment>& segments) {
  std::string all;
  for (const DocumentSegment& segment : segments) all += segment.text + segment.behind;
  return all;
}

TEST(DocumentReader, CutsAtSeparators) {
  const Folder folder;
  EXPECT_THAT(texts_of(folder.file("a", "one|two||three|"), "|"), ElementsAre("one", "two", "", "three"));
  EXPECT_THAT(texts_of(folder.file("a", "one|two"), "|"), ElementsAre("one", "two"));
  EXPECT_THAT(texts_of(folder.file("a", "one|two")), ElementsAre("one|two"));
  EXPECT_THAT(texts_of(folder.file("a", "a<end>b<en<end>"), "<end>"), ElementsAre("a", "b<en"));
  EXPECT_THAT(texts_of(folder.file("a.jsonl", "{\"text\":1}\n\n{}")), ElementsAre("{\"text\":1}", "", "{}"));
  const std::vector<DocumentSegment> segments = parts_of(folder.file("a", "1\n2\n\n3\n\n4"), "\n\n");
  ASSERT_EQ(segments.size(), 3U);
  EXPECT_EQ(segments[1].line, 4);
  EXPECT_EQ(segments[2].line, 6);
  EXPECT_EQ(segments[2].offset, 8);
}

TEST(DocumentReader, GivesTheFileByteForByte) {
  const Folder folder;
  std::mt19937 random(3);
  for (const std::string& separator : {std::string("\n\n"), std::string("<|end|>"), std::string("x")}) {
    std::string text;
    std::vector<std::string> documents;
    for (int d = 0; d < 300; ++d) {
      std::string document;
      const size_t size = d == 7 ? 3'000'000 : random() % 30'000;
      while (document.size() < size) document += static_cast<char>('a' + random() % 20);
      documents.push_back(document);
      text += document + separator;
    }
    const std::vector<DocumentSegment> segments = parts_of(folder.file("a.txt", text), separator);
    EXPECT_TRUE(joined(segments) == text);
    ASSERT_EQ(segments.size(), documents.size());
    for (size_t d = 0; d < segments.size(); ++d) ASSERT_TRUE(segments[d].text == documents[d]) << d;
  }
}

TEST(DocumentReader, LongDocumentsComeInParts) {
  const Folder folder;
  std::string text = "short|";
  while (text.size() < (size_t{40} << 20)) text += "\u20ac\U0001F600x";
  const size_t size = text.size();
  text += "|short";
  const std::vector<DocumentSegment> segments = parts_of(folder.file("a.txt", text), "|");
  EXPECT_TRUE(joined(segments) == text);
  ASSERT_EQ(segments.size(), 5U);
  EXPECT_TRUE(segments[1].first && !segments[1].last && !segments[2].first && !segments[2].last && !segments[3].first &&
              segments[3].last);
  EXPECT_EQ(segments[3].offset + static_cast<int64_t>(segments[3].text.size()), static_cast<int64_t>(size));
  for (const DocumentSegment& segment : segments) {
    EXPECT_LE(segment.text.size(), static_cast<size_t>(DocumentReader::max_segment_bytes) + 1);
    EXPECT_NE(static_cast<uint8_t>(segment.text.front()) & 0xC0, 0x80) << "cut between characters";
  }
}

}  // namespace
}  // namespace llmtrain
