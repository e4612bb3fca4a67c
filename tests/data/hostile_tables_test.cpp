// Tables that are broken, lie about their kind, or have no use: an error that names the place, and never more.

#include <random>

#include "data/files/document_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/unpack.hpp"
#include "harness/peak_memory.hpp"
#include "table_files.hpp"

namespace llmtrain {
namespace {

using test::content_of;
using test::Folder;
using test::refusal;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::string reference = test::table_folder;

/// Reads all rows.
std::string verdict(const std::string& path) {
  return refusal([&] {
    DocumentReader reader(find_input_files({path}, {}).front(), int64_t{1} << 28);
    for (DocumentSegment row; reader.next(row);) {
    }
  });
}

TEST(HostileTables, Csv) {
  const Folder folder;
  const auto of = [&](const std::string& text, const std::string& name = "a.csv") {
    return verdict(folder.file(name, text));
  };
  EXPECT_EQ(of("text\na\n"), "nothing was thrown");
  EXPECT_EQ(of("text,b\r\n\r\n\"a\r\nb\",\"\"\"\"\r\n"), "nothing was thrown");
  EXPECT_THAT(of("text,b\n1,2\n\n1,2,3\n"), HasSubstr("a.csv:4: the row has 3 fields, and there are 2 names"));
  EXPECT_THAT(of("text,b\n\"1\n\n\",2\n1\n"), HasSubstr("a.csv:5: the row has 1 fields"));
  EXPECT_THAT(of("text\nx\n\"y\nz\n"), HasSubstr("a.csv:3: the quote that begins on this line has no end"));
  EXPECT_THAT(of("text\n\"y\"z\n"), HasSubstr("a.csv:2: text follows the quote"));
  EXPECT_THAT(of("text,b,text\n1,2,3\n"), HasSubstr("a.csv: it has two columns of the name 'text'"));
  EXPECT_THAT(of("text\n\xFF\n"), HasSubstr("a.csv:2: a field is not UTF-8"));
  EXPECT_THAT(of("\n\n"), HasSubstr("a.csv: it has no header row"));
  EXPECT_THAT(of("text,b\n"), HasSubstr("a.csv: it has no row"));
  EXPECT_THAT(of("text\tb\n1\n", "a.tsv"), HasSubstr("a.tsv:2: the row has 1 fields"));
  EXPECT_THAT(of("text" + std::string(70'000, ',') + "\n"), HasSubstr("a.csv:1: the row has more than 65536 fields"));
}

TEST(CsvLines, ColumnsOfValuesAreNumbers) {
  const Folder folder;
  const std::string path = folder.file("a.csv", "chosen,margin,stars\n1,0.5,2\n");
  const auto lines = [&](const std::vector<std::string>& columns) {
    return open_lines(path, columns).read_text(int64_t{1} << 20);
  };
  EXPECT_EQ(lines({}), "{\"chosen\":\"1\",\"margin\":0.5,\"stars\":\"2\"}\n");
  EXPECT_EQ(lines({"label:stars"}), "{\"chosen\":\"1\",\"margin\":0.5,\"stars\":2}\n");
}

TEST(HostileTables, NamesThatLie) {
  const Folder folder;
  EXPECT_THAT(verdict(folder.file("a.parquet", "{\"text\": \"a\"}\n")),
              HasSubstr("a.parquet: its name says that it is Parquet, and its first bytes that it is not"));
  EXPECT_THAT(verdict(folder.file("a.arrow", "text\n")), HasSubstr("a.arrow: its name says that it is Arrow"));
  EXPECT_THAT(verdict(folder.file("a.feather", "FEA1....")), HasSubstr("a.feather: Feather of version 1"));
  EXPECT_THAT(verdict(folder.file("a.parquet", "PARE....")), HasSubstr("encrypted"));
  EXPECT_THAT(verdict(folder.file("a.parquet.gz", "\x1F\x8B....")), HasSubstr("unpack the file"));
  const std::string parquet = content_of(reference + "text_snappy.parquet");
  const std::string text = verdict(folder.file("a.jsonl", parquet)), twin = verdict(folder.file("b.parquet", parquet));
  EXPECT_EQ(text.find("a.jsonl") == std::string::npos, twin.find("b.parquet") == std::string::npos)
      << "the content decides: " << text << twin;
  if (test::has_arrow()) {
    EXPECT_EQ(text, "nothing was thrown");
  }
}

TEST(HostileTables, ColumnsAndRows) {
  LLMTRAIN_NEEDS_ARROW();
  for (const std::string ending : {".parquet", ".arrow"}) {
    EXPECT_THAT(verdict(fmt::format("{}hostile_twice{}", reference, ending)),
                HasSubstr(ending + ": it has two columns of the name"));
    EXPECT_THAT(verdict(fmt::format("{}hostile_empty{}", reference, ending)), HasSubstr(ending + ": it has no row"));
  }
  EXPECT_THAT(verdict(reference + "hostile_latin.parquet"),
              HasSubstr("hostile_latin.parquet: row group 2 of 2: column 'text': a text is not UTF-8"));
}

TEST(HostileTables, BrokenAndTruncatedFiles) {
  LLMTRAIN_NEEDS_ARROW();
  const Folder folder;
  const int64_t before = test::peak_memory();
  std::mt19937 random(3);
  std::string all;
  for (const std::string name : {"text_snappy.parquet", "text_zstd.parquet", "text_plain.parquet", "text_file.arrow",
                                 "text_stream.arrow", "text_zstd.feather", "text_dictionary.arrow"}) {
    const std::string whole = content_of(reference + name);
    int refused = 0;
    for (int i = 0; i < 50; ++i) {
      std::string broken = whole;
      if (i < 10) {
        broken.resize(static_cast<size_t>(i + 1) * whole.size() / 11);
      } else {
        broken[random() % broken.size()] ^= static_cast<char>(1 + random() % 255);
      }
      const std::string found = verdict(folder.file(name, broken));
      EXPECT_THAT(found, AnyOf("nothing was thrown", AllOf(StartsWith("65 "), HasSubstr(name))));
      refused += found != "nothing was thrown" ? 1 : 0;
      all += found + "\n";
    }
    EXPECT_GT(refused, 9) << name;
    EXPECT_LT(refused, 51) << name;
  }
  std::string wrong = content_of(reference + "text_plain.parquet");
  wrong.replace(wrong.find("a \"quoted\" one"), 10, "a \"guoted\"");
  EXPECT_THAT(verdict(folder.file("wrong.parquet", wrong)),
              AllOf(HasSubstr("wrong.parquet: row group 1 of "), HasSubstr("CRC")))
      << "a page with a checksum";
  EXPECT_THAT(all, HasSubstr("text_snappy.parquet: row group 2 of 3: "));
  EXPECT_THAT(all,
              AnyOf(HasSubstr("text_file.arrow: record batch 2 of 3: "), HasSubstr("text_file.arrow: record batch 1")));
  EXPECT_LT(test::peak_memory() - before, test::with_sanitizer(int64_t{256} << 20)) << "bytes more at the peak";
}

}  // namespace
}  // namespace llmtrain
