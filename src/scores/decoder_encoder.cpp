// Embeddings of a text's tokens by a decoder: hidden states after its first layers and its final norm, as the package
// bert-score takes them. They run on the device in fp32.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.hpp"
#include "core/files/folder_handle.hpp"
#include "data/stream/data_stream.hpp"
#include "hf/config/config_json.hpp"
#include "hf/model_folder.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/load_weights.hpp"
#include "hf/weights/match_weights.hpp"
#include "kernels/workspace.hpp"
#include "models/models.hpp"
#include "parallel/local_communicator.hpp"
#include "params/param_store.hpp"
#include "scores/text_encoder.hpp"
#include "text/load_tokenizer.hpp"
#include "text/tokens_beyond_embedding.hpp"

namespace llmtrain {

namespace {

constexpr DType compute = DType::f32;

/// The texts' tokens, each text a segment, without targets.
HostBatch batch_of(const std::vector<TokenEmbeddings>& texts) {
  HostBatch host;
  host.segments = {0};
  for (size_t s = 0; s < texts.size(); ++s) {
    const std::vector<int32_t>& ids = texts[s].ids;
    if (ids.empty()) continue;
    host.ids.insert(host.ids.end(), ids.begin(), ids.end());
    for (size_t i = 0; i < ids.size(); ++i) host.positions.push_back(static_cast<int32_t>(i));
    host.sequence_ids.resize(host.ids.size(), static_cast<int64_t>(s));
    host.segments.push_back(static_cast<int32_t>(host.ids.size()));
  }
  host.sequence_offsets = host.positions;
  host.targets.assign(host.ids.size(), ignore_target);
  host.loss_weights.assign(host.ids.size(), 0.0F);
  return host;
}

/// Leaves out the tensors of the blocks from `first` to `end`, whatever prefix the names have.
void drop_blocks(WeightIndex& index, const DecoderNames& names, int64_t first, int64_t end) {
  const std::string_view norm = names.norm1;
  const size_t number = norm.find("{}"), dot = norm.rfind('.', number - 2);
  const std::string_view list = norm.substr(dot + 1, number - dot - 1);  // "layers.", "h."
  for (int64_t block = first; block < end; ++block) {
    const std::string name = fmt::format("{}{}.", list, block);
    std::erase_if(index.tensors, [&](const WeightIndex::Tensor& tensor) {
      const size_t found = tensor.name.find(name);
      return found == 0 || (found != std::string::npos && tensor.name[found - 1] == '.');
    });
  }
}

class DecoderEncoder final : public TextEncoder {
 public:
  DecoderEncoder(const std::string& folder, int64_t wanted);

  std::string kind() const override { return fmt::format("decoder {}", name_of(config_.family)); }
  int64_t layers() const override { return config_.n_layers; }
  int64_t width() const override { return config_.d_model; }
  std::vector<int32_t> encode(std::string_view text) const override;
  size_t around() const override { return around_; }
  bool surrounds(int32_t /*id*/) const override { return false; }  // BOS has a weight, as in the package
  bool needs_device() const override { return true; }
  void start() override;
  std::vector<TokenEmbeddings> embed(std::span<const std::string> texts) override;

 private:
  void read_tokenizer(const FolderHandle& folder);
  /// Plans the passes for this many tokens and texts.
  void make_room(int64_t tokens, int64_t texts);

  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  size_t around_ = 0;
  std::unique_ptr<Communicator> communicator_ = make_local_communicator();
  std::optional<Decoder> model_;
  std::optional<ParamStore> params_;
  WeightIndex index_;
  WeightMatch match_;
  std::optional<Stream> stream_;
  Arena weights_arena_;
  std::optional<Arena> arena_;  ///< of passes
  DeviceBuffer weights_, memory_;
  std::optional<BatchBuffers> batch_;
  int64_t tokens_ = 0, texts_ = 0;  ///< that there is room for
};

DecoderEncoder::DecoderEncoder(const std::string& folder, int64_t wanted) {
  const FolderHandle handle = FolderHandle::open(folder);
  HfConfig read = parse_hf_config(read_hf_config(handle), handle.path_of("config.json"));
  config_ = std::move(read.model);
  const int64_t all = config_.n_layers;
  if (wanted < 0 || wanted > all)
    throw UserError(ExitCode::command_line, fmt::format("{}: it has {} layers, not {}", folder, all, wanted));
  read_tokenizer(handle);
  config_.n_layers = wanted == 0 ? all : wanted;
  std::vector<int64_t>& windows = config_.sliding_window_layers;
  const bool of_some = !windows.empty();
  std::erase_if(windows, [&](int64_t layer) { return layer >= config_.n_layers; });
  if (of_some && windows.empty()) config_.sliding_window = 0;  // an empty list means all layers
  DecoderShape shape = decoder_shape(config_, config_.vocab_size);
  quantize(shape, read.quantization);
  model_.emplace(shape);
  ParamStoreOptions options;
  options.compute = compute;
  params_.emplace(frozen(model_->units()), options);
  index_ = read_weight_index(handle);
  drop_blocks(index_, shape.names, config_.n_layers, all);
  split_fused_experts(index_, shape);
  match_ = match_weights(shape, model_->units(), index_);
}

void DecoderEncoder::read_tokenizer(const FolderHandle& folder) {
  if (!has_tokenizer(folder)) {
    throw UserError(ExitCode::missing_input,
                    folder.path() + ": the decoder has no tokenizer: put the files of its tokenizer into the folder");
  }
  tokenizer_ = load_tokenizer(folder.path());
  std::vector<int32_t> around;
  tokenizer_->add_special_tokens(around, nullptr);
  around_ = around.size();
}

std::vector<int32_t> DecoderEncoder::encode(std::string_view text) const {
  const std::string_view sentence = stripped(text);
  std::vector<int32_t> ids;
  const bool begins_with_space = config_.family == ModelConfig::Family::gpt2;  // as bert-score does for its tokenizer
  if (!sentence.empty()) tokenizer_->encode((begins_with_space ? " " : "") + std::string(sentence), ids);
  const auto room = static_cast<size_t>(config_.longest_sequence()) - around_;
  if (ids.size() > room) ids.resize(room);
  tokenizer_->add_special_tokens(ids, nullptr);
  return ids;
}

void DecoderEncoder::start() {
  if (stream_) return;
  stream_.emplace();
  params_->plan(weights_arena_);
  weights_ = DeviceBuffer(weights_arena_.bytes());
  weights_arena_.commit(weights_.data());
  params_->start(*communicator_, *stream_);
  load_match(index_, match_, *params_, *communicator_, *stream_, {});
}

void DecoderEncoder::make_room(int64_t tokens, int64_t texts) {
  if (tokens <= tokens_ && texts <= texts_) return;
  tokens_ = std::max({tokens, tokens_, int64_t{256}});
  texts_ = std::max({texts, texts_, int64_t{8}});
  memory_ = DeviceBuffer();
  arena_.emplace();
  batch_.emplace();
  model_->plan(*arena_, {compute, tokens_, false});
  batch_->plan(*arena_, tokens_, texts_);
  memory_ = DeviceBuffer(arena_->bytes());
  arena_->commit(memory_.data());
  model_->start(*stream_);
}

std::vector<TokenEmbeddings> DecoderEncoder::embed(std::span<const std::string> texts) {
  std::vector<TokenEmbeddings> all(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    all[i].ids = encode(texts[i]);
    require_rows(all[i].ids, tokenizer_.get(), config_.vocab_size, "the text");
  }
  const HostBatch host = batch_of(all);
  const int64_t rows = std::ssize(host.ids);
  if (rows == 0) return all;
  start();
  make_room(rows, std::ssize(texts));
  const WorkspaceScope workspace(arena_->workspace());
  Context ctx{*params_, *arena_, *stream_};
  ctx.role = ProductRole::prefill;
  const Batch batch = batch_->upload(host, *stream_);
  model_->forward(ctx, &batch);
  std::vector<float> values(static_cast<size_t>(rows * config_.d_model));
  const Tensor hidden = model_->hidden_states(rows);
  copy_to_host(values.data(), hidden.data, hidden.bytes(), *stream_);
  stream_->synchronize();
  auto from = values.begin();
  for (TokenEmbeddings& text : all) {
    const auto end = from + std::ssize(text.ids) * config_.d_model;
    text.values.assign(from, end);
    from = end;
  }
  return all;
}

}  // namespace

std::unique_ptr<TextEncoder> open_decoder_encoder(const std::string& folder, int64_t layers) {
  return std::make_unique<DecoderEncoder>(folder, layers);
}

}  // namespace llmtrain
