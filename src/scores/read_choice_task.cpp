#include <fmt/format.h>

#include <algorithm>

#include "data/files/jsonl.hpp"
#include "scores/choice_formats.hpp"
#include "scores/choice_task.hpp"

namespace llmtrain {

namespace {

/// Lines of a text with their numbers; blank ones are skipped.
template <class Take>
void each_line(std::string_view text, const Take& take) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!is_blank(line)) take(number, line);
  }
}

/// Fields of the next record of CSV (RFC 4180), which begins at `at`; moves `at` and `line` past it.
std::vector<std::string> next_record(std::string_view text, size_t& at, int64_t& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  while (at < text.size()) {
    const char c = text[at++];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (at < text.size() && text[at] == '"') {
        fields.back() += text[at++];
      } else {
        quoted = false;
      }
    } else if (c == '"' && fields.back().empty()) {
      quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      break;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  if (quoted) throw UserError(ExitCode::bad_content, "a quoted field has no end");
  return fields;
}

/// A row of the files of MMLU, whose columns have no names: question, four choices, letter of the answer.
nlohmann::ordered_json mmlu_row(const std::vector<std::string>& fields) {
  if (fields.size() != 6) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{} columns; a row has six: question, four choices, answer (A to D)", fields.size()));
  }
  return {{"question", fields[0]},
          {"choices", std::vector<std::string>(fields.begin() + 1, fields.begin() + 5)},
          {"answer", fields[5]}};
}

std::string subject_of(const std::string& path) {
  std::string subject = file_stem(path);
  for (const std::string_view part : {"_test", "_val", "_dev"}) {
    if (subject.ends_with(part)) subject.resize(subject.size() - part.size());
  }
  return subject;
}

bool has_columns(const nlohmann::ordered_json& row, std::string_view columns) {
  for (size_t begin = 0; begin < columns.size();) {
    const size_t end = std::min(columns.find(' ', begin), columns.size());
    if (!row.contains(columns.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

const ChoiceFormat& format_of(const nlohmann::ordered_json& row) {
  std::string known;
  for (const ChoiceFormat& format : choice_formats()) {
    if (has_columns(row, format.columns)) return format;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", format.name, format.columns);
  }
  throw UserError(ExitCode::bad_content, "the columns of the row fit no format of tasks: " + known);
}

/// Appends rows to a task.
class TaskReader {
 public:
  TaskReader(const TaskFile& file, ChoiceTask& task) : task_(task) {
    source_.subject = subject_of(file.path);
    each_line(file.labels, [&](int64_t number, std::string_view line) {
      if (line.size() != 1 || line[0] < '0' || line[0] > '9') {
        throw UserError(
            ExitCode::bad_content,
            fmt::format("{}: line {} of its file of labels is not the number of a choice", file.path, number));
      }
      labels_.push_back(line[0] - '0');
    });
  }

  void add(int64_t line, const nlohmann::ordered_json& row) {
    if (format_ == nullptr) format_ = &format_of(row);
    task_.kind = format_->kind;
    ChoiceRow& out = task_.rows.emplace_back();
    out.line = line;
    source_.label.reset();
    if (task_.rows.size() <= labels_.size()) source_.label = labels_[task_.rows.size() - 1];
    format_->read(OrderedJsonNode(row, ""), source_, out);
  }

  void finish() const {
    if (task_.rows.empty()) throw UserError(ExitCode::bad_content, task_.path + ": there are no rows");
    if (labels_.empty() || labels_.size() == task_.rows.size()) return;
    throw UserError(ExitCode::bad_content, fmt::format("{} has {} rows, but its file of labels has {}", task_.path,
                                                       task_.rows.size(), labels_.size()));
  }

 private:
  ChoiceTask& task_;
  ChoiceSource source_;
  std::vector<int64_t> labels_;
  const ChoiceFormat* format_ = nullptr;
};

/// Does the work, whose errors then begin with the place.
template <class Work>
void at_line(const std::string& path, int64_t line, const Work& work) {
  try {
    work();
  } catch (const UserError& error) {
    throw UserError(error.code(), fmt::format("{}:{}: {}", path, line, error.what()));
  }
}

}  // namespace

std::string choice_task_name(std::string_view path) {
  std::string name = file_stem(path);
  for (char& c : name) {
    const bool plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return name;
}

ChoiceTask parse_choice_task(const TaskFile& file) {
  ChoiceTask task;
  task.name = choice_task_name(file.path);
  task.path = file.path;
  TaskReader reader(file, task);
  if (file.path.ends_with(".csv")) {
    int64_t line = 1;
    for (size_t at = file.text.starts_with(byte_order_mark) ? byte_order_mark.size() : 0; at < file.text.size();) {
      const int64_t first = line;
      at_line(file.path, first, [&] { reader.add(first, mmlu_row(next_record(file.text, at, line))); });
    }
  } else {
    each_line(file.text, [&](int64_t number, std::string_view line) {
      at_line(file.path, number, [&] { reader.add(number, parse_json_row(line)); });
    });
  }
  reader.finish();
  return task;
}

}  // namespace llmtrain
