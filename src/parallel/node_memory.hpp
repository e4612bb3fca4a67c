#pragma once
// Shared memory of a node, whose ranks read each other's buffers directly: MPI-3 shared windows, and a board on which
// every rank publishes its offers.
//
// Memory order. A transfer has a number, the same on every rank. The owner writes a buffer with plain stores (its
// threads have joined), then offers it: stores the number with release. A reader loads the number with acquire, so it
// sees those stores, reads the buffer (its threads join again), and stores the number as done with release. The owner
// loads the done numbers of all readers with acquire before it overwrites the buffer: its stores come after their
// reads. Every variable has one writer, whose numbers grow. A window has a different address in every process, which is
// safe for lock-free atomics. Non-temporal stores, which release does not order, end with a fence in the C library;
// offer() has another.

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
  /// Collective over the ranks of a node; takes ownership of their communicator. `all`: that of the ranks of all nodes.
  /// `alone`: a single rank of a node has memory as well.
  NodeMemory(MPI_Comm all, MPI_Comm node, bool alone = false);
  ~NodeMemory();  ///< collective
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  /// Index in this node of a rank of all nodes, or -1.
  int member(int rank) const;

  /// Collective: returns why `bytes` of every rank cannot be shared; empty where they can.
  std::string refusal(int64_t bytes);
  /// Collective, after refusal() returned empty: zero-filled, 64-byte aligned, first touched by the threads of its
  /// owner. Its release is not collective: a later call reuses the memory, and the destructor frees it.
  std::shared_ptr<void> allocate(int64_t bytes);
  bool in_use() const;                    ///< true if some of it is allocated
  bool holds(const void* address) const;  ///< true if the address lies in allocated memory

  // The board. Numbers grow by one with every transfer; those of the last `slots` may be in use.
  static constexpr uint64_t slots = 256;
  uint64_t next_number() { return ++number_; }
  /// True if the board entry of transfer `number` is free again, on this rank.
  bool can_offer(uint64_t number) const;
  void offer(uint64_t number, const void* data);
  /// Address of a member's offer in this process; null before the offer.
  const char* offered(uint64_t number, int member) const;
  /// Declares that this rank no longer reads, or never will read, a member's offer; also valid before the offer.
  void release(uint64_t number, int member);
  /// True if another rank still reads, or will read, this rank's offer.
  bool is_read(uint64_t number) const;

 private:
  using Number = std::atomic<uint64_t>;
  static_assert(Number::is_always_lock_free);
  struct alignas(64) Offer {
    Number number;
    uint64_t window;
    uint64_t offset;
  };
  /// Variables that one rank writes and the others read.
  struct Board {
    std::array<Offer, slots>* offers;
    std::array<Number, slots>* done;  ///< for the offers of each member
  };

  struct Window {
    MPI_Win handle = MPI_WIN_NULL;
    std::vector<char*> segments;  ///< address for each member, page-aligned
    int64_t bytes = 0;            ///< size of this rank's segment
    bool handed_out = false;
  };

  std::shared_ptr<Window> make_window(int64_t bytes);
  int64_t largest(int64_t value);

  MPI_Comm node_;
  int me_ = 0, size_ = 1;
  bool alone_ = false;        ///< one rank, which has no memory
  std::vector<int> members_;  ///< index in the node by rank of all nodes
  uint64_t number_ = 0;
  std::shared_ptr<Window> board_window_;
  std::vector<Board> boards_;  ///< one per member; empty where nothing can be shared
  std::vector<std::shared_ptr<Window>> windows_;
};

}  // namespace llmtrain
