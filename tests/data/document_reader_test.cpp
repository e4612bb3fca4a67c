#include "data/files/document_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "data_files.hpp"

namespace llmtrain {
namespace {

using test::Folder;
using testing::ElementsAre;

constexpr int64_t no_limit = int64_t{1} << 40;

std::vector<DocumentPart> parts_of(const std::string& path, const std::string& separator = "") {
  const InputFile file = find_input_files({path}, {separator}).front();
  DocumentReader reader(file, no_limit);
  std::vector<DocumentPart> parts;
  DocumentPart part;
  while (reader.next(part)) parts.push_back(part);
  return parts;
}

std::vector<std::string> texts_of(const std::string& path, const std::string& separator = "") {
  std::vector<std::string> texts;
  for (const DocumentPart& part : parts_of(path, separator)) texts.push_back(part.text);
  return texts;
}

std::string joined(const std::vector<DocumentPart>& parts) {
  std::string all;
  for (const DocumentPart& part : parts) all += part.text + part.behind;
  return all;
}

TEST(DocumentReader, CutsAtSeparators) {
  const Folder folder;
  EXPECT_THAT(texts_of(folder.file("a", "one|two||three|"), "|"), ElementsAre("one", "two", "", "three"));
  EXPECT_THAT(texts_of(folder.file("a", "one|two"), "|"), ElementsAre("one", "two"));
  EXPECT_THAT(texts_of(folder.file("a", "one|two")), ElementsAre("one|two"));
  EXPECT_THAT(texts_of(folder.file("a", "a<end>b<en<end>"), "<end>"), ElementsAre("a", "b<en"));
  EXPECT_THAT(texts_of(folder.file("a.jsonl", "{\"text\":1}\n\n{}")), ElementsAre("{\"text\":1}", "", "{}"));
  const std::vector<DocumentPart> parts = parts_of(folder.file("a", "1\n2\n\n3\n\n4"), "\n\n");
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[1].line, 4);
  EXPECT_EQ(parts[2].line, 6);
  EXPECT_EQ(parts[2].offset, 8);
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
    const std::vector<DocumentPart> parts = parts_of(folder.file("a.txt", text), separator);
    EXPECT_TRUE(joined(parts) == text);
    ASSERT_EQ(parts.size(), documents.size());
    for (size_t d = 0; d < parts.size(); ++d) ASSERT_TRUE(parts[d].text == documents[d]) << d;
  }
}

TEST(DocumentReader, LongDocumentsComeInParts) {
  const Folder folder;
  std::string text = "short|";
  while (text.size() < (size_t{40} << 20)) text += "\u20ac\U0001F600x";
  const size_t size = text.size();
  text += "|short";
  const std::vector<DocumentPart> parts = parts_of(folder.file("a.txt", text), "|");
  EXPECT_TRUE(joined(parts) == text);
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_TRUE(parts[1].first && !parts[1].last && !parts[2].first && !parts[2].last && !parts[3].first &&
              parts[3].last);
  EXPECT_EQ(parts[3].offset + static_cast<int64_t>(parts[3].text.size()), static_cast<int64_t>(size));
  for (const DocumentPart& part : parts) {
    EXPECT_LE(part.text.size(), static_cast<size_t>(DocumentReader::longest_part) + 1);
    EXPECT_NE(static_cast<uint8_t>(part.text.front()) & 0xC0, 0x80) << "cut between characters";
  }
}

}  // namespace
}  // namespace llmtrain
