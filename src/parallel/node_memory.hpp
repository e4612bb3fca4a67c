#pragma once
// Memory of a node that its ranks read of each other where it lies: MPI-3 shared windows, and a board on which every
// rank says what it offers.
//
// Order of memory. A transfer has a number, the same on every rank. The owner writes a buffer with plain stores (its
// threads have joined), then offers it: stores the number with release. A reader loads the number with acquire, so it
// sees those stores, reads the buffer (its threads join again), and stores the number as done with release. The owner
// loads the done numbers of all readers with acquire before it writes the buffer anew: its stores come after their
// reads. Every variable has one writer, whose numbers grow. A window lies at another address in every process, which
// lock-free atomics do not mind. Copies past the cache, which release does not order, end with a fence of their own in
// the C library, and offer() has another.

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llmtrain {

class NodeMemory {
 public:
  /// Collective over the ranks of a node, whose communicator it takes over.
  explicit NodeMemory(MPI_Comm node);
  ~NodeMemory();  ///< collective
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  /// Number of a rank of the job in this node, or -1.
  int member(int rank) const;

  /// Collective: why `bytes` of every rank cannot be shared; empty where they can.
  std::string refusal(int64_t bytes);
  /// Collective: zero-filled, 64-byte aligned, touched by the threads of its owner; after refusal() had nothing to say.
  /// Letting go of it is not collective: it is handed out again to a later call, and freed at the end.
  std::shared_ptr<void> allocate(int64_t bytes);
  bool in_use() const;                    ///< some of it is handed out
  bool holds(const void* address) const;  ///< in what is handed out

  // The board. Numbers grow by one with every transfer; those of the last `places` may be in use.
  static constexpr uint64_t places = 64;
  uint64_t next_number() { return ++number_; }
  /// Whether the place of transfer `number` on the board is free again, on this rank.
  bool can_offer(uint64_t number) const;
  void offer(uint64_t number, const void* data);
  /// Where a member's offer lies here; null while there is none.
  const char* offered(uint64_t number, int member) const;
  /// This rank reads a member's offer no more, or never will: also before there is one.
  void release(uint64_t number, int member);
  /// Whether somebody still reads, or will read, what this rank offered.
  bool is_read(uint64_t number) const;

 private:
  using Number = std::atomic<uint64_t>;
  static_assert(Number::is_always_lock_free);
  struct alignas(64) Offer {
    Number number;
    uint64_t window;
    uint64_t offset;
  };
  /// What a rank writes and the others read.
  struct Board {
    std::array<Offer, places>* offers;
    std::array<Number, places>* done;  ///< of the offers of each member
  };

  struct Window {
    MPI_Win handle = MPI_WIN_NULL;
    std::vector<char*> parts;  ///< of each member, page-aligned
    int64_t bytes = 0;         ///< of the own part
    bool handed_out = false;
  };

  std::shared_ptr<Window> make_window(int64_t bytes);
  int64_t largest(int64_t value);

  MPI_Comm node_;
  int me_ = 0, size_ = 1;
  std::vector<int> members_;  ///< by rank of the job
  uint64_t number_ = 0;
  std::shared_ptr<Window> board_window_;
  std::vector<Board> boards_;  ///< of each member; empty where nothing can be shared
  std::vector<std::shared_ptr<Window>> windows_;
};

}  // namespace llmtrain
