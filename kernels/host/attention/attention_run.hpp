#pragma once
// Runs the work items of an attention pass on all threads.

#include <atomic>
#include <cstdint>

#include "kernels/host/attention/attention_plan.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/block_product.hpp"
#include "kernels/host/product/gemm_tile.hpp"
#include "kernels/host/product/product_path.hpp"

namespace llmtrain::host {

/// Calls f(S*, P*) for storage S and operands P of products: bf16 tensors are multiplied in bf16 if the processor
/// supports it, else in fp32; fp16 ones in fp32.
template <class F>
void dispatch_operands(DType storage, const F& f) {
  float* single = nullptr;
  bf16* half = nullptr;
  if (storage == DType::f32) {
    f(single, single);
  } else if (storage == DType::f16) {
    f(static_cast<f16*>(nullptr), single);
  } else if (product_kernels(storage, attention_block).operands == DType::bf16) {
    f(half, half);
  } else {
    f(half, single);
  }
}

/// Calls pass.run(item, memory of the worker) for all items, claimed one by one in the order of the list; calls
/// pass.expect(item) when the item is likely to be the worker's next.
template <class Pass>
void run_items(const AttentionWorkspace& workspace, const ItemList& items, const Pass& pass) {
  const std::atomic_ref<int64_t> next(workspace.counters->next_item);
  const std::atomic_ref<int64_t> visited(workspace.counters->visited_blocks);
  parallel_for(workspace.workers, [&](int64_t worker) {
    int64_t blocks = 0;
    for (int64_t index = next.fetch_add(1); index < items.size(); index = next.fetch_add(1)) {
      if (index + workspace.workers < items.size()) pass.expect(items[index + workspace.workers]);
      blocks += pass.run(items[index], workspace.share(worker));
    }
    visited.fetch_add(blocks);
    leave_micro_kernels();
  });
}

}  // namespace llmtrain::host
