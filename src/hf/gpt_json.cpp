#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/config/config_keys.hpp"
#include "hf/import_folder.hpp"
#include "hf/weights/stored_names.hpp"
#include "models/models.hpp"
#include "params/unit_layout.hpp"
#include "text/hf_folder/base64.hpp"

namespace llmtrain {
namespace {

constexpr int64_t max_bytes = int64_t{1} << 30;
constexpr int64_t max_values = int64_t{1} << 20;

/// State of a model with the names of minGPT and nanoGPT.
class GptState {
 public:
  explicit GptState(const std::string& path)
      : path_(path), document_(read_json(FileHandle::open_to_read(path), {max_bytes, max_values})) {
    if (!document_.is_object() || !document_.contains("config")) refuse("not the state of a GPT: it has no \"config\"");
    for (const auto& item : document_.items()) {
      if (item.key() != "config") stored_.emplace_back(item.key());
    }
    DecoderShape gpt2;
    gpt2.config.n_layers = 1;
    family_entry(ModelConfig::Family::gpt2).shape(gpt2);
    names_ = match_names(stored_, gpt2.names, path_);
  }

  ModelConfig model() {
    std::vector<std::string> problems;
    ConfigKeys keys(&document_["config"], "config.", problems);
    ModelConfig c;
    c.family = ModelConfig::Family::gpt2;
    c.d_model = keys.integer("n_embd", {}, 1, 1 << 18);
    c.n_layers = keys.integer("n_layer", {}, 1, 4096);
    c.n_heads = keys.integer("n_head", {}, 1, 4096);
    c.vocab_size = keys.integer("vocab_size", {}, 1, 1 << 30);
    c.max_seq_len = keys.integer("block_size", {}, 1, 1 << 24);
    keys.no_effect("model_type embd_pdrop resid_pdrop attn_pdrop dropout");
    // nanoGPT records whether there are biases, and uses the exact GELU; minGPT has biases, and GELU by tanh.
    const bool nano = keys.has_key("bias");
    has_bias_ = keys.boolean("bias", true);
    if (c.n_heads > 0 && c.d_model % c.n_heads != 0) keys.problem("n_head", "does not divide n_embd");
    std::vector<std::string> unknown;
    keys.list_unknown(unknown);
    if (!unknown.empty()) warnings_.push_back(path_ + ": " + unknown_keys_text(unknown));
    if (!problems.empty()) refuse(fmt::format("{}", fmt::join(problems, "; ")));
    family_entry(c.family).defaults(c);
    c.n_kv_heads = c.n_heads;
    c.head_dim = c.d_model / c.n_heads;
    if (nano) c.activation = ModelConfig::Activation::gelu;
    c.tie_embeddings =
        !has(head) || !has(embedding) || tensor(head).at("data").value() == tensor(embedding).at("data").value();
    return c;
  }

  const std::vector<std::string>& warnings() const { return warnings_; }

  std::vector<float> values(const ParamSpec& param, const ParamSlice& slice) {
    const auto count = static_cast<size_t>(slice.rows * param.columns);
    if (!has_bias_ && slice.name.ends_with(".bias")) {
      if (has(slice.name)) refuse(slice.name + ": unexpected bias, since config.bias is false");
      return std::vector<float>(count);
    }
    const std::vector<int64_t> expected =
        param.columns == 1 ? std::vector<int64_t>{slice.rows} : std::vector<int64_t>{slice.rows, param.columns};
    const JsonNode stored = tensor(slice.name), shape = stored.at("shape"), data = stored.at("data");
    if (shape.value() != nlohmann::json(expected)) shape.refuse_value(shape_text(expected));
    if (const JsonNode dtype = stored.at("dtype"); dtype.text() != "torch.float32") dtype.refuse_value("torch.float32");
    std::string bytes;
    if (!from_base64(data.text(), bytes)) data.refuse("must be base64");
    if (bytes.size() != count * sizeof(float)) {
      data.refuse(fmt::format("must have {} bytes, not {}", count * sizeof(float), bytes.size()));
    }
    std::vector<float> values(count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  /// Refuses, before anything is written, a tensor that the model does not use.
  void refuse_extra(const std::vector<UnitSpec>& units) const {
    std::set<std::string_view> known = {head, embedding};
    for_each_slice(units, [&](SlicePlace, const ParamSpec&, const ParamSlice& slice) { known.insert(slice.name); });
    for (const auto& [name, number] : names_.number_of) {
      const bool mask = name.ends_with(".attn.bias");
      if (!mask && !known.contains(name)) refuse(printable(stored_[number]) + ": this model does not use it");
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content, path_ + ": " + what);
  }
  bool has(std::string_view name) const { return names_.find(name) >= 0; }
  JsonNode tensor(std::string_view name) const {
    int64_t number = names_.find(name);
    if (number < 0 && name == embedding) number = names_.find(head);  // a state can hold either one of a tied pair
    if (number < 0) refuse(fmt::format("{}: the tensor is missing", name));
    return JsonNode(document_, path_).at(stored_[static_cast<size_t>(number)]);
  }

  static constexpr std::string_view head = "lm_head.weight", embedding = "transformer.wte.weight";
  std::string path_;
  nlohmann::json document_;
  std::vector<std::string_view> stored_;  ///< names in the file
  StoredNames names_;
  std::vector<std::string> warnings_;
  bool has_bias_ = true;
};

}  // namespace

std::vector<std::string> import_gpt_json(const std::string& path, const ImportOptions& options) {
  GptState state(path);
  const ModelConfig model = state.model();
  state.refuse_extra(Decoder(decoder_shape(model, model.vocab_size)).units());
  write_imported(options, model, {},
                 [&](const ParamSpec& param, const ParamSlice& slice) { return state.values(param, slice); });
  return state.warnings();
}

}  // namespace llmtrain
