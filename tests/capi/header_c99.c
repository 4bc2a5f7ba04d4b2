/* batten.h in C99: all of it used, no warning. */
#include "header_c99.h"

#include <batten/batten.h>
#include <string.h>

/* C99 has no _Static_assert; an array of negative size does. */
typedef char check_ok_is_zero[BATTEN_OK == 0 ? 1 : -1];
typedef char check_cpu_is_zero[BATTEN_CPU == 0 ? 1 : -1];
typedef char check_none_is_zero[BATTEN_DTYPE_NONE == 0 && BATTEN_MASK_NONE == 0 ? 1 : -1];
typedef char check_internal_is_last[BATTEN_INTERNAL == 6 ? 1 : -1];

static int lines = 0;

static void count_line(int level, const char* message, void* user) {
  (void)level;
  (void)message;
  (void)user;
  ++lines;
}

/* C99 has no aligned allocation either: one block, lent once at a time. */
static unsigned char storage[256 * 1024 + 256];

static void* aligned(void* data) {
  const uintptr_t address = (uintptr_t)data;
  return (void*)((address + 255) / 256 * 256);
}

static void* allocate(void* user, batten_device device, size_t bytes, void* stream) {
  int* lent = user;
  (void)device;
  (void)stream;
  if (*lent || bytes > sizeof(storage) - 256) return NULL;
  *lent = 1;
  return aligned(storage);
}

static void release(void* user, batten_device device, void* data, size_t bytes, void* stream) {
  int* lent = user;
  (void)device;
  (void)data;
  (void)bytes;
  (void)stream;
  *lent = 0;
}

static batten_tensor dense(void* data, int64_t heads, batten_device device) {
  batten_tensor t = {0};
  t.data = data;
  t.dtype = BATTEN_F32;
  t.ndim = 4;
  t.shape[0] = 1;
  t.shape[1] = 2;
  t.shape[2] = heads;
  t.shape[3] = 8;
  t.strides[0] = 2 * heads * 8;
  t.strides[1] = heads * 8;
  t.strides[2] = 8;
  t.strides[3] = 1;
  t.device = device;
  return t;
}

static const char* forward(batten_attention* attention, batten_device device, float* memory) {
  batten_tensor q = dense(memory, 2, device), k = dense(memory + 64, 1, device);
  batten_tensor v = dense(memory + 128, 1, device), out = dense(memory + 192, 2, device);
  batten_call call = {.struct_size = sizeof(call), .q = &q, .k = &k, .v = &v, .out = &out};
  batten_receipt receipt = {.struct_size = sizeof(receipt)};
  uint64_t scratch = 0;
  if (batten_prepare(attention, &call, &scratch) != BATTEN_OK) return batten_last_error();
  if (batten_forward(attention, &call, &receipt) != BATTEN_OK) return batten_last_error();
  if (receipt.backend[0] == '\0') return "the receipt names no backend";
  if (receipt.plan_reused != 1) return "the prepared plan was not reused";
  if (receipt.workspace_size != scratch) return "prepare and the receipt disagree";
  call.q = NULL;
  if (batten_forward(attention, &call, NULL) != BATTEN_INVALID_ARGUMENT) return "q was not missed";
  return NULL;
}

const char* use_batten_from_c(int device_type) {
  const batten_device device = {device_type, 0};
  const batten_problem problem = {.struct_size = sizeof(problem),
                                  .dtype = BATTEN_F32,
                                  .num_heads = 2,
                                  .num_kv_heads = 1,
                                  .head_dim = 8,
                                  .mask = BATTEN_MASK_CAUSAL};
  const batten_options options = {.struct_size = sizeof(options), .backend = "auto"};
  batten_attention* attention = NULL;
  const char* failure = NULL;
  static float tensors[256 + 64];
  size_t needed = 0;
  int lent = 0;

  batten_set_log_level(BATTEN_LOG_INFO);
  batten_set_log_callback(count_line, NULL);
  if (batten_set_allocator(allocate, release, &lent) != BATTEN_OK ||
      batten_attention_create(&problem, device, &options, &attention) != BATTEN_OK) {
    failure = batten_last_error();
  } else {
    failure = forward(attention, device, aligned(tensors));
    if (failure == NULL && lines == 0) failure = "nothing was logged";
  }
  batten_attention_destroy(attention);
  if (failure == NULL && batten_merge(NULL, NULL, NULL, NULL, NULL) == BATTEN_OK) {
    failure = "merge of nothing";
  }
  if (failure == NULL &&
      (batten_info(NULL, 0, &needed) != BATTEN_OK || needed == 0 || batten_trim() != BATTEN_OK ||
       batten_set_allocator(NULL, NULL, NULL) != BATTEN_OK)) {
    failure = batten_last_error();
  }
  if (failure == NULL &&
      (strcmp(batten_status_name(BATTEN_OK), "Ok") != 0 || strlen(batten_version()) < 5)) {
    failure = "names";
  }
  batten_set_log_callback(NULL, NULL);
  batten_set_log_level(BATTEN_LOG_WARNING);
  if (failure == NULL && lent) failure = "the allocator's memory was not given back";
  return failure;
}
