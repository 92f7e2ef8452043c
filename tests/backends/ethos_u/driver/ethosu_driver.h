/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for the header of Arm's ethos-u-core-driver: the three functions that programs of
 * ours call, with the signatures that Arm documents. It is for tests on machines without an
 * Ethos-U; a board is built with Arm's own.
 */
#ifndef ETHOSU_DRIVER_H
#define ETHOSU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

struct ethosu_driver {
    int is_reserved;
};

struct ethosu_driver *ethosu_reserve_driver(void);
void ethosu_release_driver(struct ethosu_driver *drv);
int ethosu_invoke_v3(struct ethosu_driver *drv, const void *custom_data_ptr,
                     const int custom_data_size, uint64_t *const base_addr,
                     const size_t *base_addr_size, const int num_base_addr, void *user_arg);

#endif
