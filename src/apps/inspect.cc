// perigee inspect: what a model is and costs, from its configuration alone.
#include "apps/commands.h"
#include "apps/options.h"
#include "model/parameters.h"

namespace perigee::apps {

void add_inspect(CLI::App& program, int& status) {
  struct Flags {
    std::string model;
    bool json = false;
  };
  CLI::App* app = program.add_subcommand("inspect", "Kind, parameters and cache bytes of a model");
  auto flags = std::make_shared<Flags>();
  app->add_option("MODEL", flags->model, "checkpoint folder, or a config.json alone")->required();
  app->add_flag("--json", flags->json, "machine-readable output");
  app->callback([flags, &status] {
    const Result<model::Config> config = model::read_config(flags->model);
    if (!config.ok()) {
      status = report(config.error());
      return;
    }
    const model::Inspection inspection = model::inspect(*config);
    fmt::print("{}", flags->json ? model::inspect_json(inspection) : model::inspect_text(inspection));
  });
}

}  // namespace perigee::apps
