#include "text/pipeline/word_cache.hpp"

#include <atomic>

namespace llmtrain {

uint64_t WordCache::new_owner() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

WordCache& WordCache::of_thread(uint64_t owner) {
  struct Owned {
    uint64_t owner = 0;
    std::unique_ptr<WordCache> cache;
  };
  // A thread uses one tokenizer at a time; two caches are kept, since training and validation can differ.
  thread_local std::array<Owned, 2> caches;
  thread_local size_t latest = 0;
  if (caches[latest].owner == owner) return *caches[latest].cache;
  latest = 1 - latest;
  Owned& owned = caches[latest];
  if (owned.owner != owner) owned = {owner, std::make_unique<WordCache>()};
  return *owned.cache;
}

}  // namespace llmtrain
