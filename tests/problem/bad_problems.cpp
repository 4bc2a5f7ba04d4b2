#include <cmath>
#include <limits>

#include "problem/bad_input.hpp"

namespace batten::testing {

std::vector<BadProblem> bad_problems() {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  using P = batten_problem;
  return {
      {"NoDtype",
       [](P& p) { p.dtype = BATTEN_DTYPE_NONE; },
       {"dtype 0", "float32, float16 or bfloat16"}},
      {"IntegerDtype", [](P& p) { p.dtype = BATTEN_I32; }, {"dtype 4", "int32", "float32"}},
      {"UnknownDtype", [](P& p) { p.dtype = 99; }, {"dtype 99", "float32, float16 or bfloat16"}},
      {"NegativeDtype", [](P& p) { p.dtype = -1; }, {"dtype -1"}},
      {"OutDtypeOfAnotherHalf",
       [](P& p) { p.out_dtype = BATTEN_F16; },
       {"out_dtype float16", "bfloat16", "float32"}},
      {"OutDtypeHalfOfFloatInputs",
       [](P& p) {
         p.dtype = BATTEN_F32;
         p.out_dtype = BATTEN_BF16;
       },
       {"out_dtype bfloat16", "float32"}},
      {"OutDtypeInteger", [](P& p) { p.out_dtype = BATTEN_I32; }, {"out_dtype int32"}},
      {"OutDtypeUnknown", [](P& p) { p.out_dtype = 77; }, {"out_dtype"}},
      {"NoHeads", [](P& p) { p.num_heads = 0; }, {"num_heads is 0", "1 to"}},
      {"NegativeHeads", [](P& p) { p.num_heads = -4; }, {"num_heads is -4"}},
      {"TooManyHeads", [](P& p) { p.num_heads = (1 << 16) + 2; }, {"num_heads is 65538", "65536"}},
      {"HeadsNotAMultiple",
       [](P& p) { p.num_kv_heads = 3; },
       {"num_heads (4)", "not a multiple of num_kv_heads (3)"}},
      {"MoreKvHeadsThanHeads", [](P& p) { p.num_kv_heads = 8; }, {"num_heads (4)", "(8)"}},
      {"NegativeKvHeads", [](P& p) { p.num_kv_heads = -2; }, {"num_kv_heads (-2)"}},
      {"NoHeadDim", [](P& p) { p.head_dim = 0; }, {"head_dim is 0", "1 to"}},
      {"NegativeHeadDim", [](P& p) { p.head_dim = -64; }, {"head_dim is -64"}},
      {"HugeHeadDim", [](P& p) { p.head_dim = 4097; }, {"head_dim is 4097", "4096"}},
      {"NegativeHeadDimV", [](P& p) { p.head_dim_v = -1; }, {"head_dim_v is -1"}},
      {"HugeHeadDimV", [](P& p) { p.head_dim_v = 4097; }, {"head_dim_v is 4097", "4096"}},
      {"UnknownMask",
       [](P& p) { p.mask = 3; },
       {"mask kind 3", "not known to batten", batten_version()},
       ErrorCode::Unsupported},
      {"NegativeMask", [](P& p) { p.mask = -1; }, {"mask kind -1"}, ErrorCode::Unsupported},
      {"NanScale",
       [](P& p) {
         p.has_scale = 1;
         p.scale = kNan;
       },
       {"scale is nan", "finite"}},
      {"InfiniteScale",
       [](P& p) {
         p.has_scale = 1;
         p.scale = -kInf;
       },
       {"scale is -inf", "finite"}},
      {"ScaleBeyondFloat",
       [](P& p) {
         p.has_scale = 1;
         p.scale = 3.5e38;
       },
       {"scale is 3.5e+38", "finite as a float32"}},
  };
}

}  // namespace batten::testing
