// main() of every test program. Under mpirun rank 0 alone prints results, the other ranks their failures, and any
// failing rank fails the program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "core/error.hpp"
#include "harness/process.hpp"

namespace {

using llmtrain::test::Process;

/// Listener of ranks other than 0: prints failures only.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& info) override {
    // queried here: while a result is reported, GoogleTest holds the lock that current_test_info() takes
    test_ = std::string(info.test_suite_name()) + "." + info.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << rank_ << ", " << test_ << ", "
              << (result.file_name() != nullptr ? result.file_name() : "unknown file") << ':' << result.line_number()
              << ": " << result.summary() << '\n';
  }

 private:
  int rank_;
  std::string test_;
};

/// Writes the names of skipped cases, with reasons, to the file that LLMTRAIN_SKIPPED_TESTS names, since a suite passes
/// although some cases are skipped.
class SkipRecorder : public testing::EmptyTestEventListener {
 public:
  explicit SkipRecorder(const char* path) : path_(path) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.skipped() && result.summary() != nullptr) reason_ = result.summary();
  }
  void OnTestEnd(const testing::TestInfo& info) override {
    if (info.result()->Skipped()) {
      std::ostringstream line;
      line << info.test_suite_name() << '.' << info.name() << ": " << reason_.substr(0, reason_.find('\n')) << '\n';
      std::ofstream(path_, std::ios::app) << line.str();  // one write: several programs append
    }
    reason_.clear();
  }

 private:
  std::string path_;
  std::string reason_;
};

/// After a fatal failure (or an exception) this rank has left the test: the others must not wait for it.
class AbortOnFatal : public testing::EmptyTestEventListener {
 public:
  explicit AbortOnFatal(const Process& process) : process_(process) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.fatally_failed()) return;
    std::cout << std::flush;
    process_.abort();
  }

 private:
  const Process& process_;
};

int run(int argc, char** argv) {
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  const Process process(argc, argv);
  // Tests that need a missing device end in main(), as skipped.
  if (!process.has_device()) GTEST_FLAG_SET(catch_exceptions, false);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (const char* path = std::getenv("LLMTRAIN_SKIPPED_TESTS"); path != nullptr && process.rank() == 0) {
    listeners.Append(new SkipRecorder(path));  // owned by GoogleTest
  }
  if (process.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(process.rank()));  // owned by GoogleTest
  }
  if (process.ranks() > 1) listeners.Append(new AbortOnFatal(process));
  const int code = process.agree(RUN_ALL_TESTS());
  const auto& tests = *testing::UnitTest::GetInstance();
  const bool all_skipped = tests.skipped_test_count() > 0 && tests.skipped_test_count() == tests.test_to_run_count();
  return code == 0 && all_skipped ? llmtrain::test::skipped : code;
}

}  // namespace

int main(int argc, char** argv) {
  // Tests name their data relative to the root of the sources, some while they are registered.
  std::filesystem::current_path(LLMTRAIN_SOURCE_DIR);
  testing::InitGoogleMock(&argc, argv);
  try {
    return run(argc, argv);
  } catch (const llmtrain::UserError& error) {
    const bool no_device = error.code() == llmtrain::ExitCode::no_device;
    std::cerr << (no_device ? "skipped: " : "test program: ") << error.what() << '\n';
    return no_device ? llmtrain::test::skipped : 1;
  } catch (const std::exception& error) {
    std::cerr << "test program: " << error.what() << '\n';
    return 1;
  }
}
