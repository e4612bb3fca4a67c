#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/files/json_node.hpp"
#include "data/files/jsonl.hpp"
#include "scores/choice_task.hpp"
#include "text/chat/jinja/python_text.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {

// Formats of tasks by log-likelihoods: those of the published files, with the prompts of lm-evaluation-harness's tasks,
// and plain ones. A format that has the columns of another one stands above it.

namespace {

/// Facts about a row that stand outside of it.
struct ChoiceSource {
  std::string subject;                ///< of the file's name: abstract_algebra_test.csv has "abstract algebra"
  std::optional<int64_t> label = {};  ///< of the row, in a file beside it
};

struct ChoiceFormat {
  std::string_view name;
  ChoiceTask::Kind kind;
  /// Columns that tell the format, separated by spaces.
  std::string_view columns;
  /// Sets choices, answer and lengths. Throws UserError(bad_content) without the place of the row.
  void (*read)(const OrderedJsonNode& row, const ChoiceSource& source, ChoiceRow& out);
};

constexpr int64_t max_choices = 1000;

[[noreturn]] void refuse(const std::string& what) { throw UserError(ExitCode::bad_content, what); }

std::string stripped(std::string_view text) {
  const size_t begin = jinja::skip_python_spaces(text, 0);
  return std::string(text.substr(begin, jinja::strip_python_spaces_right(text, begin, text.size()) - begin));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Adds choices that follow the context after a space.
void add_choices(ChoiceRow& out, const std::string& context, const std::vector<std::string>& choices) {
  if (choices.size() < 2) refuse(fmt::format("choices: a row needs at least two, not {}", choices.size()));
  for (const std::string& choice : choices) {
    if (choice.empty()) refuse(fmt::format("choices[{}] is empty", out.choices.size()));
    out.choices.push_back({context, " " + choice});
    out.lengths.push_back(count_code_points(choice));
  }
}

std::vector<std::string> texts_of(const OrderedJsonNode& list) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < list.array().size(); ++i) texts.push_back(list.at(i).text());
  return texts;
}

/// Sets the index of the answer among the choices, counted from `base`.
void set_answer(ChoiceRow& out, std::string_view column, int64_t answer, int64_t base = 0) {
  const int64_t last = base + std::ssize(out.choices) - 1;
  if (answer < base || answer > last)
    refuse(fmt::format("{}: {} is not the number of a choice, {} to {}", column, answer, base, last));
  out.answer = answer - base;
}

/// An integer, or the text of one.
int64_t integer_of(const OrderedJsonNode& row, std::string_view column) {
  const OrderedJsonNode node = row.at(column);
  if (!node.value().is_string()) return node.count(max_choices);
  const std::string& text = node.text();
  if (text.empty() || text.size() > 3 || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }))
    node.refuse_value("the number of a choice");
  return std::stoll(text);
}

int64_t required_label(const OrderedJsonNode& row, const ChoiceSource& source, std::string_view column) {
  if (row.has(column)) return integer_of(row, column);
  if (!source.label)
    refuse(fmt::format("the row has no answer: neither a column {} nor a file of labels with the name of the rows",
                       column));
  return *source.label;
}

void require_answer(const OrderedJsonNode& row, std::string_view column) {
  if (!row.has(column)) refuse(fmt::format("the row has no answer: column {} is missing", column));
}

void read_winogrande(const OrderedJsonNode& row, const ChoiceSource&, ChoiceRow& out) {
  const std::string& sentence = row.at("sentence").text();
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) refuse("sentence: there is no _ to fill in");
  for (const char* option : {"option1", "option2"}) {
    const std::string context = sentence.substr(0, blank) + row.at(option).text();
    out.choices.push_back({context, " " + stripped(std::string_view(sentence).substr(blank + 1))});
    out.lengths.push_back(count_code_points(context));
  }
  require_answer(row, "answer");
  const auto& answer = row.at("answer").value();
  if (answer.is_string() && answer.get_ref<const std::string&>().empty())
    refuse("the row has no answer: column answer is empty, as in the test file");
  set_answer(out, "answer", integer_of(row, "answer"), 1);
}

/// Removes what WikiHow's pages leave in the text.
std::string without_wikihow_marks(const std::string& raw) {
  std::string text = stripped(raw);
  replace_all(text, " [title]", ". ");
  for (size_t open = text.find('['); open != std::string::npos; open = text.find('[', open)) {
    const size_t close = text.find(']', open), line_end = text.find('\n', open);
    if (close == std::string::npos) break;
    if (line_end < close) {
      open = line_end;
    } else {
      text.erase(open, close + 1 - open);
    }
  }
  replace_all(text, "  ", " ");
  return text;
}

void read_hellaswag(const OrderedJsonNode& row, const ChoiceSource& source, ChoiceRow& out) {
  const bool parts = row.has("ctx_a") && row.has("ctx_b");
  const std::string context =
      parts ? row.at("ctx_a").text() + " " + jinja::with_case(row.at("ctx_b").text(), jinja::Case::capitalized)
            : row.at("ctx").text();
  std::vector<std::string> endings = texts_of(row.at("endings"));
  for (std::string& ending : endings) ending = without_wikihow_marks(ending);
  add_choices(out, without_wikihow_marks(row.at("activity_label").text() + ": " + context), endings);
  set_answer(out, "label", required_label(row, source, "label"));
}

void read_piqa(const OrderedJsonNode& row, const ChoiceSource& source, ChoiceRow& out) {
  add_choices(out, "Question: " + row.at("goal").text() + "\nAnswer:", {row.at("sol1").text(), row.at("sol2").text()});
  set_answer(out, "label", required_label(row, source, "label"));
}

/// As published, or with the lists of choices and labels that the Hugging Face hub has.
void read_arc(const OrderedJsonNode& row, const ChoiceSource&, ChoiceRow& out) {
  const bool published = row.at("question").value().is_object();
  std::vector<std::string> labels, choices;
  if (published) {
    const OrderedJsonNode list = row.at("question").at("choices");
    for (size_t i = 0; i < list.array().size(); ++i) {
      labels.push_back(list.at(i).at("label").text());
      choices.push_back(list.at(i).at("text").text());
    }
  } else {
    labels = texts_of(row.at("choices").at("label"));
    choices = texts_of(row.at("choices").at("text"));
  }
  const std::string& question = published ? row.at("question").at("stem").text() : row.at("question").text();
  add_choices(out, "Question: " + question + "\nAnswer:", choices);
  require_answer(row, "answerKey");
  const auto found = std::ranges::find(labels, row.at("answerKey").text());
  if (found == labels.end() || found - labels.begin() >= std::ssize(choices))
    refuse(fmt::format("answerKey: no choice has the label '{}'", row.at("answerKey").text()));
  out.answer = found - labels.begin();
}

constexpr std::string_view letters = "ABCD";

void read_mmlu(const OrderedJsonNode& row, const ChoiceSource& source, ChoiceRow& out) {
  if (row.at("choices").value().is_object()) refuse("the row has no answer: column answerKey is missing");
  std::string subject = row.text_or("subject", source.subject);
  std::ranges::replace(subject, '_', ' ');
  const std::vector<std::string> choices = texts_of(row.at("choices"));
  if (choices.size() != letters.size()) refuse(fmt::format("choices: there must be 4, not {}", choices.size()));
  std::string prompt = fmt::format("The following are multiple choice questions (with answers) about {}.\n\n{}\n",
                                   subject, stripped(row.at("question").text()));
  std::vector<std::string> names;
  for (size_t c = 0; c < choices.size(); ++c) {
    names.emplace_back(1, letters[c]);
    prompt += fmt::format("{}. {}\n", names.back(), choices[c]);
  }
  add_choices(out, prompt + "Answer:", names);
  require_answer(row, "answer");
  const OrderedJsonNode answer = row.at("answer");
  const size_t letter =
      answer.value().is_string() && answer.text().size() == 1 ? letters.find(answer.text()[0]) : std::string::npos;
  set_answer(out, "answer", letter != std::string::npos ? static_cast<int64_t>(letter) : integer_of(row, "answer"));
}

/// Rows of llm-foundry's files.
void read_query(const OrderedJsonNode& row, const ChoiceSource&, ChoiceRow& out) {
  std::string query = row.at("query").text();
  query.resize(jinja::strip_python_spaces_right(query, 0, query.size()));
  add_choices(out, query + "\nAnswer:", texts_of(row.at("choices")));
  require_answer(row, "gold");
  set_answer(out, "gold", integer_of(row, "gold"));
}

void read_choices(const OrderedJsonNode& row, const ChoiceSource&, ChoiceRow& out) {
  const std::vector<std::string> choices = texts_of(row.at("choices"));
  add_choices(out, row.at("context").text(), choices);
  require_answer(row, "answer");
  const OrderedJsonNode answer = row.at("answer");
  const auto found = answer.value().is_string() ? std::ranges::find(choices, answer.text()) : choices.end();
  if (found != choices.end()) {
    out.answer = found - choices.begin();
  } else {
    set_answer(out, "answer", integer_of(row, "answer"));
  }
}

void read_continuation(const OrderedJsonNode& row, const ChoiceSource&, ChoiceRow& out) {
  const std::string& text = row.at("continuation").text();
  if (text.empty()) refuse("the row has no answer: column continuation is empty");
  const bool spaced = text.front() == ' ' || text.front() == '\n';
  out.choices.push_back({row.at("context").text(), spaced ? text : " " + text});
  out.lengths.push_back(count_code_points(text));
}

/// The last word of a text continues the rest.
void read_last_word(const OrderedJsonNode& row, const ChoiceSource&, ChoiceRow& out) {
  const std::string& text = row.at("text").text();
  const size_t space = text.rfind(' ');
  if (space == std::string::npos || space == 0 || space + 1 == text.size())
    refuse("the row has no answer: the text must end with a space and a word");
  out.choices.push_back({text.substr(0, space), text.substr(space)});
  out.lengths.push_back(count_code_points(text) - count_code_points(std::string_view(text).substr(0, space + 1)));
}

using Kind = ChoiceTask::Kind;
constexpr std::array formats = {
    ChoiceFormat{"winogrande", Kind::contexts, "sentence option1 option2", read_winogrande},
    ChoiceFormat{"hellaswag", Kind::choices, "activity_label endings", read_hellaswag},
    ChoiceFormat{"piqa", Kind::choices, "goal sol1 sol2", read_piqa},
    ChoiceFormat{"arc", Kind::choices, "question answerKey", read_arc},
    ChoiceFormat{"mmlu", Kind::choices, "question choices", read_mmlu},
    ChoiceFormat{"query", Kind::choices, "query choices", read_query},
    ChoiceFormat{"choices", Kind::choices, "context choices", read_choices},
    ChoiceFormat{"continuation", Kind::continuation, "context continuation", read_continuation},
    ChoiceFormat{"lambada", Kind::continuation, "text", read_last_word},
};

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
  for (const ChoiceFormat& format : formats) {
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
