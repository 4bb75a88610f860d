/* Fibers: functions with stacks of their own that are switched by hand, in one thread. Owns stacks and the switch;
 * knows nothing of blocks and warps. x86-64. */
#ifndef TEST_EMULATE_FIBER_H
#define TEST_EMULATE_FIBER_H

#include <stddef.h>

struct fiber {
    void *stack_pointer; /* while it does not run */
    char *stack;         /* [FIBER_STACK_BYTES], the lowest page protected; allocated at the first start */
    void *shadow;        /* the address sanitizer's */
    bool ended;
};

enum { FIBER_STACK_BYTES = 256 << 10 };

void fiber_start(fiber &f, void (*function)()); /* the first fiber_resume calls the function */
void fiber_resume(fiber &f);                    /* returns when the fiber yields or ends */
void fiber_yield();                             /* back to fiber_resume; called in a fiber */

#endif
