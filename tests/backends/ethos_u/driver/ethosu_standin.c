/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for an Ethos-U and its driver. It runs no command stream: it knows each by its bytes,
 * and computes the integer network that Vela made it of, by plain C. What it does check is the
 * call: the driver is reserved, the stream begins as the driver wants, all is aligned.
 */
#include "ethosu_driver.h"

/* Written beside it, for the streams of one program: 0 if it knows the stream. */
int ethosu_standin_network(uint32_t digest, uint8_t *arena, size_t arena_bytes);

static struct ethosu_driver the_driver;

struct ethosu_driver *ethosu_reserve_driver(void)
{
    if (the_driver.is_reserved)
        return NULL;
    the_driver.is_reserved = 1;
    return &the_driver;
}

void ethosu_release_driver(struct ethosu_driver *drv)
{
    drv->is_reserved = 0;
}

int ethosu_invoke_v3(struct ethosu_driver *drv, const void *custom_data_ptr,
                     const int custom_data_size, uint64_t *const base_addr,
                     const size_t *base_addr_size, const int num_base_addr, void *user_arg)
{
    const uint8_t *bytes = custom_data_ptr;
    uint32_t digest = 2166136261u; /* FNV-1a */
    int i;
    (void)user_arg;
    if (drv != &the_driver || !drv->is_reserved || custom_data_size < 4)
        return -1;
    if (bytes[0] != 'C' || bytes[1] != 'O' || bytes[2] != 'P' || bytes[3] != '1')
        return -1;
    if ((uintptr_t)bytes % 16 || num_base_addr != 3)
        return -1;
    for (i = 0; i < num_base_addr; i++)
        if (base_addr[i] % 16)
            return -1;
    for (i = 0; i < custom_data_size; i++)
        digest = (digest ^ bytes[i]) * 16777619u;
    return ethosu_standin_network(digest, (uint8_t *)(uintptr_t)base_addr[1], base_addr_size[1]);
}
