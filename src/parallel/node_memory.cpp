#include "parallel/node_memory.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "device/device.hpp"
#include "parallel/mpi_transfer.hpp"
#include "parallel/shared_file.hpp"

namespace llmtrain {

namespace {

constexpr int64_t left_for_others = int64_t{32} << 20;  // reserve for MPI's own segments

int64_t page_size() {
  static const int64_t size = sysconf(_SC_PAGESIZE);
  return size;
}

int64_t whole_pages(int64_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }

int64_t bytes_available() {
  struct statvfs space {};
  if (statvfs(shared_memory_folder, &space) != 0) return 0;
  return static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

}  // namespace

NodeMemory::NodeMemory(MPI_Comm all, MPI_Comm node, bool alone) : node_(node) {
  mpi_check(MPI_Comm_rank(node_, &me_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(node_, &size_), "MPI_Comm_size");
  int rank = 0, ranks = 1;
  mpi_check(MPI_Comm_rank(all, &rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(all, &ranks), "MPI_Comm_size");
  std::vector<int> of_node(static_cast<size_t>(size_));
  mpi_check(MPI_Allgather(&rank, 1, MPI_INT, of_node.data(), 1, MPI_INT, node_), "MPI_Allgather");
  members_.assign(static_cast<size_t>(ranks), -1);
  for (size_t m = 0; m < of_node.size(); ++m) members_[static_cast<size_t>(of_node[m])] = static_cast<int>(m);
  alone_ = size_ == 1 && !alone;
  if (alone_ || largest(bytes_available() < left_for_others ? 1 : 0) != 0) return;
  using Offers = std::array<Offer, slots>;
  using Done = std::array<Number, slots>;
  board_window_ = make_window(static_cast<int64_t>(sizeof(Offers) + of_node.size() * sizeof(Done)));
  if (!board_window_) return;
  for (char* part : board_window_->segments) {
    boards_.push_back({reinterpret_cast<Offers*>(part), reinterpret_cast<Done*>(part + sizeof(Offers))});
  }
  const Board& own = boards_[static_cast<size_t>(me_)];
  new (own.offers) Offers{};
  for (size_t m = 0; m < of_node.size(); ++m) new (own.done + m) Done{};
  mpi_check(MPI_Barrier(node_), "MPI_Barrier");
}

NodeMemory::~NodeMemory() {
  for (const auto& window : windows_) MPI_Win_free(&window->handle);
  if (board_window_) MPI_Win_free(&board_window_->handle);
  MPI_Comm_free(&node_);
}

int NodeMemory::member(int rank) const { return members_[static_cast<size_t>(rank)]; }

int64_t NodeMemory::largest(int64_t value) {
  mpi_all_reduce({&value, 1}, MPI_MAX, node_);
  return value;
}

/// Null on every rank if MPI fails on some rank.
std::shared_ptr<NodeMemory::Window> NodeMemory::make_window(int64_t bytes) {
  auto window = std::make_shared<Window>();
  MPI_Info info = MPI_INFO_NULL;
  mpi_check(MPI_Info_create(&info), "MPI_Info_create");
  // separate pages for each rank's segment
  mpi_check(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
  // The segments begin anywhere in a page, at the same offset for every process.
  const int64_t page = page_size(), asked = whole_pages(bytes) + page;
  void* own = nullptr;
  const int code = MPI_Win_allocate_shared(asked, 1, info, node_, static_cast<void*>(&own), &window->handle);
  MPI_Info_free(&info);
  if (largest(code == MPI_SUCCESS ? 0 : 1) != 0) {
    if (code == MPI_SUCCESS) MPI_Win_free(&window->handle);
    return nullptr;
  }
  for (int m = 0; m < size_; ++m) {
    MPI_Aint part_bytes = 0;
    int unit = 0;
    void* part = nullptr;
    mpi_check(MPI_Win_shared_query(window->handle, m, &part_bytes, &unit, static_cast<void*>(&part)),
              "MPI_Win_shared_query");
    const int64_t to_page = (page - reinterpret_cast<intptr_t>(part) % page) % page;
    window->segments.push_back(static_cast<char*>(part) + to_page);
  }
  window->bytes = bytes;
  return window;
}

std::string NodeMemory::refusal(int64_t bytes) {
  if (alone_) return {};
  int64_t all = whole_pages(bytes) + page_size();
  mpi_all_reduce({&all, 1}, MPI_SUM, node_);
  const int64_t available = -largest(-bytes_available());
  if (!boards_.empty() && all + left_for_others <= available) return {};
  return fmt::format(
      "the ranks of a node exchange gradients and weights as messages, which is slower: shared memory would need "
      "{:.0f} MB in {}, where {:.0f} MB are free (in a container raise --shm-size)",
      static_cast<double>(all) / 1e6, shared_memory_folder, static_cast<double>(available) / 1e6);
}

std::shared_ptr<void> NodeMemory::allocate(int64_t bytes) {
  LLMTRAIN_CHECK(!boards_.empty(), "this node has no shared memory");
  // A collective of the node's communicator, so that the numbers of the job's collectives do not change.
  const CollectiveScope scope("sharing of memory", bytes, activity().collectives.load());
  std::shared_ptr<Window> window;
  for (const auto& known : windows_) {
    const bool fits = !known->handed_out && known->bytes >= bytes;
    if (largest(fits ? 0 : 1) == 0) {
      window = known;
      break;
    }
  }
  if (!window) {
    window = make_window(bytes);
    if (!window) throw Error("MPI_Win_allocate_shared failed");
    windows_.push_back(window);
  }
  window->handed_out = true;
  char* own = window->segments[static_cast<size_t>(me_)];
  Stream stream;
  fill_zero(own, bytes, stream);
  stream.synchronize();
  return {own, [window](void*) { window->handed_out = false; }};
}

bool NodeMemory::in_use() const {
  return std::any_of(windows_.begin(), windows_.end(), [](const auto& w) { return w->handed_out; });
}

bool NodeMemory::holds(const void* address) const {
  return std::any_of(windows_.begin(), windows_.end(), [&](const auto& w) {
    const char* own = w->segments[static_cast<size_t>(me_)];
    return w->handed_out && address >= own && address < own + w->bytes;
  });
}

bool NodeMemory::can_offer(uint64_t number) const { return number <= slots || !is_read(number - slots); }

void NodeMemory::offer(uint64_t number, const void* data) {
  for (size_t w = 0; w < windows_.size(); ++w) {
    const char* own = windows_[w]->segments[static_cast<size_t>(me_)];
    const auto* at = static_cast<const char*>(data);
    if (!windows_[w]->handed_out || at < own || at >= own + windows_[w]->bytes) continue;
    Offer& place = (*boards_[static_cast<size_t>(me_)].offers)[number % slots];
    place.window = w;
    place.offset = static_cast<uint64_t>(at - own);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    place.number.store(number, std::memory_order_release);
    return;
  }
  throw Error("a buffer that other ranks of the node read does not lie in shared memory");
}

const char* NodeMemory::offered(uint64_t number, int member) const {
  const Offer& place = (*boards_[static_cast<size_t>(member)].offers)[number % slots];
  if (place.number.load(std::memory_order_acquire) != number) return nullptr;
  return windows_[place.window]->segments[static_cast<size_t>(member)] + place.offset;
}

void NodeMemory::release(uint64_t number, int member) {
  boards_[static_cast<size_t>(me_)].done[member][number % slots].store(number, std::memory_order_release);
}

bool NodeMemory::is_read(uint64_t number) const {
  const Board& own = boards_[static_cast<size_t>(me_)];
  if ((*own.offers)[number % slots].number.load(std::memory_order_relaxed) != number) return false;
  for (int m = 0; m < size_; ++m) {
    const Number& done = boards_[static_cast<size_t>(m)].done[me_][number % slots];
    if (m != me_ && done.load(std::memory_order_acquire) < number) return true;
  }
  return false;
}

}  // namespace llmtrain
