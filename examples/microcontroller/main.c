/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a network of float inputs and outputs once, and says what it took.

   The input is `input.raw` beside the emulator, floats; without it a ramp from -1 to 1. The output
   goes to `output.raw` and to the console. */

#include <stdint.h>

#include "network.h"
#include "semihosting.h"

/* Of the linker script. */
extern uint32_t stack_begin[];

static float input[INPUTS], output[OUTPUTS];

static void print_number(const char *before, uint32_t number, const char *behind)
{
    char text[11];
    int at = 10;
    text[10] = 0;
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    semihosting_print(before);
    semihosting_print(text + at);
    semihosting_print(behind);
}

/* Prints a number as millionths; the numbers of a classifier are small. */
static void print_float(float number)
{
    const uint32_t millionths = (uint32_t)((number < 0 ? -number : number) * 1e6f + 0.5f);
    print_number(number < 0 ? " -" : " ", millionths, "e-6");
}

/* Every word of the stack that has this value afterwards was not used. */
#define PAINT 0xc5c5c5c5u

static __attribute__((noinline)) void paint(void)
{
    volatile uint32_t *word = stack_begin;
    uintptr_t top;
    __asm__("mov %0, sp" : "=r"(top));
    for (; (uintptr_t)word < top; ++word)
        *word = PAINT;
}

static uint32_t used_below(uintptr_t top)
{
    const volatile uint32_t *word = stack_begin;
    while ((uintptr_t)word < top && *word == PAINT)
        ++word;
    return (uint32_t)(top - (uintptr_t)word);
}

/* A counter of 24 bits that falls with the processor's clock. */
#define SYST_CSR (*(volatile uint32_t *)0xe000e010u)
#define SYST_RVR (*(volatile uint32_t *)0xe000e014u)
#define SYST_CVR (*(volatile uint32_t *)0xe000e018u)
#define SYST_MASK 0xffffffu

static uint32_t ticks(void)
{
    return SYST_CVR;
}

static __attribute__((noinline)) int run(uint32_t *stack, uint32_t *taken)
{
    uintptr_t top;
    uint32_t first;
    int code;
    __asm__("mov %0, sp" : "=r"(top));
    first = ticks();
    code = RUN(input, output);
    *taken = (first - ticks()) & SYST_MASK;
    *stack = used_below(top);
    return code;
}

int main(void)
{
    uint32_t taken, stack;
    unsigned i;
    int code;
    if (semihosting_read("input.raw", input, sizeof input) != (int)sizeof input)
        for (i = 0; i < INPUTS; ++i)
            input[i] = 2.0f * (float)i / (float)INPUTS - 1.0f;
    SYST_RVR = SYST_MASK;
    SYST_CVR = 0;
    SYST_CSR = 5; /* the processor's clock, no interrupts */
    paint();
    code = run(&stack, &taken);
    if (code != 0) {
        semihosting_print("the run says that an input is wrong\n");
        return 1;
    }
    semihosting_print("output:");
    for (i = 0; i < OUTPUTS; ++i)
        print_float(output[i]);
    print_number("\nticks: ", taken, "");
#ifdef TICK_NS /* of an emulator that takes one nanosecond for an instruction */
    print_number(", instructions: ", (uint32_t)((uint64_t)taken * TICK_NS / 100), "");
#endif
    print_number("\narena: ", SCRATCH_BYTES, " bytes");
    print_number("\nstack: ", stack, " bytes");
    print_number(" of at most ", STACK_BYTES, "\n");
    return semihosting_write("output.raw", output, sizeof output) == 0 && stack <= STACK_BYTES
        ? 0
        : 2;
}
