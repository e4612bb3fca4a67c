// The picture of a sweep: axes side by side, and each run a line through its values (Inselberg 1985).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "report/html_text.hpp"
#include "sweep/sweep_results.hpp"

namespace llmtrain {

namespace {

constexpr double height = 420, top = 60, bottom = 60, margin = 80, distance = 170;

/// A vertical axis: numbers by their size, other values in their order.
class Axis {
 public:
  Axis(std::string name, const std::vector<std::optional<std::string>>& values) : name_(std::move(name)) {
    for (const std::optional<std::string>& value : values) {
      if (value && std::ranges::find(texts_, *value) == texts_.end()) texts_.push_back(*value);
    }
    for (const std::string& text : texts_) {
      char* end = nullptr;
      numbers_.push_back(std::strtod(text.c_str(), &end));
      is_number_ = is_number_ && *end == '\0' && std::isfinite(numbers_.back());
    }
    if (!is_number_ || texts_.empty()) return;
    low_ = *std::ranges::min_element(numbers_);
    high_ = *std::ranges::max_element(numbers_);
    logarithmic_ = low_ > 0 && high_ / low_ >= 20;
  }

  /// From 0, at the bottom, to 1; without a value below the axis.
  double place(const std::optional<std::string>& value) const {
    if (!value) return -0.1;
    const auto index = static_cast<size_t>(std::ranges::find(texts_, *value) - texts_.begin());
    if (texts_.size() == 1 || (is_number_ && low_ == high_)) return 0.5;
    if (!is_number_) return static_cast<double>(index) / static_cast<double>(texts_.size() - 1);
    const double x = numbers_[index];
    return logarithmic_ ? std::log(x / low_) / std::log(high_ / low_) : (x - low_) / (high_ - low_);
  }

  std::string svg(double x) const {
    std::string text = fmt::format(
        "<line x1=\"{0}\" y1=\"{1}\" x2=\"{0}\" y2=\"{2}\" stroke=\"#333\"/>"
        "<text x=\"{0}\" y=\"{3}\" text-anchor=\"middle\" font-weight=\"bold\">{4}</text>\n",
        x, y_of(1), y_of(0), top - 24, html_text(name_));
    constexpr size_t max_labels = 12;
    std::vector<std::string> labels = texts_;
    if (labels.size() > max_labels) {
      std::ranges::sort(labels, {}, [&](const std::string& label) { return place(label); });
      labels = {labels.front(), labels[labels.size() / 2], labels.back()};
    }
    for (const std::string& label : labels) {
      const double y = y_of(place(label));
      text += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#333\"/>", x - 4, y, x, y);
      text += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", x - 7, y + 4, html_text(label));
    }
    return text;
  }
  static double y_of(double place) { return top + (1 - place) * (height - top - bottom); }

 private:
  std::string name_;
  std::vector<std::string> texts_;
  std::vector<double> numbers_;
  bool is_number_ = true, logarithmic_ = false;
  double low_ = 0, high_ = 0;
};

/// From blue, the best, to light grey.
std::string colour(double share) {
  const auto mix = [&](int from, int to) { return from + static_cast<int>(share * (to - from)); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(0x1f, 0xd8), mix(0x4e, 0xd8), mix(0xb4, 0xd8));
}

}  // namespace

std::string parallel_coordinates_svg(const SweepFile& sweep, std::span<const SweepResult> results) {
  std::vector<std::vector<std::optional<std::string>>> rows;
  for (const SweepResult& result : results) {
    if (std::isnan(result.best.value)) continue;
    rows.push_back(result.run.values);
    rows.back().push_back(fmt::format("{:.5g}", result.best.value));
  }
  std::vector<Axis> axes;
  for (size_t i = 0; i <= sweep.choices.size(); ++i) {
    std::vector<std::optional<std::string>> values;
    values.reserve(rows.size());
    for (const auto& row : rows) values.push_back(row[i]);
    axes.emplace_back(i < sweep.choices.size() ? sweep.choices[i].key : sweep.config.metric, values);
  }
  const double width = 2 * margin + distance * static_cast<double>(axes.size() - 1);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  for (size_t i = rows.size(); i-- > 0;) {  // the best last, above the others
    std::string points;
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      points += fmt::format("{:.1f},{:.1f} ", margin + distance * static_cast<double>(axis),
                            Axis::y_of(axes[axis].place(rows[i][axis])));
    }
    const double share = rows.size() < 2 ? 0 : static_cast<double>(i) / static_cast<double>(rows.size() - 1);
    text += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"/>\n", points,
                        colour(share), i == 0 ? 3 : 1);
  }
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    text += axes[axis].svg(margin + distance * static_cast<double>(axis));
  }
  return text + "</svg>\n";
}

}  // namespace llmtrain
