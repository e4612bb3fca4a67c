#include "models/quantization_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"

namespace llmtrain {

namespace {

/// A name skips the modules whose names begin with, end with or contain it, between dots. Transformers' rule is another
/// one: hf/quantized/quantize_model.cpp.
bool is_skipped(const std::string& module, const std::string& name) {
  return ("." + module + ".").find("." + name + ".") != std::string::npos;
}

bool skips_nothing(const QuantizationConfig& config) {
  return config.skip_modules.size() == 1 && config.skip_modules.front() == "none";
}

}  // namespace

Quantization QuantizationConfig::format() const {
  Quantization format;
  format.type = type == Type::nf4 ? QuantizedType::nf4 : QuantizedType::fp4;
  format.block_size = block_size;
  format.double_quantization = double_quantization;
  format.outlier_threshold = 0;
  if (bits == 8) format = {QuantizedType::int8, 64, false, outlier_threshold};
  return format;
}

void QuantizationConfig::visit(DeckKeys& keys) {
  keys.section("quantization",
               "Store the frozen matrices of linear layers in fewer bits, as bitsandbytes does: with run.finetuning = "
               "lora (QLoRA) and with run.task = evaluate.",
               Change::breaks, model_tasks, true);
  keys.key(
      "bits", bits,
      {.range = between(0, 8),
       .doc = "Bits of a weight: 4 with a scale for each block, or 8 with a scale for each row; 0: off. The model is "
              "quantised while it is loaded. Products of 4 bits are those of the dequantised matrix, which exists in "
              "parts only. A folder of bitsandbytes is read as it is."});
  keys.key("type", type,
           {.doc = "Levels of 4 bits. nf4: quantiles of a normal distribution; fp4: numbers of a sign, two bits of "
                   "exponent and one of mantissa."});
  keys.key("double", double_quantization,
           {.doc = "Store the scales of 4-bit blocks in 8 bits, too: 4.13 instead of 4.5 bits per weight."});
  keys.key(
      "block_size", block_size,
      {.unit = "weights", .range = between(32, 256), .doc = "Weights of 4 bits with one scale: 32, 64, 128 or 256."});
  keys.key(
      "outlier_threshold", outlier_threshold,
      {.range = at_least(0),
       .doc = "Threshold of LLM.int8, of 8 bits: a layer's inputs are rounded to 8 bits by rows, but columns with a "
              "magnitude of at least this in a micro-batch are multiplied in the compute type with the "
              "dequantised weights; in preference training and where text is generated, elements of each row by "
              "itself, so that a row does not depend on the others. 0: no such columns. Gradients are those of the "
              "dequantised matrix."});
  keys.key("skip_modules", skip_modules,
           {.doc = "Linear layers that keep the compute type: names in the model's files, or beginnings, ends or parts "
                   "of them between dots, such as lm_head, mlp.down_proj or model.layers.0; none: the head is "
                   "quantised, too. A head that is the embedding never is."});
}

QuantizedPart choose_quantized(const QuantizationConfig& config, const ModelConfig& model) {
  QuantizedPart part;
  const DecoderShape shape = nominal_shape(model);
  const std::vector<UnitSpec> units = Decoder(shape).units();
  const ModelModules modules(shape.names, units);
  NameSet chosen = modules.linear;
  if (!model.tie_embeddings && !model.scores()) chosen.insert(modules.head);
  for (const std::string& name : config.skip_modules) {
    if (skips_nothing(config)) break;
    const bool known = std::ranges::any_of(
        modules.all, [&](const std::string& module) { return !name.empty() && is_skipped(module, name); });
    if (!known) {
      const NameSet parts = last_parts_of(modules.all);
      const std::vector<std::string_view> names(parts.begin(), parts.end());
      part.errors.emplace_back("skip_modules", fmt::format("the model has no {}{}", name, did_you_mean(name, names)));
    }
    std::erase_if(chosen, [&](const std::string& module) { return is_skipped(module, name); });
  }
  for (const UnitSpec& unit : units) {
    for (const ParamSpec& param : unit.params) {
      const auto quantized = std::ranges::count_if(
          param.slices, [&](const ParamSlice& slice) { return chosen.contains(parent_module(slice.name)); });
      if (quantized == 0 || quantized == std::ssize(param.slices)) continue;
      std::vector<std::string_view> names;
      for (const ParamSlice& slice : param.slices) names.push_back(last_part_of(parent_module(slice.name)));
      part.errors.emplace_back("skip_modules",
                               fmt::format("{} are one matrix here: name all or none of them", joined(names, ", ")));
      chosen.clear();
    }
  }
  part.modules.assign(chosen.begin(), chosen.end());
  if (chosen.empty() && part.errors.empty()) part.errors.emplace_back("skip_modules", "no module is left to quantise");
  return part;
}

QuantizationConfig stored_quantization(QuantizationConfig config, const ModelConfig& model) {
  if (!config.active()) return config;
  const DecoderShape shape = nominal_shape(model);
  const ModelModules modules(shape.names, Decoder(shape).units());
  std::erase_if(config.skip_modules, [&](const std::string& name) {
    return name.empty() || std::ranges::none_of(modules.all, [&](const auto& m) { return is_skipped(m, name); });
  });
  if (config.skip_modules.empty()) config.skip_modules = {"none"};
  if (!choose_quantized(config, model).errors.empty()) config.bits = 0;
  return config;
}

void QuantizationConfig::take(DeckLoader& deck, const QuantizationConfig& of_folder) {
  if (!of_folder.active() || deck.given("quantization.bits")) return;
  *this = of_folder;
  DeckKeys keys;
  visit(keys);
  for (const DeckKeys::Key& key : keys.keys()) deck.set(key.full_name(), Origin::automatic, "model.path");
}

void QuantizationConfig::resolve(DeckLoader& deck, const ModelConfig& model, std::string_view trained) const {
  deck.check(bits == 0 || bits == 4 || bits == 8, {"quantization.bits"}, fmt::format("{} must be 0, 4 or 8", bits));
  deck.check(std::has_single_bit(static_cast<uint64_t>(block_size)), {"quantization.block_size"},
             fmt::format("{} must be 32, 64, 128 or 256", block_size));
  if (!active()) return;
  const char* without_effect = bits == 4 ? "no effect with bits = 4" : "no effect with bits = 8";
  if (bits == 4) deck.unused("quantization.outlier_threshold", without_effect);
  for (const char* key : {"quantization.type", "quantization.double", "quantization.block_size"}) {
    if (bits == 8) deck.unused(key, without_effect);
  }
  if (!trained.empty()) return deck.fail("quantization.bits", std::string(trained));
  if (!deck.sound({"model.path", "model.family", "model.n_layers", "quantization.bits", "quantization.skip_modules"}))
    return;
  for (const auto& [key, what] : choose_quantized(*this, model).errors) deck.fail("quantization." + key, what);
}

void quantize(DecoderShape& shape, const QuantizationConfig& config) {
  if (!config.active()) return;
  QuantizedPart part = choose_quantized(config, shape.config);
  LLMTRAIN_CHECK(part.errors.empty(), "the keys of [quantization] have been checked");
  const auto modules = std::make_shared<const std::vector<std::string>>(std::move(part.modules));
  shape.quantization = [modules, format = config.format()](const std::string& name) -> std::optional<Quantization> {
    const bool chosen = name.ends_with(".weight") && std::ranges::binary_search(*modules, parent_module(name));
    return chosen ? std::optional(format) : std::nullopt;
  };
  if (!shape.trained) shape.trained = [](const std::string&) { return false; };
}

}  // namespace llmtrain
