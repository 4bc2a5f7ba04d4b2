#include "backends/single/sm90/instance.cuh"

template batten::impl::single::Instance
batten::impl::single::sm90_instance<batten::DType::f16, 128, false>();
