// llmtool quantize: writes a model with its linear layers in 4 or 8 bits, as bitsandbytes stores them.

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "hf/quantized/quantize_model.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

struct QuantizeCommand {
  std::string model;
  std::string output;
  int bits = 0;
  std::string type;
  int64_t block_size = 64;
  bool nested = false;
  std::vector<std::string> skip_modules;
  std::string file_size = "5G";
  bool force = false;
};

void quantize(const QuantizeCommand& o) {
  if (o.bits == 8 && (!o.type.empty() || o.nested || o.block_size != 64)) {
    refuse_command_line("--type, --double and --block-size are for --bits 4");
  }
  require_other_folder(o.model, o.output);
  Quantization quantization;
  if (o.bits == 8) quantization.type = QuantizedType::int8;
  if (o.type == "fp4") quantization.type = QuantizedType::fp4;
  quantization.block_size = o.block_size;
  quantization.double_quantization = o.nested;
  ExportOptions options;
  options.output = o.output;
  options.overwrite = o.force;
  options.file_bytes = parse_count_option("--file-size", o.file_size, between(1 << 10, 1e18));
  options.texts = other_files_of(o.model);
  print_warnings(quantize_model(o.model, options, quantization, o.skip_modules));
  std::cout << o.output << '\n';
}

}  // namespace

Subcommand add_quantize(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "quantize", "write a model with its linear layers in 4 or 8 bits, in the files of bitsandbytes");
  const auto o = std::make_shared<QuantizeCommand>();
  app->add_option("--model", o->model, "Hugging Face folder of the model")->required();
  app->add_option("--output", o->output, "new folder")->required();
  app->add_option("--bits", o->bits, "bits of a weight: 4 or 8 (int8 with a scale a row)")
      ->required()
      ->check(CLI::IsMember({4, 8}));
  app->add_option("--type", o->type, "with 4 bits: nf4 (default) or fp4")->check(CLI::IsMember({"nf4", "fp4"}));
  app->add_option("--block-size", o->block_size, "with 4 bits: weights that share a scale")
      ->check(CLI::IsMember({32, 64, 128, 256}))
      ->capture_default_str();
  app->add_flag("--double", o->nested, "with 4 bits: quantise the scales too");
  app->add_option("--skip-modules", o->skip_modules,
                  "modules that keep their type, as the head, embeddings and norms do")
      ->delimiter(',');
  app->add_option("--file-size", o->file_size, "bytes of weights after which the next file starts")
      ->capture_default_str();
  app->add_flag("--force", o->force, "overwrite the output");
  return {app, [o] { quantize(*o); }};
}

}  // namespace llmtrain
