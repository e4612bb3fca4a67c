#include "report/report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "report/assets.hpp"
#include "report/dashboard/request_guard.hpp"
#include "report/html_text.hpp"
#include "report/page_data.hpp"
#include "report/page_sections.hpp"
#include "report/run_facts.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

struct Section {
  const char* id;
  const char* title;
  std::string content;
};

std::string title_of(const std::vector<RunReader>& runs) {
  return runs.size() == 1 ? runs.front().name() : fmt::format("{} runs", runs.size());
}

/// Names the files that could not be read as they should.
std::string warnings(const std::vector<RunReader>& runs) {
  std::string text;
  for (const RunReader& run : runs) {
    if (!run.problem().empty()) text += "<p class=\"warning\">Warning: " + html_text(run.problem()) + "</p>\n";
  }
  return text;
}

std::string head(const std::vector<RunReader>& runs, const std::string& key) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-{0}'; style-src "
      "'nonce-{0}'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n"
      "<title>{1}: llmtrain report</title>\n<style nonce=\"{0}\">\n{2}\n{3}</style>\n</head>\n",
      key, html_text(title_of(runs)), asset("uplot.css"), asset("report.css"));
}

std::string body(const std::vector<RunReader>& runs, const std::vector<Section>& sections) {
  const std::string task = runs.front().deck_value("run", "task");
  std::string names;
  for (const RunReader& run : runs) names += (names.empty() ? "" : ", ") + run.name();
  std::string text = fmt::format("<body>\n<header><h1>{}</h1>\n<p>{}{}</p>\n<nav aria-label=\"Sections\"><ul>",
                                 html_text(title_of(runs)), task.empty() ? "" : html_text(task) + " &middot; ",
                                 html_text(runs.size() > 1 ? names : runs.front().folder().string()));
  for (const Section& section : sections) {
    text += fmt::format("<li><a href=\"#{}\">{}</a></li>", section.id, section.title);
  }
  text += "</ul></nav></header>\n<main>\n" + warnings(runs);
  for (const Section& section : sections) {
    text += fmt::format(
        "<section id=\"{0}\" aria-labelledby=\"title-{0}\">\n<h2 id=\"title-{0}\">{1}</h2>\n{2}</section>\n",
        section.id, section.title, section.content);
  }
  return text + fmt::format(
                    "</main>\n<footer><p>Written by llmtrain {} at {:%Y-%m-%d %H:%M} UTC.</p>\n<details><summary>"
                    "The plots are drawn by uPlot, whose licence is this</summary>\n<pre>{}</pre></details></footer>\n",
                    LLMTRAIN_VERSION, fmt::gmtime(std::time(nullptr)), html_text(asset("uplot.licence")));
}

std::string page(const std::vector<RunReader>& runs) {
  const std::vector<Chart> charts = plan_charts(runs);
  const bool one = runs.size() == 1;
  std::vector<Section> sections;
  const auto add = [&](const char* id, const char* title, std::string content) {
    if (!content.empty()) sections.push_back({id, title, std::move(content)});
  };
  add("summary", one ? "Summary" : "Comparison", one ? summary_section(runs.front()) : comparison_section(runs));
  add("curves", "Curves", charts_section(runs, charts));
  add("time", "Time by phase", time_section(runs));
  add("events", "Events", events_section(runs));
  add("samples", "Samples", samples_section(runs));
  add("numbers", "Numbers", numbers_section(runs));
  add("deck", "Deck", deck_section(runs));
  add("environment", "Environment", environment_section(runs));
  const std::string key = random_token();  // without it the page runs no script
  return head(runs, key) + body(runs, sections) +
         fmt::format(
             "<script type=\"application/json\" id=\"data\" nonce=\"{0}\">{1}</script>\n<script nonce=\"{0}\">\n{2}\n"
             "</script>\n<script nonce=\"{0}\">\n{3}</script>\n</body>\n</html>\n",
             key, page_data(runs, charts), asset("uplot.js"), asset("report.js"));
}

}  // namespace

void write_report(const std::vector<fs::path>& runs, const fs::path& output) {
  const std::string text = page(read_runs(runs));
  std::error_code error;
  fs::create_directories(output.has_parent_path() ? output.parent_path() : ".", error);
  if (error) fail_to_create(output.parent_path().string(), "the folder cannot be created", error.value());
  write_whole_file(output.string(), text);
}

}  // namespace llmtrain
