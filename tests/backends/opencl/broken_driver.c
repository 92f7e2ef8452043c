/* SPDX-License-Identifier: Apache-2.0
 *
 * An OpenCL 1.2 driver with one device, for tests: it builds and runs nothing, and so lies about what
 * it has computed. BROKEN_AT says where it does worse (load, build, run or exit), and BROKEN_HOW what:
 * abort, hang, error; anything else is nothing. Before it hangs, it makes the file BROKEN_MARK.
 *
 * The order of the functions in the table is that of the Khronos header cl_icd.h.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define DEVICE_NOT_FOUND (-1)
#define BUILD_FAILURE (-11)
#define OUT_OF_RESOURCES (-5)
#define INVALID_VALUE (-30)

enum { TABLE = 160 };

typedef struct {
    void **dispatch;
    char *memory;
    size_t nbytes;
} object;

static void *table[TABLE];
static object platform = {table, 0, 0}, device = {table, 0, 0}, other = {table, 0, 0};

static void hang(void)
{
    const char *mark = getenv("BROKEN_MARK");
    FILE *file = mark == NULL ? NULL : fopen(mark, "w");
    if (file != NULL)
        fclose(file);
    for (;;)
        pause();
}

static int is_broken(const char *place)
{
    const char *at = getenv("BROKEN_AT"), *how = getenv("BROKEN_HOW");
    if (at == NULL || how == NULL || strcmp(at, place) != 0)
        return 0;
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "hang") == 0)
        hang();
    return strcmp(how, "error") == 0;
}

static void leave(void) { is_broken("exit"); }

static int answer(const void *data, size_t nbytes, size_t size, void *value, size_t *needed)
{
    if (needed != NULL)
        *needed = nbytes;
    if (value != NULL && size < nbytes)
        return INVALID_VALUE;
    if (value != NULL)
        memcpy(value, data, nbytes);
    return 0;
}

static int answer_text(const char *text, size_t size, void *value, size_t *needed)
{
    return answer(text, strlen(text) + 1, size, value, needed);
}

static int done(void) { return 0; }

static int platform_ids(uint32_t count, object **found, uint32_t *number)
{
    static int is_ready = 0;
    if (!is_ready) {
        is_ready = 1;
        atexit(leave);
    }
    is_broken("load");
    if (number != NULL)
        *number = 1;
    if (found != NULL && count > 0)
        found[0] = &platform;
    return 0;
}

EXPORT int clGetPlatformInfo(object *of, uint32_t what, size_t size, void *value, size_t *needed)
{
    (void)of;
    switch (what) {
    case 0x0900: return answer_text("FULL_PROFILE", size, value, needed);
    case 0x0901: return answer_text("OpenCL 1.2 broken", size, value, needed);
    case 0x0902: return answer_text("Broken Platform", size, value, needed);
    case 0x0903: return answer_text("Tests", size, value, needed);
    case 0x0904: return answer_text("cl_khr_icd", size, value, needed);
    case 0x0920: return answer_text("BROKEN", size, value, needed);
    default: return INVALID_VALUE;
    }
}

static int device_ids(object *of, uint64_t type, uint32_t count, object **found, uint32_t *number)
{
    (void)of;
    if ((type & 0x3) == 0) /* neither the default nor a CPU */
        return DEVICE_NOT_FOUND;
    if (number != NULL)
        *number = 1;
    if (found != NULL && count > 0)
        found[0] = &device;
    return 0;
}

static int device_info(object *of, uint32_t what, size_t size, void *value, size_t *needed)
{
    static const size_t items[3] = {256, 256, 256};
    uint64_t number = 1;
    void *pointer = NULL;
    size_t nbytes = sizeof(uint32_t);
    (void)of;
    switch (what) {
    case 0x102B: return answer_text("broken device", size, value, needed);
    case 0x102C: return answer_text("Tests", size, value, needed);
    case 0x102D: return answer_text("1", size, value, needed);
    case 0x102E: return answer_text("FULL_PROFILE", size, value, needed);
    case 0x102F: return answer_text("OpenCL 1.2 broken", size, value, needed);
    case 0x1030: return answer_text("cl_khr_fp64", size, value, needed);
    case 0x103D: return answer_text("OpenCL C 1.2", size, value, needed);
    case 0x1005: return answer(items, sizeof items, size, value, needed);
    case 0x1031: pointer = &platform; return answer(&pointer, sizeof pointer, size, value, needed);
    case 0x1042: return answer(&pointer, sizeof pointer, size, value, needed); /* no parent */
    case 0x1000: number = 2; nbytes = 8; break;           /* type: CPU */
    case 0x1002: number = 2; break;                       /* compute units */
    case 0x1003: number = 3; break;                       /* dimensions */
    case 0x1004: number = 256; nbytes = 8; break;         /* work-items of a group */
    case 0x1010: number = 1 << 30; nbytes = 8; break;     /* of one allocation */
    case 0x1017: number = 1024; nbytes = 8; break;        /* of arguments */
    case 0x101B: number = 0x3f; nbytes = 8; break;        /* of float */
    case 0x101F: number = 1l << 31; nbytes = 8; break;    /* of memory */
    case 0x1023: number = 32 << 10; nbytes = 8; break;    /* of local memory */
    case 0x1025: case 0x1029: case 0x102A: case 0x1032: case 0x1020: nbytes = 8; break;
    case 0x103A: number = 8; break;                       /* native width of float */
    default: break;
    }
    return answer(&number, nbytes, size, value, needed);
}

static object *make(int *error)
{
    if (error != NULL)
        *error = 0;
    return &other;
}

static object *context(const void *p, uint32_t n, object **d, void *f, void *u, int *error)
{
    (void)p, (void)n, (void)d, (void)f, (void)u;
    return make(error);
}

static object *queue(object *c, object *d, uint64_t p, int *error)
{
    (void)c, (void)d, (void)p;
    return make(error);
}

static object *buffer(object *c, uint64_t flags, size_t nbytes, void *host, int *error)
{
    object *made = calloc(1, sizeof *made);
    (void)c, (void)flags;
    made->dispatch = table;
    made->memory = calloc(1, nbytes);
    made->nbytes = nbytes;
    if (host != NULL)
        memcpy(made->memory, host, nbytes);
    if (error != NULL)
        *error = 0;
    return made;
}

static int memory_info(object *of, uint32_t what, size_t size, void *value, size_t *needed)
{
    uint32_t number = what == 0x1100 ? 0x10F0 : 1; /* its type: a buffer */
    if (what == 0x1102)
        return answer(&of->nbytes, sizeof of->nbytes, size, value, needed);
    return answer(&number, sizeof number, size, value, needed);
}

static object *program(object *c, uint32_t n, const char **s, const size_t *l, int *error)
{
    (void)c, (void)n, (void)s, (void)l;
    return make(error);
}

static int build(object *p, uint32_t n, object **d, const char *o, void *f, void *u)
{
    (void)p, (void)n, (void)d, (void)o, (void)f, (void)u;
    return is_broken("build") ? BUILD_FAILURE : 0;
}

static int object_info(object *of, uint32_t what, size_t size, void *value, size_t *needed)
{
    void *pointer = &other;
    uint32_t one = 1;
    (void)of;
    if (what == 0x1081 || what == 0x1163) { /* devices of a context or program */
        pointer = &device;
        return answer(&pointer, sizeof pointer, size, value, needed);
    }
    if (what == 0x1083 || what == 0x1162 || what == 0x1160 || what == 0x11D3)
        return answer(&one, sizeof one, size, value, needed);
    if (what == 0x1190)
        return answer_text("kernel", size, value, needed);
    if (what == 0x1191 || what == 0x1192) { /* a kernel's arguments */
        one = 64;
        return answer(&one, sizeof one, size, value, needed);
    }
    if (what == 0x1091)
        pointer = &device;
    return answer(&pointer, sizeof pointer, size, value, needed);
}

static int build_info(object *p, object *d, uint32_t what, size_t size, void *value, size_t *needed)
{
    (void)p, (void)d;
    if (what == 0x1181) {
        int status = 0;
        return answer(&status, sizeof status, size, value, needed);
    }
    return answer_text("", size, value, needed);
}

static object *kernel(object *p, const char *name, int *error)
{
    (void)p, (void)name;
    return make(error);
}

static int run(object *q, object *k, uint32_t n, const size_t *o, const size_t *g, const size_t *l,
               uint32_t waits, void *list, object **event)
{
    (void)q, (void)k, (void)n, (void)o, (void)g, (void)l, (void)waits, (void)list;
    if (event != NULL)
        *event = &other;
    return is_broken("run") ? OUT_OF_RESOURCES : 0;
}

static int copy_out(object *q, object *b, uint32_t w, size_t at, size_t n, void *to, uint32_t c,
                    void *l, object **event)
{
    (void)q, (void)w, (void)c, (void)l;
    memcpy(to, b->memory + at, n);
    if (event != NULL)
        *event = &other;
    return 0;
}

static int copy_in(object *q, object *b, uint32_t w, size_t at, size_t n, const void *from,
                   uint32_t c, void *l, object **event)
{
    (void)q, (void)w, (void)c, (void)l;
    memcpy(b->memory + at, from, n);
    if (event != NULL)
        *event = &other;
    return 0;
}

EXPORT void *clGetExtensionFunctionAddress(const char *name)
{
    for (int i = 0; i < TABLE && table[i] == NULL; i++)
        table[i] = done;
    table[0] = platform_ids, table[1] = clGetPlatformInfo;
    table[2] = device_ids, table[3] = device_info;
    table[4] = context, table[8] = object_info;
    table[9] = queue, table[12] = object_info;
    table[14] = buffer, table[20] = memory_info;
    table[26] = program, table[30] = build, table[32] = object_info, table[33] = build_info;
    table[34] = kernel, table[39] = object_info;
    table[48] = copy_out, table[49] = copy_in, table[59] = run;
    return strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? (void *)platform_ids : NULL;
}
