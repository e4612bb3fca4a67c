// llmtool convert: writes a deck from the settings of another program, and reports what became of each key.

#include "convert/convert.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "config/config.hpp"
#include "convert/tables.hpp"
#include "core/error.hpp"
#include "tool/output_file.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

using convert::Effect;

struct ConvertCommand {
  std::string settings;
  std::string output;
  convert::ConvertOptions options;
  bool strict = false;
  bool force = false;
};

std::string_view effect_text(Effect effect) {
  switch (effect) {
    case Effect::mapped:
      return "mapped to ";
    case Effect::no_effect:
      return "no effect here: ";
    case Effect::unsupported:
      return "not supported: ";
    default:
      return "";
  }
}

void print_report(const convert::Conversion& conversion, const std::string& output) {
  std::string report = fmt::format("settings of {}\n", conversion.system->title);
  for (const convert::Finding& finding : conversion.findings) {
    report += fmt::format("{}:{}: {}: {}{}\n", finding.file, finding.line, finding.key, effect_text(finding.effect),
                          finding.text);
  }
  for (const std::string& remark : conversion.remarks) report += "note: " + remark + "\n";
  for (const std::string& need : conversion.needs) report += "to fill in: " + need + "\n";
  report += fmt::format("{}: {} keys mapped, {} without effect, {} not supported, {} unknown\n", output,
                        conversion.count(Effect::mapped), conversion.count(Effect::no_effect),
                        conversion.count(Effect::unsupported), conversion.count(Effect::unknown));
  std::cerr << without_controls(report);
}

/// The deck must not replace the settings that it comes from.
void check_output(const ConvertCommand& o, const convert::Conversion& conversion) {
  std::error_code ignored;
  for (const convert::Finding& finding : conversion.findings) {
    if (!std::filesystem::equivalent(o.output, finding.file, ignored)) continue;
    refuse_command_line(fmt::format("--output: {} is the file of the settings; name another one", o.output));
  }
}

void convert_file(const ConvertCommand& o) {
  if (o.options.ranks < 0 || o.options.ranks > convert::max_batch) {
    refuse_command_line(fmt::format("--ranks: from 1 to {}", convert::max_batch));
  }
  Config scratch;
  DeckKeys keys;
  scratch.visit(keys);
  const convert::Conversion conversion = convert::convert_settings(o.settings, o.options, keys);
  check_output(o, conversion);
  print_report(conversion, o.output);
  const size_t left_out = conversion.count(Effect::unsupported) + conversion.count(Effect::unknown);
  if (o.strict && left_out > 0) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: {} keys have no counterpart, so with --strict no deck is written", o.settings, left_out));
  }
  OutputFile output(o.output, o.force);
  output.write(conversion.deck);
  output.finish();
}

}  // namespace

Subcommand add_convert(CLI::App& program) {
  CLI::App* app = program.add_subcommand("convert", "write a deck from the settings of another program");
  const auto o = std::make_shared<ConvertCommand>();
  std::string names = "auto";
  for (const std::string_view system : convert::system_names()) names += fmt::format(", {}", system);
  app->add_option("settings", o->settings, "file: .json, .yaml, .toml, .ini, or .py with literal assignments and calls")
      ->required();
  app->add_option("--from", o->options.from, "the program: " + names)->capture_default_str();
  app->add_option(
         "--task", o->options.task,
         "purpose of the settings, if it does not follow from their keys: pretrain, sft, distill, classify, dpo, "
         "kto, orpo, simpo, cpo, reward, grpo, rloo, ppo")
      ->check(CLI::IsMember({"pretrain", "sft", "distill", "classify", "dpo", "kto", "orpo", "simpo", "cpo", "reward",
                             "grpo", "rloo", "ppo"}));
  app->add_option("--ranks", o->options.ranks, "GPUs of the other program's job, by which its batch is multiplied");
  app->add_option("--output", o->output, "the deck; - is the standard output")->required();
  app->add_flag("--strict", o->strict, "write no deck, and exit with 65, if a key is unknown or not supported");
  app->add_flag("--force", o->force, "overwrite the deck");
  return {app, [o] { convert_file(*o); }};
}

}  // namespace llmtrain
