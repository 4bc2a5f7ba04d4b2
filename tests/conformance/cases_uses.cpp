// Cases of use: layouts, what is done with a call, lengths on the device, large calls.
#include "case_builder.hpp"

namespace batten::conformance {
namespace {

void add_layouts(CaseBuilder& builder) {
  struct NamedStrides {
    const char* name;
    Strides strides;
  };
  constexpr NamedStrides kStrides[] = {
      {"heads_first", Strides::heads_first},
      {"sequence_first", Strides::sequence_first},
      {"fused", Strides::fused},
      {"padded", Strides::padded},
      {"shared_batch", Strides::shared_batch},
      {"shared_heads", Strides::shared_heads},
  };
  for (const NamedStrides& named : kStrides)
    for (const Mask mask : kMasks) {
      const bool fused = named.strides == Strides::fused;
      const auto add = [&](const char* what) -> Case& {
        Case& one = builder.add("layouts", fmt::format("{}{}", named.name, what), kGqa, mask, 3,
                                fused ? 65 : 33, 65);
        one.strides = named.strides;
        one.lse = true;
        return one;
      };
      add("").quick = mask == Mask::none;
      Case& ragged = add("_lengths");
      ragged.q_lengths = {33, 0, 20};
      ragged.kv_lengths = {1, 65, 30};
      if (named.strides == Strides::shared_batch) continue;  // a packed call has no batch stride
      Case& packed = add("_packed");
      packed.form = Form::packed;
      packed.q_lengths = fused ? std::vector<std::int32_t>{33, 0, 20} : std::vector{5, 40, 1};
      packed.kv_lengths = fused ? packed.q_lengths : std::vector<std::int32_t>{64, 0, 33};
    }
}

void add_flows(CaseBuilder& builder) {
  struct NamedFlow {
    const char* name;
    Flow flow;
  };
  constexpr NamedFlow kFlows[] = {{"prepared", Flow::prepared},
                                  {"own_workspace", Flow::own_workspace},
                                  {"repeated", Flow::repeated},
                                  {"batch_invariant", Flow::batch_invariant}};
  for (const NamedFlow& named : kFlows)
    for (const Mask mask : kMasks)
      for (const Form form : {Form::bshd, Form::packed}) {
        const bool packed = form == Form::packed;
        const bool invariant = named.flow == Flow::batch_invariant;
        // Few rows over many keys: the shape for which kernels split the keys.
        Case& one = builder.add("flows", fmt::format("{}{}", named.name, packed ? "_packed" : ""),
                                invariant ? kMha : kGqa, mask, 3, 9, 400);
        one.form = form;
        one.flow = named.flow;
        one.problem.batch_invariant = invariant;
        one.q_lengths = {9, 3, 7};
        one.kv_lengths = {400, 129, 17};
        one.lse = true;
        one.quick = mask == Mask::causal;
      }
  Case& uniform = builder.add("flows", "batch_invariant_uniform", kGqa, Mask::none, 4, 9, 400);
  uniform.flow = Flow::batch_invariant;
  uniform.problem.batch_invariant = true;

  for (const char* what : {"merged", "merged_lengths"})
    for (const Heads& heads : {kMha, kGqa, kMqa}) {
      Case& one = builder.add("flows", what, heads, Mask::none, 3, 33, 131);
      one.flow = Flow::merged;
      one.problem.out_dtype = DType::f32;
      one.lse = true;
      one.quick = heads.q == kGqa.q;
      // Samples that end before the second half begins, at it, and without any key.
      if (std::string(what) == "merged_lengths") one.kv_lengths = {20, 66, 0};
    }
  for (const Mask mask : kMasks) {
    Case& one = builder.add("flows", "float32_output", kGqa, mask, 2, 33, 100);
    one.problem.out_dtype = DType::f32;
    one.lse = true;
  }
}

// The same object, another call first: what a plan bakes in must be in its key.
void add_second_calls(CaseBuilder& builder) {
  struct NamedWarmup {
    const char* name;
    Warmup warmup;
  };
  constexpr NamedWarmup kWarmups[] = {{"after_other_strides", Warmup::other_strides},
                                      {"after_other_scale", Warmup::other_scale},
                                      {"after_other_lengths", Warmup::other_lengths},
                                      {"after_other_lse", Warmup::other_lse}};
  for (const NamedWarmup& named : kWarmups)
    for (const Form form : {Form::bshd, Form::packed})
      for (const bool lse : {false, true}) {
        const bool packed = form == Form::packed;
        Case& one = builder.add(
            "second_calls",
            fmt::format("{}{}{}", named.name, packed ? "_packed" : "", lse ? "_lse" : ""), kGqa,
            lse ? Mask::causal : Mask::none, 3, 40, 90);
        one.form = form;
        one.warmup = named.warmup;
        one.lse = lse;
        if (packed || named.warmup == Warmup::other_lengths) {
          one.q_lengths = {40, 1, 17};
          one.kv_lengths = {33, 90, 64};
        }
        one.quick = !packed && lse;
      }
}

// Lengths that only the device knows.
void add_device_lengths(CaseBuilder& builder) {
  for (const Mask mask : kMasks)
    for (const Form form : {Form::bshd, Form::packed})
      for (const bool wild : {false, true}) {
        const bool packed = form == Form::packed;
        if (wild && packed) continue;  // offsets out of range: the next list
        Case& one =
            builder.add("device_lengths",
                        fmt::format("{}{}", packed ? "packed" : "lengths", wild ? "_wild" : ""),
                        kGqa, mask, 4, 70, 140);
        one.form = form;
        one.placement = Placement::device;
        one.wild_lengths = wild;
        one.q_lengths = {70, 33, 1, 0};
        one.kv_lengths = {65, 140, 0, 100};
        one.lse = true;
        one.loose_max = packed && mask == Mask::causal;
        one.quick = mask == Mask::none;
        if (!packed) continue;
        Case& gaps = builder.add("device_lengths", "packed_gaps", kMha, mask, 3, 70, 140);
        gaps.form = form;
        gaps.placement = Placement::device;
        gaps.q_lengths = {20, 0, 40};
        gaps.kv_lengths = {7, 129, 64};
        gaps.gap = 6;
        gaps.tail = 5;
      }
}

// Video transformers' own shapes, and a few with more work than the oracle does row by row.
void add_large(CaseBuilder& builder) {
  struct Shape {
    const char* what;
    std::int64_t batch, q, kv;
    Heads heads;
    Mask mask;
  };
  constexpr Shape kShapes[] = {
      {"wan_cross", 2, 32760, 512, {12, 12}, Mask::none},
      {"wan_self", 1, 32760, 32760, {12, 12}, Mask::none},
      {"square", 2, 8192, 8192, {16, 4}, Mask::causal},
      {"prefix", 1, 4000, 20000, {8, 8}, Mask::causal},
      {"published", 32, 1024, 4096, {12, 4}, Mask::none},
  };
  for (const Shape& shape : kShapes)
    for (const bool probe : {false, true}) {
      Case& one = builder.add("large", fmt::format("{}{}", shape.what, probe ? "_probe" : ""),
                              shape.heads, shape.mask, shape.batch, shape.q, shape.kv);
      one.large = true;
      one.lse = probe;
      if (probe) one.contents = Contents::probe;
    }
  Case& ragged = builder.add("large", "ragged", {12, 4}, Mask::none, 3, 0, 0);
  ragged.large = true;
  ragged.form = Form::packed;
  ragged.q_lengths = {20000, 111, 7531};
  ragged.kv_lengths = {20000, 4097, 7531};
  ragged.lse = true;
}

}  // namespace

void add_use_cases(CaseBuilder& builder) {
  add_layouts(builder);
  add_flows(builder);
  add_second_calls(builder);
  if (!builder.on_gpu()) return;
  add_device_lengths(builder);
  add_large(builder);
}

}  // namespace batten::conformance
