// The C ABI: copies the caller's structs into known ones, turns exceptions into status codes.
#include <batten/batten.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "core/error.hpp"
#include "core/log.hpp"
#include "dispatch/attention.hpp"
#include "dispatch/explain.hpp"
#include "dispatch/info.hpp"
#include "dispatch/workspace.hpp"
#include "merge/merge.hpp"

struct batten_attention {
  batten::impl::Attention attention;
};

namespace {

using batten::Error;
using batten::ErrorCode;
using batten::fail;

thread_local std::string last_error;

int remember(ErrorCode code, const char* message) noexcept {
  try {
    last_error = batten::impl::one_line(message);
  } catch (...) {  // no memory for the text; the code still tells
    last_error.clear();
  }
  return static_cast<int>(code);
}

template <class Body>
int guarded(Body&& body) noexcept {
  try {
    last_error.clear();
    body();
    return BATTEN_OK;
  } catch (const Error& e) {
    return remember(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return remember(ErrorCode::OutOfMemory, "out of host memory");
  } catch (const std::exception& e) {
    return remember(ErrorCode::Internal, e.what());
  } catch (...) {
    return remember(ErrorCode::Internal, "unknown failure");
  }
}

template <class T>
void require(const T* pointer, const char* name) {
  if (pointer == nullptr) fail(ErrorCode::InvalidArgument, "{}: null pointer", name);
}

// A struct_size outside of these was never set.
constexpr std::size_t kSmallestStruct = 2 * sizeof(std::size_t);
constexpr std::size_t kLargestStruct = 4096;

void check_struct_size(std::size_t size, const char* name) {
  if (size < kSmallestStruct || size > kLargestStruct) {
    fail(ErrorCode::InvalidArgument, "{}: struct_size is {}, set it to sizeof({})", name, size,
         name);
  }
}

// The caller's struct as this library knows it: members that an older caller lacks are zero, and
// those that a newer one has must be.
template <class T>
T known(const T& raw, const char* name) {
  const std::size_t size = raw.struct_size;
  check_struct_size(size, name);
  T copy{};
  std::memcpy(&copy, &raw, std::min(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(&raw);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      fail(ErrorCode::Unsupported, "{}: sets a member that batten {} does not know", name,
           batten_version());
    }
  }
  copy.struct_size = sizeof(T);
  return copy;
}

void copy_text(const std::string& text, char* target, std::size_t capacity, std::size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (target == nullptr || capacity == 0) return;
  const std::size_t n = std::min(text.size(), capacity - 1);
  std::memcpy(target, text.data(), n);
  target[n] = '\0';
}

}  // namespace

extern "C" {

const char* batten_last_error(void) { return last_error.c_str(); }

const char* batten_status_name(int status) {
  if (status == BATTEN_OK) return "Ok";
  return batten::name_of(static_cast<ErrorCode>(status));
}

int batten_attention_create(const batten_problem* problem, batten_device device,
                            const batten_options* options, batten_attention** out) {
  return guarded([&] {
    require(out, "out");
    *out = nullptr;
    require(problem, "problem");
    batten_options known_options{};
    if (options != nullptr) known_options = known(*options, "batten_options");
    *out = new batten_attention{batten::impl::Attention(
        known(*problem, "batten_problem"),
        {static_cast<batten::DeviceType>(device.type), device.index}, known_options)};
  });
}

void batten_attention_destroy(batten_attention* attention) { delete attention; }

int batten_prepare(batten_attention* attention, const batten_call* call, uint64_t* workspace_size) {
  return guarded([&] {
    require(attention, "attention");
    require(call, "call");
    const std::size_t bytes = attention->attention.prepare(known(*call, "batten_call"));
    if (workspace_size != nullptr) *workspace_size = bytes;
  });
}

int batten_forward(batten_attention* attention, const batten_call* call, batten_receipt* receipt) {
  return guarded([&] {
    require(attention, "attention");
    require(call, "call");
    if (receipt != nullptr) check_struct_size(receipt->struct_size, "batten_receipt");
    attention->attention.forward(known(*call, "batten_call"), receipt);
  });
}

int batten_merge(const batten_tensor* out, const batten_tensor* lse, const batten_tensor* out2,
                 const batten_tensor* lse2, void* stream) {
  return guarded([&] {
    require(out, "out");
    require(lse, "lse");
    require(out2, "out2");
    require(lse2, "lse2");
    batten::impl::merge(*out, *lse, *out2, *lse2, stream);
  });
}

int batten_info(char* json, size_t capacity, size_t* needed) {
  return guarded([&] { copy_text(batten::impl::info_json(), json, capacity, needed); });
}

int batten_explain(const batten_problem* problem, batten_device device,
                   const batten_options* options, const batten_call* call, const char* card,
                   char* json, size_t capacity, size_t* needed) {
  return guarded([&] {
    require(problem, "problem");
    require(call, "call");
    batten_options known_options{};
    if (options != nullptr) known_options = known(*options, "batten_options");
    copy_text(
        batten::impl::explain_json(known(*problem, "batten_problem"),
                                   {static_cast<batten::DeviceType>(device.type), device.index},
                                   known_options, known(*call, "batten_call"), card),
        json, capacity, needed);
  });
}

void batten_set_log_callback(batten_log_callback callback, void* user) {
  batten::impl::set_log_callback(callback, user);
}

void batten_set_log_level(int level) { batten::impl::set_log_level(level); }

int batten_set_allocator(batten_alloc_fn alloc, batten_free_fn free, void* user) {
  return guarded([&] {
    if ((alloc == nullptr) != (free == nullptr)) {
      fail(ErrorCode::InvalidArgument, "allocator: give both functions, or neither");
    }
    batten::impl::WorkspacePool::instance().set_allocator(alloc, free, user);
  });
}

int batten_trim(void) {
  return guarded([] { batten::impl::WorkspacePool::instance().trim(); });
}

}  // extern "C"
