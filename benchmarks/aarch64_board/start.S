/* SPDX-License-Identifier: Apache-2.0 */
/* Start of a program on qemu-system-aarch64's `virt` without an operating system: floats are
   switched on, and memory is mapped as what it is, so that it may be read at any address. */

    .section .text.start, "ax"
    .global _start
_start:
    mov     x0, #(3 << 20 | 3 << 16)   /* SVE too, where the CPU has it */
    msr     cpacr_el1, x0
    mov     x0, #0xff                   /* attribute 0: normal memory, written back */
    msr     mair_el1, x0
    ldr     x0, =(25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23)
    msr     tcr_el1, x0                 /* addresses of 39 bits, pages of 4 KiB, cached */
    adrp    x0, blocks
    msr     ttbr0_el1, x0
    isb
    mrs     x0, sctlr_el1
    orr     x0, x0, #1
    msr     sctlr_el1, x0
    isb
    ldr     x0, =stack_top
    mov     sp, x0
    bl      main
    b       .

    .global semihost                    /* long semihost(long operation, const void *argument) */
semihost:
    hlt     #0xf000
    ret

    .data
    .balign 4096
blocks:                                 /* one of 1 GiB: where the board has its memory */
    .quad   0
    .quad   0x40000000 + 0x701
    .fill   510, 8, 0
