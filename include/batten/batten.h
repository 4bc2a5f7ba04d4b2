/* batten: attention for a whole batch in one call. The C ABI, and the only exported symbols.
 *
 * Rules of this header
 *  - Functions return a status code (`BATTEN_OK` is 0). `batten_last_error()` then gives one line
 * that says what is wrong, where, and what to do. Nothing throws, nothing aborts.
 *  - Structs that may grow begin with `struct_size`; zero-initialise them and set it to
 * sizeof(...). Zero is the default of every other member. New members are only ever added at the
 * end.
 *  - Strides are in elements, sizes of memory in bytes, lengths and offsets in tokens.
 *  - Tensors are borrowed for the duration of the call (on a GPU: until the stream has passed it).
 *  - All functions may be called from several threads at once, on one object too.
 */
#ifndef BATTEN_BATTEN_H_
#define BATTEN_BATTEN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define BATTEN_API
#else
#define BATTEN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define BATTEN_VERSION_MAJOR 0
#define BATTEN_VERSION_MINOR 1
#define BATTEN_VERSION_PATCH 0

/* Status codes. */
typedef enum batten_status {
  BATTEN_OK = 0,
  BATTEN_INVALID_ARGUMENT = 1, /* the caller's inputs are wrong */
  BATTEN_UNSUPPORTED = 2,      /* legal, but this backend does not serve it */
  BATTEN_UNAVAILABLE = 3,      /* the backend cannot run here: no device, library missing, ... */
  BATTEN_OUT_OF_MEMORY = 4,
  BATTEN_DEVICE_ERROR = 5, /* the device or its driver reported a failure */
  BATTEN_INTERNAL = 6      /* a fault of batten's own */
} batten_status;

typedef enum batten_dtype {
  BATTEN_DTYPE_NONE = 0,
  BATTEN_F32 = 1,
  BATTEN_F16 = 2,
  BATTEN_BF16 = 3,
  BATTEN_I32 = 4 /* lengths and offsets */
} batten_dtype;

typedef enum batten_device_type { BATTEN_CPU = 0, BATTEN_CUDA = 1 } batten_device_type;

/* `index` is the CUDA ordinal; 0 for the CPU. */
typedef struct batten_device {
  int32_t type; /* batten_device_type */
  int32_t index;
} batten_device;

/* Which keys a query sees. Query i, key j, per-sample lengths Sq and Skv. */
typedef enum batten_mask {
  BATTEN_MASK_NONE = 0,
  BATTEN_MASK_CAUSAL = 1,         /* bottom-right: j <= i + (Skv - Sq) */
  BATTEN_MASK_CAUSAL_TOP_LEFT = 2 /* j <= i */
} batten_mask;

/* A strided view. The last dimension must be contiguous. `strides` in elements. */
typedef struct batten_tensor {
  void* data;
  int32_t dtype; /* batten_dtype */
  int32_t ndim;  /* 1 to 4 */
  int64_t shape[4];
  int64_t strides[4];
  batten_device device;
} batten_tensor;

/* What a layer fixes. */
typedef struct batten_problem {
  size_t struct_size;
  int32_t dtype;        /* of q, k and v: BATTEN_F32, BATTEN_F16 or BATTEN_BF16 */
  int32_t out_dtype;    /* NONE: as dtype; BATTEN_F32: unrounded partial outputs for batten_merge */
  int32_t num_heads;    /* Hq >= 1 */
  int32_t num_kv_heads; /* Hkv, divides Hq; 0: as num_heads */
  int32_t head_dim;     /* D >= 1 */
  int32_t head_dim_v;   /* 0: as head_dim */
  int32_t mask;         /* batten_mask; unknown values are BATTEN_UNSUPPORTED */
  int32_t has_scale;    /* 0: scale is 1/sqrt(D) */
  double scale;         /* any finite value */
  int32_t batch_invariant; /* 1: a sample's bits do not depend on who shares its batch */
} batten_problem;

/* How a problem is to be served. */
typedef struct batten_options {
  size_t struct_size;
  /* A backend's name, "auto", or NULL: BATTEN_BACKEND, then FastVideo's variables, then "auto".
   * A backend with several forms takes one after a colon, as in "cudnn:packed". */
  const char* backend;
  int32_t num_threads; /* CPU threads; 0: BATTEN_NUM_THREADS, then all that the process may use */
} batten_options;

/* One call. Shapes, BSHD: q [B,Sq,Hq,D], k [B,Skv,Hkv,D], v [B,Skv,Hkv,Dv], out [B,Sq,Hq,Dv],
 * lse [B,Sq,Hq]. Packed (offsets_q and offsets_kv given): q [Tq,Hq,D], k [Tkv,Hkv,D],
 * v [Tkv,Hkv,Dv], out [Tq,Hq,Dv], lse [Tq,Hq].
 * Lengths, offsets: int32, contiguous, on the host (checked) or on the device (clamped). */
typedef struct batten_call {
  size_t struct_size;
  const batten_tensor* q;
  const batten_tensor* k;
  const batten_tensor* v;
  const batten_tensor* out;
  const batten_tensor* lse; /* optional; fp32, natural logarithm, any strides */
  const batten_tensor*
      q_lengths; /* optional [B]; rows past it: out 0, lse -inf (packed: untouched) */
  const batten_tensor* kv_lengths; /* optional [B]; keys past it are not seen */
  const batten_tensor* offsets_q;  /* packed: [B+1] first token of each sample, then the end */
  const batten_tensor* offsets_kv; /* packed: [B+1] */
  int64_t max_q;     /* packed: upper bound of the query lengths; 0: from host offsets */
  int64_t max_kv;    /* packed: upper bound of the key/value lengths; 0: from host offsets */
  int32_t has_scale; /* 1: `scale` replaces the problem's */
  int32_t padding_is_finite; /* 1: the caller promises no Inf or NaN outside samples' tokens */
  double scale;
  void* stream;            /* cudaStream_t; ignored on the CPU */
  void* workspace;         /* optional scratch on the call's device, 256-byte aligned, for
                              one call at a time */
  uint64_t workspace_size; /* its bytes; at least what batten_prepare states */
} batten_call;

/* What ran. Strings are always terminated. */
typedef struct batten_receipt {
  size_t struct_size;
  char backend[16];
  char form[16];       /* "dense", "packed", "lengths": how the batch was stated to the kernel */
  char kernel[96];     /* the compiled kernel or library engine */
  char tile[32];       /* query rows x keys of one tile, e.g. "128x128" */
  int32_t splits;      /* parts the key range was divided in; 1: not split */
  int32_t plan_reused; /* 1: the plan came from the cache */
  uint64_t workspace_size;
  char library[160]; /* version and place of a vendor library, or "" */
  char reason[512];  /* why this backend */
} batten_receipt;

typedef struct batten_attention batten_attention;

/* "0.1.0" */
BATTEN_API const char* batten_version(void);

/* This thread's last failure, one line; "" when there was none. Valid until the thread's next call.
 */
BATTEN_API const char* batten_last_error(void);

/* "InvalidArgument", ... ; "Unknown" for other values. */
BATTEN_API const char* batten_status_name(int status);

/* Chooses and checks a backend for `problem` on `device`. `options` may be NULL.
 * UNAVAILABLE: the named backend cannot run here. UNSUPPORTED: it does not serve the problem. */
BATTEN_API int batten_attention_create(const batten_problem* problem, batten_device device,
                                       const batten_options* options, batten_attention** out);
BATTEN_API void batten_attention_destroy(batten_attention* attention);

/* Builds the plan for a call of this form and reserves its scratch. Data pointers are not read and
 * may be NULL. `workspace_size` (optional) receives the scratch a forward of this form needs. */
BATTEN_API int batten_prepare(batten_attention* attention, const batten_call* call,
                              uint64_t* workspace_size);

/* Runs the call. `receipt` is optional. On a GPU the work is queued on `call->stream`; after
 * batten_prepare (or one equal call) it neither synchronises nor allocates. */
BATTEN_API int batten_forward(batten_attention* attention, const batten_call* call,
                              batten_receipt* receipt);

/* (out, lse) becomes the attention over both key sets, of which (out, lse) and (out2, lse2) are the
 * partial results. out and out2: [B,S,H,D] or [T,H,D], each fp32, fp16 or bf16; lse, lse2: fp32,
 * the same without D. Rows with lse = -inf contribute nothing. On the tensors' device. */
BATTEN_API int batten_merge(const batten_tensor* out, const batten_tensor* lse,
                            const batten_tensor* out2, const batten_tensor* lse2, void* stream);

/* Versions, devices, backends and why one is not available, workspace pools; as JSON text.
 * Writes at most `capacity` bytes with the terminator; `needed` receives the full size. */
BATTEN_API int batten_info(char* json, size_t capacity, size_t* needed);

/* What `auto` would take for a call and why: each backend's predicted time with its terms, or why
 * it does not serve the call; as JSON text, written as batten_info does. Nothing is planned or run:
 * data pointers are not read and may be NULL. `card` NULL: `device` as it is here, with the
 * constants that were measured on it (`batten tune`), that come with batten, or that its properties
 * give. Else a card whose constants come with batten, such as "h200", which need not be here;
 * `device` is then any cuda device, and the tensors are on it. */
BATTEN_API int batten_explain(const batten_problem* problem, batten_device device,
                              const batten_options* options, const batten_call* call,
                              const char* card, char* json, size_t capacity, size_t* needed);

typedef enum batten_log_level {
  BATTEN_LOG_DEBUG = 0,
  BATTEN_LOG_INFO = 1,
  BATTEN_LOG_WARNING = 2,
  BATTEN_LOG_ERROR = 3,
  BATTEN_LOG_OFF = 4
} batten_log_level;

/* `message` is one line without the end of line. Called from any thread. */
typedef void (*batten_log_callback)(int level, const char* message, void* user);

/* Replaces the default sink (stderr); NULL restores it. */
BATTEN_API void batten_set_log_callback(batten_log_callback callback, void* user);

/* The default is BATTEN_LOG_LEVEL (debug, info, warning, error, off), else warnings. */
BATTEN_API void batten_set_log_level(int level);

/* Scratch memory for the pools, ordered on `stream` (a later call on that stream may use it).
 * `alloc` returns NULL when there is none; what it returns is 256-byte aligned. NULL restores the
 * default. */
typedef void* (*batten_alloc_fn)(void* user, batten_device device, size_t bytes, void* stream);
typedef void (*batten_free_fn)(void* user, batten_device device, void* data, size_t bytes,
                               void* stream);
BATTEN_API int batten_set_allocator(batten_alloc_fn alloc, batten_free_fn free, void* user);

/* Gives the pools' idle memory back (waits for the device's work that uses it). */
BATTEN_API int batten_trim(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* BATTEN_BATTEN_H_ */
