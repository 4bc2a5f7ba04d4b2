// `batten attend`: attention over tensors in a file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <batten/batten.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device_memory.hpp"
#include "half.hpp"
#include "io/safetensors.hpp"
#include "io/text.hpp"
#include "support/attend_input.hpp"
#include "support/compare.hpp"
#include "support/console.hpp"
#include "support/environment.hpp"
#include "support/exit_code.hpp"
#include "support/interrupt.hpp"
#include "support/options.hpp"
#include "support/output.hpp"
#include "support/receipt.hpp"
#include "verbs.hpp"

namespace batten::tools {
namespace {

// Above this the reference takes minutes on a CPU, and sampled rows are compared.
constexpr double kCompareSampleAboveFlops = 1e11;

struct AttendOptions {
  std::string input;
  std::string output;
  std::string backend;
  std::string device;
  std::string mask;
  std::optional<double> scale;
  std::string compare;
  int threads = 0;
  bool causal = false;
  bool lse = false;
  bool verify = false;
};

Mask mask_of(const AttendOptions& options) { return parse_mask(options.mask, options.causal); }

void check_usage(const AttendOptions& options) {
  static_cast<void>(mask_of(options));
  if (options.scale && !std::isfinite(*options.scale))
    throw UsageError(fmt::format("--scale: {} is not a finite number", *options.scale));
}

// The results would replace their own inputs.
void check_paths(const AttendOptions& options) {
  std::error_code error;
  const bool same = std::filesystem::equivalent(options.input, options.output, error) && !error;
  if (same || options.input == options.output) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("input and output are the same file '{}'; give -o another path",
                            io::printable_path(options.output)));
  }
}

class Attend {
 public:
  Attend(const AttendOptions& options, const Console& console)
      : options_(options), console_(console), input_(options.input) {}

  int run() {
    const LibraryInfo info = library_info();
    if (!options_.backend.empty()) check_backend_name("--backend", options_.backend, info);
    device_ = choose_device(options_.device, options_.backend, input_.dtype(), info);
    problem_ = {.dtype = input_.dtype(),
                .num_heads = input_.num_heads(),
                .num_kv_heads = input_.num_kv_heads(),
                .head_dim = input_.head_dim(),
                .head_dim_v = input_.head_dim_v(),
                .mask = mask_of(options_),
                .scale = options_.scale};
    const io::TensorEntry* recorded = find_recorded();
    prepare_output(options_.output);
    compute();
    throw_if_interrupted();
    print_call();
    bool good = true;
    if (options_.verify) good = verify() && good;
    throw_if_interrupted();
    if (recorded != nullptr) {
      // A recorded output that was not asked for may be of another mask or scale: it only informs.
      const bool agrees = compare(*recorded);
      if (!options_.compare.empty()) good = agrees && good;
    }
    if (!good) {
      console_.error(
          fmt::format("verification failed, '{}' was not written; try another --backend "
                      "and report it",
                      io::printable_path(options_.output)));
      return kExitVerificationFailed;
    }
    write();
    return kExitOk;
  }

 private:
  std::vector<std::int64_t> out_shape() const {
    return {input_.batch(), input_.q_rows(), input_.num_heads(), input_.head_dim_v()};
  }
  std::vector<std::int64_t> lse_shape() const {
    return {input_.batch(), input_.q_rows(), input_.num_heads()};
  }

  void compute() {
    Attention attention(problem_, device_,
                        {.backend = options_.backend, .num_threads = options_.threads});
    const LoadedTensor q(input_.q(), problem_.dtype, device_);
    const LoadedTensor k(input_.k(), problem_.dtype, device_);
    const LoadedTensor v(input_.v(), problem_.dtype, device_);
    const auto bytes = [](const std::vector<std::int64_t>& shape, DType dtype) {
      return static_cast<std::size_t>(*io::tensor_bytes(file_dtype_of(dtype), shape));
    };
    const conformance::DeviceMemory out(device_, bytes(out_shape(), problem_.dtype));
    const TensorView out_view(out.data(), problem_.dtype, out_shape(), {}, device_);
    conformance::DeviceMemory lse;
    CallOptions call;
    if (options_.lse) {
      lse = conformance::DeviceMemory(device_, bytes(lse_shape(), DType::f32));
      call.lse = TensorView(lse.data(), DType::f32, lse_shape(), {}, device_);
    }
    if (!input_.q_lengths().empty()) call.q_lengths = TensorView(input_.q_lengths());
    if (!input_.kv_lengths().empty()) call.kv_lengths = TensorView(input_.kv_lengths());

    attention.prepare(q.view(), k.view(), v.view(), out_view, call);
    const auto start = std::chrono::steady_clock::now();
    receipt_ = attention.forward(q.view(), k.view(), v.view(), out_view, call);
    conformance::synchronize(device_);
    milliseconds_ =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

    out_.resize(bytes(out_shape(), problem_.dtype));
    out.download(out_);
    if (options_.lse) {
      lse_.resize(bytes(lse_shape(), DType::f32));
      lse.download(lse_);
    }
  }

  void print_call() const {
    std::string mask = problem_.mask == Mask::none ? "no mask" : name_of(problem_.mask);
    if (problem_.scale) mask += fmt::format(", scale {}", *problem_.scale);
    if (!input_.q_lengths().empty() || !input_.kv_lengths().empty()) mask += ", lengths a sample";
    fmt::print("q {}, k and v {}, {}, {}, on {}: {:.4g} ms\n", shape_text(input_.q().shape),
               shape_text(input_.k().shape), name_of(problem_.dtype), mask, device_.str(),
               milliseconds_);
    fmt::print("receipt: {}\n", receipt_text(receipt_));
    std::fflush(stdout);
  }

  std::vector<float> out_values() const { return decode(out_, problem_.dtype); }
  std::vector<float> lse_values() const { return decode(lse_, DType::f32); }

  static std::vector<float> decode(const std::vector<std::byte>& bytes, DType dtype) {
    std::vector<float> values(bytes.size() / size_of(dtype));
    conformance::decode(dtype, bytes.data(), values);
    return values;
  }

  static std::string verdict(bool good) {
    return good ? paint(Color::green, "ok") : paint(Color::red, "FAILED");
  }

  // Against `reference` under both bounds.
  bool verify() const {
    if (input_.head_dim_v() != input_.head_dim()) {
      throw Error(
          ErrorCode::Unsupported,
          fmt::format("--verify needs v to have q's head dim, {}, but it has {}; run without it",
                      input_.head_dim(), input_.head_dim_v()));
    }
    const conformance::Case call =
        dense_case(problem_, input_.batch(), input_.q_rows(), input_.kv_rows(), input_.q_lengths(),
                   input_.kv_lengths());
    const conformance::Inputs inputs{.q = decode_values(input_.q()),
                                     .k = decode_values(input_.k()),
                                     .v = decode_values(input_.v())};
    const conformance::Oracle oracle = oracle_for(device_, kCompareSampleAboveFlops);
    const conformance::BoundsReport report =
        compare_with_reference(call, inputs, out_values(), lse_values(), oracle);
    fmt::print(
        "verify: relative error {:.2e} (bound {:.0e}), worst row at {:.2f} of its bound, {}{} rows "
        "against float64: {}\n",
        report.rel_error, conformance::epsilon_of(problem_.dtype), report.row.ratio(),
        report.sampled ? "sampled " : "", report.rows_compared, verdict(report.passed()));
    for (const conformance::Violation& violation : report.violations)
      fmt::print("verify: {}: {}\n", conformance::name_of(violation.check),
                 one_line(violation.what));
    return report.passed();
  }

  // The recorded output to compare with: the one that was named, or with --verify `out` if it fits.
  const io::TensorEntry* find_recorded() const {
    if (!options_.compare.empty()) {
      const io::TensorEntry& entry = input_.require(options_.compare);
      if (entry.shape != out_shape()) {
        throw Error(
            ErrorCode::InvalidArgument,
            fmt::format("'{}': tensor '{}' of shape {} is not the output's {}; name another "
                        "with --compare",
                        input_.file().source(), io::printable(options_.compare),
                        shape_text(entry.shape), shape_text(out_shape())));
      }
      return &entry;
    }
    const io::TensorEntry* entry = options_.verify ? input_.file().find("out") : nullptr;
    const bool fits =
        entry != nullptr && dtype_of(entry->dtype) != DType::none && entry->shape == out_shape();
    return fits ? entry : nullptr;
  }

  bool compare(const io::TensorEntry& recorded) const {
    const Agreement out = compare_values(out_values(), decode_values(recorded));
    const double bound = conformance::epsilon_of(problem_.dtype);
    const bool agrees = out.rel_error <= bound;
    std::string text =
        fmt::format("compare: with '{}' of the file, relative error {:.2e} (bound {:.0e})",
                    io::printable(recorded.name), out.rel_error, bound);
    const io::TensorEntry* lse = options_.lse ? input_.file().find("lse") : nullptr;
    if (lse != nullptr && dtype_of(lse->dtype) != DType::none && lse->shape == lse_shape()) {
      text += fmt::format(", lse within {:.1e}",
                          compare_values(lse_values(), decode_values(*lse)).largest);
    }
    fmt::print("{}: {}\n", text,
               agrees                     ? verdict(true)
               : options_.compare.empty() ? "differs"
                                          : verdict(false));
    return agrees;
  }

  void write() const {
    io::SafetensorsWriter writer;
    writer.add("out", file_dtype_of(problem_.dtype), out_shape(), out_);
    if (options_.lse) writer.add("lse", io::Dtype::kF32, lse_shape(), lse_);
    writer.set_metadata("batten", fmt::format("{}; {}", batten_version(), receipt_text(receipt_)));
    writer.write(options_.output);
    fmt::print("wrote {}: out {} {}", io::printable_path(options_.output), name_of(problem_.dtype),
               shape_text(out_shape()));
    if (options_.lse) fmt::print(", lse float32 {}", shape_text(lse_shape()));
    fmt::print("\n");
  }

  const AttendOptions& options_;
  const Console& console_;
  AttendInput input_;
  Device device_;
  Problem problem_;
  Receipt receipt_;
  double milliseconds_ = 0;
  std::vector<std::byte> out_, lse_;
};

int run_attend(const AttendOptions& options, const Console& console) {
  check_usage(options);
  check_paths(options);
  return Attend(options, console).run();
}

}  // namespace

Verb add_attend(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("attend", "Attend the tensors of a safetensors file");
  auto o = std::make_shared<AttendOptions>();
  app->add_option("IN", o->input,
                  "Tensors q [B,Sq,Hq,D], k and v [B,Skv,Hkv,D] (F32, F16 or BF16); optional "
                  "q_lengths, kv_lengths [B] (I32)")
      ->required()
      ->type_name("");
  app->add_option("-o,--output", o->output, "File to write: out in q's dtype, and lse if asked for")
      ->required()
      ->type_name("OUT");
  app->add_option(
         "--backend", o->backend,
         "auto, native, cudnn, single, cpu or reference; a form follows a colon: cudnn:packed "
         "[BATTEN_BACKEND, else auto]")
      ->type_name("NAME");
  app->add_option("--device", o->device, kDeviceHelp)->type_name("DEVICE");
  app->add_flag("--causal", o->causal, "Same as --mask causal");
  app->add_option("--mask", o->mask,
                  "none; causal: query i sees key j if j <= i + Skv - Sq (FlashAttention's rule); "
                  "causal-top-left: if j <= i (PyTorch's rule) [none]")
      ->type_name("MASK");
  app->add_option("--scale", o->scale, "Factor of q k' before the softmax [1/sqrt(D)]")
      ->type_name("X");
  app->add_flag("--lse", o->lse, "Write lse [B,Sq,Hq] too: the natural log of the softmax sums");
  app->add_flag(
      "--verify", o->verify,
      "Compare with the float64 reference under both error bounds; exit 5 and write nothing "
      "if one is exceeded");
  app->add_option("--compare", o->compare,
                  "Compare with a recorded output in IN of this name, likewise; --verify shows "
                  "the agreement with `out`, where there is one, in any case")
      ->type_name("TENSOR");
  add_threads_option(*app, o->threads, kThreadsHelp);
  app->footer(R"(
Examples:
  batten attend qkv.safetensors -o out.safetensors
  batten attend qkv.safetensors -o out.safetensors --causal --lse --verify
  batten attend qkv.safetensors -o out.safetensors --backend cudnn --device cuda:0
  batten attend examples/data/wan_self_attention.safetensors -o out.safetensors --compare out

Prints the call, its time and the receipt: which backend and kernel ran, and why.)");
  return {app, [o](const Console& console) { return run_attend(*o, console); }};
}

}  // namespace batten::tools
