// The dashboard's server through raw sockets: what it answers, what it refuses, its limits, and events of runs that
// change while they are watched.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "core/child_process.hpp"
#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "report/dashboard/dashboard_server.hpp"
#include "report/dashboard/request_guard.hpp"
#include "report/dashboard/run_board.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A folder with runs.
struct Runs {
  void append(const std::string& run, const std::string& text) const {
    fs::create_directories(folder / run);
    std::ofstream(folder / run / "metrics.jsonl", std::ios::app) << text;
  }
  static std::string line(int step, double loss) {
    return "{\"step\":" + std::to_string(step) + ",\"wall_time\":1,\"loss_mean\":" + std::to_string(loss) + "}\n";
  }
  TemporaryFolder folder;
};

/// A client that says exactly what it is told.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_.number(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  bool send(const std::string& text) const {
    return ::send(socket_.number(), text.data(), text.size(), MSG_NOSIGNAL) == std::ssize(text);
  }
  /// Reads until the text is there, the end or the time is over.
  const std::string& read_until(const std::string& text, std::chrono::milliseconds patience = 10s) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (connected_ && !closed_ && received_.find(text) == std::string::npos) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd event{socket_.number(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&event, 1, static_cast<int>(left.count())) <= 0) break;
      std::array<char, 65536> bytes;
      const ssize_t n = ::recv(socket_.number(), bytes.data(), bytes.size(), 0);
      closed_ = n <= 0;
      if (n > 0) received_.append(bytes.data(), static_cast<size_t>(n));
    }
    return received_;
  }
  const std::string& read_all(std::chrono::milliseconds patience = 10s) { return read_until("\1never\1", patience); }
  bool closed() const { return closed_; }
  void forget() { received_.clear(); }

 private:
  Descriptor socket_;
  std::string received_;
  bool connected_ = false, closed_ = false;
};

struct DashboardTest : testing::Test {
  void SetUp() override {
    runs.append("one", Runs::line(10, 2.5));
    options.runs = {runs.folder.text()};
    options.port = 0;
    options.interval = 20ms;
  }
  void start() { server.emplace(options); }
  std::string ask(const std::string& request) const {
    Client client(server->port());
    client.send(request);
    return client.read_all();
  }
  std::string get(const std::string& target, const std::string& headers = "Host: localhost\r\n") const {
    return ask("GET " + target + " HTTP/1.1\r\n" + headers + "\r\n");
  }
  /// The token of the address.
  std::string token() const { return server->url().substr(server->url().find("token=") + 6); }

  Runs runs;
  DashboardOptions options;
  std::optional<DashboardServer> server;
};

// Protects: the page and what it loads are there, with headers that keep other sites out; nothing else is served.
TEST_F(DashboardTest, ServesItsPagesAndNothingElse) {
  start();
  const std::string page = get("/");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  for (const char* header : {"Content-Security-Policy: default-src 'none'", "frame-ancestors 'none'",
                             "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer"}) {
    EXPECT_THAT(page, HasSubstr(header));
  }
  EXPECT_THAT(page, HasSubstr("<script src=\"uplot.js\" defer>"));
  EXPECT_THAT(get("/uplot.js"), HasSubstr("text/javascript"));
  EXPECT_THAT(get("/dashboard.css"), HasSubstr("text/css"));
  for (const char* target : {"/metrics.jsonl", "/one/metrics.jsonl", "/../one/metrics.jsonl",
                             "/..%2fone%2fmetrics.jsonl", "/%2e%2e/etc/passwd", "//etc/passwd",
                             "/uplot.js/../../etc/passwd", "/uplot.licence", "/events/", "/dashboard.html"}) {
    EXPECT_EQ(get(target).substr(0, 12), "HTTP/1.1 404") << target;
  }
  EXPECT_THAT(get("/uplot.js%00.css"), StartsWith("HTTP/1.1 40"));  // newer libraries refuse it themselves, with 400
}

// Protects: only GET and HEAD, without a body.
TEST_F(DashboardTest, RefusesOtherMethodsAndBodies) {
  start();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "BREW", "get"}) {
    const std::string answer = ask(std::string(method) + " / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD"));
  }
  const std::string head = ask("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(head, Not(HasSubstr("<html")));
  EXPECT_THAT(get("/", "Host: localhost\r\nContent-Length: 5\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(get("/", "Host: localhost\r\nTransfer-Encoding: chunked\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("\r\n\r\n\x01\x02\x03 nonsense\r\n\r\n"), Not(HasSubstr("200")));
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 200"));  // it goes on
}

// Protects: a web site whose name resolves to this machine (DNS rebinding) gets nothing.
TEST_F(DashboardTest, RefusesForeignHosts) {
  start();
  for (const char* host : {"localhost", "LOCALHOST:9000", "127.0.0.1:8080", "127.0.0.2", "[::1]:1"}) {
    EXPECT_THAT(get("/", std::string("Host: ") + host + "\r\n"), StartsWith("HTTP/1.1 200")) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.evil.example",
                           "[::1]x", "localhost:", "localhost:80x", "10.0.0.1", "localhost@evil.example"}) {
    EXPECT_THAT(get("/", std::string("Host: ") + host + "\r\n"), StartsWith("HTTP/1.1 403")) << host;
  }
  EXPECT_THAT(get("/", ""), Not(HasSubstr(" 200 ")));
  EXPECT_THAT(get("/", "Host: localhost\r\nHost: evil.example\r\n"), Not(HasSubstr("evil")));
}

// Protects: beyond the loopback device, every address needs the token.
TEST_F(DashboardTest, RequiresTheTokenElsewhere) {
  options.address = "0.0.0.0";
  start();
  ASSERT_EQ(token().size(), 32U);
  std::string wrong = token();
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  for (const char* target : {"/", "/uplot.js", "/events", "/nothing"}) {
    EXPECT_THAT(get(target), StartsWith("HTTP/1.1 403")) << target;
    EXPECT_THAT(get(std::string(target) + "?token=" + wrong), StartsWith("HTTP/1.1 403")) << target;
    EXPECT_THAT(get(std::string(target) + "?token="), StartsWith("HTTP/1.1 403")) << target;
  }
  const std::string page = get("/?token=" + token(), "Host: node7.cluster:8080\r\n");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("uplot.js?token=" + token() + "\""));
  EXPECT_THAT(server->tunnel(), HasSubstr("ssh -N -L "));
  EXPECT_TRUE(same_token(token(), token()));
  EXPECT_FALSE(same_token(token(), wrong));
  EXPECT_FALSE(same_token(token(), token() + "0"));
  EXPECT_NE(random_token(), random_token());
}

// Protects: long request lines and heads, many connections, and clients that drip or say nothing end; others are
// served.
TEST_F(DashboardTest, LimitsWhatAClientMayTake) {
  options.max_connections_of_address = 4;
  options.head_time = 1s;
  start();
  EXPECT_THAT(get("/?x=" + std::string(3000, 'a')), StartsWith("HTTP/1.1 414"));
  EXPECT_THAT(get("/?x=" + std::string(100'000, 'a')), StartsWith("HTTP/1.1 414"));
  EXPECT_THAT(get("/", "Host: localhost\r\nX: " + std::string(100'000, 'a') + "\r\n"), StartsWith("HTTP/1.1 431"));
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(std::make_unique<Client>(server->port()));
  for (const auto& client : silent) client->send("GET / HTTP/1.1\r\nHost: local");
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(get("/"), "");  // a fifth connection is closed
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < 3s && silent.front()->send("h")) std::this_thread::sleep_for(100ms);
  for (const auto& client : silent) {
    client->read_all(2s);
    EXPECT_TRUE(client->closed());  // though the first has dripped all the time
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 200"));
}

// Protects: a stream brings what the files get, once; with Last-Event-ID it goes on where it was cut.
TEST_F(DashboardTest, StreamsWhatRunsWrite) {
  start();
  Client watcher(server->port());
  watcher.send("GET /events?runs=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string first = watcher.read_until("\nid: ");
  EXPECT_THAT(first, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(first, HasSubstr("\"loss_mean\":[[10],[2.5]]"));
  watcher.forget();
  runs.append("one", Runs::line(20, 1.5));
  const std::string more = watcher.read_until("\nid: ");
  EXPECT_THAT(more, HasSubstr("\"reset\":false"));
  EXPECT_THAT(more, HasSubstr("\"loss_mean\":[[20],[1.5]]"));
  const size_t at = watcher.read_until("-2\n").find("\nid: ") + 5;
  const std::string id = more.substr(at, more.find('\n', at) - at);
  runs.append("one", Runs::line(30, 0.5));
  Client again(server->port());
  again.send("GET /events?runs=0 HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: " + id + "\r\n\r\n");
  const std::string rest = again.read_until("\nid: ");
  EXPECT_THAT(rest, HasSubstr("\"loss_mean\":[[30],[0.5]]"));
  EXPECT_THAT(rest, Not(HasSubstr("[2.5")));
  Client stranger(server->port());  // control: an id of another server is not believed
  stranger.send("GET /events?runs=0 HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 00-99\r\n\r\n");
  EXPECT_THAT(stranger.read_until("\nid: "), HasSubstr("[[10,20,30],[2.5,1.5,0.5]]"));
}

// Protects: hostile choices of runs are harmless, and the server ends quickly with streams open.
TEST_F(DashboardTest, SurvivesWhatIsAskedAndEndsQuickly) {
  start();
  std::vector<std::unique_ptr<Client>> clients;
  for (const char* choice :
       {"", "9", "99999999999999999999", "-1", "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0", "a", "0,"}) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send(std::string("GET /events?runs=") + choice + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(clients.back()->read_until("\nid: "), HasSubstr("\"name\":\"one\"")) << choice;
  }
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
}

// Protects: what cannot be served is said before anything starts.
TEST_F(DashboardTest, SaysWhatIsWrong) {
  start();
  DashboardOptions other = options;
  other.port = server->port();
  const auto error_of = [](const DashboardOptions& wrong) {
    try {
      const DashboardServer never(wrong);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of(other), HasSubstr("another program uses it"));
  other.port = 0;
  EXPECT_EQ(error_of(other), "");  // control
  other.address = "192.0.2.1";
  EXPECT_THAT(error_of(other), HasSubstr("does not have the address"));
  other.address = "no host";
  EXPECT_THAT(error_of(other), HasSubstr("no such address"));
  other = options;
  other.runs = {(runs.folder / "missing").string()};
  EXPECT_THAT(error_of(other), HasSubstr("missing"));
}

// Protects: after a resume or a truncation watchers get all values anew; a deleted run is said; new runs join.
TEST(RunBoard, FollowsRunsThatAreRewritten) {
  const Runs runs;
  runs.append("one", Runs::line(10, 3) + Runs::line(20, 2));
  RunBoard board({runs.folder.text()});
  const auto news = [&](uint64_t since) {
    board.refresh({0});
    return board.events({0}, since);
  };
  EXPECT_THAT(news(0), HasSubstr("[[10,20],[3,2]]"));
  uint64_t version = board.version();
  EXPECT_EQ(news(version), "");  // nothing is new
  runs.append("one", R"({"resumed_from_step":10,"wall_time":2,"ranks":3})"
                     "\n" +
                         Runs::line(20, 1));
  const std::string resumed = news(version);
  EXPECT_THAT(resumed, HasSubstr("\"reset\":true"));
  EXPECT_THAT(resumed, HasSubstr("[[10,20],[3,1]]"));
  EXPECT_THAT(resumed, HasSubstr(R"("marks":[{"kind":"resume","step":10,"text":"3 ranks"}])"));
  version = board.version();
  std::ofstream(runs.folder / "one" / "metrics.jsonl") << Runs::line(10, 7);
  EXPECT_THAT(news(version), HasSubstr("[[10],[7]]"));
  version = board.version();
  fs::remove_all(runs.folder / "one");
  runs.append("two", Runs::line(1, 1));
  EXPECT_THAT(news(version), HasSubstr("no such folder"));
  for (int i = 0; i < 10; ++i) board.refresh({0});
  EXPECT_EQ(board.size(), 2U);
}

// Protects: runs that are deleted give their places among the most that are shown to new ones, which is said once.
TEST(RunBoard, GivesPlacesOfDeletedRunsToNewOnes) {
  const Runs runs;
  runs.append("one", Runs::line(1, 1));
  for (size_t i = 1; i < RunBoard::max_runs; ++i) runs.append(fmt::format("r{:03}", i), Runs::line(1, 1));
  RunBoard board({runs.folder.text()});
  const auto look = [&] {
    for (int i = 0; i < 4; ++i) board.refresh({0});
  };
  look();
  const uint64_t version = board.version();
  runs.append("zz", Runs::line(1, 8));
  testing::internal::CaptureStderr();
  look();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("zz' is left out"));
  EXPECT_THAT(board.events({0}, version), Not(HasSubstr("zz"))) << "the control";
  fs::remove_all(runs.folder / "one");
  look();
  EXPECT_EQ(board.size(), RunBoard::max_runs);
  const std::string events = board.events({0}, version);
  EXPECT_THAT(events, HasSubstr("\"name\":\"zz\""));
  EXPECT_THAT(events, HasSubstr("[[1],[8]]"));
}

// Protects: runs that begin while somebody watches join the list in three seconds, wherever they lie, without a reload.
TEST_F(DashboardTest, ListsNewRunsWithinThreeSeconds) {
  options.interval = DashboardOptions().interval;
  runs.append("exports/empty", "");
  fs::remove(runs.folder / "exports/empty/metrics.jsonl");
  start();
  Client watcher(server->port());
  watcher.send("GET /events?runs=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  watcher.read_until("\"name\":\"one\"");
  for (const char* run : {"two", "one/evaluation", "sweep/width/3", "exports/empty"}) {
    std::this_thread::sleep_for(700ms);  // another place between two looks each time
    watcher.forget();
    const auto begin = std::chrono::steady_clock::now();
    runs.append(run, Runs::line(1, 1));
    const std::string row = "\"folder\":\"" + (runs.folder / run).string() + "\"";
    EXPECT_THAT(watcher.read_until(row, 3s), HasSubstr(row));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s) << run;
  }
  watcher.forget();
  for (const char* other : {"one/checkpoints/step-1", "one/status/x", ".hidden", "a/b/c/deep"})
    runs.append(other, Runs::line(1, 1));
  watcher.read_until("never", 3s);
  for (const char* other : {"step-1", "status", "hidden", "deep"})
    EXPECT_THAT(watcher.read_until("never", 1ms), Not(HasSubstr(other))) << "the control";
}

// Protects: a dashboard may be started before its first run, which then joins.
TEST(RunBoard, WaitsForTheFirstRun) {
  const Runs runs;
  fs::remove_all(runs.folder / "one");
  RunBoard board({runs.folder.text()});
  board.refresh({0});
  EXPECT_EQ(board.events({0}, 0), "");
  runs.append("two", Runs::line(1, 4));
  for (int i = 0; i < 10; ++i) board.refresh({0});
  EXPECT_THAT(board.events({0}, 0), HasSubstr("[[1],[4]]"));
}

// Protects: a long series is thinned to what a screen shows, with its extremes.
TEST(RunBoard, ThinsLongSeries) {
  const Runs runs;
  std::string lines;
  for (int step = 1; step <= 20'000; ++step) lines += Runs::line(step, step == 12'345 ? 999 : step % 7);
  runs.append("one", lines);
  RunBoard board({runs.folder.text()});
  board.refresh({0});
  const std::string events = board.events({0}, 0);
  const size_t begin = events.find("\"loss_mean\":[[");
  const std::string series = events.substr(begin, events.find("]]", begin) - begin);
  EXPECT_LT(std::ranges::count(series, ','), 8100);
  EXPECT_THAT(series, HasSubstr(",12345,"));
  EXPECT_THAT(series, HasSubstr(",999,"));
  EXPECT_THAT(series, HasSubstr(",20000]"));
}

}  // namespace
}  // namespace llmtrain
