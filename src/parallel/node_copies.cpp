#include "parallel/node_copies.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "parallel/mpi_transfer.hpp"
#include "parallel/shared_file.hpp"

namespace llmtrain {

namespace {

/// True if so many bytes are at most a quarter of the free ones.
bool are_few(int64_t bytes) {
  struct statvfs space {};
  return statvfs(shared_memory_folder, &space) == 0 &&
         static_cast<uint64_t>(bytes) <= uint64_t{space.f_bavail} * space.f_frsize / 4;
}

}  // namespace

NodeCopies::NodeCopies(MPI_Comm all, MPI_Comm node) : node_(node) {
  mpi_check(MPI_Comm_rank(all, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_rank(node_, &node_rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(node_, &node_size_), "MPI_Comm_size");
  mpi_check(MPI_Comm_split(all, node_rank_ == 0 ? 0 : MPI_UNDEFINED, rank_, &leaders_), "MPI_Comm_split");
}

NodeCopies::~NodeCopies() {
  if (leaders_ != MPI_COMM_NULL) MPI_Comm_free(&leaders_);
  MPI_Comm_free(&node_);
}

std::shared_ptr<void> NodeCopies::shared_memory(int64_t bytes) {
  std::array<char, 64> path{};
  std::shared_ptr<void> memory;
  if (node_rank_ == 0) {
    const std::string name = fmt::format("{}/llmtrain-data-{}-{}", shared_memory_folder, ::getpid(), ++number_);
    if (are_few(bytes)) memory = map_shared_file(name, bytes, FileUse::create);
    if (memory != nullptr) name.copy(path.data(), path.size() - 1);
  }
  mpi_broadcast(path.data(), std::ssize(path), 0, node_);
  if (node_rank_ != 0) memory = map_shared_file(path.data(), bytes, FileUse::read);
  int64_t failed = memory == nullptr ? 1 : 0;
  mpi_all_reduce({&failed, 1}, MPI_MAX, node_);  // all have opened it, or have failed
  if (node_rank_ == 0 && memory != nullptr) ::unlink(path.data());
  return failed == 0 ? memory : nullptr;
}

std::shared_ptr<const void> NodeCopies::copy(const void* data, int64_t bytes) {
  if (bytes == 0) return nullptr;
  std::shared_ptr<void> memory = node_size_ > 1 ? shared_memory(bytes) : nullptr;
  const bool shared = memory != nullptr;
  if (!shared) {
    const auto own = std::make_shared<std::vector<uint64_t>>((static_cast<size_t>(bytes) + 7) / 8);
    memory = {own, own->data()};
  }
  if (rank_ == 0) std::memcpy(memory.get(), data, static_cast<size_t>(bytes));
  if (node_rank_ == 0) mpi_broadcast(memory.get(), bytes, 0, leaders_);
  if (!shared) {
    mpi_broadcast(memory.get(), bytes, 0, node_);
  } else {
    mpi_check(MPI_Barrier(node_), "MPI_Barrier");
    if (node_rank_ == 0) ::mprotect(memory.get(), static_cast<size_t>(bytes), PROT_READ);
  }
  return memory;
}

}  // namespace llmtrain
