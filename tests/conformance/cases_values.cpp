// Cases of values: contents, padding, scale.
#include "case_builder.hpp"

namespace batten::conformance {
namespace {

struct NamedContents {
  const char* name;
  Contents contents;
};
constexpr NamedContents kContents[] = {
    {"randn", Contents::randn},
    {"probe", Contents::probe},
    {"peaked", Contents::peaked},
    {"huge_logits", Contents::huge_logits},
    {"equal_logits", Contents::equal_logits},
    {"jumps", Contents::jumps},
    {"tiny", Contents::tiny},
    {"large_values", Contents::large_values},
};

void add_contents(CaseBuilder& builder) {
  // Several tiles of each kind; plain loops follow on the CPU.
  const std::int64_t rows = builder.on_gpu() ? 150 : 24;
  const std::int64_t keys = builder.on_gpu() ? 500 : 200;
  for (const NamedContents& named : kContents)
    for (const Mask mask : kMasks)
      for (const bool ragged : {false, true}) {
        Case& one =
            builder.add("contents", fmt::format("{}{}", named.name, ragged ? "_ragged" : ""), kGqa,
                        mask, 2, rows, keys);
        one.contents = named.contents;
        one.lse = true;
        one.quick = mask == Mask::none && !ragged;
        if (ragged) {
          one.q_lengths = {17, static_cast<std::int32_t>(rows)};
          one.kv_lengths = {static_cast<std::int32_t>(keys), 101};
        }
      }
  // A NaN that may be seen: it reaches all who see it, and no other sample or head group.
  for (const NamedContents& named :
       {NamedContents{"nan_key", Contents::nan_key}, {"nan_value", Contents::nan_value}})
    for (const Mask mask : kMasks)
      for (const Form form : {Form::bshd, Form::packed}) {
        const bool packed = form == Form::packed;
        // More rows than the tallest tile has, above which a causal row must stay clean.
        const std::int64_t rows = packed && mask != Mask::none ? 280 : 40;
        Case& one =
            builder.add("contents", fmt::format("{}{}", named.name, packed ? "_packed" : ""), kMha,
                        mask, 2, rows, 200);
        one.form = form;
        one.contents = named.contents;
        one.lse = true;
        one.quick = mask == Mask::none;
      }
}

void add_padding(CaseBuilder& builder) {
  struct NamedGarbage {
    const char* name;
    Garbage garbage;
  };
  constexpr NamedGarbage kGarbage[] = {
      {"nan", Garbage::nan}, {"inf", Garbage::infinity}, {"promised_finite", Garbage::finite}};
  for (const NamedGarbage& named : kGarbage)
    for (const Mask mask : kMasks) {
      const auto add = [&](const char* what, Heads heads) -> Case& {
        Case& one =
            builder.add("padding", fmt::format("{}_{}", what, named.name), heads, mask, 3, 70, 140);
        one.garbage = named.garbage;
        one.q_lengths = {70, 33, 1};
        one.kv_lengths = {65, 140, 100};
        one.lse = mask != Mask::none;
        return one;
      };
      add("lengths", kGqa).quick = mask == Mask::causal;
      add("rows", kMha).strides = Strides::padded;
      Case& gaps = add("gaps", kMqa);
      gaps.form = Form::packed;
      gaps.gap = 9;
      gaps.tail = 130;
      gaps.quick = mask == Mask::none;
      // Nothing but the end of the buffer, inside the last tile.
      Case& end = add("end", kMha);
      end.form = Form::packed;
      end.kv_lengths = {64, 128, 3};
    }
}

void add_scales(CaseBuilder& builder) {
  struct NamedScale {
    const char* name;
    double scale;
  };
  constexpr NamedScale kScales[] = {{"zero", 0.0},        {"negative", -0.125}, {"one", 1.0},
                                    {"huge", 200.0},      {"small", 1e-3},      {"denormal", 1e-42},
                                    {"minus_huge", -50.0}};
  for (const NamedScale& named : kScales)
    for (const Mask mask : kMasks)
      for (const bool per_call : {false, true}) {
        Case& one = builder.add("scale", fmt::format("{}{}", named.name, per_call ? "_call" : ""),
                                kGqa, mask, 2, 33, 100);
        if (per_call) {
          one.problem.scale = 0.3;
          one.call_scale = named.scale;
        } else {
          one.problem.scale = named.scale;
        }
        one.kv_lengths = {100, 41};
        one.lse = per_call || mask == Mask::causal;
        one.quick = mask == Mask::causal && !per_call;
      }
}

}  // namespace

void add_value_cases(CaseBuilder& builder) {
  add_contents(builder);
  add_padding(builder);
  add_scales(builder);
}

}  // namespace batten::conformance
