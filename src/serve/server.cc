#include "serve/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <csignal>
#include <exception>
#include <thread>
#include <utility>

#include "base/check.h"
#include "serve/http_connection.h"
#include "serve/http_loop.h"

namespace perigee::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 4096;             // connections that the system holds until they are accepted
constexpr int64_t kOtherFiles = 256;       // open files that are no connections
constexpr size_t kLoggedTargetMax = 256;   // bytes
constexpr std::chrono::milliseconds kAcceptPause{100};  // after a failure that will not go away by itself
constexpr std::chrono::milliseconds kDrainPoll{5};
constexpr std::chrono::seconds kComplaintPause{1};      // between log lines about the same trouble

struct Listener {
  explicit Listener(asio::io_context& io) : acceptor(io), pause(io) {}
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::shared_ptr<Site> site = std::make_shared<Site>();
};

Result<tcp::endpoint> resolve(asio::io_context& io, const std::string& host, int port, std::string_view host_flag,
                              std::string_view port_flag) {
  if (port < 0 || port > 65535) return invalid_argument("{} {}: a port is a number from 0 to 65535", port_flag, port);
  error_code code;
  const auto address = asio::ip::make_address(host, code);
  if (!code) return tcp::endpoint(address, static_cast<uint16_t>(port));
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), tcp::resolver::passive, code);
  if (code || found.empty()) return invalid_argument("{} '{}' is neither an address nor a known name", host_flag, host);
  return found.begin()->endpoint();
}

Status listen(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, std::string_view port_flag) {
  error_code code;
  acceptor.open(endpoint.protocol(), code);
  if (!code) acceptor.set_option(tcp::acceptor::reuse_address(true), code);
  if (!code) acceptor.bind(endpoint, code);
  if (!code) acceptor.listen(kBacklog, code);
  if (!code) return {};
  return io_error("{} {}: cannot listen on {}: {}", port_flag, endpoint.port(), endpoint.address().to_string(), code.message());
}

// Raises the limit on open files as far as one may; returns how many connections it allows.
int64_t connections_allowed(int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return wanted;
  return std::min(wanted, std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - kOtherFiles, 1));
}

Status check(const ServerOptions& options) {
  if (options.admin_port && options.admin_key.empty())
    return invalid_argument("--admin-port needs --admin-key: administration is never open to everybody");
  if (options.tls_certificate.empty() != options.tls_key.empty())
    return invalid_argument("--ssl-certfile and --ssl-keyfile are needed together");
  CHECK_GE(options.io_threads, 1);
  CHECK_GE(options.worker_threads, 1);
  CHECK(options.state != nullptr);
  return {};
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions given)
      : options(std::move(given)), workers(static_cast<size_t>(options.worker_threads)) {}

  Status set_up(std::vector<Route> routes, std::vector<Route> admin_routes);
  void fill(Site& site, std::vector<Route> routes, KeyRing keys, std::shared_ptr<TlsContext> tls);
  bool run_later(std::function<void()> work);
  void accept(Listener& listener);
  void accepted(Listener& listener, Loop& loop, tcp::socket socket);
  void complain(const std::string& line);
  void finished(const FinishedRequest& request);
  void log(LogLevel level, const std::string& line) const {
    if (options.log) options.log(level, line);
  }

  ServerOptions options;
  std::vector<std::unique_ptr<Loop>> loops;
  std::unique_ptr<Listener> clients;  // their acceptors belong to the first loop
  std::unique_ptr<Listener> admin;
  asio::thread_pool workers;
  std::atomic<int64_t> waiting_work{0};
  size_t next_loop = 0;
  Clock::time_point complained{};
  bool started = false;
  bool stopped = false;
};

bool Server::Impl::run_later(std::function<void()> work) {
  if (waiting_work.fetch_add(1) >= options.worker_queue_max) {
    --waiting_work;
    return false;
  }
  asio::post(workers, [this, work = std::move(work)] {
    --waiting_work;
    work();
  });
  return true;
}

void Server::Impl::finished(const FinishedRequest& request) {
  const auto& quiet = options.access_log_without;
  if (options.access_log && std::find(quiet.begin(), quiet.end(), request.target) == quiet.end())
    log(LogLevel::kInfo, access_line(request));
  if (options.on_finished) options.on_finished(request);
}

void Server::Impl::fill(Site& site, std::vector<Route> routes, KeyRing keys, std::shared_ptr<TlsContext> tls) {
  site.limits = options.limits;
  (options.loading ? site.loading_routes : site.routes) = RouteTable(std::move(routes));
  site.loading = options.loading;
  site.keys = std::move(keys);
  site.cors = options.cors;
  site.tls = std::move(tls);
  site.state = options.state;
  site.run_later = [this](std::function<void()> work) { return run_later(std::move(work)); };
  site.on_finished = [this](const FinishedRequest& request) { finished(request); };
  site.log = options.log;
}

Status Server::Impl::set_up(std::vector<Route> routes, std::vector<Route> admin_routes) {
  if (auto status = check(options); !status) return status;
  auto keys = KeyRing::create(options.api_keys, "--api-key");
  if (!keys) return keys.error();
  std::shared_ptr<TlsContext> tls;
  if (!options.tls_certificate.empty()) {
    auto loaded = TlsContext::load(options.tls_certificate, options.tls_key);
    if (!loaded) return loaded.error();
    tls = *loaded;
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  }
  for (int i = 0; i < options.io_threads; ++i) loops.push_back(std::make_unique<Loop>());
  asio::io_context& io = loops[0]->io();
  auto endpoint = resolve(io, options.host, options.port, "--host", "--port");
  if (!endpoint) return endpoint.error();
  clients = std::make_unique<Listener>(io);
  fill(*clients->site, std::move(routes), std::move(*keys), tls);
  if (auto status = listen(clients->acceptor, *endpoint, "--port"); !status) return status;
  if (options.admin_port) {
    auto admin_keys = KeyRing::create({options.admin_key}, "--admin-key");
    if (!admin_keys) return admin_keys.error();
    auto admin_endpoint = resolve(io, options.admin_host, *options.admin_port, "--admin-host", "--admin-port");
    if (!admin_endpoint) return admin_endpoint.error();
    admin = std::make_unique<Listener>(io);
    fill(*admin->site, std::move(admin_routes), std::move(*admin_keys), tls);
    if (auto status = listen(admin->acceptor, *admin_endpoint, "--admin-port"); !status) return status;
  }
  const int64_t allowed = connections_allowed(options.connections_max);
  if (allowed < options.connections_max)
    log(LogLevel::kWarning, fmt::format("the limit on open files allows {} connections instead of {}; raise it with 'ulimit -n'",
                                        allowed, options.connections_max));
  options.connections_max = allowed;
  if (options.api_keys.empty() && !endpoint->address().is_loopback())
    log(LogLevel::kWarning, fmt::format("{} is open to everybody who reaches it; --api-key would close it", options.host));
  return {};
}

void Server::Impl::complain(const std::string& line) {
  const auto now = Clock::now();
  if (now - complained < kComplaintPause) return;
  complained = now;
  log(LogLevel::kWarning, line);
}

void Server::Impl::accept(Listener& listener) {
  Loop& loop = *loops[next_loop++ % loops.size()];
  listener.acceptor.async_accept(loop.io(), [this, &listener, &loop](const error_code& code, tcp::socket socket) {
    if (!listener.acceptor.is_open()) return;  // draining or stopped
    if (!code) {
      accepted(listener, loop, std::move(socket));
      return accept(listener);
    }
    if (code == asio::error::connection_aborted) return accept(listener);
    complain(fmt::format("a connection could not be accepted: {}", code.message()));
    listener.pause.expires_after(kAcceptPause);
    listener.pause.async_wait([this, &listener](const error_code& cancelled) {
      if (!cancelled && listener.acceptor.is_open()) accept(listener);
    });
  });
}

void Server::Impl::accepted(Listener& listener, Loop& loop, tcp::socket socket) {
  if (options.state->connections.load() >= options.connections_max) {
    ++options.state->connections_refused;
    return complain(fmt::format("a connection was refused: there are {} already", options.connections_max));
  }
  auto handed = std::make_shared<tcp::socket>(std::move(socket));
  loop.post([handed, site = listener.site, &loop] {
    if (!site->draining->load()) loop.add(std::move(*handed), site);
  });
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { stop(); }

Result<std::unique_ptr<Server>> Server::create(ServerOptions options, std::vector<Route> routes,
                                               std::vector<Route> admin_routes) {
  try {
    auto impl = std::make_unique<Impl>(std::move(options));
    if (auto status = impl->set_up(std::move(routes), std::move(admin_routes)); !status) return status.error();
    return std::unique_ptr<Server>(new Server(std::move(impl)));
  } catch (const std::exception& exception) {
    return resource_exhausted("the system refuses what a server needs: {}", exception.what());
  }
}

int Server::port() const { return impl_->clients->acceptor.is_open() ? impl_->clients->acceptor.local_endpoint().port() : 0; }

std::optional<int> Server::admin_port() const {
  if (impl_->admin == nullptr) return std::nullopt;
  return impl_->admin->acceptor.local_endpoint().port();
}

void Server::start() {
  CHECK(!impl_->started);
  impl_->started = true;
  impl_->accept(*impl_->clients);
  if (impl_->admin != nullptr) impl_->accept(*impl_->admin);
  for (const auto& loop : impl_->loops) loop->start();
}

void Server::open(std::vector<Route> routes, std::vector<Route> admin_routes) {
  CHECK(impl_->options.loading);
  impl_->options.loading = false;
  impl_->clients->site->routes = RouteTable(std::move(routes));
  impl_->clients->site->loading = false;
  if (impl_->admin == nullptr) return;
  impl_->admin->site->routes = RouteTable(std::move(admin_routes));
  impl_->admin->site->loading = false;
}

int64_t Server::drain(double limit_s) {
  Impl& impl = *impl_;
  CHECK(impl.started);
  if (impl.stopped) return 0;
  Site* const site = impl.clients->site.get();
  impl.options.state->draining = true;
  *site->draining = true;
  impl.loops[0]->post([&impl] {
    error_code code;
    impl.clients->acceptor.close(code);
  });
  const auto everywhere = [&](void (Connection::*what)()) {
    for (const auto& loop : impl.loops) {
      loop->post([&loop = *loop, site, what] {
        loop.for_each([site, what](Connection& connection) {
          if (&connection.site() == site) (connection.*what)();
        });
      });
    }
  };
  everywhere(&Connection::close_if_idle);
  const auto deadline = Clock::now() + std::chrono::duration<double>(limit_s);
  while (site->connections.load() > 0 && Clock::now() < deadline) std::this_thread::sleep_for(kDrainPoll);
  const int64_t left = site->connections.load();
  if (left > 0) everywhere(&Connection::break_off);
  while (site->connections.load() > 0) std::this_thread::sleep_for(kDrainPoll);
  return left;
}

void Server::stop() {
  Impl& impl = *impl_;
  if (!impl.started || impl.stopped) return;
  impl.stopped = true;
  *impl.clients->site->draining = true;
  std::atomic<bool> closed{false};
  impl.loops[0]->post([&] {
    error_code code;
    for (Listener* listener : {impl.clients.get(), impl.admin.get()}) {
      if (listener == nullptr) continue;
      listener->acceptor.close(code);
      listener->pause.cancel();
    }
    closed = true;
    closed.notify_one();
  });
  closed.wait(false);
  // Connections first: their handlers learn that nobody waits. Then the workers end, whose replies go nowhere by now.
  for (const auto& loop : impl.loops) loop->stop();
  impl.workers.join();
}

std::string access_line(const FinishedRequest& finished) {
  std::string target = finished.target.substr(0, kLoggedTargetMax);
  std::replace_if(target.begin(), target.end(), [](char c) { return c <= ' ' || c >= 0x7f || c == '"'; }, '?');
  constexpr std::string_view kEnds[] = {"", " disconnected", " cut", " abandoned"};
  return fmt::format("{} \"{} {}\" {} {}B {:.1f}ms id={}{}", finished.peer, finished.method.empty() ? "-" : finished.method,
                     target.empty() ? "-" : target, finished.status, finished.bytes, finished.seconds * 1e3, finished.id,
                     kEnds[static_cast<size_t>(finished.end)]);
}

}  // namespace perigee::serve
