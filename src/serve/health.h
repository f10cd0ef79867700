// What    /health, /ready, /ping, /version and /load: whether the server, and the engine's thread behind it, live.
// Owner   serve.
// Threads Any; the backend may be given later than the routes, once a model is loaded.
// Errors  503 with a JSON body that says why.
// Source  Servers that answered 200 while their engine hung: health is the age of the engine's last beat.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "serve/routes.h"
#include "serve/server_state.h"

namespace perigee::serve {

// The engine beats every 0.2 s, idle or not, and several times within a step: so much silence means that it hangs.
inline constexpr double kBeatAgeMax_s = 1.5;

class Health {
 public:
  Health(std::string version, std::shared_ptr<ServerState> state) : version_(std::move(version)), state_(std::move(state)) {}

  // The backend must outlive the server. Before this call the answer is "loading".
  void set_backend(const engine::Backend* backend) { backend_.store(backend); }

  // Why not, or nothing.
  std::string trouble() const;    // alive and taking requests
  std::string not_ready() const;  // the same, and loaded and not paused

  // All are open to everybody, except for /load.
  static std::vector<Route> routes(const std::shared_ptr<Health>& self);

 private:
  std::string load() const;

  const std::string version_;
  const std::shared_ptr<ServerState> state_;
  std::atomic<const engine::Backend*> backend_{nullptr};
};

}  // namespace perigee::serve
