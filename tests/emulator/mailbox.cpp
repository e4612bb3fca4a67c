#include "emulator/mailbox.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <string>

#include "emulator/emulator.hpp"

namespace llmtrain::emulator {

namespace {

// A file in memory: the counts of bytes, then the messages to each rank, which begin far from each other. Only what is
// written takes memory.
constexpr off_t counts_bytes = 4096;
constexpr off_t box_bytes = off_t{1} << 36;
constexpr int max_ranks = counts_bytes / static_cast<int>(sizeof(uint64_t));

off_t place(int to, uint64_t at) { return counts_bytes + to * box_bytes + static_cast<off_t>(at); }

uint64_t* map_counts(int file) {
  void* counts = mmap(nullptr, counts_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (counts == MAP_FAILED) fail("memory for messages between ranks cannot be mapped");
  return static_cast<uint64_t*>(counts);
}

void transfer(bool writes, int file, void* data, size_t bytes, off_t at) {
  for (size_t done = 0; done < bytes;) {
    char* next = static_cast<char*>(data) + done;
    const off_t from = at + static_cast<off_t>(done);
    const ssize_t n = writes ? pwrite(file, next, bytes - done, from) : pread(file, next, bytes - done, from);
    if (n <= 0) fail("a message between ranks is lost");
    done += static_cast<size_t>(n);
  }
}

}  // namespace

Mailbox::Mailbox(MPI_Comm ranks) {
  MPI_Comm_rank(ranks, &rank_);
  MPI_Comm_size(ranks, &size_);
  if (size_ > max_ranks) fail("so many ranks are not emulated");
  own_file_ = memfd_create("messages", MFD_CLOEXEC);
  if (own_file_ < 0 || ftruncate(own_file_, place(size_, 0)) != 0) fail("there is no memory for messages");
  own_counts_ = map_counts(own_file_);
  const std::array<int, 2> mine = {static_cast<int>(getpid()), own_file_};
  std::vector<std::array<int, 2>> all(static_cast<size_t>(size_));
  MPI_Allgather(mine.data(), 2, MPI_INT, all.data(), 2, MPI_INT, ranks);
  for (const auto& [process, file] : all) {
    Box box;
    box.file = open(fmt::format("/proc/{}/fd/{}", process, file).c_str(), O_RDWR | O_CLOEXEC);
    if (box.file < 0) fail("the ranks of a job are not on one machine, or may not open each other's files");
    box.written = reinterpret_cast<std::atomic<uint64_t>*>(map_counts(box.file) + rank_);
    inbox_.push_back(box);
  }
  MPI_Barrier(ranks);
}

Mailbox::~Mailbox() {
  for (const Box& box : inbox_) {
    munmap(reinterpret_cast<uint64_t*>(box.written) - rank_, counts_bytes);
    close(box.file);
  }
  munmap(own_counts_, counts_bytes);
  close(own_file_);
}

void Mailbox::send(int to, const void* data, size_t bytes) {
  const std::atomic_ref count(own_counts_[to]);
  uint64_t at = count.load(), size = bytes;
  transfer(true, own_file_, &size, sizeof size, place(to, at));
  transfer(true, own_file_, const_cast<void*>(data), bytes, place(to, at + sizeof size));
  count.store(at + sizeof size + bytes);
}

bool Mailbox::receive(int from, void* data, size_t bytes) {
  Box& box = inbox_[static_cast<size_t>(from)];
  if (box.written->load() == box.read) return false;
  uint64_t size = 0;
  transfer(false, box.file, &size, sizeof size, place(rank_, box.read));
  if (size != bytes) {
    fail(fmt::format("rank {} waits for {} bytes of rank {}, which sends {}", rank_, bytes, from, size));
  }
  transfer(false, box.file, data, bytes, place(rank_, box.read + sizeof size));
  const auto whole = static_cast<off_t>(sizeof size + bytes);
  fallocate(box.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place(rank_, box.read), whole);
  box.read += static_cast<uint64_t>(whole);
  return true;
}

}  // namespace llmtrain::emulator
