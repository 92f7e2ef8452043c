// SPDX-License-Identifier: Apache-2.0
// A library of one custom operator for ONNX Runtime: test.ops.Thrice(float) = 3 * x.
//
// Declares what it needs of ONNX Runtime's C API by itself: the first part of its tables never changes,
// and functions are called by their places in it.

#include <stddef.h>
#include <stdint.h>

typedef const void *const *Api;

typedef struct {
  const void *(*get_api)(uint32_t version);
  const char *(*get_version)(void);
} ApiBase;

typedef struct Op {
  uint32_t version;
  void *(*create_kernel)(const struct Op *, Api, const void *);
  const char *(*name)(const struct Op *);
  const char *(*provider)(const struct Op *);
  int (*input_type)(const struct Op *, size_t);
  size_t (*input_count)(const struct Op *);
  int (*output_type)(const struct Op *, size_t);
  size_t (*output_count)(const struct Op *);
  void (*compute)(void *, void *);
  void (*destroy)(void *);
  int (*input_need)(const struct Op *, size_t);
  int (*output_need)(const struct Op *, size_t);
} Op;

enum {
  CREATE_DOMAIN = 26,
  DOMAIN_ADD = 27,
  ADD_DOMAIN = 28,
  DATA = 51,
  DIM_COUNT = 61,
  DIMS = 62,
  ELEMENT_COUNT = 64,
  TYPE_AND_SHAPE = 65,
  INPUT = 90,
  OUTPUT = 91,
  RELEASE_SHAPE = 99,
  FLOAT = 1,
  REQUIRED = 0,
  MOST_DIMS = 8
};

static Api api;

#define CALL(place, result, ...) (((result(*)(__VA_ARGS__))(uintptr_t)api[place]))

static void *create_kernel(const Op *op, Api table, const void *info) {
  (void)table, (void)info;
  return (void *)(uintptr_t)op;
}
static const char *name(const Op *op) { return (void)op, "Thrice"; }
static const char *provider(const Op *op) { return (void)op, (const char *)0; }
static int type(const Op *op, size_t index) { return (void)op, (void)index, FLOAT; }
static int need(const Op *op, size_t index) { return (void)op, (void)index, REQUIRED; }
static size_t one(const Op *op) { return (void)op, (size_t)1; }
static void destroy(void *kernel) { (void)kernel; }

static void compute(void *kernel, void *context) {
  void *input = 0, *output = 0, *info = 0;
  float *from = 0, *to = 0;
  size_t rank = 0, count = 0;
  int64_t dims[MOST_DIMS] = {0};
  (void)kernel;
  CALL(INPUT, void *, const void *, size_t, void **)(context, 0, &input);
  CALL(TYPE_AND_SHAPE, void *, const void *, void **)(input, &info);
  CALL(DIM_COUNT, void *, const void *, size_t *)(info, &rank);
  CALL(DIMS, void *, const void *, int64_t *, size_t)(info, dims, rank);
  CALL(ELEMENT_COUNT, void *, const void *, size_t *)(info, &count);
  CALL(RELEASE_SHAPE, void, void *)(info);
  CALL(OUTPUT, void *, void *, size_t, const int64_t *, size_t, void **)
  (context, 0, dims, rank, &output);
  CALL(DATA, void *, void *, void **)(input, (void **)(void *)&from);
  CALL(DATA, void *, void *, void **)(output, (void **)(void *)&to);
  for (size_t i = 0; i < count; ++i) to[i] = 3 * from[i];
}

static Op thrice = {8,    create_kernel, name,    provider, type, one,
                    type, one,           compute, destroy,  need, need};

void *RegisterCustomOps(void *options, const ApiBase *base) {
  void *domain = 0;
  api = (Api)base->get_api(1);
  void *status = CALL(CREATE_DOMAIN, void *, const char *, void **)("test.ops", &domain);
  if (!status) status = CALL(DOMAIN_ADD, void *, void *, const Op *)(domain, &thrice);
  if (!status) status = CALL(ADD_DOMAIN, void *, void *, void *)(options, domain);
  return status;
}
