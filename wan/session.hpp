// A transformer planned for one shape: all memory is taken when it is made, and a step neither
// allocates nor waits before its end.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wan/ops.hpp"
#include "wan/weights.hpp"

namespace batten::wan {

struct SessionOptions {
  std::string backend = {};  // of batten; empty: BATTEN_BACKEND, else auto
  int num_threads = 0;       // CPU
  int passes = 1;  // forwards of a step, each with its own text: 2 for guidance in two passes
};

// Bytes of a session on the device, without what attention backends take besides.
std::size_t session_bytes(const Config& config, const Shape& shape, DType dtype, int passes);

class Session {
 public:
  // Throws InvalidArgument for a shape that does not fit the model, what batten throws for the
  // backend, and OutOfMemory.
  Session(Ops& ops, const Weights& weights, const Shape& shape, const SessionOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Shape& shape() const noexcept { return shape_; }
  std::int64_t tokens() const noexcept { return tokens_; }

  // Embeddings of a pass's text [batch, text_tokens, text_dim], and of the images of all passes
  // [batch, image_tokens, image_dim]. To be set before the first step; they stay.
  void set_text(int pass, std::span<const float> text);
  void set_image(std::span<const float> image);

  // Timesteps, at most shape.timesteps different ones: one a sample [batch], or one a token
  // [batch * tokens].
  void set_timesteps(std::span<const float> timesteps);

  // The latents that the next step reads [batch, in_channels, frames, height, width], on the host.
  std::span<float> input() noexcept;
  // What the last step predicted for a pass [batch, out_channels, frames, height, width].
  std::span<const float> output(int pass) const noexcept;

  // Reads input(), writes the outputs, and waits.
  void step();
  // The same, with the time of each kind of work on the device. Slower by the events.
  Ops::Times timed_step();

  // Called with values on their way: "patch", "temb", "time_proj", "context", "context_image",
  // "blocks.N.attn1", "blocks.N.attn2", "blocks.N.ffn". For tests; steps are then not recorded.
  using Tap = std::function<void(std::string_view name, std::span<const float> values)>;
  void set_tap(Tap tap) { tap_ = std::move(tap); }

  // Receipts of the last step's attention calls: "self", "cross", "image".
  const std::map<std::string, Receipt>& receipts() const noexcept { return receipts_; }
  // Scratch that batten's backends take beside session_bytes().
  std::size_t attention_bytes() const noexcept { return attention_bytes_; }

 private:
  struct Buffers {
    std::size_t x, normed, work;         // activations; see block()
    std::size_t input, rope, index;      // float32, float32, int32
    std::size_t sinusoid, time1, time2;  // float32
    std::size_t temb, silu, time_proj;   // the model's dtype
    std::size_t context_image, kv;
    std::vector<std::size_t> context, output;  // a pass each
    std::size_t bytes = 0;
  };
  static Buffers plan(const Config& config, const Shape& shape, DType dtype, int passes);
  friend std::size_t session_bytes(const Config&, const Shape&, DType, int);

  std::byte* at(std::size_t offset) const noexcept { return memory_.data + offset; }
  std::byte* work(std::int64_t column) const noexcept;
  void make_rope();
  void prepare();

  void linear(const Linear& layer, const void* x, std::int64_t rows, void* out,
              Activation activation = Activation::none);
  LinearCall call_of(const Linear& layer, const void* x, std::int64_t rows, void* out,
                     Activation activation) const;
  void norm(const void* y, void* out, const Modulation& gate, const Modulation& scale,
            const Modulation& shift, float unit);
  void layer_norm(const Norm& norm, void* x, void* out, std::int64_t rows, std::int64_t d);
  void attend(const char* which, const TensorView& q, const TensorView& k, const TensorView& v,
              void* out);
  TensorView heads(void* data, std::int64_t length, std::int64_t row) const;

  void work_of_step();
  void embed_time();
  void forward(int pass);
  void block(std::size_t index, int pass);
  void self_attention(const BlockLayout& layer);
  void cross_attention(const BlockLayout& layer, int pass);
  void modulated_norm(std::size_t index, const void* y, const Modulation& gate);
  Modulation row_of(std::size_t table, std::int64_t row) const;
  void tap(const std::string& name, const void* data, std::int64_t count, DType dtype);

  Ops& ops_;
  const Weights& weights_;
  const Config& config_;
  const Layout& layout_;
  Shape shape_;
  int passes_;
  DType dtype_;
  std::int64_t tokens_;  // of a sample
  std::int64_t rows_;    // tokens of the batch
  Attention attention_;
  std::size_t attention_bytes_ = 0;
  Buffers buffers_;
  Memory memory_;
  Memory host_input_, host_output_, host_index_, host_sinusoid_;
  std::int64_t timesteps_ = 0;  // different ones that are set
  std::map<std::string, Receipt> receipts_;
  std::function<void()> replay_;
  int steps_ = 0;
  Tap tap_;
};

}  // namespace batten::wan
