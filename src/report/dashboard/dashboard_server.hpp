#pragma once
// Dashboard: a page about runs over HTTP. It has a few fixed addresses, serves no files, and writes nothing.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace llmtrain {

struct DashboardOptions {
  std::vector<std::string> runs;             ///< arguments of run_folders()
  std::string address = "127.0.0.1";         ///< a number or a name of this machine
  int port = 8080;                           ///< 0: any that is free
  bool token = false;                        ///< require the token on the loopback device, too
  std::chrono::milliseconds interval{1000};  ///< between two looks at the files
  unsigned max_connections = 512;
  unsigned max_connections_of_address = 256;
  std::chrono::seconds head_time{10};  ///< in which a connection must have sent its request
  std::chrono::seconds idle_time{30};  ///< after which a connection that takes no bytes is closed
};

class DashboardServer {
 public:
  /// Serves from now on, on threads of its own. Throws UserError: missing_input for what is no run, cannot_create if
  /// the address or port cannot be used.
  explicit DashboardServer(const DashboardOptions& options);
  ~DashboardServer();
  DashboardServer(const DashboardServer&) = delete;
  DashboardServer& operator=(const DashboardServer&) = delete;

  int port() const;
  /// Address of the page for a browser on this machine or in its network, with the token if one is needed.
  std::string url() const;
  /// Command line and address for a browser elsewhere.
  std::string tunnel() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmtrain
