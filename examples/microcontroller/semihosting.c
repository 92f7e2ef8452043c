/* SPDX-License-Identifier: Apache-2.0 */
/* Arm, "Semihosting for AArch32 and AArch64", release 3.0: operations by number in r0. */

#include "semihosting.h"

#include <stdint.h>

enum { OPEN = 0x01, CLOSE = 0x02, WRITE0 = 0x04, WRITE = 0x05, READ = 0x06, EXIT = 0x20 };
enum { MODE_READ = 1, MODE_WRITE = 5, APPLICATION_EXIT = 0x20026 };

static int32_t call(int32_t operation, const void *argument)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static int32_t open_file(const char *path, uintptr_t mode)
{
    uintptr_t block[3] = {(uintptr_t)path, mode, 0};
    while (path[block[2]])
        ++block[2];
    return call(OPEN, block);
}

/* Returns the bytes that were not read or written, or -1. */
static int32_t transfer(int32_t operation, const char *path, uintptr_t mode, uintptr_t at, size_t n)
{
    uintptr_t block[3] = {0, at, n};
    int32_t left, file = open_file(path, mode);
    if (file < 0)
        return -1;
    block[0] = (uintptr_t)file;
    left = call(operation, block);
    call(CLOSE, block);
    return left;
}

void semihosting_print(const char *text)
{
    call(WRITE0, text);
}

int semihosting_read(const char *path, void *to, size_t bytes)
{
    const int32_t left = transfer(READ, path, MODE_READ, (uintptr_t)to, bytes);
    return left < 0 ? -1 : (int)bytes - (int)left;
}

int semihosting_write(const char *path, const void *from, size_t bytes)
{
    return transfer(WRITE, path, MODE_WRITE, (uintptr_t)from, bytes) == 0 ? 0 : -1;
}

void semihosting_exit(int code)
{
    uintptr_t block[2] = {APPLICATION_EXIT, (uintptr_t)code};
    for (;;)
        call(EXIT, block);
}
