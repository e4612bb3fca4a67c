#include "core/activity.hpp"

namespace llmtrain {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

thread_local Lane lane_of_thread = Lane::main;

LaneActivity& own_lane() { return activity().lane(lane_of_thread); }

}  // namespace

Activity& activity() {
  static Activity activity;
  return activity;
}

void report_progress() { own_lane().ticks.fetch_add(1, relaxed); }

SectionScope::SectionScope(Section section) : before_(own_lane().section.exchange(section, relaxed)) {
  report_progress();
}

SectionScope::~SectionScope() {
  own_lane().section.store(before_, relaxed);
  report_progress();
}

WriterScope::WriterScope() : before_(lane_of_thread) {
  lane_of_thread = Lane::writer;
  own_lane().section.store(Section::saving, relaxed);
  own_lane().active.store(true, relaxed);
  report_progress();
}

WriterScope::~WriterScope() {
  report_progress();
  own_lane().active.store(false, relaxed);
  lane_of_thread = before_;
}

WriterWait::WriterWait() { activity().waits_for_writer.store(true, relaxed); }

WriterWait::~WriterWait() {
  activity().waits_for_writer.store(false, relaxed);
  report_progress();
}

DeviceWait::DeviceWait() : lane_(own_lane()) { lane_.waits_for_device.store(true, relaxed); }

DeviceWait::~DeviceWait() { lane_.waits_for_device.store(false, relaxed); }

FileCall::FileCall() : lane_(own_lane()) { lane_.file_calls.fetch_add(1, relaxed); }

FileCall::~FileCall() {
  lane_.file_calls.fetch_sub(1, relaxed);
  lane_.ticks.fetch_add(1, relaxed);
}

uint64_t begin_collective() {
  const uint64_t sequence = activity().collectives.fetch_add(1, relaxed) + 1;
  if (Recorder* recorder = Recorder::current(); recorder != nullptr) recorder->post(sequence);
  return sequence;
}

CollectiveMark::CollectiveMark(const char* operation, int64_t bytes, uint64_t sequence) {
  CollectiveActivity& collective = activity().collective;
  collective.operation.store(operation, relaxed);
  collective.sequence.store(sequence, relaxed);
  collective.bytes.store(bytes, relaxed);
  collective.since.store(Recorder::now(), relaxed);
  collective.inside.store(true, relaxed);
  report_progress();
}

CollectiveMark::~CollectiveMark() {
  CollectiveActivity& collective = activity().collective;
  const int64_t end = Recorder::now();
  collective.inside.store(false, relaxed);
  collective.waited.fetch_add(end - collective.since.exchange(end, relaxed), relaxed);
  report_progress();
}

CollectiveScope::CollectiveScope(const char* operation, int64_t bytes, uint64_t sequence)
    : span_(SpanKind::communication, operation), mark_(operation, bytes, sequence) {
  span_.set_collective(sequence, bytes);
}

}  // namespace llmtrain
