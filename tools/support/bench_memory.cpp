#include "support/bench_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "support/bench_inputs.hpp"
#include "support/memory.hpp"

namespace batten::tools {
namespace {

// Bytes of an element on its way through --check: the inputs and the output as they were, in fp32,
// and the reference's output.
constexpr double kCheckedBytes = 8;

struct Need {
  BenchCase shape;
  double bytes = 0;
};

double on_device(const BenchOptions& o, const BenchCase& shape, Device device) {
  return bytes_of(o, shape) * static_cast<double>(number_of_sets(o, shape, device));
}

double on_host(const BenchOptions& o, const BenchCase& shape, Device device) {
  const auto element = static_cast<double>(size_of(o.dtype));
  const double largest = std::max(elements_of(o, shape.batch, shape.q, o.num_heads),
                                  elements_of(o, shape.batch, shape.kv, o.num_kv_heads));
  const double tensors = device.is_cpu() ? on_device(o, shape, device) : largest * element;
  return tensors + (o.check ? kCheckedBytes * bytes_of(o, shape) / element : 0);
}

template <class Bytes>
void check(const BenchOptions& o, const std::vector<BenchCase>& cases, Device place,
           const Bytes& bytes) {
  const auto available = available_bytes(place);
  if (!available) return;
  Need most;
  for (const BenchCase& shape : cases) {
    if (const double needed = bytes(shape); needed > most.bytes) most = {shape, needed};
  }
  if (most.bytes <= *available) return;
  fail(ErrorCode::OutOfMemory,
       "batch {} q {} kv {}: the tensors need {} on {}, where {} are free; lower "
       "{}--batch-size, --query-length or --kv-length",
       most.shape.batch, most.shape.q, most.shape.kv, bytes_text(most.bytes), place.str(),
       bytes_text(*available), o.sets > 1 ? "--sets, " : "");
}

}  // namespace

void check_memory(const BenchOptions& o, const std::vector<BenchCase>& cases, Device device) {
  if (!device.is_cpu()) {
    check(o, cases, device, [&](const BenchCase& shape) { return on_device(o, shape, device); });
  }
  check(o, cases, Device::cpu(), [&](const BenchCase& shape) { return on_host(o, shape, device); });
}

}  // namespace batten::tools
