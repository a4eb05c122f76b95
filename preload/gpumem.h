/* gpumem.h: GPU memory pools for programs in C, C++ and whatever calls C.
 *
 * The library is libgpumem_c.so. It has no dependency but the C library; the NVIDIA
 * driver is loaded when a pool on a real GPU is opened.
 *
 *     gpumem_pool pool;
 *     void *p;
 *     if (gpumem_open("cuda:0", "elastic:limit=20GiB", &pool)) puts(gpumem_last_error());
 *     if (gpumem_alloc(pool, 64 << 20, stream, &p)) puts(gpumem_last_error());
 *     ...
 *     gpumem_free(pool, p, stream);
 *     gpumem_close(pool);
 *
 * Functions return GPUMEM_OK or an error code; gpumem_last_error has the text of the
 * thread's last error. Every function may be called by several threads at once, and none
 * calls back. Sizes are in bytes. Device memory is an address that the host cannot read.
 *
 * After a fork the pools are the parent's. In the child every function answers
 * GPUMEM_FORKED and does nothing, unless the library was loaded after the fork.
 *
 * Functions and fields are added, and never removed, while GPUMEM_ABI stays.
 */
#ifndef GPUMEM_H
#define GPUMEM_H

#include <stddef.h>
#include <stdint.h>

#define GPUMEM_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

enum gpumem_code {
  GPUMEM_OK = 0,
  GPUMEM_INVALID = 1,       /* an argument makes no sense; the text says which */
  GPUMEM_OUT_OF_MEMORY = 2, /* the text says what was asked, what is free and why it does not fit */
  GPUMEM_NOT_ALLOCATED = 3, /* no live block of the pool starts there; also a second free */
  GPUMEM_CLOSED = 4,        /* there is no such pool, or no more */
  GPUMEM_FORKED = 5,        /* this process is the child of the one that has the pools */
  GPUMEM_NO_DEVICE = 6,     /* no such GPU, or no driver */
  GPUMEM_DEVICE = 7,        /* the driver refused, for another reason than memory */
  GPUMEM_INTERNAL = 8       /* a fault of this library; the text is for a bug report */
};

/* A pool, by its number. Numbers below GPUMEM_GPUS are the pools that all libraries of a
 * process share: number N is the pool on GPU N. The first call with it opens it, and it is
 * not closed. */
typedef int gpumem_pool;
#define GPUMEM_GPUS 64

/* A stream of the program: a CUstream or cudaStream_t, or one of these. */
#define GPUMEM_STREAM_DEFAULT ((void *)0)    /* the legacy default stream */
#define GPUMEM_STREAM_PER_THREAD ((void *)2) /* another stream in each thread */
#define GPUMEM_STREAM_ANY ((void *)-1)       /* unknown, or several */

/* gpumem_abi returns the GPUMEM_ABI of the library. */
int gpumem_abi(void);

/* gpumem_last_error returns the text of the last error in this thread; "" before the
 * first. It stays until the thread's next call. The first line is what failed; for
 * GPUMEM_OUT_OF_MEMORY the lines after it say why. */
const char *gpumem_last_error(void);

/* gpumem_configure sets the device and the policy of the shared pool on GPU gpu, before
 * its first use; afterwards it is GPUMEM_INVALID. NULL leaves the default. */
int gpumem_configure(int gpu, const char *device, const char *policy);

/* gpumem_open makes a pool. No memory is taken.
 *
 * device: "cuda:N"; "sim:80GiB", a simulated GPU of this process; "sim@FILE", one that
 * processes share. NULL or "" means $GPUMEM_DEVICE, or else cuda:0.
 *
 * policy: "elastic", "elastic:limit=20GiB", "jax:fraction=.5" or any other that gpumem
 * replay takes. NULL or "" means "elastic". */
int gpumem_open(const char *device, const char *policy, gpumem_pool *pool);

/* gpumem_is_open reports whether a pool is open, which for a shared one is since its first
 * use. */
int gpumem_is_open(gpumem_pool pool);

/* gpumem_close releases all memory to the device, live blocks included, after the work
 * under way. Shared pools are not closed. */
int gpumem_close(gpumem_pool pool);

/* gpumem_alloc allocates at least bytes for use in a stream. 0 bytes give NULL.
 * A block that was freed in another stream is given out only in an order that is safe:
 * this stream waits for the other, and the host does not. With GPUMEM_STREAM_ANY the
 * block may be used in any stream at once. */
int gpumem_alloc(gpumem_pool pool, size_t bytes, void *stream, void **address);

/* gpumem_free frees a block in the order of a stream: the one in which it was used
 * last. With GPUMEM_STREAM_ANY it is used again only after all work of the program that
 * was queued at the time. NULL does nothing. */
int gpumem_free(gpumem_pool pool, void *address, void *stream);

/* gpumem_record_stream says that a live block is used in a further stream: its memory is
 * not used again before the work that is there when it is freed. */
int gpumem_record_stream(gpumem_pool pool, void *address, void *stream);

/* gpumem_stream_ends says that the program is about to destroy a stream. */
int gpumem_stream_ends(gpumem_pool pool, void *stream);

/* gpumem_trim releases idle memory to the device. released, which may be NULL, gets the
 * bytes. */
int gpumem_trim(gpumem_pool pool, uint64_t *released);

/* gpumem_info returns what the program can still get, and the total that it has, as
 * cuMemGetInfo does. */
int gpumem_info(gpumem_pool pool, uint64_t *free_bytes, uint64_t *total);

struct gpumem_figures {
  size_t size; /* sizeof(struct gpumem_figures), set by the caller: what lies behind it is not written */
  uint64_t bytes_in_use, peak_bytes_in_use; /* in live blocks, rounded as the pool does */
  uint64_t pool_bytes, peak_pool_bytes;     /* held from the device */
  uint64_t live;                            /* blocks */
  uint64_t allocs, frees, refused;          /* requests so far */
  uint64_t allocated_bytes;                 /* in all blocks so far */
  uint64_t driver_calls;
  uint64_t total;                           /* of the device, or the policy's limit if that is less */
};

/* gpumem_stats reads what the pool has done. */
int gpumem_stats(gpumem_pool pool, struct gpumem_figures *figures);

/* gpumem_reset_peaks makes the peaks the present values. */
int gpumem_reset_peaks(gpumem_pool pool);

/* gpumem_report writes a text about the pool for people, cut to n bytes with a final 0,
 * and returns its whole length without that; -1 on an error. */
int gpumem_report(gpumem_pool pool, char *text, size_t n);

/* gpumem_record writes what all pools of the process do from now on to a file, for gpumem
 * replay, leaks and advise, until it is called with NULL. */
int gpumem_record(const char *path);

/* Functions in the form that other libraries want. They use the shared pool of the GPU.
 *
 * PyTorch, CUDAPluggableAllocator. It does not look at the result, so
 * gpumem_torch_alloc throws PyTorch's own OutOfMemoryError where there is not enough
 * memory: only PyTorch may call it. gpumem_torch_pool_alloc, for torch.cuda.MemPool,
 * answers NULL. */
void *gpumem_torch_alloc(size_t bytes, int gpu, void *stream);
void *gpumem_torch_pool_alloc(size_t bytes, int gpu, void *stream);
void gpumem_torch_free(void *address, size_t bytes, int gpu, void *stream);
void gpumem_torch_record_stream(void *address, void *stream);
void gpumem_torch_empty_cache(void);

/* CuPy, cupy.cuda.CFunctionAllocator. It names no stream, so all is as with
 * GPUMEM_STREAM_ANY. param is not used. */
void *gpumem_cupy_malloc(void *param, size_t bytes, int gpu);
void gpumem_cupy_free(void *param, void *address, int gpu);

/* RMM's kind of resource: NULL where there is not enough memory. */
void *gpumem_rmm_alloc(size_t bytes, void *stream, void *gpu_as_pointer);
void gpumem_rmm_free(void *address, size_t bytes, void *stream, void *gpu_as_pointer);

#ifdef __cplusplus
}
#endif
#endif
