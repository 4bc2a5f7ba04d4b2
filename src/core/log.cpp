#include "core/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/env.hpp"
#include "core/error.hpp"

namespace batten::impl {
namespace {

spdlog::level::level_enum spdlog_level(int level) {
  switch (level) {
    case BATTEN_LOG_DEBUG:
      return spdlog::level::debug;
    case BATTEN_LOG_INFO:
      return spdlog::level::info;
    case BATTEN_LOG_WARNING:
      return spdlog::level::warn;
    case BATTEN_LOG_ERROR:
      return spdlog::level::err;
    default:
      return spdlog::level::off;
  }
}

std::optional<int> parse_level(const std::string& text) {
  if (text == "debug") return BATTEN_LOG_DEBUG;
  if (text == "info") return BATTEN_LOG_INFO;
  if (text == "warning") return BATTEN_LOG_WARNING;
  if (text == "error") return BATTEN_LOG_ERROR;
  if (text == "off") return BATTEN_LOG_OFF;
  return std::nullopt;
}

struct Logger {
  std::atomic<int> level{BATTEN_LOG_WARNING};
  std::mutex mutex;  // guards callback and user
  batten_log_callback callback = nullptr;
  void* user = nullptr;
  // A logger of our own, outside spdlog's registry: the host program may use spdlog too.
  spdlog::logger output{"batten", std::make_shared<spdlog::sinks::stderr_sink_mt>()};

  Logger() {
    output.set_level(spdlog::level::trace);
    output.set_pattern("[batten] [%l] %v");
    const auto text = environment("BATTEN_LOG_LEVEL");
    if (!text) return;
    if (const auto parsed = parse_level(*text)) {
      level = *parsed;
    } else {
      output.warn("BATTEN_LOG_LEVEL={}: expected debug, info, warning, error or off",
                  one_line(*text));
    }
  }
};

// Never destroyed: backends may log from destructors that run at exit.
Logger& logger() {
  static auto* instance = new Logger;
  return *instance;
}

}  // namespace

bool log_enabled(batten_log_level level) noexcept {
  return level >= logger().level.load(std::memory_order_relaxed) && level < BATTEN_LOG_OFF;
}

void log_line(batten_log_level level, const std::string& message) noexcept {
  if (!log_enabled(level)) return;
  try {
    const std::string line = one_line(message);
    Logger& log = logger();
    std::unique_lock lock(log.mutex);
    if (log.callback != nullptr) {
      const auto callback = log.callback;
      void* user = log.user;
      lock.unlock();  // the callback may log, or replace itself
      callback(level, line.c_str(), user);
    } else {
      log.output.log(spdlog_level(level), line);
    }
  } catch (...) {  // a log line is never worth a failed call
  }
}

void set_log_callback(batten_log_callback callback, void* user) noexcept {
  Logger& log = logger();
  const std::lock_guard lock(log.mutex);
  log.callback = callback;
  log.user = user;
}

void set_log_level(int level) noexcept {
  logger().level =
      std::clamp(level, static_cast<int>(BATTEN_LOG_DEBUG), static_cast<int>(BATTEN_LOG_OFF));
}

}  // namespace batten::impl
