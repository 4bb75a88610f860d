/* The server's clock, and waiting by it. */
#ifndef SERVER_CLOCK_H
#define SERVER_CLOCK_H

#include <pthread.h>
#include <stdbool.h>

double server_now(void); /* seconds on a clock that never goes back */
/* A condition that server_wait can wait for. */
void server_cond_init(pthread_cond_t *cond);
/* Waits for the condition until server_now() is `until`. Returns false when it is; the lock is held. */
bool server_wait(pthread_cond_t *cond, pthread_mutex_t *lock, double until);

#endif
