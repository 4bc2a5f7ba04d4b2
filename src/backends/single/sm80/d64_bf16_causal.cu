#include "backends/single/sm80/instance.cuh"

template batten::impl::single::Instance
batten::impl::single::sm80_instance<batten::DType::bf16, 64, true>();
