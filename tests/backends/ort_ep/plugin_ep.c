// SPDX-License-Identifier: Apache-2.0
// An execution provider for ONNX Runtime, as a plug-in: Add and Mul of float32 and of one shape.
//
// Declares what it needs of version 29 of ONNX Runtime's C API by itself, and asks for that version:
// its tables only ever grow at their ends, and functions are called by their places in them. Its option
// `most` is how many nodes of a graph it takes at most, so that it can be asked for one and refuse two.

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef const void *const *Api;
typedef void *Status;

enum {
  VERSION = 29,
  // of the main table
  CREATE_STATUS = 0,
  MUTABLE_DATA = 51,
  AS_TENSOR_TYPE = 55,
  ELEMENT_TYPE = 60,
  DIM_COUNT = 61,
  DIMS = 62,
  ELEMENT_COUNT = 64,
  TYPE_AND_SHAPE = 65,
  INPUT_COUNT = 88,
  INPUT = 90,
  OUTPUT = 91,
  RELEASE_SHAPE = 99,
  CONFIG_ENTRY = 238,
  VALUE_TYPE = 290,
  DEVICE_TYPE = 307,
  PROVIDER_API = 317,
  NODE_COUNT = 344,
  NODES = 345,
  OPERATOR = 350,
  NODE_INPUT_COUNT = 353,
  NODE_INPUTS = 354,
  // of the providers' table
  CREATE_DEVICE = 0,
  FUSE = 2,
  // values
  FAILED = 1,
  FLOAT = 1,
  CPU = 0,
  MOST_DIMS = 8,
  MOST_NODES = 64
};

typedef struct {
  const void *(*get_api)(uint32_t version);
  const char *(*get_version)(void);
} ApiBase;

typedef struct Kernel {
  uint32_t version;
  Status (*create)(struct Kernel *, void *, void **);
  Status (*compute)(struct Kernel *, void *, void *);
  void (*release)(struct Kernel *, void *);
  char operator;
} Kernel;

typedef struct Provider {
  uint32_t version;
  const char *(*name)(const struct Provider *);
  Status (*capability)(struct Provider *, const void *, void *);
  Status (*compile)(struct Provider *, const void **, const void **, size_t, Kernel **, void **);
  void (*release)(struct Provider *, Kernel **, size_t);
  const void *others[21];
  size_t most;
} Provider;

typedef struct Factory {
  uint32_t version;
  const char *(*name)(const struct Factory *);
  const char *(*vendor)(const struct Factory *);
  Status (*devices)(struct Factory *, const void *const *, size_t, void **, size_t, size_t *);
  Status (*create)(struct Factory *, const void *const *, const void *const *, size_t,
                   const void *, const void *, Provider **);
  void (*release)(struct Factory *, Provider *);
  uint32_t (*vendor_id)(const struct Factory *);
  const char *(*own_version)(const struct Factory *);
  const void *compatibility;
  Status (*allocator)(struct Factory *, const void *, const void *, void **);
  void (*release_allocator)(struct Factory *, void *);
  Status (*transfer)(struct Factory *, void **);
  _Bool (*has_streams)(const struct Factory *);
  const void *others[8];
} Factory;

static Api api, provider_api;

#define CALL(table, place, result, ...) (((result(*)(__VA_ARGS__))(uintptr_t)(table)[place]))
#define TRY(call)                                                                                  \
  do {                                                                                             \
    Status status_ = (call);                                                                       \
    if (status_) return status_;                                                                   \
  } while (0)

static Status fail(const char *text) {
  return CALL(api, CREATE_STATUS, Status, int, const char *)(FAILED, text);
}

typedef struct {
  int type;
  size_t rank;
  int64_t dims[MOST_DIMS];
} Shape;

static Status read_shape(const void *info, Shape *shape) {
  TRY(CALL(api, ELEMENT_TYPE, Status, const void *, int *)(info, &shape->type));
  TRY(CALL(api, DIM_COUNT, Status, const void *, size_t *)(info, &shape->rank));
  if (shape->rank > MOST_DIMS) return fail("it has too many dimensions");
  return CALL(api, DIMS, Status, const void *, int64_t *, size_t)(info, shape->dims, shape->rank);
}

static Status value_shape(const void *value, Shape *shape) {
  const void *type = NULL, *info = NULL;
  TRY(CALL(api, VALUE_TYPE, Status, const void *, const void **)(value, &type));
  TRY(CALL(api, AS_TENSOR_TYPE, Status, const void *, const void **)(type, &info));
  shape->type = 0;
  return info ? read_shape(info, shape) : NULL;
}

// Sets `sign` to '+' or '*' if the node is taken, and to 0 if it is not.
static Status judge(const void *node, char *sign) {
  const char *name = NULL;
  size_t count = 0;
  const void *inputs[2];
  Shape shapes[2];
  *sign = 0;
  TRY(CALL(api, OPERATOR, Status, const void *, const char **)(node, &name));
  TRY(CALL(api, NODE_INPUT_COUNT, Status, const void *, size_t *)(node, &count));
  int is_add = name[0] == 'A' && name[1] == 'd' && name[2] == 'd' && !name[3];
  int is_mul = name[0] == 'M' && name[1] == 'u' && name[2] == 'l' && !name[3];
  if (count != 2 || !(is_add || is_mul)) return NULL;
  TRY(CALL(api, NODE_INPUTS, Status, const void *, const void **, size_t)(node, inputs, 2));
  for (int i = 0; i < 2; ++i) TRY(value_shape(inputs[i], &shapes[i]));
  if (shapes[0].type != FLOAT || shapes[1].type != FLOAT) return NULL;
  if (shapes[0].rank != shapes[1].rank) return NULL;
  for (size_t i = 0; i < shapes[0].rank; ++i)
    if (shapes[0].dims[i] < 0 || shapes[0].dims[i] != shapes[1].dims[i]) return NULL;
  *sign = is_add ? '+' : '*';
  return NULL;
}

static Status nodes_of(const void *graph, const void **nodes, size_t *count) {
  TRY(CALL(api, NODE_COUNT, Status, const void *, size_t *)(graph, count));
  if (*count > MOST_NODES) return fail("the graph has too many nodes");
  return CALL(api, NODES, Status, const void *, const void **, size_t)(graph, nodes, *count);
}

static Status capability(Provider *self, const void *graph, void *support) {
  const void *nodes[MOST_NODES];
  size_t count = 0, taken = 0;
  TRY(nodes_of(graph, nodes, &count));
  for (size_t i = 0; i < count && taken < self->most; ++i) {
    char sign = 0;
    TRY(judge(nodes[i], &sign));
    if (!sign) continue;
    taken += 1;
    TRY(CALL(provider_api, FUSE, Status, void *, const void *const *, size_t, const void *)(
        support, &nodes[i], 1, NULL));
  }
  return NULL;
}

static Status create_state(Kernel *self, void *context, void **state) {
  (void)context;
  *state = self;
  return NULL;
}

static void release_state(Kernel *self, void *state) { (void)self, (void)state; }

static Status read_input(void *context, size_t index, const float **data, void **info) {
  const void *value = NULL;
  TRY(CALL(api, INPUT, Status, const void *, size_t, const void **)(context, index, &value));
  TRY(CALL(api, MUTABLE_DATA, Status, const void *, const float **)(value, data));
  return CALL(api, TYPE_AND_SHAPE, Status, const void *, void **)(value, info);
}

static Status compute(Kernel *self, void *state, void *context) {
  const float *left = NULL, *right = NULL;
  float *result = NULL;
  void *info = NULL, *other = NULL, *out = NULL;
  size_t inputs = 0, count = 0;
  Shape shape;
  (void)state;
  TRY(CALL(api, INPUT_COUNT, Status, const void *, size_t *)(context, &inputs));
  TRY(read_input(context, 0, &left, &info));
  TRY(read_input(context, inputs > 1 ? 1 : 0, &right, &other)); // x + x has one input
  TRY(read_shape(info, &shape));
  TRY(CALL(api, ELEMENT_COUNT, Status, const void *, size_t *)(info, &count));
  CALL(api, RELEASE_SHAPE, void, void *)(info);
  CALL(api, RELEASE_SHAPE, void, void *)(other);
  TRY(CALL(api, OUTPUT, Status, void *, size_t, const int64_t *, size_t, void **)(
      context, 0, shape.dims, shape.rank, &out));
  TRY(CALL(api, MUTABLE_DATA, Status, void *, float **)(out, &result));
  for (size_t i = 0; i < count; ++i)
    result[i] = self->operator== '+' ? left[i] + right[i] : left[i] * right[i];
  return NULL;
}

static Status compile(Provider *self, const void **graphs, const void **fused, size_t count,
                      Kernel **kernels, void **contexts) {
  (void)self, (void)fused, (void)contexts;
  for (size_t i = 0; i < count; ++i) {
    const void *nodes[MOST_NODES];
    size_t inner = 0;
    Kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return fail("no memory");
    kernel->version = VERSION;
    kernel->create = create_state;
    kernel->compute = compute;
    kernel->release = release_state;
    kernels[i] = kernel;
    TRY(nodes_of(graphs[i], nodes, &inner));
    if (inner != 1) return fail("each graph has to have one node");
    TRY(judge(nodes[0], &kernel->operator));
    if (!kernel->operator) return fail("a node is none that was taken");
  }
  return NULL;
}

static void release_kernels(Provider *self, Kernel **kernels, size_t count) {
  (void)self;
  for (size_t i = 0; i < count; ++i) free(kernels[i]);
}

static const char *provider_name(const Provider *self) { return (void)self, "SumsProvider"; }
static const char *factory_name(const Factory *self) { return (void)self, "SumsProvider"; }
static const char *vendor(const Factory *self) { return (void)self, "Intarsia's tests"; }
static const char *own_version(const Factory *self) { return (void)self, "0.1.0"; }
static uint32_t vendor_id(const Factory *self) { return (void)self, 0xFFFFu; }

static Status devices(Factory *self, const void *const *found, size_t count, void **made,
                      size_t most, size_t *made_count) {
  *made_count = 0;
  for (size_t i = 0; i < count && *made_count < most; ++i) {
    if (CALL(api, DEVICE_TYPE, int, const void *)(found[i]) != CPU) continue;
    TRY(CALL(provider_api, CREATE_DEVICE, Status, Factory *, const void *, const void *, const void *,
             void **)(self, found[i], NULL, NULL, &made[*made_count]));
    *made_count += 1;
  }
  return NULL;
}

static Status create(Factory *self, const void *const *hardware, const void *const *metadata,
                     size_t count, const void *options, const void *logger, Provider **made) {
  char text[16] = "";
  size_t size = sizeof text;
  Provider *provider = calloc(1, sizeof *provider);
  (void)self, (void)hardware, (void)metadata, (void)count, (void)logger;
  if (!provider) return fail("no memory");
  provider->version = VERSION;
  provider->name = provider_name;
  provider->capability = capability;
  provider->compile = compile;
  provider->release = release_kernels;
  provider->most = MOST_NODES;
  *made = provider;
  // What is absent is an error there, and here it is the default.
  if (!CALL(api, CONFIG_ENTRY, Status, const void *, const char *, char *, size_t *)(
          options, "ep.sumsprovider.most", text, &size) &&
      text[0])
    provider->most = (size_t)atoi(text);
  return NULL;
}

static Status allocator(Factory *self, const void *memory, const void *options, void **made) {
  (void)self, (void)memory, (void)options;
  *made = NULL; // its memory is the host's
  return NULL;
}

static void release_allocator(Factory *self, void *made) { (void)self, (void)made; }

static Status transfer(Factory *self, void **made) {
  (void)self;
  *made = NULL;
  return NULL;
}

static _Bool has_streams(const Factory *self) { return (void)self, 0; }

static void release(Factory *self, Provider *provider) {
  (void)self;
  free(provider);
}

__attribute__((visibility("default"))) Status CreateEpFactories(const char *name,
                                                                const ApiBase *base,
                                                                const void *logger,
                                                                Factory **factories, size_t most,
                                                                size_t *count) {
  static Factory factory = {VERSION,   factory_name, vendor,      devices,   create,
                            release,   vendor_id,    own_version, NULL,      allocator,
                            release_allocator, transfer, has_streams, {NULL}};
  (void)name, (void)logger;
  api = base->get_api(VERSION);
  if (!api) { // an older ONNX Runtime: its first table has what tells it
    api = base->get_api(1);
    return fail("this provider needs version 29 of ONNX Runtime's C API");
  }
  provider_api = CALL(api, PROVIDER_API, Api, void)();
  if (most < 1) return fail("there is no room for a provider");
  factories[0] = &factory;
  *count = 1;
  return NULL;
}

__attribute__((visibility("default"))) Status ReleaseEpFactory(Factory *factory) {
  (void)factory;
  return NULL;
}
