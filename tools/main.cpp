// The `batten` command: parses the command line, runs one verb, and turns every failure into one
// line on stderr and an exit code.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <batten/batten.hpp>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "support/command_line.hpp"
#include "support/console.hpp"
#include "support/exit_code.hpp"
#include "support/help.hpp"
#include "support/interrupt.hpp"
#include "support/revision.hpp"
#include "support/suggest.hpp"
#include "verbs.hpp"

namespace batten::tools {
namespace {

constexpr const char* kFooter = R"(
Examples:
  batten info
  batten attend qkv.safetensors -o out.safetensors --verify
  batten verify --quick
  batten bench --batch-size 1 4 --query-length 256 --kv-length 4096 --num-heads 12 --num-kv-heads 4
  batten explain --gpu h200 --shape 4,128,4096,12,4
  batten tune
  batten wan bench --preset t2v-1.3b --size 480p --random-weights

`batten VERB --help` explains a verb's options. Results go to stdout or to files, messages to stderr.

Exit codes: 0 fine, 2 wrong command line, 3 bad input, 4 device or library not available (or it does
not serve the call), 5 verification failed, 130 interrupted, 1 a fault of batten's own.

Environment: BATTEN_BACKEND, BATTEN_NUM_THREADS, BATTEN_LOG_LEVEL, NO_COLOR.)";

const std::vector<std::string> kLogLevels{"debug", "info", "warning", "error", "off"};

// "wan bench": without the command's own name.
std::string full_name(const CLI::App& verb) {
  const std::string name = verb_name(verb);
  return name.substr(name.find(' ') + 1);
}

// Option names of `app` for suggestions.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What CLI11 did not recognise, said so that the reader knows what to type.
std::string describe_extras(const CLI::App& app, const CLI::App& verb) {
  std::string text;
  for (const std::string& extra : app.remaining(true)) {
    const std::string name = extra.substr(0, extra.find('='));
    const bool option = name.starts_with('-');
    const std::string meant = option ? nearest_word(name, option_names(verb)) : "";
    text += fmt::format("{}{} '{}'", text.empty() ? "" : ", ",
                        option ? "unknown option" : "unexpected argument", name);
    if (!meant.empty()) text += fmt::format(" (did you mean {}?)", meant);
    if (option) break;  // what follows are most likely its values
  }
  return text;
}

// "info, attend or tune"
std::string verb_names(const CLI::App& group) {
  const std::vector<const CLI::App*> verbs =
      group.get_subcommands([](const CLI::App*) { return true; });
  std::string text;
  for (std::size_t i = 0; i < verbs.size(); ++i) {
    text += i == 0 ? "" : i + 1 == verbs.size() ? " or " : ", ";
    text += verbs[i]->get_name();
  }
  return text;
}

// `group` is the command itself or a verb that has verbs.
std::string describe_missing_verb(const CLI::App& app, const CLI::App& group) {
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty()) return "a verb is missing: " + verb_names(group);
  if (words.front().starts_with('-')) return describe_extras(app, group);
  std::vector<std::string> known;
  for (const CLI::App* verb : group.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(verb->get_name());
  const std::string meant = nearest_word(words.front(), known);
  return fmt::format("unknown verb '{}'{}, expected {}", words.front(),
                     meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant),
                     verb_names(group));
}

// The verbs on the Wan transformer.
Verb add_wan(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("wan", "Denoise videos with a Wan transformer, and time it");
  app->require_subcommand(1);
  app->footer(R"(
Examples:
  batten wan denoise --model Wan2.1-T2V-1.3B-Diffusers --prompt-embeds prompt.safetensors -o out.safetensors
  batten wan bench --preset t2v-1.3b --size 480p --random-weights)");
  return {app, {}, {add_wan_denoise(*app), add_wan_bench(*app)}};
}

int usage_error(const Console& console, const std::string& text) {
  const std::string verb = console.verb().empty() ? "" : " " + console.verb();
  console.error(fmt::format("{}; see `batten{} --help`", one_line(text), verb));
  return kExitUsage;
}

// Help and version, or a mistake in the command line.
int handle_parse_error(const CLI::App& app, const CLI::App& verb, const CLI::ParseError& error,
                       const Console& console) {
  if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) {
    fmt::print("batten {} ({})\n", batten_version(), git_revision());
    return kExitOk;
  }
  if (dynamic_cast<const CLI::Success*>(&error) != nullptr) {
    fmt::print("{}", app.help());
    return kExitOk;
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    return usage_error(console, describe_extras(app, verb));
  const bool group = verb.get_require_subcommand_min() > 0;
  if (group && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    return usage_error(console, describe_missing_verb(app, verb));
  return usage_error(console, error.what());
}

// Runs `action`; every exception becomes one line and an exit code.
template <class Action>
int guarded(const Console& console, Action action) {
  try {
    return action();
  } catch (const UsageError& error) {
    return usage_error(console, error.what());
  } catch (const Interrupted&) {
    console.error("interrupted; nothing was written");
    return kExitInterrupted;
  } catch (const Error& error) {
    console.error(error.what());
    return exit_code_of(error.code());
  } catch (const std::bad_alloc&) {
    console.error("out of memory; use smaller tensors or a machine with more memory");
    return kExitUnavailable;
  } catch (const std::exception& error) {
    console.error(fmt::format("internal fault: {}; please report it", error.what()));
    return kExitInternal;
  }
}

int run(int argc, char** argv) {
  CLI::App app("Attention for a whole batch in one call.", "batten");
  std::string log_level;
  app.set_version_flag("--version", "", "Print the version and exit");
  app.require_subcommand(1);
  app.footer(kFooter);
  const auto formatter = std::make_shared<HelpFormatter>();
  app.formatter(formatter);

  const std::array<Verb, 7> verbs{add_info(app),  add_attend(app),  add_verify(app),
                                  add_bench(app), add_explain(app), add_tune(app),
                                  add_wan(app)};
  // The global options may stand before or after the verb, and every verb's help shows them.
  const auto add_globals = [&log_level](CLI::App& target) {
    target.set_help_flag("-h,--help", "Print this help and exit");
    target
        .add_option("--log-level", log_level,
                    "Messages on stderr: debug, info, warning, error, off [BATTEN_LOG_LEVEL, else "
                    "warning]")
        ->type_name("LEVEL")
        ->check(CLI::IsMember(kLogLevels).description(""));
  };
  add_globals(app);
  const auto add_verb = [&](const Verb& verb) {
    verb.app->group("Verbs");
    add_globals(*verb.app);
    // Of an option that is given twice the last counts, so that an alias can be overruled.
    for (CLI::Option* option : verb.app->get_options({})) {
      if (option->get_expected_min() == 1 && option->get_expected_max() == 1)
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  };
  for (const Verb& verb : verbs) {
    add_verb(verb);
    for (const Verb& inner : verb.verbs) add_verb(inner);
  }

  Console console;
  const auto chosen = [&]() -> const Verb* {
    for (const Verb& verb : verbs) {
      if (!app.got_subcommand(verb.app)) continue;
      for (const Verb& inner : verb.verbs) {
        if (verb.app->got_subcommand(inner.app)) return &inner;
      }
      return &verb;
    }
    return nullptr;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const Verb* verb = chosen();
    if (verb != nullptr) console.set_verb(full_name(*verb->app));
    return handle_parse_error(app, verb != nullptr ? *verb->app : app, error, console);
  }

  const Verb& verb = *chosen();
  console.set_verb(full_name(*verb.app));
  if (log_level.empty()) {
    // The library has read the variable itself, and says so if it holds no level.
    const char* variable = std::getenv("BATTEN_LOG_LEVEL");
    if (variable != nullptr) static_cast<void>(console.set_level(variable));
  } else {
    static_cast<void>(console.set_level(log_level));
  }
  return guarded(console, [&] {
    const int code = verb.run(console);
    // A full disk under stdout must not pass for success.
    finish_stdout();
    return code;
  });
}

}  // namespace
}  // namespace batten::tools

int main(int argc, char** argv) {
  using batten::tools::Console;
  batten::tools::install_interrupt_handler();
  return batten::tools::guarded(Console(), [&] { return batten::tools::run(argc, argv); });
}
