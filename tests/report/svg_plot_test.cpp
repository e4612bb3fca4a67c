// Pictures in SVG: gaps, marks, foreign texts, and numbers of any size stay inside the frame.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "report/charts/plots.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double gap = std::numeric_limits<double>::quiet_NaN();

PlotContent content_of(std::vector<double> values, bool logarithmic = false) {
  PlotContent content{"a <title>", "nats", logarithmic, {}, {{2, "R"}}};
  PlotCurve curve{{}, "it's & \x01\xff", 0, false};
  for (size_t i = 0; i < values.size(); ++i) curve.points.steps.push_back(static_cast<int64_t>(i) + 1);
  curve.points.values = std::move(values);
  content.curves.push_back(std::move(curve));
  return content;
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

/// Places of the curve's points.
std::vector<double> coordinates(const std::string& svg) {
  std::vector<double> all;
  for (size_t at = svg.find("points=\""); at != std::string::npos; at = svg.find("points=\"", at + 1)) {
    std::istringstream points(svg.substr(at + 8, svg.find('"', at + 8) - at - 8));
    char comma = 0;
    for (double x = 0, y = 0; points >> x >> comma >> y;) all.insert(all.end(), {x, y});
  }
  return all;
}

TEST(SvgPlot, ShowsCurvesGapsAndMarks) {
  const std::string svg = svg_plot(content_of({3, 2, gap, 1, 2, gap, 1.5}));
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_EQ(count(svg, "<circle"), 1) << "a point alone";
  EXPECT_THAT(svg, HasSubstr("a &lt;title&gt;</text>"));
  EXPECT_THAT(svg, HasSubstr("it&#39;s &amp; \xEF\xBF\xBD\xEF\xBF\xBD</text>"));
  EXPECT_THAT(svg, HasSubstr(">R</text>"));
  EXPECT_EQ(count(svg_plot(content_of({3, 2, 1, 1, 2, 2, 1.5})), "<polyline"), 1) << "the control";
  const std::vector<double> linear = coordinates(svg_plot(content_of({1, 10, 100}))),
                            logarithmic = coordinates(svg_plot(content_of({1, 10, 100}, true)));
  EXPECT_NEAR(logarithmic[1] - logarithmic[3], logarithmic[3] - logarithmic[5], 0.2);
  EXPECT_GT(linear[3] - linear[5], 5 * (linear[1] - linear[3]));
}

TEST(SvgPlot, NumbersOfAnySizeStayInTheFrame) {
  constexpr double most = std::numeric_limits<double>::max(), least = std::numeric_limits<double>::denorm_min();
  for (const auto& values : std::vector<std::vector<double>>{{-most, most},
                                                             {least, most},
                                                             {0, 0},
                                                             {7, 7},
                                                             {most, most},
                                                             {least, least},
                                                             {1, 1 + 1e-15},
                                                             {1e300, 1, -1e-300}}) {
    for (const bool logarithmic : {false, true}) {
      if (logarithmic && *std::ranges::min_element(values) <= 0) continue;
      const std::string svg = svg_plot(content_of(values, logarithmic));
      EXPECT_THAT(svg, Not(HasSubstr("nan")));
      EXPECT_THAT(svg, Not(HasSubstr("inf")));
      EXPECT_LT(svg.size(), 20'000U);
      const std::vector<double> places = coordinates(svg);
      EXPECT_EQ(places.size(), 2 * values.size());
      for (size_t i = 0; i < places.size(); ++i) {
        EXPECT_GE(places[i], i % 2 == 0 ? 79.9 : 49.9);
        EXPECT_LE(places[i], i % 2 == 0 ? 880.1 : 430.1);
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain
