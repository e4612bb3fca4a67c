#include "text/split/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <vector>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

// Ordinary patterns take well under a microsecond per byte.
constexpr double seconds_allowed = 5, seconds_a_byte = 20e-6;  ///< per text, of this thread's processor time
constexpr uint32_t max_backtracks = 50'000'000;                ///< per match
constexpr uint32_t max_heap = 1 << 18;                         ///< KiB
constexpr size_t max_stack = size_t{64} << 20;                 ///< bytes, for compiled patterns
constexpr size_t search_bytes = 4096;             ///< bytes in which one call looks for the begin of a match
constexpr uint32_t steps_per_clock_check = 4096;  ///< backtracks between two clock checks
constexpr uint32_t max_steps = 20'000'000;        ///< items of a pattern that found_in() tries, some tenths of a second
constexpr int timed_out = -1000;                  ///< result of the callout

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Budget for one text: processor time, or numbers of steps, which do not depend on the machine's load.
struct Budget {
  double end = 0;
  uint32_t steps = 0;
  bool by_steps = false;
  bool is_over() const { return by_steps ? steps > max_steps : thread_seconds() > end; }
};

int count_step(pcre2_callout_block*, void* data) {
  Budget& budget = *static_cast<Budget*>(data);
  return ++budget.steps % steps_per_clock_check == 0 && budget.is_over() ? timed_out : 0;
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* what) const {
    Free(what);
  }
};
using Stack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

pcre2_jit_stack* stack_of_thread(void*) {
  thread_local const Stack stack(pcre2_jit_stack_create(size_t{32} << 10, max_stack, nullptr));
  return stack.get();
}

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> code;
};

struct Regex::State {
  const Regex& regex;
  std::string_view text;
  std::string repaired = {};         // text with U+FFFD for every stray byte
  std::vector<size_t> origins = {};  // offsets of its bytes and its end in the text; empty: identical to the text
  std::string_view subject = {};
  size_t next = 0;
  size_t last_end = std::string::npos;  // end of the match before
  Budget budget = {};
  bool gave_up = false;  // the budget of steps, or memory, was too small
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context = nullptr;
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> data = nullptr;

  size_t place(size_t i) const { return origins.empty() ? i : origins[i]; }
  void repair() {
    for (size_t i = 0; i < text.size();) {
      const Character c = character_at(text, i);
      const size_t before = repaired.size();
      append_code_point(repaired, is_stray_byte(c.code) ? U'\uFFFD' : c.code);
      origins.insert(origins.end(), repaired.size() - before, i);
      i += c.length;
    }
    origins.push_back(text.size());
    subject = repaired;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{} {} on a text of {} bytes; rewrite it without repetitions that can "
                                "match the same characters in many ways",
                                regex.name_, why, text.size()));
  }
  /// Finds a match that begins at `from` or later; returns false if there is none.
  bool find(size_t from, size_t& begin, size_t& end) {
    for (uint32_t options = PCRE2_NO_UTF_CHECK; from <= subject.size();) {
      const size_t limit = std::min(from + search_bytes, subject.size());
      pcre2_set_offset_limit(context.get(), limit);
      const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
      const int found =
          pcre2_match(regex.code_->code.get(), bytes, subject.size(), from, options, data.get(), context.get());
      if (found >= 0) {
        const size_t* range = pcre2_get_ovector_pointer(data.get());
        begin = range[0];
        end = range[1];
        return true;
      }
      if (found == PCRE2_ERROR_JIT_STACKLIMIT && (options & PCRE2_NO_JIT) == 0) {
        options |= PCRE2_NO_JIT;  // on the heap instead
        continue;
      }
      gave_up = budget.by_steps && (found != PCRE2_ERROR_NOMATCH || budget.is_over());
      if (gave_up) return false;
      if (found == timed_out || budget.is_over()) refuse("takes too long");
      if (found != PCRE2_ERROR_NOMATCH) refuse("fails (" + message_of(found) + ")");
      from = limit + 1;
      while (from < subject.size() && is_utf8_continuation(subject[from])) ++from;
    }
    return false;
  }
};

Regex::Regex(const std::string& pattern, const std::string& place, std::string_view shown)
    : name_(fmt::format("{}{}the regex {}", place, place.empty() ? "" : ": ", shown.substr(0, 200))) {
  compile(translate_regex(pattern, place), PCRE2_MULTILINE);
}

Regex::Regex(const std::string& pattern, const std::string& place, Syntax syntax)
    : name_(fmt::format("{}{}the regex {}", place, place.empty() ? "" : ": ", pattern.substr(0, 200))) {
  if (syntax == Syntax::oniguruma) {
    compile(translate_regex(pattern, place), PCRE2_MULTILINE);
  } else {
    compile(pattern, PCRE2_AUTO_CALLOUT);  // the callout looks at the clock
  }
}

void Regex::compile(const std::string& pattern, uint32_t options) {
  const std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t at = 0;
  code_ = std::make_unique<Code>();
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT | options,
                                  &error, &at, context.get()));
  if (code_->code == nullptr) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{} cannot be used: {}, at byte {}", name_, message_of(error), at));
  }
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);  // interpreted if there is no compiler
}

Regex::~Regex() = default;

std::optional<bool> Regex::found_in(std::string_view text) const {
  Search search(*this, text, true);
  size_t begin = 0, end = 0;
  const bool found = search.next(begin, end);
  return search.gave_up() ? std::nullopt : std::optional(found);
}

Regex::Search::Search(const Regex& regex, std::string_view text, bool by_steps)
    : state_(std::make_unique<State>(State{.regex = regex, .text = text})) {
  State& state = *state_;
  state.subject = text;
  if (find_invalid_utf8(text) != std::string_view::npos) state.repair();
  state.budget.end = thread_seconds() + seconds_allowed + seconds_a_byte * static_cast<double>(text.size());
  state.budget.by_steps = by_steps;
  state.context.reset(pcre2_match_context_create(nullptr));
  state.data.reset(pcre2_match_data_create(1, nullptr));
  if (state.context == nullptr || state.data == nullptr) throw Error("no memory for a regex");
  pcre2_set_match_limit(state.context.get(), max_backtracks);
  pcre2_set_heap_limit(state.context.get(), max_heap);
  pcre2_jit_stack_assign(state.context.get(), stack_of_thread, nullptr);
  pcre2_set_callout(state.context.get(), count_step, &state.budget);
}

Regex::Search::~Search() = default;

bool Regex::Search::gave_up() const { return state_->gave_up; }

bool Regex::Search::next(size_t& begin, size_t& end) {
  State& state = *state_;
  while (state.next <= state.subject.size() && state.find(state.next, begin, end)) {
    const bool repeats = begin == end && end == state.last_end;
    state.next = end;
    if (repeats) {
      ++state.next;
      while (state.next < state.subject.size() && is_utf8_continuation(state.subject[state.next])) ++state.next;
      continue;
    }
    state.last_end = end;
    begin = state.place(begin);
    end = state.place(end);
    return true;
  }
  return false;
}

}  // namespace llmtrain
