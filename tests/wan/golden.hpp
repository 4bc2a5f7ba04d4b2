// Runs a golden model (scripts/make_wan_golden.py) on a device and compares with what diffusers
// made.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "wan/ops.hpp"

namespace batten::wan {

// The folder with the golden files: BATTEN_WAN_GOLDEN, else the source tree's.
std::string golden_folder();

const std::vector<std::string>& golden_models();

std::vector<float> floats_of(const io::TensorEntry& tensor);

struct GoldenErrors {
  // |got - expected| / |expected| of "output" and of each tap.
  std::map<std::string, double> relative;
  // Of the largest element, over the root mean square.
  std::map<std::string, double> largest;
};

// Three steps: one tapped, then two more, of which a GPU records the second. Expects the same bits
// of all.
GoldenErrors run_golden(Ops& ops, const std::string& model, DType dtype,
                        const std::string& backend);

// Every error within `bound`, and every value that diffusers recorded compared.
void expect_golden(Ops& ops, const std::string& model, DType dtype, const std::string& backend,
                   double bound);

// Four steps of guidance on denoise.safetensors of a model, against diffusers' loop, within
// `bound`.
void expect_denoised(Ops& ops, const std::string& model, const std::string& scheduler,
                     const std::string& backend, bool cfg_batch, double bound);

}  // namespace batten::wan
