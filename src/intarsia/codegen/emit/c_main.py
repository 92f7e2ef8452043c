# SPDX-License-Identifier: Apache-2.0
"""The `main` of a program that runs one model: for trying it on a machine without Python.

It reads inputs from files or makes them from a seed, runs, tells the time, and writes outputs.
Files are numpy's; `file_names` says what those of outputs are called. `seeded_input` makes here
what the program makes there.

Source:
    NumPy Enhancement Proposal 1, "A Simple File Format for NumPy Arrays". The mixing of bits is
    the hash `lowbias32` of Wellons, "Prospecting for Hash Functions" (2018).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.codegen.emit.c_program import Tensor
from intarsia.codegen.emit.c_sizes import HELPERS, spell
from intarsia.extents import evaluate_all

Array = np.ndarray[Any, np.dtype[Any]]

_BITS = {"bool": 1, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
_KINDS = {"float16": "HALF", "bfloat16": "BRAIN", "float32": "FLOAT", "float64": "DOUBLE"}
"""How an element is made; others are integers."""

_MULTIPLE = 64
"""Bytes of a file's header, and of the step between seeds of inputs."""


def emit_main(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    sizes: Mapping[str, int] | None = None,
) -> str:
    """Return the `main` of a program, in C11.

    Args:
        name: What the program's functions begin with.
        inputs: In the order of `NAME_run`.
        outputs: In the order of `NAME_run`.
        sizes: The dimensions that `NAME_run` is told, in its order, each with what it is where
            nobody says another.
    """
    sizes = sizes or {}
    tensors = (*inputs, *outputs)
    names = (*(tensor.name for tensor in inputs), *file_names(outputs))
    listed = zip(tensors, names, strict=True)
    rows = ",\n".join(f"    {_row(tensor, file_name(name))}" for tensor, name in listed)
    told = {symbol: f"sizes[{at}]" for at, symbol in enumerate(sizes)}
    called = [*told.values(), *(f"data[{at}]" for at in range(len(tensors)))]
    measured = "".join(
        f"    extents[{at}][{axis}] = {spell(extent, told)};\n"
        for at, tensor in enumerate(tensors)
        for axis, extent in enumerate(tensor.shape)
    )
    words = {
        "MODEL": name,
        "CALLED": ", ".join(called),
        "INPUTS": len(inputs),
        "TENSORS": len(tensors),
        "RANK": max(1, *(len(tensor.shape) for tensor in tensors)),
        "NUMBER_OF_SIZES": len(sizes),
        "FIRST_SIZES": ", ".join(map(str, sizes.values())) or "0",
        "OPTIONS": "sond" if sizes else "son",
        "TELL_SIZES": f" [-d {','.join(map(_in_usage, sizes))}]" if sizes else "",
        "HELPERS": HELPERS if sizes else "",
        "MEASURED\n": measured,
        "ROWS": rows,
    }
    # At once: names of the model may be any of these words.
    return re.sub("|".join(words), lambda found: str(words[found[0]]), _MAIN)


def _in_usage(name: str) -> str:
    """Return the name of a dimension as part of a format of C."""
    return file_name(name).upper()


def seeded_input(
    tensor: Tensor, number: int, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> Array:
    """Return what the program makes of a seed for an input.

    Floats are in [-1, 1), integers of 8 bits anything, others and booleans 0 or 1.

    Args:
        tensor: The input.
        number: Which of the inputs it is.
        seed: The program's `-s`.
        sizes: The program's `-d`, by the names of dimensions.

    Returns:
        An array; bfloat16 as its bits.
    """
    shape = evaluate_all(tensor.shape, sizes or {})
    count = math.prod(shape)
    bits = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9)
    bits += np.uint32((seed * _MULTIPLE + number + 1) * 0x85EBCA6B & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits ^= bits >> np.uint32(shift)
        bits *= np.uint32(factor)
    bits ^= bits >> np.uint32(16)
    kind, dtype = _KINDS.get(tensor.dtype), tensor.dtype
    if kind == "HALF":
        held = ((bits & 0x83FF) | 0x3800).astype(np.uint16).view(np.float16)
    elif kind == "BRAIN":
        held = ((bits & 0x807F) | 0x3F00).astype(np.uint16)
    elif kind is not None:
        held = ((bits >> np.uint32(8)).astype(np.float64) / (1 << 23) - 1).astype(dtype)
    elif dtype in ("int8", "uint8"):
        held = (bits >> np.uint32(24)).astype(np.uint8).view(dtype)
    else:
        held = (bits >> np.uint32(31)).astype(dtype)
    return held.reshape(shape)


def file_name(name: str) -> str:
    """Return a name as part of a path: letters, digits, `-`, `_` and `.`."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


def file_names(outputs: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the files that a program writes, without `.npy`: no two of them are the same.

    Args:
        outputs: In the order of `NAME_run`.
    """
    taken: set[str] = set()
    names = []
    for tensor in outputs:
        name = file_name(tensor.name)
        while name.casefold() in taken:  # some systems take letters of either case for one
            name += "_"
        taken.add(name.casefold())
        names.append(name)
    return tuple(names)


def _row(tensor: Tensor, name: str) -> str:
    is_plain = tensor.dtype != "bfloat16"
    described = np.dtype(tensor.dtype).newbyteorder("<").str if is_plain else "<u2"
    size = 2 if not is_plain else np.dtype(tensor.dtype).itemsize
    kind = _KINDS.get(tensor.dtype, "BYTE" if tensor.dtype.endswith("int8") else "FLAG")
    return f'{{"{name}", "{described}", {kind}, {size}, {len(tensor.shape)}}}'


_MAIN = """\
/* Generated by Intarsia: a program that runs MODEL. */
#include "MODEL.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum { FLOAT, DOUBLE, HALF, BRAIN, BYTE, FLAG } Kind;
typedef struct {
    const char *name, *type; /* the type is numpy's */
    Kind kind;
    size_t size, rank;
} Tensor;

static const Tensor tensors[] = {
ROWS
};

HELPERS
static int64_t sizes[NUMBER_OF_SIZES + 1] = {FIRST_SIZES};
static int64_t extents[TENSORS][RANK];

static void measure(void)
{
MEASURED
}

static size_t count_of(int which)
{
    size_t count = 1;
    for (size_t axis = 0; axis < tensors[which].rank; ++axis)
        count *= (size_t)extents[which][axis];
    return count;
}

static int fail(const char *what, const char *which)
{
    fprintf(stderr, "MODEL: %s: %s\\n", what, which);
    return 2;
}

/* Makes an input of a seed. */
static void make(int number, void *data, uint32_t seed)
{
    const Tensor *tensor = &tensors[number];
    size_t count = count_of(number);
    uint32_t first = (seed * 64u + (uint32_t)number + 1u) * 0x85EBCA6Bu;
    for (size_t i = 0; i < count; ++i) {
        uint32_t bits = (uint32_t)i * 0x9E3779B9u + first;
        bits = (bits ^ bits >> 16) * 0x7FEB352Du;
        bits = (bits ^ bits >> 15) * 0x846CA68Bu;
        bits ^= bits >> 16;
        double real = (double)(bits >> 8) / (1 << 23) - 1;
        switch (tensor->kind) {
        case FLOAT: ((float *)data)[i] = (float)real; break;
        case DOUBLE: ((double *)data)[i] = real; break;
        case HALF: ((uint16_t *)data)[i] = (uint16_t)((bits & 0x83FFu) | 0x3800u); break;
        case BRAIN: ((uint16_t *)data)[i] = (uint16_t)((bits & 0x807Fu) | 0x3F00u); break;
        case BYTE: ((uint8_t *)data)[i] = (uint8_t)(bits >> 24); break;
        default: /* the first byte of an integer is its lowest */
            memset((char *)data + i * tensor->size, 0, tensor->size);
            ((char *)data)[i * tensor->size] = (char)(bits >> 31);
        }
    }
}

/* Reads an input: a file of numpy's with this type and shape, or its elements alone. */
static int read_input(int number, void *data, const char *path)
{
    size_t nbytes = tensors[number].size * count_of(number);
    unsigned char start[10];
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return fail("cannot read", path);
    int is_npy = fread(start, 1, sizeof start, file) == sizeof start;
    is_npy = is_npy && memcmp(start, "\\223NUMPY", 6) == 0;
    long begin = 0;
    if (is_npy)
        begin = start[6] == 1 ? 10L + start[8] + start[9] * 256L : -1L;
    int is_read = begin >= 0 && fseek(file, begin, SEEK_SET) == 0;
    is_read = is_read && fread(data, 1, nbytes, file) == nbytes && fgetc(file) == EOF;
    fclose(file);
    return is_read ? 0 : fail("does not have the size of its input", path);
}

/* Writes what stands before the elements in a file of numpy's; returns its bytes. */
static size_t describe(int number, char *head, size_t room)
{
    const Tensor *tensor = &tensors[number];
    size_t at = 10;
    at += (size_t)snprintf(head + at, room - at,
                           "{'descr': '%s', 'fortran_order': False, 'shape': (", tensor->type);
    for (size_t axis = 0; axis < tensor->rank; ++axis)
        at += (size_t)snprintf(head + at, room - at, "%lld, ", (long long)extents[number][axis]);
    at += (size_t)snprintf(head + at, room - at, "), }");
    while (at % 64 != 63)
        head[at++] = ' ';
    head[at++] = '\\n';
    memcpy(head, "\\223NUMPY\\001\\000", 8);
    head[8] = (char)((at - 10) & 255);
    head[9] = (char)((at - 10) >> 8);
    return at;
}

static int write_output(int number, const void *data, const char *folder)
{
    const Tensor *tensor = &tensors[number];
    char path[4096], head[256 + 24 * RANK];
    if (snprintf(path, sizeof path, "%s/%s.npy", folder, tensor->name) >= (int)sizeof path)
        return fail("too long", folder);
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return fail("cannot write", path);
    size_t nbytes = tensor->size * count_of(number), before = describe(number, head, sizeof head);
    int is_written = fwrite(head, 1, before, file) == before;
    is_written = fwrite(data, 1, nbytes, file) == nbytes && is_written;
    is_written = fclose(file) == 0 && is_written;
    return is_written ? 0 : fail("cannot write", path);
}

/* Reads sizes, with commas between them. */
static int read_sizes(const char *text)
{
    for (int i = 0; i < NUMBER_OF_SIZES; ++i) {
        char *end;
        sizes[i] = strtoll(text, &end, 10);
        if (end == text || *end != (i + 1 < NUMBER_OF_SIZES ? ',' : 0) || sizes[i] < 0)
            return fail("these are not its sizes", text);
        text = end + 1;
    }
    return 0;
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    const char *folder = NULL;
    uint32_t seed = 0;
    long rounds = 1;
    int at = 1;
    for (; at + 1 < argc && argv[at][0] == '-' && strchr("OPTIONS", argv[at][1]) != NULL; at += 2) {
        if (argv[at][1] == 'o')
            folder = argv[at + 1];
        else if (argv[at][1] == 's')
            seed = (uint32_t)strtoul(argv[at + 1], NULL, 10);
        else if (argv[at][1] == 'd') {
            if (read_sizes(argv[at + 1]) != 0)
                return 2;
        } else
            rounds = strtol(argv[at + 1], NULL, 10);
    }
    if ((at != argc && argc - at != INPUTS) || rounds < 1) {
        fprintf(stderr,
                "usage: MODEL [-s SEED] [-n ROUNDS] [-o FOLDER]TELL_SIZES [INPUT.npy ...]\\n"
                "reads its INPUTS inputs, or makes them of a seed; writes FOLDER/OUTPUT.npy\\n");
        return 2;
    }
    measure();
    void *data[TENSORS];
    for (int i = 0; i < TENSORS; ++i) {
        data[i] = malloc(tensors[i].size * count_of(i) + 1);
        if (data[i] == NULL)
            return fail("no memory for", tensors[i].name);
        if (i < INPUTS && at == argc)
            make(i, data[i], seed);
        else if (i < INPUTS && read_input(i, data[i], argv[at + i]) != 0)
            return 2;
    }
    double best = 0;
    for (long round = 0; round < rounds; ++round) {
        double start = seconds();
        int fault = MODEL_run(CALLED);
        double time = seconds() - start;
        if (fault != 0) {
            fprintf(stderr, "MODEL: run returned %d; MODEL.h says what that is\\n", fault);
            return 1;
        }
        best = round == 0 || time < best ? time : best;
    }
    printf("MODEL: %.3f ms, the best of %ld\\n", 1e3 * best, rounds);
    for (int i = INPUTS; i < TENSORS && folder != NULL; ++i)
        if (write_output(i, data[i], folder) != 0)
            return 2;
    return 0;
}
"""
