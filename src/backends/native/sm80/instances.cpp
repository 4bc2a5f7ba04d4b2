#include "backends/native/sm80/instances.hpp"

#include <fmt/format.h>

#include <utility>

#include "backends/native/sm80/instance_of.hpp"

namespace batten::impl::native::sm80 {
namespace {

#if BATTEN_NATIVE_SM80
template <std::size_t... index>
Instance find(DType dtype, const Configuration& configuration, std::index_sequence<index...>) {
  Instance found;
  const auto take_if = [&]<int i>(std::integral_constant<int, i>) {
    if (kConfigurations[i] != configuration) return;
    if (dtype == DType::bf16) found = instance_of<DType::bf16, i>();
    if (dtype == DType::f16) found = instance_of<DType::f16, i>();
  };
  (take_if(std::integral_constant<int, static_cast<int>(index)>()), ...);
  return found;
}
#else
template <std::size_t... index>
Instance find(DType, const Configuration&, std::index_sequence<index...>) {
  return {};
}
#endif

}  // namespace

Instance find_instance(DType dtype, const Configuration& configuration) {
  Instance i = find(dtype, configuration, std::make_index_sequence<kNumConfigurations>());
  i.kernel = fmt::format("sm80 d{} {}", i.head_dim, name_of(dtype));
  i.tile = configuration.tile();
  return i;
}

}  // namespace batten::impl::native::sm80
