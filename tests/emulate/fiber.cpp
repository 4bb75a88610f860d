#include "emulate/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "tests/emulate switches stacks of x86-64 only"
#endif

enum { PAGE_BYTES = 4096, SAVED_REGISTERS = 6 };

static fiber home; /* the thread that resumes */
static fiber *running = &home;
static void (*entry)(); /* of the fiber that starts */

extern "C" void fiber_switch(void **save, void *to);

/* Saves the registers that a function must keep, changes the stack, and restores them from there. */
asm(R"(
    .text
    .hidden fiber_switch
    .globl fiber_switch
    .type fiber_switch, @function
fiber_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size fiber_switch, . - fiber_switch
)");

#ifdef __SANITIZE_ADDRESS__
static const void *home_bottom; /* of the thread's stack */
static size_t home_bytes;

static void before_switch(fiber &from, const fiber &to)
{
    const void *bottom = &to == &home ? home_bottom : to.stack;
    size_t bytes = &to == &home ? home_bytes : (size_t)FIBER_STACK_BYTES;
    __sanitizer_start_switch_fiber(from.ended ? NULL : &from.shadow, bottom, bytes);
}

static void after_switch(const fiber &to, const fiber &from)
{
    bool first = &from == &home;
    __sanitizer_finish_switch_fiber(to.shadow, first ? &home_bottom : NULL, first ? &home_bytes : NULL);
}

static void forget_stack(const fiber &f)
{
    __asan_unpoison_memory_region(f.stack, FIBER_STACK_BYTES);
}
#else
static void before_switch(fiber &, const fiber &)
{
}

static void after_switch(const fiber &, const fiber &)
{
}

static void forget_stack(const fiber &)
{
}
#endif

static void change(fiber &from, fiber &to)
{
    before_switch(from, to);
    running = &to;
    fiber_switch(&from.stack_pointer, to.stack_pointer);
    after_switch(from, &from == &home ? to : home); /* now back in `from` */
}

static void run_fiber()
{
    fiber *me = running;
    after_switch(*me, home);
    entry();
    me->ended = true;
    change(*me, home);
    abort(); /* an ended fiber is not resumed */
}

static char *new_stack()
{
    void *stack = mmap(NULL, FIBER_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, PAGE_BYTES, PROT_NONE)) {
        perror("emulate: the stack of a fiber");
        abort();
    }
    return (char *)stack;
}

void fiber_start(fiber &f, void (*function)())
{
    entry = function;
    if (!f.stack) f.stack = new_stack();
    else forget_stack(f);
    void **top = (void **)(f.stack + FIBER_STACK_BYTES);
    *--top = NULL; /* the caller of run_fiber: none; the stack is aligned as after a call */
    *--top = (void *)run_fiber;
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = NULL;
    f.stack_pointer = top;
    f.shadow = NULL;
    f.ended = false;
}

void fiber_resume(fiber &f)
{
    change(home, f);
}

void fiber_yield()
{
    change(*running, home);
}
