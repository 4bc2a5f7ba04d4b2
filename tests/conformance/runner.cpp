#include "runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "device_tensor.hpp"
#include "operands.hpp"

namespace batten::conformance {
namespace {

constexpr int kRepeats = 3;
// Watched bytes past the caller's scratch, and what they hold.
constexpr std::size_t kScratchCanary = 256;
constexpr std::byte kScratchFill{0xa5};

TensorView without_data(const TensorView& view) {
  std::vector<std::int64_t> shape, strides;
  for (int i = 0; i < view.ndim(); ++i) {
    shape.push_back(view.shape(i));
    strides.push_back(view.stride(i));
  }
  const batten_device device = view.raw().device;
  return {nullptr, view.dtype(), shape, strides,
          Device{static_cast<DeviceType>(device.type), device.index}};
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// One attempt at a case with one kind of garbage in the padding.
class Attempt {
 public:
  Attempt(PreparedCase& prepared, Subject& subject, Garbage garbage, CaseResult& result)
      : prepared_(prepared),
        one_(prepared.definition()),
        geometry_(prepared.geometry()),
        subject_(subject),
        garbage_(garbage),
        result_(result),
        inputs_(garbage == one_.garbage ? std::nullopt
                                        : std::optional(make_inputs(one_, geometry_, garbage))) {}

  // Throws batten::Error{Unsupported} when the subject refuses.
  void run() {
    subject_.construct(one_.problem);
    operands_.emplace(one_, geometry_, inputs(), garbage_, subject_.device(), one_.strides,
                      one_.lse);
    warm_up();
    switch (one_.flow) {
      case Flow::plain:
        forward(operands_->call());
        break;
      case Flow::prepared:
        run_prepared();
        break;
      case Flow::own_workspace:
        run_own_workspace();
        break;
      case Flow::repeated:
        run_repeated();
        break;
      case Flow::batch_invariant:
        run_alone();
        break;
      case Flow::merged:
        return run_merged();
    }
    finish();
    operands_->fetch();
    judge(operands_->out(), operands_->lse());
    operands_->check_written(result_.bounds);
    operands_->check_inputs(result_.bounds);
  }

  // After a refusal: whether anything was written before it.
  bool wrote_nothing() {
    if (!operands_ || forwards_ > 0) return true;
    finish();
    operands_->fetch();
    return operands_->untouched();
  }

 private:
  const Inputs& inputs() const { return inputs_ ? *inputs_ : prepared_.inputs(); }

  void finish() const { synchronize(subject_.device()); }

  void add(Check check, std::string what) { result_.bounds.add(check, std::move(what)); }

  void forward(const Call& call) {
    result_.receipt = subject_.forward(call);
    ++forwards_;
  }

  // A reference that refuses must not pass for a subject that does.
  const Expected& expected() {
    try {
      return prepared_.expected();
    } catch (const Error& error) {
      throw Error(ErrorCode::Internal, fmt::format("the reference: {}", error.what()));
    }
  }

  void judge(const std::vector<float>& out, const std::vector<float>& lse) {
    BoundsReport found = check_bounds(one_.problem, geometry_, expected(), out, lse, &one_);
    // What was found before the bounds were looked at stays.
    for (Violation& v : result_.bounds.violations) found.add(v.check, std::move(v.what));
    result_.bounds = std::move(found);
  }

  void warm_up() {
    if (one_.warmup == Warmup::none) return;
    Case other = one_;
    if (one_.warmup == Warmup::other_strides)
      other.strides =
          one_.strides == Strides::contiguous ? Strides::heads_first : Strides::contiguous;
    if (one_.warmup == Warmup::other_scale) other.call_scale = 3 * scale_of(one_) + 0.125;
    if (one_.warmup == Warmup::other_lse) other.lse = !one_.lse;
    if (one_.warmup == Warmup::other_lengths) {
      for (std::vector<std::int32_t>* lengths : {&other.q_lengths, &other.kv_lengths})
        if (!lengths->empty()) std::rotate(lengths->begin(), lengths->begin() + 1, lengths->end());
    }
    const Geometry geometry = geometry_of(other);
    const Operands operands(other, geometry, make_inputs(other, geometry, garbage_), garbage_,
                            subject_.device(), other.strides, other.lse);
    subject_.forward(operands.call());
    finish();
  }

  void run_prepared() {
    Call bare = operands_->call();
    for (TensorView* view : {&bare.q, &bare.k, &bare.v, &bare.out}) *view = without_data(*view);
    if (bare.options.lse) bare.options.lse = without_data(*bare.options.lse);
    subject_.prepare(bare);
    forward(operands_->call());
    if (!result_.receipt.plan_reused())
      add(Check::plan, "forward after an equal prepare() built a plan of its own");
  }

  void run_own_workspace() {
    Call call = operands_->call();
    const auto stated = static_cast<std::size_t>(subject_.prepare(call));
    DeviceMemory scratch(subject_.device(), stated + kScratchCanary);
    scratch.upload(std::vector<std::byte>(stated + kScratchCanary, kScratchFill));
    if (stated > 0) call.options.workspace = scratch.data();
    call.options.workspace_size = stated;
    forward(call);
    finish();
    std::vector<std::byte> canary(kScratchCanary);
    scratch.download(canary, stated);
    if (std::any_of(canary.begin(), canary.end(), [](std::byte b) { return b != kScratchFill; }))
      add(Check::workspace, fmt::format("wrote past the {} bytes of scratch it asked for", stated));
  }

  void run_repeated() {
    std::vector<std::uint32_t> out, lse;
    for (int turn = 0; turn < kRepeats; ++turn) {
      operands_->poison();
      forward(operands_->call());
      finish();
      operands_->fetch();
      if (turn > 0 && (out != operands_->out_image() || lse != operands_->lse_image()))
        add(Check::repeat, fmt::format("call {} gave other bits than call 1", turn + 1));
      out = operands_->out_image();
      lse = operands_->lse_image();
    }
  }

  void run_alone() {
    forward(operands_->call());
    finish();
    operands_->fetch();
    const std::vector<float> out = operands_->out();
    const std::vector<float> lse = operands_->lse();
    const std::int64_t heads = one_.problem.num_heads;
    const std::int64_t dim = one_.problem.head_dim;
    const DType out_dtype =
        one_.problem.out_dtype == DType::none ? one_.problem.dtype : one_.problem.out_dtype;
    for (std::size_t b = 0; b < geometry_.samples.size(); ++b) {
      const Sample& s = geometry_.samples[b];
      std::vector<std::int64_t> shape{s.q_rows, heads};
      if (one_.form == Form::bshd) shape.insert(shape.begin(), 1);
      const DeviceTensor alone_lse(subject_.device(), DType::f32, contiguous_layout(shape));
      shape.push_back(dim);
      const DeviceTensor alone(subject_.device(), out_dtype, contiguous_layout(shape));
      subject_.forward(operands_->call_of(b, alone, one_.lse ? &alone_lse : nullptr));
      finish();
      const auto part = [&](const std::vector<float>& all, std::int64_t size) {
        return std::span(all).subspan(static_cast<std::size_t>(s.q_begin * size),
                                      static_cast<std::size_t>(s.q_rows * size));
      };
      if (!same_bits(part(out, heads * dim), alone.download()) ||
          (one_.lse && !same_bits(part(lse, heads), alone_lse.download())))
        add(Check::batch, fmt::format("sample {} has other bits alone than in the batch", b));
    }
  }

  void run_merged() {
    const std::int64_t heads = one_.problem.num_heads;
    const std::vector<std::int64_t> rows{one_.batch, one_.q, heads};
    const std::vector<std::int64_t> elements{one_.batch, one_.q, heads, one_.problem.head_dim};
    const Device device = subject_.device();
    DeviceTensor out[2], lse[2];
    const std::int64_t split = one_.kv / 2 + 1;
    for (int i = 0; i < 2; ++i) {
      out[i] = DeviceTensor(device, DType::f32, contiguous_layout(elements));
      lse[i] = DeviceTensor(device, DType::f32, contiguous_layout(rows));
      forward(operands_->call_of_keys(i ? split : 0, i ? one_.kv : split, out[i], lse[i]));
    }
    merge(out[0].view(), lse[0].view(), out[1].view(), lse[1].view());
    finish();
    judge(out[0].download(), lse[0].download());
  }

  PreparedCase& prepared_;
  const Case& one_;
  const Geometry& geometry_;
  Subject& subject_;
  Garbage garbage_;
  CaseResult& result_;
  std::optional<Inputs> inputs_;  // where they differ from the prepared ones
  std::optional<Operands> operands_;
  int forwards_ = 0;
};

void attempt(PreparedCase& prepared, Subject& subject, Garbage garbage, CaseResult& result) {
  result.status = Status::passed;
  result.bounds = {};
  Attempt attempt(prepared, subject, garbage, result);
  try {
    attempt.run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) {
      result.bounds.add(Check::error, fmt::format("{}: {}", name_of(error.code()), error.what()));
      return;
    }
    result.status = Status::refused;
    result.reason = error.what();
    if (!attempt.wrote_nothing())
      result.bounds.add(Check::refusal, "refused, but had written: " + result.reason);
    return;
  }
  const std::string name = subject.backend().substr(0, subject.backend().find(':'));
  if (result.receipt.backend() != name || result.receipt.kernel().empty())
    result.bounds.add(Check::receipt,
                      fmt::format("names backend '{}' and kernel '{}'", result.receipt.backend(),
                                  result.receipt.kernel()));
}

bool has_feature(const Case& one, const char* feature) {
  const std::vector<std::string> all = features(one);
  return std::find(all.begin(), all.end(), feature) != all.end();
}

}  // namespace

const char* name_of(Status status) noexcept {
  switch (status) {
    case Status::passed:
      return "passed";
    case Status::failed:
      return "failed";
    case Status::refused:
      return "refused";
    case Status::skipped:
      return "skipped";
  }
  return "unknown";
}

bool CaseResult::failed_by(Check check) const {
  return std::any_of(violations.begin(), violations.end(),
                     [&](const Violation& v) { return v.check == check; });
}

std::string CaseResult::str() const {
  return reason.empty() ? fmt::format("{}: {}", name, name_of(status))
                        : fmt::format("{}: {}: {}", name, name_of(status), reason);
}

PreparedCase::PreparedCase(Case one, Oracle oracle)
    : one_(std::move(one)),
      oracle_(std::move(oracle)),
      geometry_(geometry_of(one_)),
      inputs_(make_inputs(one_, geometry_, one_.garbage)) {}

const Expected& PreparedCase::expected() {
  if (!expected_)
    expected_ = compute_expected(one_.problem, scale_of(one_), geometry_, inputs_, oracle_);
  return *expected_;
}

std::optional<std::string> not_applicable(const Case& one, Device device) {
  if (device.is_cpu() && one.large) return "too large for the CPU";
  if (device.is_cpu() && one.placement == Placement::device)
    return "lengths on a device need a device";
  return {};
}

CaseResult run_case(PreparedCase& prepared, Subject& subject, const Served* served) {
  const Case& one = prepared.definition();
  CaseResult result;
  result.name = one.name;
  if (const auto why = not_applicable(one, subject.device())) {
    result.status = Status::skipped;
    result.reason = *why;
    return result;
  }
  const auto start = std::chrono::steady_clock::now();
  if (!served) served = find_served(subject.backend());
  attempt(prepared, subject, one.garbage, result);
  // A vendor library that leaks padding may ask for the promise that there is nothing to leak, but
  // must serve the call then.
  if (result.status == Status::refused && one.garbage != Garbage::finite &&
      has_feature(one, "nonfinite_padding")) {
    Case promised = one;
    promised.garbage = Garbage::finite;
    if (served && may_refuse(*served, one) && !may_refuse(*served, promised)) {
      attempt(prepared, subject, Garbage::finite, result);
      result.padding_promised = true;
      if (result.status == Status::refused)
        result.bounds.add(Check::refusal, "refused despite finite padding: " + result.reason);
    }
  }
  // A forced form may ask for it where the backend's own choice does not: to it, the neighbour's
  // tokens are padding.
  if (result.status == Status::refused && !result.padding_promised &&
      subject.backend().find(':') != std::string_view::npos) {
    attempt(prepared, subject, Garbage::finite, result);
    result.padding_promised = true;
  }
  if (result.status == Status::refused && served && !may_refuse(*served, one))
    result.bounds.add(Check::refusal, "refused what it must serve: " + result.reason);
  if (!result.bounds.passed()) {
    result.status = Status::failed;
    result.violations = result.bounds.violations;
    result.reason = fmt::format("{}: {}", name_of(result.violations.front().check),
                                result.violations.front().what);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

CaseResult run_case(const Case& one, Subject& subject) {
  PreparedCase prepared(one, {.device = subject.device()});
  return run_case(prepared, subject);
}

}  // namespace batten::conformance
