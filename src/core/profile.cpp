#include "core/profile.hpp"

#include <chrono>
#include <utility>

namespace llmtrain {

constinit thread_local Recorder* Recorder::current_ = nullptr;

namespace {

constinit std::atomic<const SpanListener*> span_listener = nullptr;

}  // namespace

void set_span_listener(const SpanListener* listener) {
  const SpanListener* before = span_listener.exchange(listener);
  span_observers += (listener != nullptr ? 1 : 0) - (before != nullptr ? 1 : 0);
}

Work traffic(std::initializer_list<const Tensor*> tensors, double flops) {
  Work work{flops, 0};
  for (const Tensor* t : tensors) work.bytes += t->empty() ? 0 : static_cast<double>(t->bytes());
  return work;
}

int64_t Recorder::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Recorder::time_after_device() const {
  if (wait_for_device_) wait_for_device_();
  return now();
}

void Recorder::start(std::function<void()> wait_for_device) {
  wait_for_device_ = std::move(wait_for_device);
  spans.reserve(max_spans);
  posts.reserve(max_spans / 16);
  innermost_ = -1;
  if (current_ == nullptr) ++span_observers;
  current_ = this;
}

void Recorder::stop() {
  if (current_ != this) return;
  current_ = nullptr;
  --span_observers;
}

size_t Recorder::open(SpanKind kind, const char* name) {
  spans.push_back({name, kind, innermost_, time_after_device(), 0, {}, 0});
  innermost_ = static_cast<int32_t>(spans.size()) - 1;
  return spans.size() - 1;
}

void Recorder::close(size_t index) {
  Span& span = spans[index];
  span.end = time_after_device();
  innermost_ = span.parent;
}

void Recorder::post(uint64_t sequence) { posts.push_back({sequence, now()}); }

void ProfileSpan::begin(SpanKind kind, const char* name) {
  recorder_ = Recorder::current();
  listener_ = span_listener.load();
  observed_ = recorder_ != nullptr || listener_ != nullptr;
  begin_at_observers(kind, name);
}

void ProfileSpan::begin_at_observers(SpanKind kind, const char* name) {
  if (recorder_ != nullptr) index_ = recorder_->open(kind, name);
  if (listener_ != nullptr) listener_->begin(kind, name);
}

void ProfileSpan::end() {
  if (listener_ != nullptr) listener_->end();
  if (recorder_ != nullptr) recorder_->close(index_);
}

}  // namespace llmtrain
