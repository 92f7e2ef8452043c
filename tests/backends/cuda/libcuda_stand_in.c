/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in of NVIDIA's driver for machines without one: two devices whose memory is this
 * process's. It checks what a driver relies on: a context, addresses, pinned memory of copies, and
 * sizes of blocks. What is queued is done when somebody waits for it, and not before. It cannot read
 * PTX or machine code: a test tells it which function of this CPU does what a kernel does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 201, INVALID_IMAGE = 200,
       NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, ALREADY_ENABLED = 704, TOO_MANY_PEERS = 711,
       CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CANNOT_UPDATE = 910 };
enum { DEVICES = 2, MOST = 4096, ARGUMENTS = 512 };

struct context { int device, users; size_t used; };
struct piece { struct context *context; char *start; size_t size; int is_pinned; };
struct event { struct stream *stream; long number; };
struct operation { char *to, *from; size_t size; struct kernel *kernel; unsigned grid[3], threads;
                   void (*host)(void *); void *data;   /* a call of the host's */
                   struct stream *other; long number;  /* what another stream has to have done */
                   struct event *event;                /* recorded in a graph */
                   int *counter;                       /* of what is queued, by a graph too */
                   int64_t values[ARGUMENTS]; void *table[ARGUMENTS]; };
struct stream { struct context *context; struct operation *queue[MOST]; long first, last;
                struct graph *capture; int is_invalid; };
struct host_code { char name[128]; void (*run)(void **); int waits;
                   unsigned threads; int arguments; /* of one that does a matrix of a batch by one call */ };
struct kernel { struct host_code *code; unsigned threads; int arguments; };

static struct context contexts[DEVICES];
static struct piece pieces[MOST];
static struct host_code codes[MOST];
static struct stream *streams[MOST];
static void drain(struct stream *stream, long end);
static int record(struct stream *stream, struct operation work);
static int code_count, launches, graph_launches, graphs, copies_in, copies_out, copies_between;
static int instantiated, updated, failing_captures, peers = 1, enabled[DEVICES][DEVICES];
static size_t limit = (size_t)1 << 30;
static _Thread_local struct context *current;
static _Thread_local int thread_x, block_x, block_y, block_z, blocks_y, grid[3];
static pthread_barrier_t block_barrier;

/* For tests. */
void stand_in_limit(size_t bytes) { limit = bytes; }
void stand_in_peers(int can_access) { peers = can_access; }
void stand_in_failing_captures(int count) { failing_captures = count; }
int64_t stand_in_count(const char *what) {
  if (!strcmp(what, "launches")) return launches;
  if (!strcmp(what, "graph launches")) return graph_launches;
  if (!strcmp(what, "graphs")) return graphs;
  if (!strcmp(what, "instantiated")) return instantiated;
  if (!strcmp(what, "updated")) return updated;
  if (!strcmp(what, "copies between")) return copies_between;
  if (!strcmp(what, "copies in")) return copies_in;
  if (!strcmp(what, "copies out")) return copies_out;
  int64_t total = 0;
  for (int i = 0; i < MOST; i++)
    if (pieces[i].start && pieces[i].is_pinned == !strcmp(what, "pinned")) total += pieces[i].size;
  return total;
}
void stand_in_kernel(const char *name, void *run, int waits) {
  struct host_code *code = &codes[code_count++ % MOST];
  snprintf(code->name, sizeof code->name, "%s", name);
  code->run = (void (*)(void **))run;
  code->waits = waits;
}
/* A kernel of machine code, which says neither its threads nor its arguments. */
void stand_in_whole_kernel(const char *name, void *run, unsigned threads, int arguments) {
  stand_in_kernel(name, run, 0);
  codes[(code_count - 1) % MOST].threads = threads;
  codes[(code_count - 1) % MOST].arguments = arguments;
}
int stand_in_ctaid_z(void) { return block_z; }
int stand_in_blocks(int dimension) { return grid[dimension]; }
int stand_in_tid_x(void) { return thread_x; }
int stand_in_ctaid_x(void) { return block_x; }
int stand_in_ctaid_y(void) { return block_y; }
int stand_in_nctaid_y(void) { return blocks_y; }
void stand_in_wait(int number) { (void)number; pthread_barrier_wait(&block_barrier); }

/* Memory. */
static int allocate(char **start, size_t size, int is_pinned) {
  if (!current) return INVALID_CONTEXT;
  if (!size) return INVALID_VALUE;
  if (!is_pinned && current->used + size > limit) return OUT_OF_MEMORY;
  for (int i = 0; i < MOST; i++)
    if (!pieces[i].start) {
      if (posix_memalign((void **)start, 256, size)) return OUT_OF_MEMORY;
      memset(*start, 0xA5, size);
      pieces[i] = (struct piece){current, *start, size, is_pinned};
      if (!is_pinned) current->used += size;
      return OK;
    }
  return OUT_OF_MEMORY;
}
static int release(char *start, int is_pinned) {
  for (int i = 0; i < MOST; i++) /* the driver waits for what may use it */
    if (streams[i]) drain(streams[i], streams[i]->last);
  for (int i = 0; i < MOST; i++)
    if (pieces[i].start == start && start && pieces[i].is_pinned == is_pinned) {
      if (!is_pinned) pieces[i].context->used -= pieces[i].size;
      free(start);
      pieces[i].start = NULL;
      return OK;
    }
  return INVALID_VALUE;
}
static int is_inside(struct context *context, char *start, size_t size, int is_pinned) {
  for (int i = 0; i < MOST; i++) {
    struct piece *p = &pieces[i];
    if (p->start && p->is_pinned == is_pinned && (is_pinned || p->context == context) &&
        start >= p->start && start + size <= p->start + p->size)
      return 1;
  }
  return 0;
}

/* Work. */
struct lane { struct operation *work; int x; };
static void run_lane(struct operation *work, int x) {
  thread_x = x;
  blocks_y = work->grid[1];
  for (block_x = 0; block_x < (int)work->grid[0]; block_x++)
    for (block_y = 0; block_y < blocks_y; block_y++) {
      work->kernel->code->run(work->table);
      if (work->kernel->code->waits) pthread_barrier_wait(&block_barrier);
    }
}
static void *lane_main(void *lane) {
  run_lane(((struct lane *)lane)->work, ((struct lane *)lane)->x);
  return NULL;
}
static void run_kernel(struct operation *work) {
  pthread_t threads[1024];
  struct lane lanes[1024];
  if (work->kernel->code->threads) {
    for (block_z = 0; block_z < (int)work->grid[2]; block_z++) {
      for (int i = 0; i < 3; i++) grid[i] = work->grid[i];
      work->kernel->code->run(work->table);
    }
    return;
  }
  if (!work->kernel->code->waits) {
    for (unsigned x = 0; x < work->threads; x++) run_lane(work, x);
    return;
  }
  pthread_barrier_init(&block_barrier, NULL, work->threads);
  for (unsigned x = 0; x < work->threads; x++) {
    lanes[x] = (struct lane){work, x};
    pthread_create(&threads[x], NULL, lane_main, &lanes[x]);
  }
  for (unsigned x = 0; x < work->threads; x++) pthread_join(threads[x], NULL);
  pthread_barrier_destroy(&block_barrier);
}
static void drain(struct stream *stream, long end) {
  for (; stream->first < end; stream->first++) {
    struct operation *work = stream->queue[stream->first % MOST];
    if (work->kernel) run_kernel(work);
    else if (work->host) work->host(work->data);
    else if (work->other) drain(work->other, work->number);
    else memcpy(work->to, work->from, work->size);
    free(work);
  }
}
static int submit(struct stream *stream, struct operation work) {
  if (!current || current != stream->context) return INVALID_CONTEXT;
  if (stream->capture) return record(stream, work);
  if (stream->last - stream->first >= MOST) return OUT_OF_MEMORY;
  if (work.counter) ++*work.counter;
  struct operation *kept = malloc(sizeof *kept);
  *kept = work;
  for (int i = 0; i < ARGUMENTS; i++) kept->table[i] = &kept->values[i];
  stream->queue[stream->last++ % MOST] = kept;
  return OK;
}

/* The driver's functions. */
int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { *version = 12090; return OK; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return OK; }
int cuDeviceGet(int *device, int number) { *device = number; return number < DEVICES ? OK : 101; }
int cuDeviceGetName(char *name, int length, int device) {
  snprintf(name, length, "stand-in"); (void)device; return OK;
}
int cuDeviceGetPCIBusId(char *name, int length, int device) {
  snprintf(name, length, "0000:0%d:00.0", device); return OK;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = limit; return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 1: *value = 1024; return OK;
    case 8: *value = 49152; return OK;
    case 16: *value = 4; return OK;
    case 75: *value = 8; return OK;
    case 76: *value = 0; return OK;
    default: return INVALID_VALUE;
  }
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  contexts[device].device = device; contexts[device].users++; *context = &contexts[device]; return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  return contexts[device].users-- > 0 ? OK : INVALID_CONTEXT;
}
int cuCtxSetCurrent(void *context) { current = context; return OK; }
int cuMemAlloc_v2(char **start, size_t size) { return allocate(start, size, 0); }
int cuMemFree_v2(char *start) { return release(start, 0); }
int cuMemAllocHost_v2(char **start, size_t size) { return allocate(start, size, 1); }
int cuMemFreeHost(char *start) { return release(start, 1); }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  if (!current) return INVALID_CONTEXT;
  *total = limit; *free_bytes = limit - current->used; return OK;
}
int cuStreamCreate(struct stream **stream, unsigned flags) {
  if (!current) return INVALID_CONTEXT;
  if (flags != 1) return INVALID_VALUE; /* else it would wait for the default stream */
  *stream = calloc(1, sizeof **stream);
  (*stream)->context = current;
  for (int i = 0; i < MOST; i++)
    if (!streams[i]) { streams[i] = *stream; return OK; }
  return OUT_OF_MEMORY;
}
int cuStreamDestroy_v2(struct stream *stream) {
  for (int i = 0; i < MOST; i++) /* one of them may wait for it */
    if (streams[i]) drain(streams[i], streams[i]->last);
  for (int i = 0; i < MOST; i++)
    if (streams[i] == stream) streams[i] = NULL;
  free(stream);
  return OK;
}
int cuStreamSynchronize(struct stream *stream) {
  if (!current) return INVALID_CONTEXT;
  if (stream->capture) { stream->is_invalid = 1; return CAPTURE_UNSUPPORTED; }
  drain(stream, stream->last); return OK;
}
int cuEventCreate(struct event **event, unsigned flags) {
  (void)flags; *event = calloc(1, sizeof **event); return current ? OK : INVALID_CONTEXT;
}
int cuEventElapsedTime(float *milliseconds, struct event *start, struct event *end) {
  *milliseconds = 1.0f; (void)start; (void)end; return OK;
}
int cuEventDestroy_v2(struct event *event) { free(event); return OK; }
int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
  if (flags || stream->capture) return INVALID_VALUE;
  if (!event->stream) return OK; /* never recorded */
  return submit(stream, (struct operation){.other = event->stream, .number = event->number});
}
int cuEventRecordWithFlags(struct event *event, struct stream *stream, unsigned flags) {
  if (flags != 1 || !stream->capture) return INVALID_VALUE; /* external, as a node of a graph */
  return submit(stream, (struct operation){.event = event});
}
int cuEventRecord(struct event *event, struct stream *stream) {
  if (stream->capture) { stream->is_invalid = 1; return CAPTURE_UNSUPPORTED; }
  event->stream = stream; event->number = stream->last; return OK;
}
int cuEventQuery(struct event *event) {
  return event->stream->first >= event->number ? OK : NOT_READY;
}
int cuEventSynchronize(struct event *event) { drain(event->stream, event->number); return OK; }
int cuMemcpyHtoDAsync_v2(char *to, char *from, size_t size, struct stream *stream) {
  if (!is_inside(stream->context, to, size, 0) || !is_inside(NULL, from, size, 1))
    return ILLEGAL_ADDRESS;
  return submit(stream, (struct operation){.to = to, .from = from, .size = size,
                                           .counter = &copies_in});
}
int cuMemcpyDtoHAsync_v2(char *to, char *from, size_t size, struct stream *stream) {
  if (!is_inside(stream->context, from, size, 0) || !is_inside(NULL, to, size, 1))
    return ILLEGAL_ADDRESS;
  return submit(stream, (struct operation){.to = to, .from = from, .size = size,
                                           .counter = &copies_out});
}
int cuDeviceCanAccessPeer(int *can, int device, int other) {
  *can = peers && device != other; return OK;
}
int cuCtxEnablePeerAccess(struct context *other, unsigned flags) {
  if (!current || other == current || flags || !peers) return INVALID_VALUE;
  if (peers == 2) return TOO_MANY_PEERS;
  if (enabled[current->device][other->device]) return ALREADY_ENABLED;
  enabled[current->device][other->device] = 1; return OK;
}
int cuMemcpyPeerAsync(char *to, struct context *there, char *from, struct context *here, size_t size,
                      struct stream *stream) {
  if (!is_inside(there, to, size, 0) || !is_inside(here, from, size, 0)) return ILLEGAL_ADDRESS;
  if (!enabled[there->device][here->device]) return INVALID_CONTEXT; /* it would use the host */
  return submit(stream, (struct operation){.to = to, .from = from, .size = size,
                                           .counter = &copies_between});
}
int cuLaunchHostFunc(struct stream *stream, void (*function)(void *), void *data) {
  return submit(stream, (struct operation){.host = function, .data = data});
}
static const char ELF[] = "\177ELF";
static size_t elf_bytes;
int cuModuleLoadData(char **module, const char *ptx) {
  if (!current) return INVALID_CONTEXT;
  if (!memcmp(ptx, ELF, 4)) { /* whose header says how long it is */
    uint64_t sections; uint16_t size, count, machine;
    memcpy(&sections, ptx + 40, 8); memcpy(&size, ptx + 58, 2); memcpy(&count, ptx + 60, 2);
    memcpy(&machine, ptx + 18, 2);
    if (machine != 190) return INVALID_IMAGE; /* EM_CUDA */
    elf_bytes = sections + (uint64_t)size * count;
    *module = malloc(elf_bytes);
    memcpy(*module, ptx, elf_bytes); return OK;
  }
  if (!strstr(ptx, ".target sm_80")) return INVALID_IMAGE;
  *module = strdup(ptx); return OK;
}
int cuModuleUnload(char *module) { free(module); return OK; }
int cuModuleGetFunction(struct kernel **kernel, char *module, const char *name) {
  char head[160], *found, *end;
  if (!memcmp(module, ELF, 4)) {
    if (!memmem(module, elf_bytes, name, strlen(name))) return NOT_FOUND;
    *kernel = calloc(1, sizeof **kernel);
    for (int i = 0; i < code_count && i < MOST; i++)
      if (!strcmp(codes[i].name, name)) (*kernel)->code = &codes[i];
    if (!(*kernel)->code) return NOT_FOUND;
    (*kernel)->threads = (*kernel)->code->threads;
    (*kernel)->arguments = (*kernel)->code->arguments;
    return OK;
  }
  snprintf(head, sizeof head, ".visible .entry %s(", name);
  if (!(found = strstr(module, head)) || !(end = strchr(found + strlen(head), ')'))) return NOT_FOUND;
  *kernel = calloc(1, sizeof **kernel);
  for (char *at = found; (at = strstr(at, ".param")) && at < end; at++) (*kernel)->arguments++;
  char *threads = strstr(end, ".reqntid ");
  (*kernel)->threads = threads ? (unsigned)atoi(threads + 9) : 0;
  for (int i = 0; i < code_count && i < MOST; i++)
    if (!strcmp(codes[i].name, name)) (*kernel)->code = &codes[i];
  return (*kernel)->code ? OK : NOT_FOUND;
}
static int prepare(struct operation *work, struct kernel *kernel, unsigned gx, unsigned gy,
                   unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void **given, void **extra) {
  if (bx != kernel->threads || by != 1 || bz != 1 || shared || extra || gy > 65535 || gz > 65535 ||
      (gz != 1 && !kernel->code->threads))
    return INVALID_VALUE;
  *work = (struct operation){.kernel = kernel, .grid = {gx, gy, gz}, .threads = bx};
  for (int i = 0; i < kernel->arguments; i++) work->values[i] = *(int64_t *)given[i];
  return OK;
}
int cuLaunchKernel(struct kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, struct stream *stream, void **given,
                   void **extra) {
  struct operation work;
  int error = prepare(&work, kernel, gx, gy, gz, bx, by, bz, shared, given, extra);
  if (error) return error;
  if (!stream->capture) launches++;
  return submit(stream, work);
}

/* Graphs: of kernels each of which depends on the one that was added before it, and on no other. */
struct node { struct node *before; struct operation work; };
struct graph { struct node *last; int count; };
struct executable { int count; struct operation work[]; };
struct node_params { struct kernel *kernel; unsigned gx, gy, gz, bx, by, bz, shared; void **given,
                     **extra, *other_kernel, *context; };
int cuGraphCreate(struct graph **graph, unsigned flags) {
  if (!current || flags) return INVALID_VALUE;
  graphs++;
  *graph = calloc(1, sizeof **graph); return OK;
}
int cuGraphAddKernelNode_v2(struct node **added, struct graph *graph, struct node **dependencies,
                            size_t count, const struct node_params *p) {
  if (count != (graph->last != NULL) || (count && dependencies[0] != graph->last))
    return INVALID_VALUE;
  struct node *node = calloc(1, sizeof *node);
  int error = prepare(&node->work, p->kernel, p->gx, p->gy, p->gz, p->bx, p->by, p->bz, p->shared,
                      p->given, p->extra);
  if (error) { free(node); return error; }
  node->before = graph->last;
  *added = graph->last = node;
  graph->count++;
  return OK;
}
static int record(struct stream *stream, struct operation work) {
  if (stream->is_invalid) return CAPTURE_INVALIDATED;
  struct node *node = calloc(1, sizeof *node);
  *node = (struct node){stream->capture->last, work};
  stream->capture->last = node;
  stream->capture->count++;
  return OK;
}
int cuStreamBeginCapture_v2(struct stream *stream, int mode) {
  if (mode != 2 || stream->capture) return INVALID_VALUE; /* relaxed: memory may be given back */
  stream->is_invalid = 0;
  return cuGraphCreate(&stream->capture, 0);
}
int cuGraphDestroy(struct graph *graph);
int cuStreamEndCapture(struct stream *stream, struct graph **graph) {
  if (!stream->capture) return INVALID_VALUE;
  *graph = stream->capture;
  stream->capture = NULL;
  if (!stream->is_invalid && failing_captures-- <= 0) { failing_captures = 0; return OK; }
  cuGraphDestroy(*graph);
  *graph = NULL;
  return CAPTURE_INVALIDATED;
}
static int is_alike(struct operation *one, struct operation *other) {
  return one->kernel == other->kernel && !one->host == !other->host && one->size == other->size &&
         !one->event == !other->event;
}
int cuGraphExecUpdate_v2(struct executable *made, struct graph *graph, int *result) {
  *result = 1;
  if (made->count != graph->count) return CANNOT_UPDATE;
  struct node *node = graph->last;
  for (int i = made->count; i-- > 0; node = node->before)
    if (!is_alike(&made->work[i], &node->work)) return CANNOT_UPDATE;
  node = graph->last;
  for (int i = made->count; i-- > 0; node = node->before) made->work[i] = node->work;
  updated++;
  *result = 0;
  return OK;
}
int cuGraphInstantiateWithFlags(struct executable **made, struct graph *graph, uint64_t flags) {
  if (flags) return INVALID_VALUE;
  *made = calloc(1, sizeof **made + graph->count * sizeof(struct operation));
  (*made)->count = graph->count;
  graphs++;
  instantiated++;
  struct node *node = graph->last;
  for (int i = graph->count; i-- > 0; node = node->before) (*made)->work[i] = node->work;
  return OK;
}
int cuGraphDestroy(struct graph *graph) {
  for (struct node *node = graph->last, *before; node; node = before) {
    before = node->before;
    free(node);
  }
  graphs--;
  free(graph); return OK;
}
int cuGraphExecDestroy(struct executable *made) { graphs--; free(made); return OK; }
int cuGraphLaunch(struct executable *made, struct stream *stream) {
  if (stream->capture) return CAPTURE_UNSUPPORTED;
  graph_launches++;
  for (int i = 0; i < made->count; i++) {
    struct event *event = made->work[i].event;
    if (event) { event->stream = stream; event->number = stream->last; continue; }
    int error = submit(stream, made->work[i]);
    if (error) return error;
  }
  return OK;
}
int cuGetErrorString(int error, const char **text) {
  *text = error == OUT_OF_MEMORY ? "out of memory" : "something is wrong"; return OK;
}
int cuGetErrorName(int error, const char **text) { (void)error; *text = "CUDA_ERROR"; return OK; }
int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status) {
  (void)version; (void)flags;
  char newer[160];
  snprintf(newer, sizeof newer, "%s_v2", name);
  Dl_info here;
  dladdr((void *)cuInit, &here);
  void *library = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *address = dlsym(library, newer);
  if (!*address) *address = dlsym(library, name);
  if (status) *status = *address ? 0 : 1;
  return OK;
}
int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, address, version, flags, NULL);
}
