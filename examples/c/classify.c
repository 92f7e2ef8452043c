/* SPDX-License-Identifier: Apache-2.0 */
/* Runs SqueezeNet without Python, and prints the five most probable classes.

   The image is a file of 3 x 224 x 224 floats; without one it is a ramp from -1 to 1. */

#include <stdio.h>
#include <stdlib.h>

#include "squeezenet.h"

enum { PIXELS = 3 * 224 * 224, CLASSES = 1000, BEST = 5 };

static float image[PIXELS];
static float probabilities[CLASSES];

static int read_image(const char *path)
{
    FILE *file = fopen(path, "rb");
    size_t count = 0;
    if (file != NULL) {
        count = fread(image, sizeof image[0], PIXELS, file);
        fclose(file);
    }
    return count == PIXELS ? 0 : -1;
}

int main(int count, char **arguments)
{
    if (count > 1 && read_image(arguments[1]) != 0) {
        fprintf(stderr, "%s is not %d floats\n", arguments[1], (int)PIXELS);
        return EXIT_FAILURE;
    }
    for (int i = 0; count <= 1 && i < PIXELS; ++i)
        image[i] = 2.0f * (float)i / (PIXELS - 1) - 1.0f;
#ifdef WEIGHTS /* of -weights-in=file; else the weights are inside */
    if (squeezenet_init(WEIGHTS) != 0) {
        fprintf(stderr, "cannot read %s\n", WEIGHTS);
        return EXIT_FAILURE;
    }
#endif
    if (squeezenet_run(image, probabilities) != 0)
        return EXIT_FAILURE; /* squeezenet.h says what can be wrong with inputs */
    for (int rank = 0; rank < BEST; ++rank) {
        int best = 0;
        for (int i = 1; i < CLASSES; ++i)
            if (probabilities[i] > probabilities[best])
                best = i;
        printf("%d %.6f\n", best, (double)probabilities[best]);
        probabilities[best] = -1.0f;
    }
    return EXIT_SUCCESS;
}
