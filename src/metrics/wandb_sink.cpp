// An offline run of W&B in wandb/offline-run-TIME-ID, for `wandb sync`. A run directory has one run ID and one file:
// each sync, also of a running job, replaces what the one before sent. A step is one row of the history.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <wandb.pb.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

#include "core/files/sha256.hpp"
#include "core/files/whole_file.hpp"
#include "core/machine.hpp"
#include "metrics/scalars.hpp"
#include "metrics/sink.hpp"
#include "metrics/wandb_log.hpp"

namespace llmtrain {

namespace {

constexpr const char* table_key = "samples";
constexpr size_t row_bins = 32;

/// A number in JSON as W&B reads it.
std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

nlohmann::ordered_json json_value(const std::string& text) {
  const auto typed = typed_value(text);
  const double* number = std::get_if<double>(&typed);
  if (number != nullptr && *number == std::rint(*number) && std::abs(*number) < 1e15) {
    return static_cast<int64_t>(*number);
  }
  return std::visit([](const auto& value) { return nlohmann::ordered_json(value); }, typed);
}

/// Sections with their keys.
void set_config(wandb::ConfigRecord& config, const std::vector<DeckSetting>& settings) {
  nlohmann::ordered_json sections = nlohmann::ordered_json::object();
  for (const DeckSetting& setting : settings) sections[setting.section][setting.key] = json_value(setting.value);
  for (const auto& [section, keys] : sections.items()) {
    wandb::Item& item = *config.add_update();
    item.set_key(section);
    item.set_value_json(keys.dump());
  }
}

/// Returns the run's ID from the file, which is created where it is missing.
std::string read_or_make_id(const std::string& path) {
  constexpr std::string_view letters = "0123456789abcdefghijklmnopqrstuvwxyz";
  constexpr size_t length = 8;
  std::string id;
  std::ifstream(path) >> id;
  if (id.size() == length && id.find_first_not_of(letters) == std::string::npos) return id;  // else it is damaged
  std::random_device random;
  id.clear();
  for (size_t i = 0; i < length; ++i) id += letters[random() % letters.size()];
  write_whole_file(path, id + "\n");
  return id;
}

/// Returns the folder of the run, a new one where there is none, as after `wandb clean`.
std::string find_run_folder(const std::string& folder, const std::string& id) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("offline-run-") && name.ends_with("-" + id)) return entry.path();
  }
  return fmt::format("{}/offline-run-{:%Y%m%d_%H%M%S}-{}", folder, fmt::localtime(std::time(nullptr)), id);
}

class WandbSink : public Sink {
 public:
  explicit WandbSink(const SinkOptions& options);

  void interval(const IntervalRecord& r) override;
  void evaluation(const EvaluationRecord& r, double wall_time) override;
  void samples(const SampleRecord& r, double wall_time) override;
  std::string resume(int64_t step, PendingWork pending, double /*wall_time*/) override {
    rewrite(step, pending);
    return {};
  }
  void roll_back(const RollbackRecord& r, PendingWork pending, double /*wall_time*/) override {
    row_ = {};
    rewrite(r.step, pending);
  }
  void end(bool finished) override;
  void sync() override {
    write_row();
    log_->sync();
  }

 private:
  /// Values as JSON by name. A step: none.
  struct Row {
    int64_t step = -1;
    std::map<std::string, std::string> values;
  };

  /// A part of the file.
  struct Before {
    std::vector<std::string> records;
    std::optional<wandb::Timestamp> start;
    int64_t last_step = -1;
    Row row;
  };

  void append(wandb::Record& record);
  void append_head(const std::optional<wandb::Timestamp>& start);
  Row& row_at(int64_t step, double wall_time);
  void write_row();
  void append_row();
  Before read_before(int64_t step) const;
  void rewrite(int64_t step, PendingWork pending);

  SinkOptions options_;
  std::string id_, folder_, path_;
  std::optional<WandbLog> log_;
  int64_t records_ = 0;
  Row row_;                    ///< not in the file yet: an evaluation and samples of its step may come
  int64_t written_step_ = -1;  ///< of the last row in the file
  double runtime_ = 0;         ///< seconds
};

WandbSink::WandbSink(const SinkOptions& options) : options_(options) {
  const std::string folder = options.directory + "/wandb";
  std::filesystem::create_directories(folder);
  id_ = read_or_make_id(folder + "/run_id");
  folder_ = find_run_folder(folder, id_);
  path_ = fmt::format("{}/run-{}.wandb", folder_, id_);
  std::filesystem::create_directories(folder_ + "/files/media/table");
  const bool is_new = !std::filesystem::exists(path_);
  log_.emplace(path_);
  if (is_new) append_head({});
}

void WandbSink::append(wandb::Record& record) {
  record.set_num(++records_);
  log_->append(record.SerializeAsString());
}

/// The configuration comes first, so that a running job can be synced with it.
void WandbSink::append_head(const std::optional<wandb::Timestamp>& start) {
  wandb::Record header;
  header.mutable_header()->mutable_version_info()->set_producer(wandb_version);
  header.mutable_header()->mutable_version_info()->set_min_consumer(wandb_min_consumer);
  append(header);

  const WandbConfig& names = options_.wandb;
  wandb::Record record;
  wandb::RunRecord& run = *record.mutable_run();
  run.set_run_id(id_);
  run.set_entity(with_valid_utf8(names.entity));
  run.set_project(with_valid_utf8(names.project));
  run.set_run_group(with_valid_utf8(names.group));
  run.set_display_name(with_valid_utf8(names.name.empty() ? options_.name : names.name));
  for (const std::string& tag : names.tags) run.add_tags(with_valid_utf8(tag));
  run.set_host(host_name());
  if (start) {
    *run.mutable_start_time() = *start;
  } else {
    run.mutable_start_time()->set_seconds(std::time(nullptr));
  }
  set_config(*run.mutable_config(), options_.settings);
  append(record);

  const std::string deck = options_.directory + "/deck.ini";
  if (!std::filesystem::exists(deck)) return;
  std::filesystem::copy_file(deck, folder_ + "/files/deck.ini", std::filesystem::copy_options::overwrite_existing);
  wandb::Record files;
  files.mutable_files()->add_files()->set_path("deck.ini");
  append(files);
}

void WandbSink::interval(const IntervalRecord& r) {
  Row& row = row_at(r.last.step, r.wall_time);
  for (const Scalar& scalar : scalars_of(r)) row.values[scalar.name] = json_number(scalar.value);
  const Histogram histogram = histogram_of(r.grad_norms, row_bins);
  if (histogram.count == 0) return;
  const nlohmann::ordered_json json = {{"_type", "histogram"}, {"values", histogram.counts}, {"bins", histogram.edges}};
  row.values[grad_norm_histogram] = json.dump();
}

void WandbSink::evaluation(const EvaluationRecord& r, double wall_time) {
  Row& row = row_at(r.step, wall_time);
  for (const Scalar& scalar : scalars_of(r)) row.values[scalar.name] = json_number(scalar.value);
  if (r.best) row.values[std::string(validation_group) + "best_loss"] = json_number(r.loss);
}

void WandbSink::samples(const SampleRecord& r, double wall_time) {
  nlohmann::ordered_json table = {{"columns", {"step", "prompt", "sample"}}, {"data", nlohmann::ordered_json::array()}};
  for (const SampleRecord::Sample& sample : r.samples) table["data"].push_back({r.step, sample.prompt, sample.text});
  const std::string text = table.dump(), hash = sha256(text);
  const std::string path = fmt::format("media/table/samples_{}_{}.table.json", r.step, hash.substr(0, 20));
  write_whole_file(folder_ + "/files/" + path, text);
  const nlohmann::ordered_json json = {{"_type", "table-file"}, {"sha256", hash}, {"size", text.size()},
                                       {"path", path},          {"ncols", 3},     {"nrows", r.samples.size()}};
  row_at(r.step, wall_time).values[table_key] = json.dump();
}

void WandbSink::end(bool finished) {
  write_row();
  if (!finished) return;
  wandb::Record exit;
  exit.mutable_exit()->set_runtime(static_cast<int32_t>(runtime_));
  append(exit);
}

/// The row of a step; that of an earlier step is complete then.
WandbSink::Row& WandbSink::row_at(int64_t step, double wall_time) {
  if (row_.step != step) write_row();
  row_.step = step;
  runtime_ = wall_time;
  row_.values["_step"] = std::to_string(step);
  row_.values["_runtime"] = json_number(wall_time);
  row_.values["_timestamp"] = fmt::format("{}", std::time(nullptr));
  return row_;
}

void WandbSink::write_row() {
  if (row_.step < 0) return;
  if (row_.step <= written_step_) {
    rewrite(row_.step, {});
  } else {
    append_row();
  }
  std::filesystem::remove(path_ + ".synced");  // W&B's mark that the file needs no sync
}

void WandbSink::append_row() {
  wandb::Record history, summary;
  history.mutable_history()->mutable_step()->set_num(row_.step);
  for (const auto& [name, value] : row_.values) {
    for (wandb::Item* item : {history.mutable_history()->add_item(), summary.mutable_summary()->add_update()}) {
      item->add_nested_key(name);
      item->set_value_json(value);
    }
  }
  append(history);
  append(summary);
  if (const auto table = row_.values.find(table_key); table != row_.values.end()) {
    wandb::Record files;
    wandb::FilesItem& file = *files.mutable_files()->add_files();
    file.set_path(nlohmann::json::parse(table->second).at("path").get<std::string>());
    file.set_type(wandb::FilesItem::MEDIA);
    append(files);
  }
  written_step_ = row_.step;
  row_ = {};
}

/// Content of a file from before a step, and the row of that step.
WandbSink::Before WandbSink::read_before(int64_t step) const {
  Before before;
  if (std::filesystem::file_size(path_) <= wandb_file_header().size()) return before;
  bool later = false;
  read_wandb_log(path_, [&](std::string_view payload) {
    wandb::Record record;
    if (later || !record.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) return;
    if (record.has_run()) before.start = record.run().start_time();
    if (record.has_history()) {
      const int64_t at = record.history().step().num();
      later = at >= step;
      if (!later) before.last_step = at;
      if (at == step) {
        before.row.step = at;
        for (const wandb::Item& item : record.history().item())
          before.row.values[item.nested_key(0)] = item.value_json();
      }
    }
    const bool of_rows = record.has_history() || record.has_summary() || (record.has_files() && before.last_step >= 0);
    if (of_rows && !later) before.records.emplace_back(payload);
  });
  return before;
}

/// Writes the file anew with the rows before `step` and the row of that step, which loses what is pending and gets the
/// values of row_. A reader of the old file is not disturbed.
void WandbSink::rewrite(int64_t step, PendingWork pending) {
  Before before = read_before(step);
  std::erase_if(before.row.values, [&](const auto& value) {
    return (pending.evaluation && value.first.starts_with(validation_group)) ||
           (pending.samples && value.first == table_key);
  });
  if (row_.step == step) {
    before.row.step = step;
    for (const auto& [name, value] : row_.values) before.row.values[name] = value;
  }
  const std::string temporary = path_ + ".tmp";
  std::filesystem::remove(temporary);
  log_.emplace(temporary);
  records_ = 0;
  append_head(before.start);
  for (const std::string& payload : before.records) {
    wandb::Record record;
    record.ParseFromString(payload);
    append(record);
  }
  written_step_ = before.last_step;
  row_ = std::move(before.row);
  if (row_.step >= 0) append_row();
  log_->sync();
  publish_file(temporary, path_);
}

}  // namespace

std::unique_ptr<Sink> make_wandb_sink(const SinkOptions& options) { return std::make_unique<WandbSink>(options); }

}  // namespace llmtrain
