#include "train/saver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "checkpoint/checkpoint_folder.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/number_text.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {
namespace {

// Below the size that copies on the host divide among threads: the writer must not start its own team.
constexpr int64_t staging_elements = int64_t{1} << 18;

std::vector<int64_t> nodes_of_ranks(const Communicator& communicator) {
  std::vector<int64_t> nodes;
  for (int rank = 0; rank < communicator.size(); ++rank) nodes.push_back(traffic().node_of(rank));
  return nodes;
}

/// Formats a wait: in milliseconds below one second.
std::string time_text(double seconds) {
  return seconds < 0.9995 ? fmt::format("{:.3g} ms", 1e3 * seconds) : duration(seconds);
}

}  // namespace

Saver::Saver(const CheckpointConfig& config, std::string folder, ParamStore& store, Stream& stream,
             std::span<uint8_t> buffer, Communicator& communicator, RunLog& log, const ResumePoint* from)
    : config_(config),
      folder_(std::move(folder)),
      communicator_(communicator),
      log_(log),
      tensor_ranks_(store.units().options().tensor_size),
      expert_ranks_(store.units().options().expert_size),
      snapshot_(store, stream, buffer),
      staging_(staging_elements * static_cast<int64_t>(sizeof(float))) {
  if (from != nullptr && from->own) {
    resumed_ = from->manifest.step;
    verified_.insert(resumed_);
    refused_ = from->refused;
  }
  if (config.shares_files(communicator.size())) file_of_rank_ = nodes_of_ranks(communicator);
  seconds_ = static_cast<double>(bytes_of_all()) / (slow_disk * communicator.node_count());
}

Saver::~Saver() {
  if (writer_.joinable()) writer_.join();
}

int64_t Saver::bytes_of_all() {
  int64_t bytes[] = {snapshot_.bytes()};
  communicator_.sum(bytes);
  return bytes[0];
}

void Saver::begin(const SaveRequest& request, double since) {
  const double prepared = now() - since;
  if (is_saving()) finish();
  began_ = now() - prepared;  // the wait for the previous save counts as part of that save
  held_ = 0;
  request_ = request;
  request_.file_of_rank = file_of_rank_;
  request_.tensor_ranks = tensor_ranks_;
  request_.expert_ranks = expert_ranks_;
  auto save = std::make_unique<CheckpointSave>(folder_, communicator_);
  save->begin(snapshot_.schema(), request_);
  snapshot_.take();
  save_ = std::move(save);
  start([this] {
    save_->write(snapshot_, {static_cast<float*>(staging_.data()), static_cast<size_t>(staging_elements)});
    snapshot_.release();
  });
  blocked_ = now() - began_ + std::exchange(removal_wait_, 0);
}

void Saver::start(const std::function<void()>& work) {
  done_ = false;
  const auto run = [this, work] {
    const WriterScope scope;
    work();
    done_ = true;
  };
  if (config_.asynchronous) {
    writer_ = std::thread(run);
  } else {
    run();
  }
}

void Saver::join() {
  if (!writer_.joinable()) return;
  const WriterWait wait;
  writer_.join();
}

void Saver::advance() {
  if (save_ == nullptr) return end_removal();
  if (save_->is_gathered()) return publish();
  const double begin = now();
  join();
  if (save_->needs_digest()) {
    start([this] { save_->digest(); });
  } else {
    save_->gather();
    start([this] { save_->complete(); });
  }
  held_ += now() - begin;
}

void Saver::wait_before_update() {
  if (!is_saving()) return;
  const double begin = now();
  const WriterWait wait;
  snapshot_.wait_for_live();
  held_ += now() - begin;
}

void Saver::finish() {
  if (save_ != nullptr) publish();
  if (removing_) end_removal();
}

void Saver::publish() {
  const double begin = now();
  join();
  if (save_->needs_digest()) {
    communicator_.barrier();
    save_->digest();
  }
  const SectionScope section(Section::saving);
  if (!save_->is_gathered()) {
    save_->gather();
    save_->complete();
  }
  const std::unique_ptr<CheckpointSave> save = std::move(save_);
  save->publish();
  verified_.insert(request_.step);
  refused_.erase(request_.step);
  seconds_ = now() - began_;
  const auto bytes = static_cast<double>(bytes_of_all());
  log_.print(fmt::format("saved      {}/{}: {} in {}, {}; training waited {}", folder_, checkpoint_name(request_.step),
                         bytes_text(bytes), time_text(seconds_), with_unit(bytes / std::max(seconds_, 1e-9), "B/s"),
                         time_text(blocked_ + held_ + (now() - begin))));
  begin_removal();
}

/// A file system may take as long to free a file's space as to write it.
void Saver::begin_removal() {
  removing_ = true;
  if (communicator_.rank() != 0) return;
  RetentionRules rules{config_.keep, {}, verified_, refused_};
  for (const int64_t step :
       {pinned_.best, pinned_.target, pinned_.best_of_target, pinned_.trusted, pinned_.best_of_trusted, resumed_}) {
    if (step >= 0) rules.pinned.insert(step);
  }
  start([this, rules] {
    const double begin = now();
    try {
      apply_retention(folder_, rules);
    } catch (...) {
      removal_error_ = std::current_exception();
    }
    removal_seconds_ = now() - begin;
  });
}

void Saver::end_removal() {
  const double begin = now();
  join();
  removal_wait_ = now() - begin;
  removing_ = false;
  seconds_ += std::exchange(removal_seconds_, 0);
  throw_on_all_ranks(communicator_, [&] {
    if (removal_error_) std::rethrow_exception(std::exchange(removal_error_, nullptr));
  });
}

void Saver::discard_after(int64_t step) {
  LLMTRAIN_CHECK(!is_saving(), "a save is in progress");
  throw_on_all_ranks(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    for (const int64_t later : published_steps(folder_)) {
      if (later > step) remove_checkpoint(folder_, later, nullptr);
    }
    if (pinned_.best >= 0) {
      link_checkpoint(folder_, "best", pinned_.best, nullptr);
    } else {
      std::error_code ignored;
      std::filesystem::remove(folder_ + "/best", ignored);
    }
  });
  verified_.erase(verified_.upper_bound(step), verified_.end());
  verified_.insert(step);
}

}  // namespace llmtrain
