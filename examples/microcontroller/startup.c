/* SPDX-License-Identifier: Apache-2.0 */
/* What a Cortex-M does before `main`: the vector table, memory, the floating-point unit. */

#include <stdint.h>

#include "semihosting.h"

/* Of the linker script. */
extern uint32_t data_begin[], data_end[], data_source[], bss_begin[], bss_end[], stack_end[];

int main(void);

#define CPACR (*(volatile uint32_t *)0xe000ed88u)

void reset(void)
{
    uint32_t *to = data_begin;
    const uint32_t *from = data_source;
    CPACR |= 0xfu << 20; /* coprocessors 10 and 11: floats, and the vectors of a Cortex-M55 */
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    while (to < data_end)
        *to++ = *from++;
    for (to = bss_begin; to < bss_end;)
        *to++ = 0;
    semihosting_exit(main());
}

static void fault(void)
{
    semihosting_print("a fault of the processor\n");
    semihosting_exit(255);
}

typedef void (*handler)(void);

__attribute__((section(".vectors"), used)) static const handler vectors[16] = {
    (handler)stack_end, reset, fault, fault, fault, fault, fault, fault,
    fault,              fault, fault, fault, fault, fault, fault, fault,
};
