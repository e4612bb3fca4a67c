#include "train/step_profile.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "core/files/whole_file.hpp"
#include "core/philox.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "kernels/workspace.hpp"

namespace llmtrain {

namespace {

constexpr size_t traced_ranks = 16;  ///< limit for larger jobs, so that a browser can open the trace

/// Shortest time of several calls, in seconds.
template <class F>
double shortest(const F& call) {
  constexpr int calls = 6;
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < calls; ++i) {
    const int64_t begin = Recorder::now();
    call();
    best = std::min(best, Recorder::now() - begin);
  }
  return static_cast<double>(best) * 1e-9;
}

struct Exclusive {
  std::vector<int64_t> time;          ///< excluding inner spans
  std::vector<const char*> phase_of;  ///< the innermost enclosing phase, or the span itself
};

Exclusive exclusive(std::span<const Span> spans) {
  Exclusive e;
  for (const Span& s : spans) {
    e.time.push_back(s.end - s.begin);
    const bool inside = s.parent >= 0;
    if (inside) e.time[static_cast<size_t>(s.parent)] -= s.end - s.begin;
    e.phase_of.push_back(s.kind == SpanKind::phase || !inside ? s.name : e.phase_of[static_cast<size_t>(s.parent)]);
  }
  return e;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::vector<T> values_of(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// Speed of a kernel; empty for a collective, whose bytes mostly travel while other work runs.
std::string speed_text(const ProfileRow& row, double amount, double seconds) {
  return row.kind == SpanKind::kernel && amount > 0 && seconds > 0 ? fmt::format("{:.1f}", amount / seconds * 1e-9)
                                                                   : "";
}

using TableLine = std::array<std::string, 8>;

/// Columns as wide as their widest cell, the first two left-aligned.
std::string in_columns(std::span<const TableLine> lines) {
  std::array<size_t, 8> widths = {14, 24, 7, 10, 7, 9, 7, 8};
  for (const TableLine& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string text;
  for (const TableLine& line : lines) {
    text += " ";
    for (size_t c = 0; c < line.size(); ++c) {
      text += c < 2 ? fmt::format(" {:<{}}", line[c], widths[c]) : fmt::format(" {:>{}}", line[c], widths[c]);
    }
    text += "\n";
  }
  return text;
}

std::string limits_text(const MachineLimits& limits) {
  if (limits.flops <= 0)
    return "no memory is left to measure the limits of this GPU, so that shares of them are missing";
  return fmt::format("measured here: {:.0f} GFLOP/s in matrix products, {:.1f} GB/s", limits.flops * 1e-9,
                     limits.bytes * 1e-9);
}

std::string limit_text(const ProfileRow& row, double seconds, const MachineLimits& limits) {
  if (row.kind != SpanKind::kernel || seconds <= 0 || limits.flops <= 0 || limits.bytes <= 0) return "";
  const double least = std::max(row.work.flops / limits.flops, row.work.bytes / limits.bytes);
  return least > 0 ? fmt::format("{:.0f} %", 100 * least / seconds) : "";
}

/// Benchmark of the machine: a product y[n, 4 n] = x[n, n] w[4 n, n]^T, and two fp32 arrays. A GPU needs larger ones.
/// The two arrays have 128 MiB for all ranks of a node, or 256 MiB on each GPU: far more than caches hold.
struct Yardstick {
  int64_t n, elements;
  explicit Yardstick(int64_t ranks_of_node)
      : n(device_memory_is_host() ? 1024 : 8192),
        elements(device_memory_is_host() ? (int64_t{32} << 20) / ranks_of_node : int64_t{64} << 20) {}
};

int64_t yardstick_bytes(const Yardstick& y, DType compute) {
  return std::max(9 * y.n * y.n * static_cast<int64_t>(size_of(compute)), 2 * 4 * y.elements);
}

/// A GPU multiplies constants faster: the fewer bits change, the less power it draws.
void fill_randomly(const Tensor& out, Stream& stream) {
  const int64_t block = std::min(out.numel(), int64_t{1} << 20);
  std::vector<float> values(static_cast<size_t>(block)), rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_uniform(random_bits(1, 0, i)) - 0.5);
  round_to(out.dtype, values.data(), block, rounded.data());
  for (int64_t first = 0; first < out.numel(); first += block) {
    const int64_t count = std::min(block, out.numel() - first);
    const auto size = static_cast<int64_t>(size_of(out.dtype));
    copy_to_device(static_cast<char*>(out.data) + first * size, rounded.data(), count * size, stream);
  }
  stream.synchronize();
}

MachineLimits measured_limits(DType compute, int ranks_of_node, Stream& stream) {
  const auto [n, elements] = Yardstick(ranks_of_node);
  const int64_t long_side = 4 * n;
  const auto element = static_cast<int64_t>(size_of(compute));
  MachineLimits limits;
  // One allocation for all, so that a failure leaves nothing to free.
  const DeviceBuffer memory(yardstick_bytes(Yardstick(ranks_of_node), compute));
  auto* begin = static_cast<char*>(memory.data());
  {
    const Tensor x(begin, compute, {n, n}), w(begin + n * n * element, compute, {long_side, n});
    const Tensor y(begin + 5 * n * n * element, compute, {n, long_side});
    fill_randomly(x, stream);
    fill_randomly(w, stream);
    limits.flops = 2.0 * static_cast<double>(n * n * long_side) / shortest([&] {
                     linear_forward(y, x, w, Tensor(), stream);
                     stream.synchronize();
                   });
  }
  const Tensor to(begin, DType::f32, {elements}), from(begin + elements * 4, DType::f32, {elements});
  fill_zero(begin, 2 * 4 * elements, stream);
  limits.bytes = 3.0 * 4 * static_cast<double>(elements) / shortest([&] {
                   add_into(to, from, false, stream);
                   stream.synchronize();
                 });
  return limits;
}

}  // namespace

int64_t limits_memory_bytes(DType compute, int64_t ranks_of_node) {
  const Yardstick y(ranks_of_node);
  return yardstick_bytes(y, compute) +
         linear_workspace_bytes({y.n, 4 * y.n, false, compute, compute, true, false}, y.n);
}

MachineLimits measure_limits(DType compute, int ranks_of_node, Stream& stream) {
  if (device_memory_is_host()) return measured_limits(compute, ranks_of_node, stream);
  // Beside a run that fills its GPU there may be no room; the table then has no limits. Ranks that share a GPU allocate
  // at the same time, so that only the allocation itself is decisive.
  if (device_memory().available < limits_memory_bytes(compute, ranks_of_node)) return {};
  try {
    return measured_limits(compute, ranks_of_node, stream);
  } catch (const UserError&) {
    return {};
  }
}

std::vector<ProfileRow> profile_rows(std::span<const Span> spans) {
  const Exclusive e = exclusive(spans);
  std::vector<ProfileRow> rows;
  std::map<std::pair<std::string, std::string>, size_t> places;
  std::map<std::string, size_t> phases;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& s = spans[i];
    const std::string phase = e.phase_of[i], part = s.kind == SpanKind::phase ? "other" : s.name;
    phases.emplace(phase, phases.size());
    const auto [place, fresh] = places.emplace(std::pair(phase, part), rows.size());
    if (fresh) rows.push_back({phase, part, s.kind, 0, 0, {}});
    ProfileRow& row = rows[place->second];
    ++row.calls;
    row.nanoseconds += e.time[i];
    row.work.flops += s.work.flops;
    row.work.bytes += s.work.bytes;
  }
  std::ranges::stable_sort(rows, [&](const ProfileRow& a, const ProfileRow& b) {
    return std::pair(phases[a.phase], -a.nanoseconds) < std::pair(phases[b.phase], -b.nanoseconds);
  });
  return rows;
}

std::string profile_table(std::span<const Span> spans, int64_t steps, const MachineLimits& limits) {
  const std::vector<ProfileRow> rows = profile_rows(spans);
  int64_t total = 0;
  ProfileRow whole{"", "", SpanKind::kernel, 0, 0, {}};
  for (const ProfileRow& row : rows) {
    total += row.nanoseconds;
    whole.work.flops += row.work.flops;
  }
  const auto per_step = [&](int64_t ns) {
    return fmt::format("{:.3f}", static_cast<double>(ns) * 1e-6 / static_cast<double>(steps));
  };
  const auto share = [&](int64_t ns) {
    return fmt::format("{:.1f} %", 100 * static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(total, 1)));
  };
  std::vector<TableLine> lines = {{"phase", "part", "calls", "ms/step", "share", "GFLOP/s", "GB/s", "of limit"}};
  for (const ProfileRow& row : rows) {
    const double seconds = static_cast<double>(row.nanoseconds) * 1e-9;
    lines.push_back({row.phase, row.part,
                     fmt::format("{:.4g}", static_cast<double>(row.calls) / static_cast<double>(steps)),
                     per_step(row.nanoseconds), share(row.nanoseconds), speed_text(row, row.work.flops, seconds),
                     speed_text(row, row.work.bytes, seconds), limit_text(row, seconds, limits)});
  }
  const double seconds = static_cast<double>(total) * 1e-9;
  lines.push_back({"total", "", "", per_step(total), share(total), speed_text(whole, whole.work.flops, seconds), "",
                   limit_text(whole, seconds, limits)});
  return in_columns(lines);
}

CommunicationTime communication_time(std::span<const Span> spans, std::span<const Post> posts) {
  std::map<uint64_t, int64_t> last;
  for (const Post& p : posts) last[p.sequence] = std::max(last.try_emplace(p.sequence, p.time).first->second, p.time);
  const Exclusive e = exclusive(spans);
  CommunicationTime time;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& s = spans[i];
    if (s.kind != SpanKind::communication) continue;
    time.exposed += e.time[i];
    if (const auto found = last.find(s.sequence); found != last.end()) {
      time.waiting += std::clamp<int64_t>(found->second - s.begin, 0, e.time[i]);
    }
  }
  return time;
}

std::string trace_events(std::span<const Span> spans, int rank, int64_t origin) {
  std::string text;
  for (const Span& s : spans) {
    if (!text.empty()) text += ",\n";
    text += fmt::format(R"({{"name":"{}","cat":"{}","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":0,)", s.name,
                        name_of(s.kind), static_cast<double>(s.begin - origin) * 1e-3,
                        static_cast<double>(s.end - s.begin) * 1e-3, rank);
    text += fmt::format(R"("args":{{"flops":{:.0f},"bytes":{:.0f},"sequence":{}}}}})", s.work.flops, s.work.bytes,
                        s.sequence);
  }
  return text;
}

void StepProfile::begin_step(int64_t step, Stream& stream) {
  if (skip_ > 0 || recorded_ == wanted_) return;
  if (recorded_ == 0) first_ = step;
  last_ = step;
  if (device_memory_is_host()) {
    recorder_.start();
  } else {
    recorder_.start([&stream] { stream.synchronize(); });
  }
}

void StepProfile::end_step(Communicator& communicator) {
  if (Recorder::current() == &recorder_) {
    recorder_.stop();
    ++recorded_;
  } else if (skip_ > 0) {
    --skip_;
  }
  if (recorded_ == 0 || recorded_ == wanted_) return;
  std::array<int64_t, 1> crowded = {recorder_.spans.size() >= Recorder::max_spans ? 1 : 0};
  communicator.maximum(crowded);
  if (crowded[0] != 0) wanted_ = recorded_;
}

void StepProfile::report(Runtime& runtime, DType compute, const std::string& directory, RunLog& log) {
  reported_ = true;
  Communicator& communicator = runtime.communicator();
  communicator.barrier();  // all ranks of a node measure at the same time, as they compute at the same time
  const MachineLimits limits = measure_limits(compute, communicator.node_size(), runtime.stream());
  communicator.barrier();
  const int64_t meeting = Recorder::now();
  // Clocks of nodes differ: times are sent relative to the moment at which all ranks left the barrier.
  std::vector<Post> mine = recorder_.posts;
  for (Post& p : mine) p.time -= meeting;
  std::vector<Post> posts;
  for (const std::string& bytes : communicator.gather_all(bytes_of(mine))) {
    const std::vector<Post> others = values_of<Post>(bytes);
    posts.insert(posts.end(), others.begin(), others.end());
  }
  for (Post& p : posts) p.time += meeting;
  const std::vector<std::string> times =
      communicator.gather(bytes_of(std::vector{communication_time(recorder_.spans, posts)}));
  std::array<int64_t, 1> longest = {meeting - recorder_.spans.front().begin};
  communicator.maximum(longest);
  std::vector<std::string> events =
      communicator.gather(communicator.rank() < static_cast<int>(traced_ranks)
                              ? trace_events(recorder_.spans, communicator.rank(), meeting - longest[0])
                              : "");
  if (communicator.rank() != 0) return;

  std::string trace = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::string text =
      fmt::format("profile    steps {} to {}, rank 0; {}\n", first_ + 1, last_ + 1, limits_text(limits)) +
      profile_table(recorder_.spans, recorded_, limits);
  const double steps_ms = static_cast<double>(recorded_) * 1e6;
  for (size_t r = 0; r < std::min(events.size(), traced_ranks); ++r) {
    trace += fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"tid":0,"args":{{"name":"rank {}"}}}},)", r, r) +
             "\n" + events[r] + (r + 1 < std::min(events.size(), traced_ranks) ? ",\n" : "\n]}\n");
  }
  for (size_t r = 0; r < times.size() && times.size() > 1; ++r) {
    const CommunicationTime time = values_of<CommunicationTime>(times[r]).front();
    text += fmt::format(
        "  rank {}: {:.3f} ms a step in exposed communication, {:.3f} of them waiting for the slowest "
        "rank\n",
        r, static_cast<double>(time.exposed) / steps_ms, static_cast<double>(time.waiting) / steps_ms);
  }
  std::string lost;
  try {
    write_whole_file(directory + "/trace.json", trace);
    text += fmt::format("  {}/trace.json shows every span (https://ui.perfetto.dev, chrome://tracing)\n", directory);
  } catch (const UserError& error) {
    lost = fmt::format("{}; the run continues without the trace of its profile", error.what());
  }
  text.pop_back();  // the log appends the line end
  log.print(text);
  if (!lost.empty()) log.warn(lost);
}

}  // namespace llmtrain
