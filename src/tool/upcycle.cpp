// llmtool upcycle: makes a mixture of experts of a dense model.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/philox.hpp"
#include "core/progress.hpp"
#include "core/random_normal.hpp"
#include "hf/convert.hpp"
#include "hf/export.hpp"
#include "hf/weights/match_weights.hpp"
#include "hf/weights/weight_index.hpp"
#include "models/experts_config.hpp"
#include "models/models.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

// Makes a mixture of experts of a dense model (sparse upcycling, Komatsuzaki et al. 2022, arXiv:2212.05055).

struct UpcycleOptions {
  int64_t experts = 8;    ///< of a layer, 2 to max_experts
  int64_t per_token = 2;  ///< 1 to experts, at most 1024
  uint64_t seed = 42;     ///< of the routers
};

using Family = ModelConfig::Family;

constexpr int64_t copied_bytes = int64_t{16} << 20;
constexpr int64_t random_elements = int64_t{1} << 16;

/// The family with experts whose other parts are those of a dense one.
Family family_with_experts(const ModelConfig& model, const std::string& place) {
  if (model.family == Family::llama || model.family == Family::mistral) return Family::mixtral;
  if (model.family == Family::qwen3) return Family::qwen3_moe;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: model_type: a {} model has no counterpart with experts; a llama or mistral model "
                              "becomes mixtral, a qwen3 model qwen3_moe",
                              place, name_of(model.family)));
}

ModelConfig with_experts(ModelConfig model, const UpcycleOptions& upcycle, const std::string& place) {
  model.family = family_with_experts(model, place);
  ExpertsConfig& e = model.experts;
  e.count = upcycle.experts;
  e.per_token = upcycle.per_token;
  e.d_ff = model.d_ff;
  e.norm_topk = true;
  if (const std::string obstacle = hf_config_obstacle(model); !obstacle.empty()) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}", place, obstacle));
  }
  return model;
}

class Upcycler {
 public:
  Upcycler(const std::string& source, const UpcycleOptions& upcycle)
      : upcycle_(upcycle), folder_(FolderHandle::open(source)), index_(read_weight_index(folder_)) {
    const std::string place = folder_.path_of("config.json");
    const HfConfig config = parse_hf_config(folder_.open_to_read("config.json").read_text(max_config_bytes), place);
    warnings_ = config.warnings;
    ids_ = config.ids;
    model_ = with_experts(config.model, upcycle, place);
    expert_names_ = decoder_shape(model_, model_.vocab_size).names;
    const DecoderShape shape = decoder_shape(config.model, config.model.vocab_size);
    const DecoderNames& names = shape.names;
    units_ = Decoder(shape).units();
    match_ = match_weights(shape, units_, index_);
    warnings_.insert(warnings_.end(), match_.warnings.begin(), match_.warnings.end());
    for (const WeightIndex::Tensor& tensor : index_.tensors) {
      if (!tensor.has_codes()) continue;
      throw UserError(ExitCode::bad_content, fmt::format("{}: {} is quantised ({}); start from the original model",
                                                         folder_.path(), printable(tensor.name), tensor.storage()));
    }
    for (const WeightIndex::File& file : index_.files) files_.push_back(folder_.open_to_read(file.name));
    for (int64_t layer = 0; layer < model_.n_layers; ++layer) {
      expert_of_[name_at(names.gate, layer)] = {&expert_names_.expert_gate, layer};
      expert_of_[name_at(names.up, layer)] = {&expert_names_.expert_up, layer};
      expert_of_[name_at(names.down, layer)] = {&expert_names_.expert_down, layer};
    }
  }

  std::vector<std::string> write(ExportOptions options) {
    const StoredType type = index_.tensors[match_.slices.front().tensor].type;
    options.texts["config.json"] = write_hf_config(model_, ids_, dtype_name(type));
    ModelFolderPlan plan = folder_plan(options, model_, type);
    if (!index_.metadata.empty()) plan.metadata = index_.metadata;
    for (const SliceSource& s : match_.slices) {
      const WeightIndex::Tensor& tensor = index_.tensors[s.tensor];
      for (const std::string& name : names_of_copies(s))
        plan.tensors.push_back({name, tensor.type, tensor.shape, 0, 0});
    }
    for (int64_t layer = 0; layer < model_.n_layers; ++layer) {
      plan.tensors.push_back({router(layer), type, {upcycle_.experts, model_.d_model}, 0, 0});
    }
    ModelFolderWriter writer(std::move(plan));
    Progress progress("upcycling", std::ssize(match_.slices));
    for (const SliceSource& s : match_.slices) {
      copy(writer, s);
      progress.add();
    }
    for (int64_t layer = 0; layer < model_.n_layers; ++layer) write_router(writer, router(layer));
    writer.publish();
    return warnings_;
  }

 private:
  struct Expert {
    const std::string* pattern;
    int64_t layer;
  };

  static std::string name_at(const std::string& pattern, int64_t layer, int64_t expert = 0) {
    return at_layer(pattern, layer, expert) + ".weight";
  }
  std::string router(int64_t layer) const { return name_at(expert_names_.router, layer); }

  /// Names of the tensors that a tensor of the dense model becomes: one, or that of each expert.
  std::vector<std::string> names_of_copies(const SliceSource& s) const {
    const std::string& name = units_[static_cast<size_t>(s.unit)]
                                  .params[static_cast<size_t>(s.param)]
                                  .slices[static_cast<size_t>(s.slice)]
                                  .name;
    const auto found = expert_of_.find(name);
    if (found == expert_of_.end()) return {name};
    std::vector<std::string> names;
    for (int64_t expert = 0; expert < upcycle_.experts; ++expert) {
      names.push_back(name_at(*found->second.pattern, found->second.layer, expert));
    }
    return names;
  }

  void copy(ModelFolderWriter& writer, const SliceSource& s) const {
    const WeightIndex::Tensor& tensor = index_.tensors[s.tensor];
    const std::vector<std::string> names = names_of_copies(s);
    std::vector<char> bytes;
    for (int64_t at = 0, size = tensor.end - tensor.begin; at < size; at += copied_bytes) {
      bytes.resize(static_cast<size_t>(std::min(copied_bytes, size - at)));
      files_[tensor.file].read(tensor.begin + at, std::ssize(bytes), bytes.data());
      for (const std::string& name : names) writer.write_bytes(name, at, bytes.data(), std::ssize(bytes));
    }
  }

  void write_router(ModelFolderWriter& writer, const std::string& name) const {
    const uint64_t key = random_key(upcycle_.seed, RandomPurpose::initialization, hash_of_name(name));
    const int64_t elements = upcycle_.experts * model_.d_model;
    std::vector<float> values;
    for (int64_t at = 0; at < elements; at += random_elements) {
      values.resize(static_cast<size_t>(std::min(random_elements, elements - at)));
      for (int64_t i = 0; i < std::ssize(values); ++i) {
        values[static_cast<size_t>(i)] =
            static_cast<float>(model_.initializer_std * random_normal(key, static_cast<uint64_t>(at + i)));
      }
      writer.write(name, at, values.data(), std::ssize(values));
    }
  }

  UpcycleOptions upcycle_;
  FolderHandle folder_;
  WeightIndex index_;
  ModelConfig model_;  ///< with experts
  TokenIds ids_;
  DecoderNames expert_names_;
  std::vector<UnitSpec> units_;  ///< of the dense model
  WeightMatch match_;
  std::map<std::string, Expert> expert_of_;  ///< by tensor of the dense model's MLPs
  std::vector<FileHandle> files_;
  std::vector<std::string> warnings_;
};

/// Writes `source`, a llama, mistral or qwen3 folder, as a mixtral (the first two) or qwen3_moe one. Every expert is a
/// copy of its layer's MLP, bit for bit; a router's elements are normal(0, initializer_range) as a function of seed,
/// name and element. The weights of a token's experts sum to 1, so that the model begins as the dense one, up to
/// rounding. Other tensors and files are copied. Holds 16 MiB of weights at a time. Returns warnings for the user.
/// Throws UserError(bad_content) for another family, a quantised folder, and a model that the new family cannot
/// describe; cannot_create as ModelFolderWriter.
std::vector<std::string> upcycle_model(const std::string& source, ExportOptions options,
                                       const UpcycleOptions& upcycle) {
  return Upcycler(source, upcycle).write(std::move(options));
}

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
