// Section of the report about labels: scores of each, and the confusion matrix as a heat map.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/charts/metric_info.hpp"
#include "report/html_text.hpp"
#include "report/page_sections.hpp"

namespace llmtrain {

namespace {

constexpr size_t most_labels = 64;  // of a matrix that is shown
constexpr std::string_view f1_prefix = "validation_f1/";

std::string score_rows(const RunReader& run) {
  std::string rows;
  for (const auto& [name, series] : run.metrics()) {
    if (!name.starts_with(f1_prefix)) continue;
    const std::string label = name.substr(f1_prefix.size());
    rows += fmt::format("<tr><th scope=\"row\">{}</th>", html_text(label));
    for (const char* score : {"precision", "recall", "f1"}) {
      const auto found = run.metrics().find(fmt::format("validation_{}/{}", score, label));
      const double value = found == run.metrics().end() ? std::nan("") : found->second.values.back();
      rows += fmt::format("<td class=\"number\">{}</td>", std::isnan(value) ? "" : fmt::format("{:.4f}", value));
    }
    rows += "</tr>\n";
  }
  return rows;
}

/// Shade by the share of the row: 0 to 4.
int shade_of(int64_t count, int64_t row) {
  if (count == 0 || row == 0) return 0;
  return static_cast<int>(std::min<int64_t>(1 + 4 * count / row, 4));
}

std::string matrix_of(const Confusion& confusion) {
  std::string head, rows;
  for (const std::string& label : confusion.labels) {
    head += fmt::format("<th scope=\"col\" class=\"number\">{}</th>", html_text(label));
  }
  for (size_t i = 0; i < confusion.labels.size(); ++i) {
    int64_t sum = 0;
    for (const int64_t count : confusion.counts[i]) sum += count;
    rows += fmt::format("<tr><th scope=\"row\">{}</th>", html_text(confusion.labels[i]));
    for (const int64_t count : confusion.counts[i]) {
      rows += fmt::format("<td class=\"heat{}\">{}</td>", shade_of(count, sum), count);
    }
    rows += "</tr>\n";
  }
  return fmt::format(
      "<p class=\"note\">Confusion matrix of the evaluation at step {}: a row for each true label, a column for each "
      "predicted one.</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Confusion matrix\"><table "
      "class=\"confusion\"><thead><tr><th scope=\"col\">true</th>{}</tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
      confusion.step, head, rows);
}

}  // namespace

std::string labels_section(const std::vector<RunReader>& runs) {
  std::string text;
  for (const RunReader& run : runs) {
    const std::string rows = score_rows(run);
    if (rows.empty()) continue;
    if (runs.size() > 1) text += fmt::format("<h3>{}</h3>\n", html_text(run.name()));
    text += fmt::format(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Scores of labels\"><table><thead><tr><th "
        "scope=\"col\">label</th><th scope=\"col\" class=\"number\">precision</th><th scope=\"col\" "
        "class=\"number\">recall</th><th scope=\"col\" class=\"number\">F1</th></tr></thead>\n<tbody>\n{}</tbody>"
        "</table></div>\n",
        rows);
    for (const Confusion& confusion : run.confusions()) {
      if (confusion.labels.size() <= most_labels) text += matrix_of(confusion);
    }
  }
  return text;
}

}  // namespace llmtrain
