// Running a prepared cuDNN graph, and what batten does before and after it.
#pragma once

#include <memory>
#include <string>

#include "backends/backend.hpp"
#include "backends/cudnn/graph.hpp"
#include "backends/cudnn/rules.hpp"
#include "backends/cudnn/sample.hpp"

namespace batten::impl::cudnn {

// A plan over a graph. `key` is plan_key()'s answer. A plan that was captured keeps its graph for
// the rest of the process: the CUDA graph may be replayed after the plan cache let go of the plan.
std::shared_ptr<const Plan> make_graph_plan(const Problem& problem, const Shape& key, Form form,
                                            int device, std::shared_ptr<const Graph> graph,
                                            std::string library);

// The plan of calls without any key: it writes zeros.
std::shared_ptr<const Plan> make_trivial_plan(const Problem& problem, std::string library);

}  // namespace batten::impl::cudnn
