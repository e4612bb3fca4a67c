#include "report/dashboard/listen_socket.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.hpp"

namespace llmtrain {

namespace {

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

}  // namespace

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

}  // namespace llmtrain
