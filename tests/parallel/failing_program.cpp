// A job whose ranks end in the way that the first argument names; run by job_ends.sh under mpirun.

#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <thread>

#include "core/error.hpp"
#include "parallel/runtime.hpp"

namespace {

using namespace llmtrain;

/// The others of `rank` wait for it in a collective, for ever if nobody ends them.
template <class F>
int on_rank(Communicator& communicator, int rank, const F& failure) {
  if (communicator.rank() == rank) failure();
  communicator.barrier();
  return 0;
}

int run(Communicator& c, const std::string& way) {
  const int last = c.size() - 1;
  const std::map<std::string, std::function<int()>> ways = {
      {"fine", [&] { return on_rank(c, last, [] {}); }},
      {"stopped", [] { return 75; }},
      {"one_returns_75", [&] { return c.rank() == last ? 75 : 0; }},
      {"exception", [&] { return on_rank(c, last, [] { throw Error("the disk is on fire"); }); }},
      {"not_an_exception", [&] { return on_rank(c, last, [] { throw 7; }); }},
      {"bad_alloc", [&] { return on_rank(c, last, [] { throw std::bad_alloc(); }); }},
      {"terminate", [&] { return on_rank(c, last, [] { std::terminate(); }); }},
      {"thread", [&] { return on_rank(c, last, [] { std::thread([] { throw Error("in a thread"); }).join(); }); }},
      {"exit", [&] { return on_rank(c, last, [] { std::exit(0); }); }},
      {"user_one",
       [&] { return on_rank(c, last, [] { throw UserError(ExitCode::missing_input, "corpus.txt is missing"); }); }},
      {"user_all", []() -> int { throw UserError(ExitCode::deck, "deck.ini:3: run.sed: unknown key"); }},
      {"user_together",
       [&] {
         raise_together(c, [&] {
           if (c.rank() == 0) throw UserError(ExitCode::bad_content, "first file is empty");
           if (c.rank() == last) throw UserError(ExitCode::deck, "second key is wrong");
         });
         return 0;
       }},
  };
  return ways.at(way)();
}

}  // namespace

int main(int argc, char** argv) {
  Runtime runtime(argc, argv);
  if (argc < 2) return 64;
  const std::string way = argv[1];
  if (way == "unguarded") throw Error("nobody guards this");
  return runtime.guard([&] { return run(runtime.communicator(), way); });
}
