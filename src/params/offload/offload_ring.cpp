#include "params/offload/offload_ring.hpp"

#include <utility>

#include "core/activity.hpp"

namespace llmtrain {

OffloadRing::OffloadRing(OffloadFile& file, const std::array<char*, slots>& buffers)
    : file_(file), pieces_(static_cast<int64_t>(file.layout().pieces().size())) {
  for (size_t i = 0; i < slots; ++i) slots_[i].buffer = buffers[i];
  for (size_t i = 0; i < slots; ++i) {
    slots_[i].thread = std::thread([this, i] { work(slots_[i]); });
  }
}

OffloadRing::~OffloadRing() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (Slot& slot : slots_) slot.thread.join();
}

char* OffloadRing::part(const Slot& slot, size_t piece, size_t kind) const {
  return slot.buffer + file_.layout().bytes_of(file_.layout().pieces()[piece], 0, kind);
}

void OffloadRing::transfer(Slot& slot) {
  if (slot.write >= 0 && kinds_.write_first < kinds_.write_last) {
    const auto piece = static_cast<size_t>(slot.write);
    file_.write(piece, kinds_.write_first, kinds_.write_last, part(slot, piece, kinds_.write_first));
  }
  if (slot.read >= 0 && kinds_.read_first < kinds_.read_last) {
    const auto piece = static_cast<size_t>(slot.read);
    file_.read(piece, kinds_.read_first, kinds_.read_last, part(slot, piece, kinds_.read_first));
  }
}

void OffloadRing::work(Slot& slot) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return slot.busy || stop_; });
    if (!slot.busy) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      transfer(slot);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.error = std::move(error);
    slot.busy = false;
    changed_.notify_all();
  }
}

/// Both pieces belong to one slot.
void OffloadRing::submit(int64_t write, int64_t read) {
  if (read >= pieces_) read = -1;
  if (write < 0 && read < 0) return;
  Slot& slot = slots_[static_cast<size_t>(write >= 0 ? write : read) % slots];
  {
    const std::lock_guard lock(mutex_);
    slot.write = write;
    slot.read = read;
    slot.busy = true;
  }
  changed_.notify_all();
}

void OffloadRing::wait(Slot& slot) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !slot.busy; });
  if (slot.error) std::rethrow_exception(std::exchange(slot.error, nullptr));
}

void OffloadRing::begin(const Kinds& kinds) {
  kinds_ = kinds;
  current_ = -1;
  for (size_t i = 0; i < slots; ++i) submit(-1, static_cast<int64_t>(i));
}

bool OffloadRing::next() {
  const ProfileSpan span(SpanKind::kernel, "wait for offloaded state");
  report_progress();
  if (current_ >= 0) submit(current_, current_ + static_cast<int64_t>(slots));
  if (++current_ < pieces_) {
    wait(slots_[piece() % slots]);
    return true;
  }
  for (Slot& slot : slots_) wait(slot);
  current_ = -1;
  return false;
}

void OffloadRing::abandon() {
  std::unique_lock lock(mutex_);
  for (Slot& slot : slots_) {
    changed_.wait(lock, [&] { return !slot.busy; });
    slot.error = nullptr;
  }
  current_ = -1;
}

}  // namespace llmtrain
