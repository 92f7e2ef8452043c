/* SPDX-License-Identifier: Apache-2.0 */
/* Files and text of the machine that debugs this one, or of the emulator: Arm's semihosting. */

#ifndef SEMIHOSTING_H
#define SEMIHOSTING_H

#include <stddef.h>

/* Writes text. */
void semihosting_print(const char *text);

/* Reads a whole file; returns the bytes that were read, or -1 if there is none. */
int semihosting_read(const char *path, void *to, size_t bytes);

/* Writes a file; returns 0, or -1. */
int semihosting_write(const char *path, const void *from, size_t bytes);

/* Ends the program. */
void semihosting_exit(int code) __attribute__((noreturn));

#endif
