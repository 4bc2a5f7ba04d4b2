// Running a prepared cuDNN graph, and what batten does before and after it.
#pragma once

#include <memory>
#include <string>

#include "backends/backend.hpp"
#include "backends/cudnn/graph.hpp"
#include "backends/cudnn/rules.hpp"
#include "backends/cudnn/sample.hpp"

namespace batten::impl::cudnn {

// A plan over a graph. `key` is plan_key()'s answer.
std::shared_ptr<const Plan> make_graph_plan(const Problem& problem, const Shape& key, Form form,
                                            int device, std::unique_ptr<const Graph> graph,
                                            std::string library);

// The plan of calls without any key: it writes zeros.
std::shared_ptr<const Plan> make_trivial_plan(const Problem& problem, std::string library);

}  // namespace batten::impl::cudnn
