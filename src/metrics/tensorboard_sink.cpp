// Event files of a run for TensorBoard, in tensorboard/.

#include <fmt/format.h>
#include <tensorboard.pb.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/machine.hpp"
#include "metrics/append_file.hpp"
#include "metrics/event_file.hpp"
#include "metrics/scalars.hpp"
#include "metrics/sink.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;
namespace pb = tensorboard;

constexpr const char* name_begin = "events.out.tfevents.";
constexpr const char* session_start_tag = "_hparams_/session_start_info";
constexpr const char* session_end_tag = "_hparams_/session_end_info";
constexpr size_t event_bins = 30;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

pb::Event event_at(int64_t step) {
  pb::Event event;
  event.set_step(step);
  event.set_wall_time(unix_seconds());
  return event;
}

/// Tag of the first value, which says what an event is about.
std::string tag_of(const pb::Event& event) {
  return event.has_summary() && event.summary().value_size() > 0 ? event.summary().value(0).tag() : std::string();
}

void add_scalars(pb::Event& event, const std::vector<Scalar>& scalars) {
  for (const Scalar& scalar : scalars) {
    pb::Summary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(scalar.name);
    value.set_simple_value(static_cast<float>(scalar.value));
  }
}

void add_histogram(pb::Event& event, const Histogram& histogram) {
  if (histogram.count == 0) return;
  pb::Summary::Value& value = *event.mutable_summary()->add_value();
  value.set_tag(grad_norm_histogram);
  pb::HistogramProto& histo = *value.mutable_histo();
  histo.set_min(histogram.edges.front());
  histo.set_max(histogram.edges.back());
  histo.set_num(static_cast<double>(histogram.count));
  histo.set_sum(histogram.sum);
  histo.set_sum_squares(histogram.sum_of_squares);
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    histo.add_bucket_limit(histogram.edges[i + 1]);
    histo.add_bucket(static_cast<double>(histogram.counts[i]));
  }
}

/// A value of the plugin `hparams`, whose data are in its metadata.
void add_hparams(pb::Event& event, const char* tag, const pb::HParamsPluginData& data) {
  pb::Summary::Value& value = *event.mutable_summary()->add_value();
  value.set_tag(tag);
  pb::SummaryMetadata::PluginData& plugin = *value.mutable_metadata()->mutable_plugin_data();
  plugin.set_plugin_name("hparams");
  plugin.set_content(data.SerializeAsString());
  value.mutable_tensor()->set_dtype(pb::DT_FLOAT);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(0);
}

pb::Value hparam(const std::string& text) {
  pb::Value value;
  const auto typed = typed_value(text);
  if (const bool* boolean = std::get_if<bool>(&typed)) value.set_bool_value(*boolean);
  if (const double* number = std::get_if<double>(&typed)) value.set_number_value(*number);
  if (const std::string* words = std::get_if<std::string>(&typed)) value.set_string_value(*words);
  return value;
}

/// A text as Markdown that shows it as it is.
std::string code_block(const std::string& text) {
  std::string block = "    ";
  for (const char c : text) block += c == '\n' ? "\n    " : std::string(1, c);
  return block;
}

class TensorboardSink : public Sink {
 public:
  explicit TensorboardSink(const SinkOptions& options)
      : folder_(options.directory + "/tensorboard"), settings_(options.settings), max_bytes_(options.event_file_bytes) {
    fs::create_directories(folder_);
    for (const fs::path& file : event_files()) {
      last_time_ = std::max<int64_t>(last_time_, std::atoll(file.filename().string().c_str() + name_length));
    }
  }

  void interval(const IntervalRecord& r) override {
    pb::Event event = event_at(r.last.step);
    add_scalars(event, scalars_of(r));
    add_histogram(event, histogram_of(r.grad_norms, event_bins));
    write(event);
  }
  void evaluation(const EvaluationRecord& r, double /*wall_time*/) override {
    pb::Event event = event_at(r.step);
    add_scalars(event, scalars_of(r));
    write(event);
  }
  void samples(const SampleRecord& r, double /*wall_time*/) override;
  std::string resume(int64_t step, PendingWork pending, double /*wall_time*/) override {
    go_back(step, pending);
    return {};
  }
  void roll_back(const RollbackRecord& r, PendingWork pending, double /*wall_time*/) override {
    go_back(r.step, pending);
  }
  void end(bool finished) override;
  void sync() override { file().sync(); }

 private:
  static constexpr size_t name_length = std::char_traits<char>::length(name_begin);

  std::vector<fs::path> event_files() const;
  void go_back(int64_t step, PendingWork pending);
  int64_t read_kept(const fs::path& path, int64_t step, PendingWork pending);
  AppendFile& file();
  void write(const pb::Event& event);
  std::string session_start() const;

  std::string folder_;
  std::vector<DeckSetting> settings_;
  int64_t max_bytes_;
  int64_t last_time_ = 0;  ///< in the name of the last file
  std::optional<AppendFile> file_;
  int64_t bytes_ = 0;       ///< of this file
  bool described_ = false;  ///< True if a file has the hyperparameters
  bool begins_ = true;      ///< True if the next file begins a session of the run
  int64_t step_ = 0;        ///< of the session's begin, then of the last event
  std::string repeated_;    ///< records of that step, which the session begins with
};

void TensorboardSink::samples(const SampleRecord& r, double /*wall_time*/) {
  pb::Event event = event_at(r.step);
  for (size_t i = 0; i < r.samples.size(); ++i) {
    pb::Summary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(fmt::format("{}{}", samples_group, i + 1));
    value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
    value.mutable_tensor()->set_dtype(pb::DT_STRING);
    value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(1);
    value.mutable_tensor()->add_string_val(code_block(r.samples[i].prompt + r.samples[i].text));
  }
  write(event);
}

void TensorboardSink::end(bool finished) {
  if (!finished) return;
  pb::HParamsPluginData data;
  data.mutable_session_end_info()->set_status(pb::STATUS_SUCCESS);
  data.mutable_session_end_info()->set_end_time_secs(unix_seconds());
  pb::Event event = event_at(step_);
  add_hparams(event, session_end_tag, data);
  write(event);
}

/// In the order of time, in which TensorBoard reads them.
std::vector<fs::path> TensorboardSink::event_files() const {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with(name_begin)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

/// The files lose what is later than `step`, or pending, or half a record. A TensorBoard that has read it drops what it
/// has from `step` on when the next session begins, which therefore repeats that step.
void TensorboardSink::go_back(int64_t step, PendingWork pending) {
  file_.reset();
  repeated_.clear();
  described_ = false;
  std::vector<std::pair<fs::path, int64_t>> cuts;
  for (const fs::path& path : event_files()) cuts.emplace_back(path, read_kept(path, step, pending));
  begins_ = true;
  step_ = step;
  file().sync();  // the new session is on the disk before the old ones lose what it repeats
  for (const auto& [path, kept] : cuts) {
    // An empty file stays: a TensorBoard that reads it finds the next one.
    if (kept != static_cast<int64_t>(fs::file_size(path))) fs::resize_file(path, static_cast<uintmax_t>(kept));
  }
}

/// Returns the bytes of a file that are from before `step`, and adds what it has of that step to repeated_.
int64_t TensorboardSink::read_kept(const fs::path& path, int64_t step, PendingWork pending) {
  int64_t kept = 0;
  read_events(path.string(), [&](std::string_view payload, int64_t end) {
    pb::Event event;
    if (!event.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) return false;
    const std::string tag = tag_of(event);
    if (event.step() < step || event.has_file_version()) {
      kept = end;
      described_ |= tag == session_start_tag;
    } else if (event.step() == step && event.has_summary()) {
      const bool again = (pending.evaluation && tag.starts_with(validation_group)) ||
                         (pending.samples && tag.starts_with(samples_group)) || tag == session_end_tag ||
                         tag == session_start_tag;
      const std::string record = event_record(payload);
      // A job that was killed while it began has repeated it already.
      if (!again && repeated_.find(record) == std::string::npos) repeated_ += record;
    }
    return event.step() <= step;
  });
  return kept;
}

std::string TensorboardSink::session_start() const {
  pb::HParamsPluginData data;
  pb::SessionStartInfo& info = *data.mutable_session_start_info();
  for (const DeckSetting& setting : settings_) {
    if (setting.is_changed) (*info.mutable_hparams())[setting.section + "." + setting.key] = hparam(setting.value);
  }
  info.set_start_time_secs(unix_seconds());
  pb::Event event = event_at(step_);
  add_hparams(event, session_start_tag, data);
  return event_record(event.SerializeAsString());
}

/// The current file, which begins with its version. Its name comes after those of the files before.
AppendFile& TensorboardSink::file() {
  if (file_) return *file_;
  last_time_ = std::max(last_time_ + 1, static_cast<int64_t>(unix_seconds()));
  pb::Event version = event_at(0);
  version.set_file_version("brain.Event:2");
  std::string head = event_record(version.SerializeAsString());
  if (begins_) {
    pb::Event start = event_at(step_);
    start.mutable_session_log()->set_status(pb::SessionLog::START);
    head += event_record(start.SerializeAsString());
    if (!described_) head += session_start();
    described_ = true;
    head += repeated_;
    repeated_.clear();
    begins_ = false;
  }
  file_.emplace(fmt::format("{}/{}{:010}.{}", folder_, name_begin, last_time_, host_name()));
  file_->append(head);
  bytes_ = static_cast<int64_t>(head.size());
  return *file_;
}

void TensorboardSink::write(const pb::Event& event) {
  const std::string record = event_record(event.SerializeAsString());
  file().append(record);
  bytes_ += static_cast<int64_t>(record.size());
  step_ = event.step();
  if (bytes_ >= max_bytes_) {
    file_->sync();
    file_.reset();
  }
}

}  // namespace

std::unique_ptr<Sink> make_tensorboard_sink(const SinkOptions& options) {
  return std::make_unique<TensorboardSink>(options);
}

}  // namespace llmtrain
