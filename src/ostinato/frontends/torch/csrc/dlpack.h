/* Tensors of PyTorch from C: the part of DLPack's stable ABI (major version 1) that is used here.
 *
 * A tensor's type has a capsule with these functions, so that its memory, shape and dtype are read,
 * and new tensors made, without PyTorch's headers and without a call through Python. */
#ifndef OSTINATO_DLPACK_H
#define OSTINATO_DLPACK_H

#include <stdint.h>

#define EXCHANGE_CAPSULE "dlpack_exchange_api"
#define EXCHANGE_MAJOR 1

enum { DEVICE_CPU = 1 };

/* Codes of dtypes. */
enum { DL_FLOAT = 2 };

typedef struct {
    uint32_t major, minor;
} dl_version;

typedef struct {
    int32_t type, id;
} dl_device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_version version;
    void *manager_ctx;
    void (*deleter)(struct dl_managed *);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed;

typedef struct exchange_header {
    dl_version version;
    struct exchange_header *previous;
} exchange_header;

/* The functions that a type of tensors comes with; each returns 0, or -1 with an error set. */
typedef struct {
    exchange_header header;
    int (*allocate)(dl_tensor *prototype, dl_managed **out, void *context,
                    void (*set_error)(void *context, const char *kind, const char *message));
    int (*export_owned)(void *object, dl_managed **out);
    int (*import_owned)(dl_managed *tensor, void **out);
    int (*view)(void *object, dl_tensor *out); /* valid while the object lives */
    int (*stream)(int32_t device_type, int32_t device_id, void **out);
} exchange_api;

#endif
