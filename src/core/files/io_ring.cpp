#include "core/files/io_ring.hpp"

#include <liburing.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

namespace {

constexpr int64_t max_buffer = int64_t{1} << 30;  ///< that the kernel takes as one

}  // namespace

struct IoRing::Kernel {
  io_uring ring{};
  char* fixed = nullptr;
  int64_t fixed_bytes = 0;  ///< in buffers of max_buffer, the last one smaller

  /// The buffer that has all of it, or -1.
  int buffer_of(const char* memory, int64_t bytes) const {
    const int64_t at = memory - fixed;
    if (at < 0 || at + bytes > fixed_bytes) return -1;
    const int64_t buffer = at / max_buffer;
    return (at + bytes - 1) / max_buffer == buffer ? static_cast<int>(buffer) : -1;
  }
};

IoRing::IoRing() = default;

IoRing::~IoRing() {
  if (kernel_ == nullptr) return;
  if (kernel_->fixed != nullptr) io_uring_unregister_buffers(&kernel_->ring);  // the kernel would do it some time later
  io_uring_queue_exit(&kernel_->ring);
}

std::string IoRing::library() {
  const std::string version = LLMTRAIN_LIBURING_VERSION;
  return version.empty() ? "liburing" : "liburing " + version;
}

std::string IoRing::open(unsigned depth) {
  auto kernel = std::make_unique<Kernel>();
  io_uring* ring = &kernel->ring;
  if (const int code = io_uring_queue_init(depth, ring, 0); code < 0) return std::strerror(-code);
  // A first read, of no file: a kernel before 5.6 does not know the request, a filter of system calls may let a ring be
  // made and nothing be asked of it.
  io_uring_prep_read(io_uring_get_sqe(ring), -1, nullptr, 0, 0);
  int code = io_uring_submit(ring);
  io_uring_cqe* done = nullptr;
  while (code >= 0 && done == nullptr) {
    const int waited = io_uring_wait_cqe(ring, &done);
    if (waited < 0 && waited != -EINTR) code = waited;
  }
  if (done != nullptr) {
    code = done->res == -EBADF ? 0 : -ENOSYS;
    io_uring_cqe_seen(ring, done);
  }
  if (code < 0) {
    io_uring_queue_exit(ring);
    return std::strerror(-code);
  }
  kernel_ = std::move(kernel);
  return "";
}

std::string IoRing::fix(char* memory, int64_t bytes) {
  std::vector<iovec> buffers;
  for (int64_t at = 0; at < bytes; at += max_buffer) {
    buffers.push_back({memory + at, static_cast<size_t>(std::min(max_buffer, bytes - at))});
  }
  const int code = io_uring_register_buffers(&kernel_->ring, buffers.data(), static_cast<unsigned>(buffers.size()));
  if (code == -ENOMEM) return "too little memory may be locked, see ulimit -l";
  if (code < 0) return std::strerror(-code);
  kernel_->fixed = memory;
  kernel_->fixed_bytes = bytes;
  return "";
}

void IoRing::submit(const Request& request) {
  io_uring_sqe* entry = io_uring_get_sqe(&kernel_->ring);
  LLMTRAIN_CHECK(entry != nullptr, "more requests are under way than the ring has room for");
  const int buffer = kernel_->buffer_of(request.memory, request.bytes);
  const auto bytes = static_cast<unsigned>(std::min(request.bytes, max_buffer));
  const auto offset = static_cast<uint64_t>(request.offset);
  if (buffer >= 0 && request.writes) {
    io_uring_prep_write_fixed(entry, request.descriptor, request.memory, bytes, offset, buffer);
  } else if (buffer >= 0) {
    io_uring_prep_read_fixed(entry, request.descriptor, request.memory, bytes, offset, buffer);
  } else if (request.writes) {
    io_uring_prep_write(entry, request.descriptor, request.memory, bytes, offset);
  } else {
    io_uring_prep_read(entry, request.descriptor, request.memory, bytes, offset);
  }
  entry->user_data = request.tag;
  io_uring_submit(&kernel_->ring);  // what is not taken now wait() submits again
}

IoRing::Result IoRing::wait() {
  io_uring_cqe* done = nullptr;
  while (io_uring_peek_cqe(&kernel_->ring, &done) != 0 || done == nullptr) {
    const int code = io_uring_submit_and_wait(&kernel_->ring, 1);
    // Nothing that is under way may be left behind: where the kernel has no memory for more, it will have.
    if (code < 0 && code != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Result result{done->user_data, done->res};
  io_uring_cqe_seen(&kernel_->ring, done);
  return result;
}

}  // namespace llmtrain
