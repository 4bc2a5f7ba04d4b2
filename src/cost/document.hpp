// Constants of a card as a JSON document, as `batten tune` writes it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cost/card.hpp"

namespace batten::impl::cost {

// {"format": "batten card", "version": 1,
//  "card": {"name": "NVIDIA H200", "arch": 90, "multiprocessors": 132, "clock_mhz": 1980,
//           "memory_gbps": 4800},
//  "origin": {"date": "...", ...},
//  "kernels": [{"kernel": "native", "head_dim": 128, "causal": false, "launch_us": 2.1, ...}],
//  "measured": [{"dtype": "bfloat16", "mask": "none", "batch_size": 4, "query_length": 128,
//                "kv_length": 4096, "num_heads": 12, "num_kv_heads": 4, "head_size": 128,
//                "us": {"native": 21.3, "cudnn": 53.9}}]}
struct Document {
  CardProperties card;
  std::vector<std::pair<std::string, std::string>> origin;  // free texts: date, command, versions
  std::vector<Constants> kernels;
  std::vector<Measured> measured;

  friend bool operator==(const Document&, const Document&) = default;
};

// The numbers of Constants by name, for documents and tables.
struct ConstantMember {
  const char* name;
  double Constants::*member;
};
inline constexpr ConstantMember kConstantMembers[] = {{"launch_us", &Constants::launch_us},
                                                      {"tile_us", &Constants::tile_us},
                                                      {"block_us", &Constants::block_us},
                                                      {"part_us", &Constants::part_us},
                                                      {"merge_us", &Constants::merge_us},
                                                      {"tflops", &Constants::tflops},
                                                      {"gbps", &Constants::gbps}};

inline constexpr int kDocumentVersion = 1;

// Throws Error{InvalidArgument} with what is wrong and where: no JSON, another format or version, a
// member that is missing, of the wrong type or out of range, a kernel or call that stands twice.
Document parse_document(std::string_view text);

std::string to_json(const Document& document);

}  // namespace batten::impl::cost
