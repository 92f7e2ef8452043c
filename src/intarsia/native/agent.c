/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: a program that is carried to a machine, holds regions, runs them and times them.

   It reads requests from its input and writes answers to its output: numbers of 64 bits with the
   low byte first, then bytes. C99, and POSIX for the clock and for mapped files; no other library.

   It says  magic, version, bytes of a pointer, 1 if the low byte of a number comes first
   KEEP     block, bytes, then these: memory that stays, an input of calls that follow
            -> 0
   RUN      region, nanoseconds that all rounds may take (0: any), rounds, inputs, outputs,
            for each input 0 and its bytes, or 1 and the block that it is, or 2 and its bytes if it
            lies in a file of this machine,
            for each output its bytes and 1 if it is wanted back, 2 if it is left in a file, 3 if
            both, then inputs as they are, those in files as the bytes of the file's path and it,
            then the paths of outputs likewise
            -> what the region returned, nanoseconds of each round, then for each output, if it is
            to be left in a file, 0 or the system's number of why it cannot, and its bytes if it is
            wanted back or cannot be left;
            or LATE, and the end; or LOST: a file of an input cannot be read
   BYE      -> the end

   It also ends when its input does, at most a second later if a region runs then.

   A region is `int32_t NAME_call(const void *const *inputs, void *const *outputs)`; 0 means done. */

#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64 /* boards of 32 bits may have numbers of files of 64 */
#endif
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int32_t (*agent_region)(const void *const *inputs, void *const *outputs);

/* These two are generated. */
extern const agent_region agent_regions[];
extern const uint64_t agent_count;

enum { KEEP = 1, RUN = 2, BYE = 3 };

#define MAGIC UINT64_C(0x746e656761736e69)
#define VERSION 4
#define LATE (UINT64_C(1) << 32)
#define LOST (UINT64_C(1) << 33)
#define PATH_BYTES 4096
#define ALIGN 64

struct block {
    uint8_t *memory;
    uint8_t *data;
    uint64_t room;
};

struct list {
    struct block *blocks;
    uint64_t count;
};

static struct list kept, inputs, outputs;

static void fail(const char *what, uint64_t number)
{
    fprintf(stderr, "agent: %s %llu\n", what, (unsigned long long)number);
    exit(3);
}

static void receive(uint8_t *data, uint64_t nbytes)
{
    while (nbytes != 0) {
        size_t part = nbytes > (UINT32_C(1) << 30) ? (size_t)1 << 30 : (size_t)nbytes;
        size_t count = fread(data, 1, part, stdin);
        if (count == 0)
            exit(0); /* who asked is gone */
        data += count;
        nbytes -= count;
    }
}

static uint64_t number(void)
{
    uint8_t bytes[8];
    uint64_t value = 0;
    int i;
    receive(bytes, 8);
    for (i = 7; i >= 0; --i)
        value = value << 8 | bytes[i];
    return value;
}

static void answer(const uint8_t *data, uint64_t nbytes)
{
    if (nbytes != 0 && fwrite(data, 1, (size_t)nbytes, stdout) != (size_t)nbytes)
        exit(0);
}

static void write_number(uint64_t value, uint8_t *bytes)
{
    int i;
    for (i = 0; i < 8; ++i)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

static void answer_number(uint64_t value)
{
    uint8_t bytes[8];
    write_number(value, bytes);
    answer(bytes, 8);
}

static void *memory_of(uint64_t nbytes)
{
    void *memory;
    if (nbytes > (uint64_t)SIZE_MAX || (memory = malloc((size_t)nbytes)) == NULL) {
        fail("no memory left for bytes:", nbytes);
        return NULL;
    }
    return memory;
}

/* Makes room for a block of a list, and gives it. */
static struct block *block_of(struct list *list, uint64_t index, uint64_t nbytes)
{
    struct block *block;
    if (index >= list->count) {
        uint64_t count = 2 * index + 8, i;
        struct block *blocks = memory_of(count * sizeof *blocks);
        for (i = 0; i < count; ++i) {
            struct block none = {NULL, NULL, 0};
            blocks[i] = i < list->count ? list->blocks[i] : none;
        }
        free(list->blocks);
        list->blocks = blocks;
        list->count = count;
    }
    block = &list->blocks[index];
    if (block->memory == NULL || nbytes > block->room) {
        free(block->memory);
        block->memory = NULL;
        block->memory = memory_of(nbytes + ALIGN);
        block->data = block->memory + (ALIGN - (uintptr_t)block->memory % ALIGN) % ALIGN;
        block->room = nbytes;
    }
    return block;
}

static uint64_t nanoseconds(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        fail("this machine has no clock", 0);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static volatile uint64_t run_begin, run_limit;

/* Looks each second, while a region runs, whether its time is over or who asked is gone. Only what
   a signal may interrupt: nothing is in the buffers of the standard library then. */
static void watch(int signal_number)
{
    struct pollfd input;
    (void)signal_number;
    input.fd = STDIN_FILENO;
    input.events = 0;
    input.revents = 0;
    if (run_limit != 0 && nanoseconds() - run_begin >= run_limit) {
        uint8_t bytes[8];
        write_number(LATE, bytes);
        _exit(write(STDOUT_FILENO, bytes, 8) == 8 ? 0 : 1);
    }
    if (poll(&input, 1, 0) > 0 && (input.revents & (POLLHUP | POLLERR | POLLNVAL)))
        _exit(0);
    alarm(1);
}

static void start_watch(uint64_t limit)
{
    struct sigaction action;
    action.sa_handler = watch;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    run_begin = nanoseconds();
    run_limit = limit;
    alarm(1);
}

static void receive_path(char *path)
{
    uint64_t nbytes = number();
    if (nbytes >= PATH_BYTES)
        fail("a path is too long:", nbytes);
    receive((uint8_t *)path, nbytes);
    path[nbytes] = 0;
}

/* Files of this machine that agents hand tensors to one another in. They are mapped, so that a region
   writes where the next one, of another agent, reads: tensors are passed by address, and nobody
   copies them. They stay mapped for the calls that follow. */
struct shared {
    char *path;
    uint8_t *data;
    uint64_t nbytes;
    ino_t inode;
};

static struct shared *shared;
static uint64_t shared_count, shared_room;
static int has_new_shared;

static void forget(struct shared *file)
{
    munmap(file->data, (size_t)file->nbytes);
    free(file->path);
    *file = shared[--shared_count];
}

/* Lets go of files that are gone: nobody else has what lies there. */
static void forget_gone(void)
{
    struct stat found;
    uint64_t i = shared_count;
    while (i-- != 0)
        if (stat(shared[i].path, &found) != 0 || found.st_ino != shared[i].inode)
            forget(&shared[i]);
}

/* Takes room for so many bytes of a file, at once: memory that is not there would end the program
   when it is written. Returns 0, or why there is none. */
static int take_room(int descriptor, uint64_t nbytes)
{
    static const uint8_t zeros[4096];
    uint64_t done = 0;
    int why = posix_fallocate(descriptor, 0, (off_t)nbytes);
    if (why != EOPNOTSUPP && why != EINVAL && why != ENODEV && why != ENOSYS)
        return why;
    while (done < nbytes) { /* a file system that cannot be asked for it */
        size_t part = nbytes - done < sizeof zeros ? (size_t)(nbytes - done) : sizeof zeros;
        ssize_t count = write(descriptor, zeros, part);
        if (count <= 0)
            return errno != 0 ? errno : EIO;
        done += (uint64_t)count;
    }
    return 0;
}

/* Maps a file, of which so many bytes are there or, where it is to be written, are made. Returns 0,
   or why that cannot be. */
static int share(const char *path, uint64_t nbytes, int is_written, uint8_t **data)
{
    struct stat found;
    struct shared file;
    void *memory = NULL;
    uint64_t i;
    size_t length = strlen(path) + 1;
    int descriptor, why, is_there = stat(path, &found) == 0;
    for (i = 0; i < shared_count; ++i)
        if (strcmp(shared[i].path, path) == 0)
            break;
    if (i < shared_count) {
        if (is_there && shared[i].inode == found.st_ino && shared[i].nbytes >= nbytes) {
            *data = shared[i].data;
            return 0;
        }
        forget(&shared[i]); /* another file, or one that is to be larger */
    }
    if (!is_written && (!is_there || (uint64_t)found.st_size < nbytes))
        return ENOENT;
    descriptor = open(path, is_written ? O_RDWR | O_CREAT : O_RDWR, 0600);
    if (descriptor < 0)
        return errno != 0 ? errno : EIO;
    why = is_written ? take_room(descriptor, nbytes) : 0;
    if (why == 0 && fstat(descriptor, &found) != 0)
        why = errno;
    if (why == 0) {
        memory = mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (memory == MAP_FAILED)
            why = errno;
    }
    close(descriptor);
    if (why != 0) {
        if (is_written)
            remove(path);
        return why;
    }
    file.path = memory_of(length);
    memcpy(file.path, path, length);
    file.data = *data = memory;
    file.nbytes = nbytes;
    file.inode = found.st_ino;
    if (shared_count == shared_room) {
        struct shared *files = memory_of((2 * shared_room + 8) * sizeof *files);
        for (i = 0; i < shared_count; ++i)
            files[i] = shared[i];
        free(shared);
        shared = files;
        shared_room = 2 * shared_room + 8;
    }
    shared[shared_count++] = file;
    has_new_shared = 1;
    return 0;
}

static void run(void)
{
    uint64_t region = number(), limit = number(), rounds = number();
    uint64_t in_count = number(), out_count = number(), i;
    uint64_t *is_kept = memory_of((in_count + 1) * sizeof *is_kept);
    uint64_t *sizes = memory_of((in_count + 1) * sizeof *sizes);
    uint64_t *out_sizes = memory_of((out_count + 1) * sizeof *out_sizes);
    uint64_t *is_wanted = memory_of((out_count + 1) * sizeof *is_wanted);
    int *why = memory_of((out_count + 1) * sizeof *why);
    char path[PATH_BYTES];
    const void **in_data = memory_of((in_count + 1) * sizeof *in_data);
    void **out_data = memory_of((out_count + 1) * sizeof *out_data);
    uint64_t *times = memory_of((rounds + 1) * sizeof *times);
    int32_t status = 0;
    int is_lost = 0;
    if (region >= agent_count)
        fail("there is no region", region);
    for (i = 0; i < in_count; ++i) {
        is_kept[i] = number();
        sizes[i] = number();
    }
    for (i = 0; i < out_count; ++i) {
        out_sizes[i] = number();
        is_wanted[i] = number();
    }
    for (i = 0; i < in_count; ++i) {
        uint8_t *data = NULL;
        if (is_kept[i] == 1) {
            if (sizes[i] >= kept.count || kept.blocks[sizes[i]].memory == NULL)
                fail("there is no block", sizes[i]);
            data = kept.blocks[sizes[i]].data;
        } else if (is_kept[i] == 0) {
            data = block_of(&inputs, i, sizes[i])->data;
            receive(data, sizes[i]);
        } else {
            receive_path(path);
            if (share(path, sizes[i], 0, &data) != 0)
                is_lost = 1;
        }
        in_data[i] = data;
    }
    for (i = 0; i < out_count; ++i) {
        uint8_t *data = NULL;
        why[i] = 0;
        if (is_wanted[i] & 2) {
            receive_path(path);
            why[i] = share(path, out_sizes[i], 1, &data);
        }
        out_data[i] = data != NULL ? data : block_of(&outputs, i, out_sizes[i])->data;
    }
    if (is_lost)
        rounds = 0;
    start_watch(limit);
    for (i = 0; i < rounds; ++i) {
        uint64_t begin = nanoseconds();
        int32_t returned = agent_regions[region](in_data, out_data);
        times[i] = nanoseconds() - begin;
        if (status == 0)
            status = returned;
    }
    alarm(0);
    answer_number(is_lost ? LOST : (uint32_t)status);
    for (i = 0; i < rounds; ++i)
        answer_number(times[i]);
    for (i = 0; i < out_count; ++i) {
        if (is_wanted[i] & 2 && !is_lost)
            answer_number((uint64_t)why[i]);
        if ((is_wanted[i] & 1 || why[i] != 0) && !is_lost)
            answer(out_data[i], out_sizes[i]);
    }
    if (has_new_shared)
        forget_gone();
    has_new_shared = 0;
    free(why);
    free(is_kept);
    free(sizes);
    free(out_sizes);
    free(is_wanted);
    free(in_data);
    free(out_data);
    free(times);
}

int main(void)
{
    const uint16_t one = 1;
    answer_number(MAGIC);
    answer_number(VERSION);
    answer_number(sizeof(void *));
    answer_number(*(const uint8_t *)&one);
    for (;;) {
        uint64_t request, block, nbytes;
        fflush(stdout);
        switch (request = number()) {
        case KEEP:
            block = number();
            nbytes = number();
            receive(block_of(&kept, block, nbytes)->data, nbytes);
            answer_number(0);
            break;
        case RUN:
            run();
            break;
        case BYE:
            return 0;
        default:
            fail("there is no request", request);
        }
    }
}
