#pragma once
#include <string>

#include "core/child_process.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
