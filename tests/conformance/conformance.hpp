// The conformance suite of batten as a library: design §2 as data, judged against `reference`.
//
//   for (const Served& row : served_backends()) {
//     BackendSubject subject(row.name, device);
//     for (const Case& one : cases(Set::quick, row, device.type))
//       report(run_case(one, subject));
//   }
//
// To judge an output of your own: make_inputs or your own Inputs, compute_expected, check_bounds.
#pragma once

#include "bounds.hpp"         // IWYU pragma: export
#include "cases.hpp"          // IWYU pragma: export
#include "contents.hpp"       // IWYU pragma: export
#include "device_memory.hpp"  // IWYU pragma: export
#include "device_tensor.hpp"  // IWYU pragma: export
#include "expected.hpp"       // IWYU pragma: export
#include "geometry.hpp"       // IWYU pragma: export
#include "half.hpp"           // IWYU pragma: export
#include "random.hpp"         // IWYU pragma: export
#include "runner.hpp"         // IWYU pragma: export
#include "served.hpp"         // IWYU pragma: export
#include "subject.hpp"        // IWYU pragma: export
