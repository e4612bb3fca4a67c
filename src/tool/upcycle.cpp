// llmtool upcycle: makes a mixture of experts of a dense model.

#include "hf/upcycle.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "models/experts_config.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

struct UpcycleCommand {
  std::string model;
  std::string output;
  UpcycleOptions options;
  std::string file_size = "5G";
};

void upcycle(const UpcycleCommand& o) {
  if (o.options.per_token > o.options.experts) {
    refuse_command_line(fmt::format("--per-token: a token cannot use {} of {} experts: give at most --experts",
                                    o.options.per_token, o.options.experts));
  }
  require_other_folder(o.model, o.output);
  ExportOptions options;
  options.output = o.output;
  options.file_bytes = parse_count_option("--file-size", o.file_size, between(1 << 10, 1e18));
  options.texts = other_files_of(o.model);
  print_warnings(upcycle_model(o.model, options, o.options));
  std::cout << o.output << '\n';
}

}  // namespace

Subcommand add_upcycle(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "upcycle", "make a mixture of experts of a dense model: every expert begins as a copy of its layer's MLP");
  const auto o = std::make_shared<UpcycleCommand>();
  app->add_option("--model", o->model, "Hugging Face folder of a llama, mistral or qwen3 model")->required();
  app->add_option("--output", o->output, "new folder, of a mixtral or qwen3_moe model")->required();
  app->add_option("--experts", o->options.experts, "experts of a layer")
      ->required()
      ->check(CLI::Range(int64_t{2}, max_experts));
  app->add_option("--per-token", o->options.per_token, "experts that a token uses")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--seed", o->options.seed, "seed of the routers")->capture_default_str();
  app->add_option("--file-size", o->file_size, "bytes of weights after which the next file starts")
      ->capture_default_str();
  return {app, [o] { upcycle(*o); }};
}

}  // namespace llmtrain
