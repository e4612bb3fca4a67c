#include "tool/loaded_model.hpp"

#include <iostream>

#include "core/files/file_handle.hpp"
#include "core/files/folder_handle.hpp"
#include "hf/adapters/adapter_files.hpp"
#include "hf/adapters/saved_tables.hpp"
#include "hf/model_folder.hpp"
#include "hf/weights/load_weights.hpp"
#include "kernels/matmul.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/local_communicator.hpp"
#include "tasks/estimate/estimate.hpp"
#include "text/load_tokenizer.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "tool/tool.hpp"

namespace llmtrain {

namespace {

DType parse_compute(const std::string& text) {
  if (text == "fp32") return DType::f32;
  if (text == "bf16") return DType::bf16;
  if (text == "fp16") return DType::f16;
  refuse_command_line("--compute must be fp32, bf16 or fp16, not '" + text + "'");
}

}  // namespace

void warn_of_missing_rows(const Tokenizer& tokenizer, int64_t rows, const std::string& path) {
  const std::string note = tokens_without_row(tokenizer, rows);
  if (!note.empty()) std::cerr << without_controls("llmtool: warning: " + path + ": " + note) << '\n';
}

LoadedModel::LoadedModel(const ModelOptions& options)
    : folder_(options.model),
      compute_(parse_compute(options.compute)),
      json_(options.json),
      quantization_(options.quantize.config()),
      communicator_(make_local_communicator()) {
  if (const std::string checkpoint = CheckpointModel::find(folder_); !checkpoint.empty()) {
    checkpoint_.emplace(checkpoint, *communicator_, tokenizer_);
    config_ = checkpoint_->config();
    lora_ = checkpoint_->lora();
    if (!quantization_.active()) quantization_ = checkpoint_->quantization();
  } else {
    read_folder();
  }
  if (tokenizer_) warn_of_missing_rows(*tokenizer_, vocabulary(), folder_);
  if (!options.adapter.empty()) read_adapter(options.adapter);
  make_model();
  if (!checkpoint_ && !options.estimate) check_weights(folder_, role_->shape(), role_->model().units());
}

void LoadedModel::read_adapter(const std::string& folder) {
  if (checkpoint_) refuse_command_line("--adapter: give the folder of its model with --model, not a checkpoint");
  new_head_ = take_head(parse_adapter_config(read_adapter_config(folder), folder + "/" + adapter_config_name), folder,
                        config_.model);
  const DecoderShape base = decoder_shape(config_.model, vocabulary());
  const AdapterFolder found = AdapterFolder::open(folder, base);
  print_warnings(found.warnings);
  lora_ = found.config.lora;
  lora_->path = folder;
  find_saved_tables(folder, found.part, base, folder_).use(*lora_, config_.model);
  const DecoderShape adapted = shape();
  match_adapter(found, adapted, Decoder(adapted).units());
}

DecoderShape LoadedModel::shape() const {
  DecoderShape shape = decoder_shape(config_.model, vocabulary());
  shape.new_head = new_head_;
  if (lora_) adapt(shape, *lora_);
  quantize(shape, quantization_);
  return shape;
}

void LoadedModel::make_model() {
  RoleSpec spec;
  spec.shape = shape();
  spec.store.compute = compute_;
  spec.weights.folder = folder_;
  if (checkpoint_) {
    spec.weights.checkpoint = checkpoint_->folder();
    spec.weights.manifest = checkpoint_->manifest();
  }
  spec.lora = lora_;
  role_.emplace(std::move(spec));
}

void LoadedModel::read_folder() {
  const FolderHandle folder = FolderHandle::open(folder_);
  config_ = parse_hf_config(read_hf_config(folder), folder.path_of("config.json"));
  print_warnings(config_.warnings);
  if (!quantization_.active()) quantization_ = config_.quantization;
  if (const char* name = "generation_config.json"; folder.has(name)) {
    config_.ids =
        parse_generation_ids(folder.open_to_read(name).read_text(max_config_bytes), folder.path_of(name), config_.ids);
  }
  if (has_tokenizer(folder)) tokenizer_ = load_tokenizer(folder.path());
}

int64_t LoadedModel::vocabulary() const { return checkpoint_ ? checkpoint_->tokens() : config_.model.vocab_size; }

const Tokenizer& LoadedModel::required_tokenizer() const {
  if (tokenizer_) return *tokenizer_;
  throw UserError(ExitCode::missing_input, folder_ +
                                               ": it has no tokenizer (tokenizer.json, tokenizer.model, or "
                                               "vocab.json and merges.txt); give token ids instead of text");
}

void LoadedModel::require_logits() const {
  if (!config_.model.scores()) return;
  throw UserError(ExitCode::bad_content,
                  folder_ + (config_.model.classifies()
                                 ? ": it is a model of labels, which predicts no tokens; use llmtool classify"
                                 : ": it is a reward model, which scores texts and predicts no tokens; use llmtool "
                                   "score --metric reward"));
}

void LoadedModel::start(const std::function<void(Arena&)>& plan) {
  if (started_) {
    workspace_.reset();
    memory_.reset();
    arena_ = Arena();
    make_model();
  }
  started_ = true;
  make_plan(plan);
  if (!device_) device_ = std::make_unique<DeviceRuntime>(0, choose_threads(find_thread_facts(1)).threads);
  if (!stream_) stream_ = std::make_unique<Stream>();
  memory_.emplace(arena_.bytes());
  arena_.commit(memory_->data());
  workspace_.emplace(arena_.workspace());
  role_->start({*communicator_, {}}, *stream_);
  print_warnings(role_->load(*communicator_, *stream_).warnings);
}

/// Kernels need memory by thread.
void LoadedModel::make_plan(const std::function<void(Arena&)>& plan) {
  use_threads(choose_threads(find_thread_facts(1)).threads);
  role_->plan(arena_);
  plan(arena_);
}

void LoadedModel::print_estimate(const std::function<void(Arena&)>& plan) {
  make_plan(plan);
  Estimate estimate;
  estimate.plan = &arena_;
  estimate.parameters = params().units().parameters();
  estimate.library_bytes = device_context_bytes(estimate.ranks_per_node) + matmul_workspace_bytes();
  write_standard_output(json_ ? estimate_json(estimate) : estimate_text(estimate));
}

Context LoadedModel::context() { return {role_->params(), arena_, *stream_}; }

void QuantizeOptions::add_to(CLI::App& app) {
  app.add_option("--quantize", type, "Store the matrices of linear layers as nf4, fp4 or int8 (default: --compute)");
  app.add_flag("--double", double_quantization, "Store the scales of nf4 and fp4 in 8 bits, too");
}

QuantizationConfig QuantizeOptions::config() const {
  QuantizationConfig config;
  config.double_quantization = double_quantization;
  if (type.empty() && double_quantization) refuse_command_line("--double: give --quantize nf4 or fp4 as well");
  if (type.empty()) return config;
  if (type != "nf4" && type != "fp4" && type != "int8") {
    refuse_command_line("--quantize must be nf4, fp4 or int8, not '" + type + "'");
  }
  if (type == "int8" && double_quantization) refuse_command_line("--double: int8 has no scales of blocks");
  config.bits = type == "int8" ? 8 : 4;
  config.type = type == "fp4" ? QuantizationConfig::Type::fp4 : QuantizationConfig::Type::nf4;
  return config;
}

void ModelOptions::add_to(CLI::App& app) {
  app.add_option("--model", model, "Hugging Face folder, or checkpoint of llmtrain")->required();
  app.add_option("--adapter", adapter, "PEFT folder of an adapter of the model");
  quantize.add_to(app);
  app.add_option("--compute", compute, "compute type: fp32, bf16 or fp16")->capture_default_str();
  CLI::Option* estimates =
      app.add_flag("--estimate", estimate, "print the memory by category instead; allocate nothing");
  app.add_flag("--json", json, "print the estimate as JSON")->needs(estimates);
}

}  // namespace llmtrain
