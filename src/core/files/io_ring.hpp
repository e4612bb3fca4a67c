#pragma once
// Linux' io_uring: reads and writes of files that are under way in the kernel while their thread goes on.

#include <cstdint>
#include <memory>
#include <string>

namespace llmtrain {

/// Of one thread at a time.
class IoRing {
 public:
  IoRing();
  ~IoRing();
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  /// The library behind it; empty where the program was built without.
  static std::string library();

  /// Room for `depth` requests. Empty; or why there is no ring here: then nothing else may be called.
  std::string open(unsigned depth);
  /// The pages of this memory stay where they are as long as the ring is there, which spares each request the search
  /// for them. Empty; or why not, and nothing has changed.
  std::string fix(char* memory, int64_t bytes);

  struct Request {
    bool writes;
    int descriptor;
    int64_t offset, bytes;
    char* memory;
    uint64_t tag;
  };
  /// Begins it: its memory belongs to the kernel until wait() gives its tag. At most `depth` are under way.
  void submit(const Request& request);
  struct Result {
    uint64_t tag;
    int64_t bytes;  ///< moved, maybe fewer than were asked for; below 0 the error's number, negated
  };
  /// For one of those under way.
  Result wait();

 private:
  struct Kernel;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace llmtrain
