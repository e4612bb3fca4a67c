#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/cache_folder.hpp"
#include "evaluation/reference_cache.hpp"
#include "evaluation/teacher_cache.hpp"
#include "hf/adapters/adapter_config.hpp"
#include "methods/roles.hpp"
#include "tasks/parts.hpp"
#include "train/run/resume.hpp"

namespace llmtrain {
namespace {

/// Path of a file in data.cache, named by facts, which rank 0 finds. Collective.
std::string cached_file(const Config& config, const char* name, const std::function<std::string()>& facts,
                        Communicator& communicator, const char* ending = ".h5") {
  std::string path;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    const std::string& cache = config.data.cache;
    path = fmt::format("{}/{}-{}{}", open_cache_folder(cache.empty() ? default_cache_folder() : cache), name,
                       short_hash(facts()), ending);
  });
  communicator.broadcast(path);
  return path;
}

/// Identity of a frozen model of a folder: its weights, as they are stored here, and the type of its passes.
std::string facts_of_model(const Config& config, const std::string& folder) {
  QuantizationConfig stored;  // as in reference_role(): other runs dequantise what the files store in fewer bits
  if (config.run.finetuning == RunConfig::Finetuning::lora) stored = config.storage(config.source.quantization);
  return fmt::format("{} {} {} {} {} {} {} {}", content_of_model(folder).hash, name_of(config.precision.compute),
                     stored.bits, name_of(stored.type), stored.block_size, stored.double_quantization,
                     stored.outlier_threshold, fmt::join(stored.skip_modules, ","));
}

/// The adapters that the run continues; empty: new ones, which change nothing yet.
std::string facts_of_adapters(const Config& config) {
  if (config.run.finetuning != RunConfig::Finetuning::lora || config.lora.path.empty()) return {};
  std::string all;
  for (const char* name : {adapter_config_name, adapter_weights_name}) {
    const FileHandle file = FileHandle::open_to_read(config.lora.path + "/" + name);
    std::string content(static_cast<size_t>(file.size()), '\0');
    file.read(0, file.size(), content.data());
    all += hex(digest_of(content.data(), content.size()));
  }
  return all;
}

/// Parts of the samples.
std::string facts_of_samples(const Config& config, const Dataset& data) {
  std::string tokens;
  for (const WeightedTokens& source : data.sources) tokens += content_of_tokens(*source.tokens) + " ";
  const SampleRules& rules = data.rules;
  return fmt::format("{}{} {} {} {} {}", tokens, config.batch.sequence_length, name_of(rules.packing),
                     name_of(rules.overflow), rules.cross_document_attention, rules.max_prompt_length);
}

std::vector<double> find_losses(const Config& config, Runtime& runtime, const Mesh& mesh, const Dataset& data,
                                const ProgressReport& print) {
  Communicator& communicator = runtime.communicator();
  const auto facts = [&] {
    return fmt::format("losses 1 {} {} {} {}", facts_of_model(config, config.model.path), facts_of_adapters(config),
                       facts_of_samples(config, data), config.batch.micro);
  };
  const DataStream samples = training_stream(config, data, {});
  ReferenceRequest request;
  request.kind = ReferenceKind::sample_losses;
  request.print = print;
  request.parts.push_back({&samples, 1, config.batch.micro, cached_file(config, "curriculum", facts, communicator)});
  request.model = starting_role({config, data, rank_position(communicator, config.parallel), samples.max_rows()});
  return std::move(find_or_compute_references(std::move(request), runtime, mesh).front());
}

std::vector<double> find_rarities(const Config& config, const Dataset& data, Communicator& communicator,
                                  const ProgressReport& print) {
  const DataStream samples = training_stream(config, data, {});
  const std::string file = cached_file(
      config, "curriculum", [&] { return "rarities 1 " + facts_of_samples(config, data); }, communicator);
  std::vector<double> values = find_cached_values(file, samples.samples(), communicator);
  if (std::ranges::none_of(values, is_missing)) return values;
  values = samples.rarities(communicator);
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    try {
      require_writable_cache(file.substr(0, file.rfind('/')));
    } catch (const UserError& error) {  // the next run computes them again
      return print(fmt::format("curriculum rarities are not kept: {}", error.what()));
    }
    write_cached_values(file, values);
  });
  return values;
}

}  // namespace

std::vector<double> find_difficulties(const Config& config, Runtime& runtime, const Mesh& mesh, const Dataset& data,
                                      const ProgressReport& print) {
  using Kind = CurriculumConfig::Difficulty::Kind;
  if (config.curriculum.draws_by(Kind::loss)) return find_losses(config, runtime, mesh, data, print);
  if (config.curriculum.draws_by(Kind::rarity)) return find_rarities(config, data, runtime.communicator(), print);
  return {};
}

std::optional<ReferenceValues> find_references(const Config& config, Runtime& runtime, const Mesh& mesh,
                                               const Dataset& data, const ProgressReport& print) {
  if (!method_of(config).caches_reference(config)) return std::nullopt;
  Communicator& communicator = runtime.communicator();
  const TrainingParts parts = training_parts(config, data);
  const std::string& folder = config.source.reference ? config.dpo.reference : config.model.path;
  ReferenceRequest request;
  request.print = print;
  int64_t rows = 0;
  const auto add = [&](const DataStream& stream, const TokenFile& tokens) {
    rows = std::max(rows, stream.max_rows());
    const auto facts = [&] {
      return fmt::format("3 {} {} {} {} {}", facts_of_model(config, folder), content_of_tokens(tokens),
                         config.batch.sequence_length, name_of(config.data.overflow), config.dpo.max_prompt_length);
    };
    request.parts.push_back(
        {&stream, tokens.info().group, config.batch.micro, cached_file(config, "reference", facts, communicator)});
  };
  add(parts.train, *data.train);
  if (parts.validation) add(*parts.validation, *data.validation);
  request.model = reference_role({config, data, rank_position(communicator, config.parallel), rows}, false);
  std::vector<std::vector<double>> values = find_or_compute_references(std::move(request), runtime, mesh);
  ReferenceValues result{std::move(values.front()), {}};
  if (parts.validation) result.validation = std::move(values.back());
  return result;
}

std::optional<TeacherFile> find_teacher(const Config& config, Runtime& runtime, const Mesh& mesh, const Dataset& data,
                                        const ProgressReport& print) {
  const std::optional<TeacherOptions> options = method_of(config).teacher(config, data);
  if (!options || !options->cached) return std::nullopt;
  Communicator& communicator = runtime.communicator();
  const DataStream samples = training_stream(config, data, {});
  const auto facts = [&] {
    return fmt::format("teacher 1 {} {} {} {} {}", facts_of_model(config, config.distill.teacher),
                       facts_of_samples(config, data), options->vocabulary, options->top_k, options->terms.temperature);
  };
  TeacherRequest request{
      .model = teacher_role({config, data, rank_position(communicator, config.parallel), samples.max_rows()}),
      .options = *options,
      .data = samples,
      .samples_of_batch = config.batch.micro,
      .file = cached_file(config, "teacher", facts, communicator, ".bin"),
      .key = config.provenance.where("distill.cache"),
      .print = print};
  return find_or_compute_teacher(std::move(request), runtime, mesh);
}

}  // namespace llmtrain
