/* SPDX-License-Identifier: Apache-2.0 */
/* A region whose kernels are object files: it walks over a list of calls that it is given as data,
   so that one program serves all sizes. For the agent; `backends/native_remote.py` writes the list.

   inputs   the list, weights, then the inputs of the region
   outputs  scratch memory, faults, counts, then the outputs of the region

   The list is made of int64: bytes of faults, of counts, how many storages, how many calls;
   of each storage its kind and where it begins there (of inputs and outputs: which one);
   of each call its kernel, turns, how many words, chunks that threads share; then the words of all calls: a storage and bytes
   from where that begins, or -1 and a number. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*program_kernel)(const uint64_t *arguments, int64_t begin, int64_t end);

/* Generated. */
extern const program_kernel program_kernels[];
void program_parallel(
    program_kernel kernel, const uint64_t *arguments, int64_t turns, int64_t chunks);

enum { INPUT, OUTPUT, CONSTANT, SCRATCH, FAULT, COUNT };

static const uint64_t *words_of(
    const int64_t *word, int64_t count, const int64_t *storages, const void *const *inputs,
    void *const *outputs, uint64_t *words)
{
    int64_t i;
    for (i = 0; i < count; ++i, word += 2) {
        const int64_t *storage = storages + 2 * word[0];
        const uint8_t *base = NULL;
        if (word[0] < 0) {
            words[i] = (uint64_t)word[1];
            continue;
        }
        switch (storage[0]) {
        case INPUT:
            base = (const uint8_t *)inputs[2 + storage[1]];
            break;
        case OUTPUT:
            base = (const uint8_t *)outputs[3 + storage[1]];
            break;
        case CONSTANT:
            base = (const uint8_t *)inputs[1] + storage[1];
            break;
        case SCRATCH:
            base = (const uint8_t *)outputs[0] + storage[1];
            break;
        case FAULT:
            base = (const uint8_t *)outputs[1] + storage[1];
            break;
        default:
            base = (const uint8_t *)outputs[2] + storage[1];
            break;
        }
        words[i] = (uint64_t)(uintptr_t)(base + word[1]);
    }
    return words;
}

int32_t program_call(const void *const *inputs, void *const *outputs)
{
    const int64_t *list = (const int64_t *)inputs[0];
    const int64_t *storages = list + 4, *call = storages + 2 * list[2];
    const int64_t *word = call + 4 * list[3];
    uint64_t *words;
    int64_t i, most = 1;
    memset(outputs[1], 0, (size_t)list[0]);
    memset(outputs[2], 0, (size_t)list[1]);
    for (i = 0; i < list[3]; ++i)
        if (call[4 * i + 2] > most)
            most = call[4 * i + 2];
    words = malloc((size_t)most * sizeof *words);
    if (words == NULL)
        return 1;
    for (i = 0; i < list[3]; ++i, call += 4) {
        program_parallel(
            program_kernels[call[0]],
            words_of(word, call[2], storages, inputs, outputs, words), call[1], call[3]);
        word += 2 * call[2];
    }
    free(words);
    return 0;
}
