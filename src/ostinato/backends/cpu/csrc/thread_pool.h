/* ThreadPool: the Python face of pool.c. */
#ifndef OSTINATO_THREAD_POOL_H
#define OSTINATO_THREAD_POOL_H

#include "python_types.h"

extern PyType_Spec thread_pool_spec;

#endif
