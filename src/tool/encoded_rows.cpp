#include "tool/encoded_rows.hpp"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "tool/input_lines.hpp"

namespace llmtrain {

void for_each_encoded_row(const std::string& input, const TextFormat& rules, const ChatEncoder& encoder,
                          const std::function<void(int64_t line, const std::vector<EncodedRow>& documents)>& work) {
  InputLines lines(input);
  const std::string source = input == "-" ? "standard input" : input;
  std::optional<RowReader> reader;  // of the format that the first row has
  std::vector<EncodedRow> documents;
  FormatRecognition recognition(rules.row_format, rules.columns);
  int64_t number = 0;
  for (std::string_view line; lines.next(line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      recognition.add(line, number);
      if (!reader) reader.emplace(recognition.format(), rules.columns, encoder.has_template());
      encode_documents(encoder, reader->read_documents(line), documents);
      work(number, documents);
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}:{}: {}", source, number, error.what()));
    }
  }
}

}  // namespace llmtrain
