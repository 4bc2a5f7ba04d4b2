/* Attention of two requests of unequal length in one call, through batten's C interface. */
#include <batten/batten.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, QUERIES = 3, KEYS = 4, HEADS = 2, KV_HEADS = 1, DIM = 8 };

/* Describes memory that we own: contiguous [B, S, H, D] on the CPU. */
static batten_tensor bshd(float* data, int64_t length, int64_t heads) {
  batten_tensor t = {0};
  t.data = data;
  t.dtype = BATTEN_F32;
  t.ndim = 4;
  t.shape[0] = BATCH;
  t.shape[1] = length;
  t.shape[2] = heads;
  t.shape[3] = DIM;
  t.strides[0] = length * heads * DIM;
  t.strides[1] = heads * DIM;
  t.strides[2] = DIM;
  t.strides[3] = 1;
  t.device.type = BATTEN_CPU;
  return t;
}

static void check(int status, const char* what) {
  if (status == BATTEN_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, batten_status_name(status), batten_last_error());
  exit(1);
}

int main(void) {
  static float q[BATCH * QUERIES * HEADS * DIM], out[BATCH * QUERIES * HEADS * DIM];
  static float k[BATCH * KEYS * KV_HEADS * DIM], v[BATCH * KEYS * KV_HEADS * DIM];
  /* The second request has two keys only; what lies behind them is not looked at. */
  int32_t lengths[BATCH] = {4, 2};
  batten_tensor tq = bshd(q, QUERIES, HEADS), tk = bshd(k, KEYS, KV_HEADS);
  batten_tensor tv = bshd(v, KEYS, KV_HEADS), tout = bshd(out, QUERIES, HEADS);
  batten_tensor tlengths = {0};
  batten_problem problem = {0};
  batten_call call = {0};
  batten_receipt receipt = {0};
  batten_device cpu = {BATTEN_CPU, 0};
  batten_attention* attention = NULL;
  int i;

  /* Equal keys are seen equally, so every output is the mean of the values that are seen. */
  for (i = 0; i < BATCH * QUERIES * HEADS * DIM; ++i) q[i] = (float)(i % 7) - 3.0f;
  for (i = 0; i < BATCH * KEYS * KV_HEADS * DIM; ++i) k[i] = 1.0f, v[i] = (float)(i / DIM % KEYS);
  tlengths.data = lengths;
  tlengths.dtype = BATTEN_I32;
  tlengths.ndim = 1;
  tlengths.shape[0] = BATCH;
  tlengths.strides[0] = 1;

  problem.struct_size = sizeof(problem);
  problem.dtype = BATTEN_F32;
  problem.num_heads = HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.head_dim = DIM;
  check(batten_attention_create(&problem, cpu, NULL, &attention), "create");

  call.struct_size = sizeof(call);
  call.q = &tq;
  call.k = &tk;
  call.v = &tv;
  call.out = &tout;
  call.kv_lengths = &tlengths;
  receipt.struct_size = sizeof(receipt);
  check(batten_forward(attention, &call, &receipt), "forward");
  batten_attention_destroy(attention);

  for (i = 0; i < BATCH * QUERIES * HEADS * DIM; ++i) {
    const float expected = i < QUERIES * HEADS * DIM ? 1.5f : 0.5f;
    if (fabsf(out[i] - expected) > 1e-5f) {
      fprintf(stderr, "out[%d] is %g, expected %g\n", i, out[i], expected);
      return 1;
    }
  }
  printf("batten %s: %s (%s) is right\n", batten_version(), receipt.backend, receipt.kernel);
  return 0;
}
