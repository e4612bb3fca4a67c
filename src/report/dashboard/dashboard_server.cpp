#include "report/dashboard/dashboard_server.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/child_process.hpp"
#include "core/error.hpp"
#include "core/machine.hpp"
#include "report/assets.hpp"
#include "report/dashboard/event_hub.hpp"
#include "report/dashboard/request_guard.hpp"

namespace llmtrain {

namespace {

/// A socket that listens at an address of this machine.
class ListenSocket {
 public:
  /// `address`: a number (IPv4 or IPv6) or a name; `port`: 0 for any that is free. Throws UserError(cannot_create).
  ListenSocket(const std::string& address, int port);

  /// Returns the socket's number. The caller closes it.
  int release() { return socket_.release(); }
  int port() const { return port_; }
  bool is_loopback() const { return loopback_; }
  bool is_ipv6() const { return ipv6_; }
  /// Address as a URL has it: "127.0.0.1", "[::1]".
  const std::string& host() const { return host_; }
  /// True if it listens at all addresses of the machine.
  bool is_any() const { return any_; }

 private:
  void describe();

  Descriptor socket_;
  int port_ = 0;
  bool loopback_ = false, ipv6_ = false, any_ = false;
  std::string host_;
};

constexpr int waiting_connections = 128;

[[noreturn]] void refuse(const std::string& address, int port, const std::string& why) {
  throw UserError(ExitCode::cannot_create, fmt::format("port {} of {}: {}", port, address, why));
}

std::string reason_of(int error) {
  if (error == EADDRINUSE) return "another program uses it: choose another port, or 0 for any that is free";
  if (error == EADDRNOTAVAIL) return "this machine does not have the address: give one of its own, or 0.0.0.0 for all";
  if (error == EACCES) return "ports below 1024 are the system's: choose another port";
  return std::strerror(error);
}

ListenSocket::ListenSocket(const std::string& address, int port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  const int unknown = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (unknown != 0) refuse(address, port, fmt::format("no such address: {}", ::gai_strerror(unknown)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  socket_.reset(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;  // a port that an ended server has left is free at once
  const bool listens = socket_.open() &&
                       ::setsockopt(socket_.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                       ::bind(socket_.number(), found->ai_addr, found->ai_addrlen) == 0 &&
                       ::listen(socket_.number(), waiting_connections) == 0;
  if (!listens) refuse(address, port, reason_of(errno));
  describe();
}

void ListenSocket::describe() {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    throw Error("no name of a socket");
  ipv6_ = bound.ss_family == AF_INET6;
  if (ipv6_) {
    sockaddr_in6 address{};
    std::memcpy(&address, &bound, sizeof(address));
    ::inet_ntop(AF_INET6, &address.sin6_addr, text.data(), text.size());
    loopback_ = IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) != 0;
    any_ = IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr) != 0;
    port_ = ntohs(address.sin6_port);
    host_ = fmt::format("[{}]", text.data());
  } else {
    sockaddr_in address{};
    std::memcpy(&address, &bound, sizeof(address));
    ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
    loopback_ = (ntohl(address.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
    any_ = address.sin_addr.s_addr == htonl(INADDR_ANY);
    port_ = ntohs(address.sin_port);
    host_ = text.data();
  }
}

/// Ends connections that take too long to send a request or to take an answer, however steadily they drip.
class ConnectionDeadlines {
 public:
  using Clock = std::chrono::steady_clock;

  ConnectionDeadlines() : thread_([this] { work(); }) {}
  ~ConnectionDeadlines();
  ConnectionDeadlines(const ConnectionDeadlines&) = delete;
  ConnectionDeadlines& operator=(const ConnectionDeadlines&) = delete;

  /// Sets or replaces the deadline of a socket, which the caller forgets before it closes it.
  void set(int socket, Clock::duration patience);
  void forget(int socket);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int, Clock::time_point> deadlines_;  ///< by socket
  bool stopping_ = false;
  std::thread thread_;
};

ConnectionDeadlines::~ConnectionDeadlines() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ConnectionDeadlines::set(int socket, Clock::duration patience) {
  const std::scoped_lock lock(mutex_);
  deadlines_[socket] = Clock::now() + patience;
  if (deadlines_.size() == 1) wake_.notify_all();
}

void ConnectionDeadlines::forget(int socket) {
  const std::scoped_lock lock(mutex_);
  deadlines_.erase(socket);
}

void ConnectionDeadlines::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (deadlines_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::milliseconds(500));
    }
    const Clock::time_point now = Clock::now();
    for (auto& [socket, deadline] : deadlines_) {
      if (deadline > now) continue;
      ::shutdown(socket, SHUT_RDWR);  // the server sees the end, and closes it
      deadline = Clock::time_point::max();
    }
  }
}

constexpr size_t connection_memory = size_t{16} << 10;  ///< bytes of a request's head, at most
constexpr size_t max_target = 2048;                     ///< bytes of the request line's target
constexpr size_t max_followed = 16;
constexpr size_t stream_block = size_t{16} << 10;
constexpr unsigned spare_descriptors = 64;

constexpr std::array<std::pair<const char*, const char*>, 6> headers = {{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
     "form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"X-Frame-Options", "DENY"},
    {"Cache-Control", "no-store"},
}};

struct Page {
  const char* path;
  const char* asset;
  const char* type;
};
constexpr std::array<Page, 5> pages = {{{"/", "dashboard.html", "text/html; charset=utf-8"},
                                        {"/dashboard.css", "dashboard.css", "text/css; charset=utf-8"},
                                        {"/dashboard.js", "dashboard.js", "text/javascript; charset=utf-8"},
                                        {"/uplot.css", "uplot.css", "text/css; charset=utf-8"},
                                        {"/uplot.js", "uplot.js", "text/javascript; charset=utf-8"}}};

using Response = std::unique_ptr<MHD_Response, decltype(&MHD_destroy_response)>;

std::string_view text_of(const char* text) { return text == nullptr ? std::string_view() : text; }

std::string_view header(MHD_Connection* connection, const char* name) {
  return text_of(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name));
}

std::string_view argument(MHD_Connection* connection, const char* name) {
  return text_of(MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name));
}

int socket_of(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

/// Body of a stream of events.
struct Stream {
  EventHub* hub;
  std::shared_ptr<EventHub::Watcher> watcher;
};

ssize_t read_stream(void* context, uint64_t /*position*/, char* bytes, size_t size) {
  auto* stream = static_cast<Stream*>(context);
  const ssize_t count = stream->hub->read(*stream->watcher, bytes, size);
  return count < 0 ? MHD_CONTENT_READER_END_OF_STREAM : count;
}

void end_stream(void* context) {
  const std::unique_ptr<Stream> stream(static_cast<Stream*>(context));
  stream->hub->remove(stream->watcher);
}

/// Numbers of runs: "0,3".
std::vector<size_t> parse_followed(std::string_view text) {
  std::vector<size_t> followed;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end && followed.size() < max_followed) {
    size_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number >= RunBoard::max_runs) break;
    followed.push_back(number);
    if (next == end || *next != ',') break;
    at = next + 1;
  }
  return followed;
}

unsigned possible_connections(unsigned wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto files = static_cast<unsigned>(std::min<rlim_t>(limit.rlim_cur, 1U << 20));
  return std::min(wanted, files > 2 * spare_descriptors ? files - spare_descriptors : spare_descriptors);
}

}  // namespace

struct DashboardServer::State {
  explicit State(const DashboardOptions& o) : options(o), listener(o.address, o.port), hub(o.runs, o.interval) {
    rules.loopback = listener.is_loopback();
    if (o.token || !rules.loopback) rules.token = random_token();
    start();
  }
  ~State() {
    hub.stop();
    MHD_stop_daemon(daemon);
  }

  void start();
  MHD_Result answer(MHD_Connection* connection, const char* path, const char* method, void** request);
  MHD_Result send(MHD_Connection* connection, unsigned status, Response response, const char* type) const;
  MHD_Result send_text(MHD_Connection* connection, unsigned status, std::string_view text, const char* type) const;
  MHD_Result stream_events(MHD_Connection* connection, bool head_only);
  std::string query() const { return rules.token.empty() ? "" : "?token=" + rules.token; }

  DashboardOptions options;
  ListenSocket listener;
  RequestRules rules;
  EventHub hub;
  ConnectionDeadlines deadlines;
  MHD_Daemon* daemon = nullptr;
};

void DashboardServer::State::start() {
  const auto handler =
      +[](void* self, MHD_Connection* connection, const char* path, const char* method, const char*, const char*,
          size_t*, void** request) { return static_cast<State*>(self)->answer(connection, path, method, request); };
  const auto notice = +[](void* self, MHD_Connection* connection, void**, MHD_ConnectionNotificationCode code) {
    auto* state = static_cast<State*>(self);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      state->deadlines.set(socket_of(connection), state->options.head_time);
    } else {
      state->deadlines.forget(socket_of(connection));
    }
  };
  // The status with which a target is refused, or null. No address of the pages needs a %, which could hide a NUL.
  const auto look_at_target = +[](void*, const char* target, MHD_Connection*) -> void* {
    static unsigned too_long = MHD_HTTP_URI_TOO_LONG, unknown = MHD_HTTP_NOT_FOUND;
    const std::string_view text = text_of(target);
    if (text.size() > max_target) return &too_long;
    return text.substr(0, text.find('?')).find('%') == std::string_view::npos ? nullptr : &unknown;
  };
  // MHD_stop_daemon() closes the socket.
  const unsigned flags =
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (listener.is_ipv6() ? unsigned{MHD_USE_IPv6} : 0U);
  daemon = MHD_start_daemon(flags, 0, nullptr, nullptr, handler, this, MHD_OPTION_LISTEN_SOCKET, listener.release(),
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, connection_memory, MHD_OPTION_CONNECTION_LIMIT,
                            possible_connections(options.max_connections), MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                            options.max_connections_of_address, MHD_OPTION_CONNECTION_TIMEOUT,
                            static_cast<unsigned>(options.idle_time.count()), MHD_OPTION_STRICT_FOR_CLIENT, 1,
                            MHD_OPTION_NOTIFY_CONNECTION, notice, this, MHD_OPTION_URI_LOG_CALLBACK, look_at_target,
                            nullptr, MHD_OPTION_END);
  if (daemon == nullptr) throw Error("the HTTP server does not start");
}

MHD_Result DashboardServer::State::send(MHD_Connection* connection, unsigned status, Response response,
                                        const char* type) const {
  if (response == nullptr) return MHD_NO;
  for (const auto& [name, value] : headers) MHD_add_response_header(response.get(), name, value);
  MHD_add_response_header(response.get(), "Content-Type", type);
  MHD_add_response_header(response.get(), "Connection", "close");
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(response.get(), "Allow", "GET, HEAD");
  return MHD_queue_response(connection, status, response.get());
}

MHD_Result DashboardServer::State::send_text(MHD_Connection* connection, unsigned status, std::string_view text,
                                             const char* type) const {
  // MHD copies the text.
  Response response(MHD_create_response_from_buffer(text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY),
                    &MHD_destroy_response);
  return send(connection, status, std::move(response), type);
}

MHD_Result DashboardServer::State::stream_events(MHD_Connection* connection, bool head_only) {
  constexpr const char* type = "text/event-stream";
  if (head_only) return send_text(connection, MHD_HTTP_OK, "", type);
  deadlines.forget(socket_of(connection));
  auto stream = std::make_unique<Stream>();
  stream->hub = &hub;
  stream->watcher =
      hub.add(connection, parse_followed(argument(connection, "runs")), header(connection, "Last-Event-ID"));
  Response response(
      MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, stream_block, &read_stream, stream.get(), &end_stream),
      &MHD_destroy_response);
  if (response == nullptr) {
    hub.remove(stream->watcher);
    return MHD_NO;
  }
  static_cast<void>(stream.release());  // end_stream() deletes it
  return send(connection, MHD_HTTP_OK, std::move(response), type);
}

MHD_Result DashboardServer::State::answer(MHD_Connection* connection, const char* path, const char* method,
                                          void** request) {
  constexpr const char* plain = "text/plain; charset=utf-8";
  if (*request != nullptr) {
    return send_text(connection, *static_cast<unsigned*>(*request), "there is no such address\n", plain);
  }
  RequestHead head{method, header(connection, "Host"), argument(connection, "token")};
  const std::string_view length = header(connection, "Content-Length");
  head.has_body = (!length.empty() && length != "0") || !header(connection, "Transfer-Encoding").empty();
  if (const unsigned status = refusal_of(head, rules); status != 0) {
    return send_text(connection, status,
                     status == MHD_HTTP_FORBIDDEN
                         ? "this needs the address with the token that the server has printed\n"
                         : "only GET, without a body\n",
                     plain);
  }
  deadlines.set(socket_of(connection), 2 * options.idle_time);
  if (text_of(path) == "/events") return stream_events(connection, head.method == "HEAD");
  const auto* const page = std::ranges::find_if(pages, [&](const Page& p) { return text_of(path) == p.path; });
  if (page == pages.end()) return send_text(connection, MHD_HTTP_NOT_FOUND, "there is no such page\n", plain);
  std::string content(asset(page->asset));
  if (page == pages.begin()) {
    constexpr std::string_view mark = "?token";
    for (size_t at = content.find(mark); at != std::string::npos; at = content.find(mark, at + 1)) {
      content.replace(at, mark.size(), query());
    }
  }
  return send_text(connection, MHD_HTTP_OK, content, page->type);
}

DashboardServer::DashboardServer(const DashboardOptions& options) : state_(std::make_unique<State>(options)) {}
DashboardServer::~DashboardServer() = default;

int DashboardServer::port() const { return state_->listener.port(); }

std::string DashboardServer::url() const {
  const ListenSocket& listener = state_->listener;
  return fmt::format("http://{}:{}/{}", listener.is_any() ? host_name() : listener.host(), port(), state_->query());
}

std::string DashboardServer::tunnel() const {
  const std::string host = host_name();
  const std::string browser = fmt::format("http://localhost:{}/{}", port(), state_->query());
  if (state_->rules.loopback) {
    return fmt::format("ssh -N -L {0}:{1}:{0} {2}  (behind a login node: -J LOGIN), then {3}", port(),
                       state_->listener.host(), host, browser);
  }
  const std::string target = state_->listener.is_any() ? host : state_->listener.host();
  return fmt::format("ssh -N -L {0}:{1}:{0} LOGIN, then {2}", port(), target, browser);
}

}  // namespace llmtrain
