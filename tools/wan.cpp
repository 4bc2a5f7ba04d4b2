// `batten wan`: the group of verbs on the Wan transformer.
#include <CLI/CLI.hpp>
#include <string>

#include "support/exit_code.hpp"
#include "verbs.hpp"

namespace batten::tools {

Verb add_wan(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("wan", "Denoise videos with a Wan transformer, and time it");
  app->require_subcommand(1);
  app->footer(R"(
Examples:
  batten wan denoise --model Wan2.1-T2V-1.3B-Diffusers --prompt-embeds prompt.safetensors -o latents.safetensors
  batten wan bench --preset t2v-1.3b --size 480p --random-weights)");
  return {app, {}, {add_wan_denoise(*app), add_wan_bench(*app)}};
}

}  // namespace batten::tools
