#include "train/run/resume.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/shard_file.hpp"
#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/folder_handle.hpp"
#include "hf/weights/weight_index.hpp"
#include "parallel/job/runtime.hpp"
#include "train/run/suspects.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

void refuse_other_deck(const std::vector<std::string>& breaking, const std::string& path) {
  if (breaking.empty()) return;
  throw UserError(
      ExitCode::cannot_create,
      fmt::format("{}: this run was started from a different deck, so its checkpoints cannot be used. Choose another "
                  "run.name, or give run.overwrite=true to start it anew. Differences:\n  {}",
                  path, fmt::join(breaking, "\n  ")));
}

/// Refuses files that have changed: `what` the run did with the old ones, a `kind` of file.
void refuse_other_content(const std::vector<std::string>& changed, const char* what, const char* kind,
                          const std::string& path) {
  if (changed.empty()) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: the run {}. Restore the old {}, or start a new run with another run.name. "
                              "Differences:\n  {}",
                              path, what, kind, fmt::join(changed, "\n  ")));
}

/// Refuses or notes the deck's changes since the checkpoint.
void apply_changes(ResumePoint& point, const DeckComparison& compare) {
  using Effect = DeckDifference::Effect;
  const bool has_contents = !point.manifest.run.contents.empty();  // older versions allow a comparison of the text only
  std::vector<std::string> breaking;
  for (const DeckDifference& change : compare(point.manifest.deck, point.deck_name())) {
    if (change.effect == Effect::applies) {
      point.notes.push_back(fmt::format("changed since the checkpoint, with effect from here on: {}", change.text));
    } else if (change.effect == Effect::names_files && has_contents) {
      point.named.emplace(change.key, change.text);
    } else {
      breaking.push_back(change.text);
    }
  }
  refuse_other_deck(breaking, point.path);
}

void cut_file(const std::string& path, int64_t bytes) {
  if (::truncate(path.c_str(), bytes) != 0) {
    throw UserError(ExitCode::io,
                    fmt::format("{}: cannot be truncated to {} bytes: {}", path, bytes, std::strerror(errno)));
  }
}

/// Truncates the ledger to the lines of the checkpoint. Returns false if these are not the lines that the checkpoint
/// was saved with.
bool cut_ledger(const std::string& path, const Manifest& manifest) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error || static_cast<int64_t>(size) < manifest.ledger_bytes) return false;
  cut_file(path, manifest.ledger_bytes);
  return digest_file(FileHandle::open_to_read(path), "ledger").hash == manifest.ledger_hash;
}

/// Entries of one key.
std::vector<NamedContent> of_key(const std::vector<NamedContent>& all, std::string_view key) {
  std::vector<NamedContent> found;
  std::ranges::copy_if(all, std::back_inserter(found), [&](const NamedContent& c) { return c.key == key; });
  return found;
}

/// Describes the first difference; empty if there is none. Paths are ignored.
std::string content_difference(const std::vector<NamedContent>& there, const std::vector<NamedContent>& here) {
  for (size_t i = 0; i < std::min(there.size(), here.size()); ++i) {
    const NamedContent &was = there[i], &is = here[i];
    if (was.hash != is.hash) {
      return was.path == is.path ? fmt::format("the content of {} has changed", is.path)
                                 : fmt::format("the content of {} differs from that of {}", is.path, was.path);
    }
    if (was.role != is.role) return fmt::format("{}: {} there, {} here", is.path, was.role, is.role);
  }
  if (there.size() == here.size()) return {};
  const bool more = here.size() > there.size();
  return fmt::format("{} files there, {} here; {} is the first that {}", there.size(), here.size(),
                     more ? here[there.size()].path : there[here.size()].path, more ? "is new" : "is missing");
}

}  // namespace

NamedContent content_of_model(const std::string& path) {
  constexpr int64_t at_most = 1024;  ///< bytes of a tensor, at its begin, middle and end
  const FolderHandle folder = FolderHandle::open(path);
  const WeightIndex index = read_weight_index(folder);
  std::vector<FileHandle> files;
  for (const WeightIndex::File& file : index.files) files.push_back(folder.open_to_read(file.name));
  StreamHash hash;
  std::vector<char> bytes;
  for (const WeightIndex::Tensor& t : index.tensors) {
    const std::string facts = fmt::format("{} {} {}\n", t.name, name_of(t.type), shape_text(t.shape));
    hash.update(facts.data(), facts.size());
    const int64_t count = std::min(at_most, t.end - t.begin);
    bytes.resize(static_cast<size_t>(count));
    for (const int64_t begin : {t.begin, (t.begin + t.end - count) / 2, t.end - count}) {
      files[t.file].read(begin, count, bytes.data());
      hash.update(bytes.data(), bytes.size());
    }
  }
  return {"model.path", path, hex(hash.digest()), ""};
}

void compare_contents(std::vector<NamedContent>& now, ResumePoint& from) {
  const std::vector<NamedContent>& before = from.manifest.run.contents;
  if (before.empty()) return;
  std::vector<std::string> moved, other_deck, other_data, other_model, other_reward;
  const std::set<std::string_view> reward_keys = {"ppo.reward_model", "ppo.value_model", "rewards.functions"};
  for (const char* key : {"data.train", "data.validation", "data.tokenizer", "model.path", "ppo.reward_model",
                          "ppo.value_model", "rewards.functions"}) {
    const std::vector<NamedContent> there = of_key(before, key), here = of_key(now, key);
    if (reward_keys.contains(key) && (there.empty() || here.empty())) continue;
    const auto text = from.named.find(key);
    if (key == std::string_view("model.path") &&
        (here.empty() || there.empty())) {  // gone now, or already gone at the time of the save
      if (!there.empty()) {
        now.push_back(there.front());
        from.notes.push_back(
            fmt::format("model.path: {} no longer exists; it is not needed, since the checkpoint has the weights",
                        there.front().path));
      }
      continue;
    }
    const std::string difference = content_difference(there, here);
    if (difference.empty() && text != from.named.end()) moved.push_back(text->second);
    if (difference.empty()) continue;
    if (text != from.named.end()) {
      other_deck.push_back(fmt::format("{} ({})", text->second, difference));
    } else {
      const bool model = key == std::string_view("model.path");
      (reward_keys.contains(key) ? other_reward
       : model                   ? other_model
                                 : other_data)
          .push_back(fmt::format("{}: {}", key, difference));
    }
  }
  refuse_other_deck(other_deck, from.path);
  refuse_other_content(other_data, "was trained on different data", "data", from.path);
  refuse_other_content(other_model, "started from another model than model.path has now", "model", from.path);
  refuse_other_content(other_reward, "had another reward model or critic", "model", from.path);
  if (moved.empty()) return;
  from.notes.push_back(fmt::format("moved since the checkpoint, with the same content: {}", fmt::join(moved, "; ")));
}

LogState log_state(const Manifest& manifest) {
  return {manifest.run.counters,
          manifest.run.values,
          {is_pending(manifest.run, pending_evaluation), is_pending(manifest.run, pending_samples)}};
}

std::optional<ResumePoint> find_resume_point(const RunConfig& run, const CheckpointConfig& checkpoint,
                                             const Provenance& provenance, const DeckComparison& compare,
                                             Communicator& communicator) {
  const SectionScope section(Section::resuming);
  const std::string folder = run.directory(), &how = checkpoint.resume;
  std::optional<ResumePoint> point;
  std::optional<FoundCheckpoint> found;
  if (!run.overwrite) found = find_checkpoint(folder + "/checkpoints", communicator);
  if (found) {
    point = ResumePoint{found->path, std::move(found->manifest), true, {}, {}, {}};
    for (const RefusedCheckpoint& refused : found->refused) {
      point->refused.insert(refused.step);
      point->notes.push_back(fmt::format("the checkpoint of step {} cannot be used: {}", refused.step, refused.reason));
    }
  } else if (const std::string path = checkpoint.resume_path(); !path.empty()) {
    point = ResumePoint{path, verify_checkpoint(path, communicator), false, {}, {}, {}};
    if (is_suspect(path)) point->notes.push_back(path + ": suspect, since a rank of its run computed wrongly");
  }
  throw_on_all_ranks(communicator, [&] {
    if (!point && how == "required") {
      throw UserError(ExitCode::missing_input, fmt::format("{}: {} has no checkpoint, and one is required",
                                                           provenance.where("checkpoint.resume"), folder));
    }
    if (point && how == "never") {
      throw UserError(ExitCode::cannot_create,
                      fmt::format("{}: this run has checkpoints, and {} = never. Choose another run.name, or give "
                                  "run.overwrite=true to start it anew",
                                  folder, provenance.where("checkpoint.resume")));
    }
    if (point) apply_changes(*point, compare);
  });
  return point;
}

void warn_if_backend_changed(ResumePoint& point, const std::string& attention) {
  const std::string& before = point.manifest.run.attention;
  if (before == attention) return;
  const auto name = [](const std::string& library) { return library.empty() ? std::string("built-in") : library; };
  point.notes.push_back(
      fmt::format("the attention backend was {} up to the checkpoint and is {} from here on: results differ in bits "
                  "from a run with one backend",
                  name(before), name(attention)));
}

void warn_if_products_changed(ResumePoint& point, const std::string& products) {
  const std::string& before = point.manifest.run.products;
  if (before.empty() || before == products) return;  // checkpoints of the host and of older versions name none
  point.notes.push_back(fmt::format(
      "matrix products were by {} up to the checkpoint and are {} from here on: results differ in bits from "
      "a run with one library",
      before, products.empty() ? "llmtrain's own" : "by " + products));
}

std::string cut_metrics(const std::string& folder, const Manifest& manifest) {
  const std::string path = folder + "/metrics.jsonl";
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  const auto step = static_cast<double>(manifest.step);
  int64_t keep = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded()) break;
    if (const auto found = json.is_object() ? json.find("step") : json.end();
        found != json.end() && found->is_number()) {
      const bool pending = (json.contains("validation_loss") && is_pending(manifest.run, pending_evaluation)) ||
                           (json.contains("sample") && is_pending(manifest.run, pending_samples));
      if (pending ? *found >= step : *found > step) break;
    }
    keep += static_cast<int64_t>(line.size()) + 1;
  }
  file.close();
  try {
    cut_file(path, keep);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

std::vector<std::string> cut_back(const std::string& folder, const ResumePoint& from) {
  std::vector<std::string> notes;
  const std::string ledger = folder + "/ledger.jsonl";
  if (!from.own) {  // <run>/checkpoints/step-...
    std::error_code error;
    fs::copy_file(fs::path(from.path) / "../../ledger.jsonl", ledger, fs::copy_options::overwrite_existing, error);
  }
  if (from.manifest.ledger_bytes > 0 && !cut_ledger(ledger, from.manifest)) {
    std::error_code error;
    const std::string aside = ledger + ".damaged";
    fs::rename(ledger, aside, error);
    notes.push_back(
        fmt::format("{}: this is not the ledger that the checkpoint was saved with; a new one begins at step {}{}",
                    ledger, from.manifest.step, error ? "" : " (the old one: ledger.jsonl.damaged)"));
  }
  const std::string note = from.own ? cut_metrics(folder, from.manifest) : std::string();
  if (!note.empty()) notes.push_back(note);
  return notes;
}

}  // namespace llmtrain
