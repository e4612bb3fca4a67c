// GPT-2, Llama 2 and Llama 3 on 46 texts with published tokens, in every format of the files.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

std::string read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

struct Fixture {
  std::string tokenizer;
  std::string expected;
};

class TokenizerFixtures : public testing::TestWithParam<Fixture> {};

TEST_P(TokenizerFixtures, PublishedIdsAndTheTextAgain) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA names no folder of data";
  const std::string folder = std::string(data) + "/tokenizer/";
  const auto tokenizer = load_tokenizer(folder + GetParam().tokenizer);
  const std::string separator = "\n__ggml_vocab_test__\n";
  const std::string input = read(folder + "fixtures/texts.inp");
  std::ifstream expected(folder + "fixtures/" + GetParam().expected);
  int count = 0;
  for (size_t begin = 0; begin < input.size(); ++count) {
    const size_t end = input.find(separator, begin);
    ASSERT_NE(end, std::string::npos);
    const std::string text = input.substr(begin, end - begin);
    begin = end + separator.size();
    SCOPED_TRACE(text);
    std::string line;
    ASSERT_TRUE(std::getline(expected, line));
    std::istringstream numbers(line);
    const std::vector<int32_t> want{std::istream_iterator<int32_t>(numbers), std::istream_iterator<int32_t>()};
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    EXPECT_EQ(ids, want);
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
  EXPECT_EQ(count, 46);
}

INSTANTIATE_TEST_SUITE_P(Published, TokenizerFixtures,
                         testing::Values(Fixture{"gpt2/tokenizer.json", "gpt-2.out"},
                                         Fixture{"gpt2/vocab.json", "gpt-2.out"},
                                         Fixture{"llama2/tokenizer.json", "llama-spm.out"},
                                         Fixture{"llama2/tokenizer.model", "llama-spm.out"},
                                         Fixture{"llama3", "llama-bpe.out"}),
                         [](const auto& one) {
                           std::string name = one.param.tokenizer;
                           for (char& c : name) c = c == '.' || c == '/' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace llmtrain
