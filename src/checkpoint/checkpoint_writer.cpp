#include "checkpoint/checkpoint_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "checkpoint/view_file.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"

namespace llmtrain {

namespace {

/// `hashes` covers the file, or a share of its pieces.
std::string message_of(const CheckpointShard& shard, const std::vector<Digest>& hashes) {
  Message message;
  message.put(shard.file.name);
  message.put(std::vector<int64_t>{shard.file.bytes, shard.index_offset, shard.index_bytes});
  message.put(hashes);
  return message.bytes();
}

CheckpointShard shard_of(const std::string& bytes, std::vector<Digest>& hashes) {
  Message message(bytes);
  CheckpointShard shard;
  std::vector<int64_t> numbers;
  message.take(shard.file.name);
  message.take(numbers);
  message.take(hashes);
  shard.file.bytes = numbers.at(0);
  shard.index_offset = numbers.at(1);
  shard.index_bytes = numbers.at(2);
  return shard;
}

UserError disk_full(const std::string& folder, int64_t needed, int64_t available) {
  return {ExitCode::io,
          fmt::format("{}: the disk is full: a checkpoint needs {} bytes, but {} are free. Older checkpoints were "
                      "kept. Free some space (checkpoint.keep, run.output) and submit the same command again",
                      folder, needed, available)};
}

CheckpointFile write_text(const std::string& folder, const std::string& name, const std::string& text,
                          const SaveHook& hook) {
  call(hook, "write " + name);
  const FileHandle file = FileHandle::create(folder + "/" + name);
  file.write(0, static_cast<int64_t>(text.size()), text.data());
  file.sync();
  file.drop_cached();
  if (file.read_text(static_cast<int64_t>(text.size())) != text) {
    throw UserError(ExitCode::io, file.path() + ": the disk returns other bytes than were written; check the disk");
  }
  return digest_file(file, name);
}

}  // namespace

void complete_attempt(const std::string& attempt, const Schema& schema, const SaveRequest& request,
                      std::vector<CheckpointShard> shards, const SaveHook& hook) {
  call(hook, "write view");
  write_view(attempt, schema, request.step, shards, request.sharding(std::ssize(shards), schema));
  const FileHandle view = FileHandle::open_to_write(attempt + "/" + view_name);
  call(hook, "sync view");
  view.sync();
  view.drop_cached();
  std::vector<CheckpointFile> files{digest_file(view, view_name)};
  for (const auto& [name, text] : request.texts) files.push_back(write_text(attempt, name, text, hook));
  const Manifest manifest{request.step,      request.program,  request.deck,         schema,
                          std::move(shards), std::move(files), request.ledger_bytes, request.ledger_hash,
                          request.run,       request.frozen,   request.tensor_ranks, request.expert_ranks};
  const std::string text = to_text(manifest);
  const std::string path = attempt + "/" + manifest_name;
  call(hook, "create manifest");
  const FileHandle file = FileHandle::create(path);
  call(hook, "write manifest");
  file.write(0, static_cast<int64_t>(text.size()), text.data());
  call(hook, "sync manifest");
  file.sync();
  file.drop_cached();
  call(hook, "read back manifest");
  if (file.read_text(max_manifest_bytes) != text || to_text(parse_manifest(text, path)) != text) {
    throw UserError(ExitCode::io, path + ": the disk returns other bytes than were written; check the disk");
  }
  call(hook, "sync attempt");
  std::set<std::string> folders{attempt};
  for (const CheckpointShard& shard : manifest.shards) folders.insert(folder_of(attempt + "/" + shard.file.name));
  for (const std::string& folder : folders) sync_folder(folder);
}

CheckpointSave::CheckpointSave(std::string folder, Communicator& communicator, SaveHook hook)
    : folder_(std::move(folder)), communicator_(communicator), hook_(std::move(hook)) {}

/// Synchronizes failures: all ranks continue, or all throw the same error and remove the attempt.
void CheckpointSave::run_phase(const std::function<void()>& work) {
  try {
    throw_on_all_ranks(communicator_, work);
  } catch (const UserError&) {
    shard_.reset();
    communicator_.barrier();  // nobody writes there any more
    if (communicator_.rank() == 0 && !attempt_.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(attempt_, ignored);
    }
    throw;
  }
}

void CheckpointSave::begin(const Schema& schema, const SaveRequest& request) {
  schema_ = schema;
  request_ = request;
  run_phase([&] {
    check_schema(schema_, folder_);
    if (communicator_.rank() == 0) attempt_ = create_attempt(folder_, request.step, hook_);
  });
  communicator_.broadcast(attempt_);
  create_shard();
  reserve();
}

void CheckpointSave::create_shard() {
  const int64_t rank = communicator_.rank(), size = communicator_.size();
  const std::vector<int64_t>& files = request_.file_of_rank;
  const int64_t count = files.empty() ? size : *std::ranges::max_element(files) + 1;
  if (count == size) {
    return run_phase([&] {
      call(hook_, "create shard");
      shard_ = std::make_unique<ShardFile>(attempt_, schema_, request_.step, rank, sharding());
    });
  }
  shared_ = {files[static_cast<size_t>(rank)], count, {}};
  for (int64_t r = 0; r < size; ++r) {
    if (files[static_cast<size_t>(r)] == shared_.file) shared_.shards.push_back(r);
  }
  run_phase([&] {
    call(hook_, "create shard");
    if (shared_.shards.front() == rank) {
      ShardFile::create_shared(attempt_, shared_, schema_, request_.step, sharding());
    }
  });
  run_phase([&] { shard_ = std::make_unique<ShardFile>(attempt_, shared_, schema_, request_.step, rank, sharding()); });
}

void CheckpointSave::reserve() {
  const bool first = shared_.files == 0 || shared_.shards.front() == communicator_.rank();
  const int64_t needed = sum_of_ranks(communicator_, first ? shard_->bytes() : 0);
  int64_t available = free_bytes(folder_);
  communicator_.broadcast(&available, sizeof(available));
  int64_t full = available < needed ? 1 : 0;
  run_phase([&] {
    call(hook_, "reserve");
    if (full == 0 && first && !shard_->reserve()) full = 1;
  });
  full = sum_of_ranks(communicator_, full);
  run_phase([&] {
    if (full > 0) throw disk_full(folder_, needed, available);
  });
}

void CheckpointSave::write(const StateSource& source, std::span<float> buffer) {
  try {
    shard_->write_state(source, buffer, hook_);
    sealed_ = shard_->seal(hook_, request_.from_disk);
  } catch (const UserError&) {
    failure_ = std::current_exception();
  }
}

void CheckpointSave::digest() {
  digested_ = true;
  if (failed()) return;
  const auto members = static_cast<int64_t>(shared_.shards.size());
  const auto mine = std::ranges::find(shared_.shards, communicator_.rank()) - shared_.shards.begin();
  const int64_t pieces = (shard_->bytes() + hash_piece - 1) / hash_piece;
  try {
    pieces_ = shard_->digest_pieces(pieces * mine / members, pieces * (mine + 1) / members);
  } catch (const UserError&) {
    failure_ = std::current_exception();
  }
}

void CheckpointSave::gather_shards() {
  const std::vector<Digest> own{sealed_.file.hash};
  const auto all = communicator_.gather(message_of(sealed_, shared_.files > 0 ? pieces_ : own));
  if (communicator_.rank() != 0) return;
  std::map<std::string, std::vector<Digest>> of_file;
  for (const std::string& one : all) {
    std::vector<Digest> hashes;
    shards_.push_back(shard_of(one, hashes));
    std::vector<Digest>& so_far = of_file[shards_.back().file.name];
    so_far.insert(so_far.end(), hashes.begin(), hashes.end());
  }
  for (CheckpointShard& shard : shards_) {
    const std::vector<Digest>& hashes = of_file[shard.file.name];
    shard.file.hash = shared_.files > 0 ? combine(hashes) : hashes.front();
  }
}

void CheckpointSave::gather() {
  run_phase([&] {
    if (failure_) std::rethrow_exception(failure_);
  });
  shard_.reset();
  gather_shards();
  gathered_ = true;
}

void CheckpointSave::complete() {
  if (communicator_.rank() != 0) return;
  try {
    complete_attempt(attempt_, schema_, request_, shards_, hook_);
  } catch (const UserError&) {
    failure_ = std::current_exception();
  }
}

std::string CheckpointSave::publish() {
  run_phase([&] {
    if (failure_) std::rethrow_exception(failure_);
    if (communicator_.rank() != 0) return;
    publish_attempt(folder_, attempt_, request_.step, hook_);
    link_checkpoint(folder_, "latest", request_.step, hook_);
    if (request_.best) link_checkpoint(folder_, "best", request_.step, hook_);
  });
  return folder_ + "/" + checkpoint_name(request_.step);
}

}  // namespace llmtrain
