/*
 * libraceline: namespaces over NVMe/TCP, in user space.
 *
 * Made by `cargo xtask capi` from crates/capi/src; do not edit.
 *
 * Calls give 0 (RACELINE_OK) or a number of things, or a negative code. raceline_error_text() then
 * says what was wrong and what to do, for the last call that failed on the same thread.
 *
 * Threads. A raceline_host may be used by several threads at a time. A raceline_queues is used by one
 * thread at a time, of which the library makes sure: a call beside another on the same queues gives
 * RACELINE_BUSY and does nothing. It may be used by one thread after another. No handle and no buffer
 * goes through fork(): open them in the process that uses them.
 *
 * Memory. Whoever submits an operation leaves its memory alone until its completion was given by
 * raceline_poll() or raceline_wait(), or until raceline_queues_close() has returned: not read while a
 * read, not written while a write, compare or deallocate is on its way. All memory will do, with any
 * alignment; data are not copied.
 *
 * Polling. Queues that have operations outstanding are polled at least once per command timeout: what
 * nobody has looked for counts as not having come. While there is no connection, operations wait;
 * reads that were on their way are sent again, and anything else ends with RACELINE_UNKNOWN_FATE.
 */


#ifndef RACELINE_H
#define RACELINE_H

#include <stddef.h>
#include <stdint.h>

/**
 * All is well.
 */
#define RACELINE_OK 0

/**
 * An argument is not one that the call can use: the text names it.
 */
#define RACELINE_INVALID -1

/**
 * The queue is full: take completions, then submit again.
 */
#define RACELINE_FULL -2

/**
 * The controller was given up or disconnected, or the handle was closed: there is nothing to wait
 * for.
 */
#define RACELINE_CLOSED -3

/**
 * The controller cannot be reached.
 */
#define RACELINE_CANNOT_CONNECT -4

/**
 * The controller was reached, and refuses or cannot be used.
 */
#define RACELINE_REFUSED -5

/**
 * The controller completed the command with an error: the completion has its status.
 */
#define RACELINE_COMMAND_FAILED -6

/**
 * The connection was lost after the command may have been sent: it may have been executed.
 */
#define RACELINE_UNKNOWN_FATE -7

/**
 * The connection was lost for good before the command had an effect.
 */
#define RACELINE_NOT_SENT -8

/**
 * The command was not completed in time.
 */
#define RACELINE_TIMEOUT -9

/**
 * Data arrived spoiled, again and again.
 */
#define RACELINE_DIGEST -10

/**
 * Another thread is in a call with the same queues.
 */
#define RACELINE_BUSY -11

/**
 * The operating system has no memory or descriptors left.
 */
#define RACELINE_NO_MEMORY -12

/**
 * A fault of the library. The handle is of no use any more but to be closed.
 */
#define RACELINE_INTERNAL -13

/**
 * Flag of raceline_config: protect PDU headers by CRC32C.
 */
#define RACELINE_HEADER_DIGEST 1

/**
 * Flag of raceline_config: protect data by CRC32C.
 */
#define RACELINE_DATA_DIGEST 2

/**
 * Flag of raceline_config: let up to 16 commands or 64 KiB gather for at most 50 us before they are
 * sent together.
 */
#define RACELINE_I10 4

/**
 * Flag of raceline_namespace: it cannot be written.
 */
#define RACELINE_NAMESPACE_READ_ONLY 1

/**
 * Flag of raceline_namespace: raceline_write_zeroes() works.
 */
#define RACELINE_NAMESPACE_WRITE_ZEROES 2

/**
 * Flag of raceline_namespace: raceline_deallocate() works.
 */
#define RACELINE_NAMESPACE_DEALLOCATE 4

/**
 * Flag of raceline_namespace: what is written is on stable media only after raceline_flush().
 */
#define RACELINE_NAMESPACE_CACHE 8

/**
 * Flag of an operation: it goes to a poll queue, where there are some.
 */
#define RACELINE_POLLED 1

/**
 * Flag of writes and write zeroes: the blocks are on stable media when it completes.
 */
#define RACELINE_FUA 2

/**
 * Flag of write zeroes: the controller may free the blocks.
 */
#define RACELINE_DEALLOCATE 4

/**
 * A connected controller. A thread of the library keeps it alive, and connects it again.
 */
typedef struct raceline_host raceline_host;

/**
 * Queues with their connections, for one thread at a time.
 */
typedef struct raceline_queues raceline_queues;

/**
 * A controller and how to talk to it. Begin with raceline_config_init(), which fills in everything
 * but traddr and nqn.
 */
typedef struct {
  /**
   * Bytes of this structure: sizeof(raceline_config), as raceline_config_init() sets it.
   */
  size_t size;
  /**
   * Address or name of the target.
   */
  const char *traddr;
  /**
   * Port; NULL for 4420.
   */
  const char *trsvcid;
  /**
   * Name of the subsystem.
   */
  const char *nqn;
  /**
   * Name of this host; NULL for that of /etc/nvme/hostnqn, else one of this machine's own.
   */
  const char *hostnqn;
  /**
   * UUID that goes with the name; NULL for that of /etc/nvme/hostid, else one that follows from
   * the name.
   */
  const char *hostid;
  /**
   * RACELINE_HEADER_DIGEST | RACELINE_DATA_DIGEST | RACELINE_I10
   */
  uint32_t flags;
  /**
   * I/O queues for all raceline_queues_open() together; only for reads when there are write
   * queues.
   */
  uint16_t nr_io_queues;
  /**
   * More of them, for what is no read.
   */
  uint16_t nr_write_queues;
  /**
   * More of them, for operations with RACELINE_POLLED.
   */
  uint16_t nr_poll_queues;
  /**
   * Entries of each I/O queue: one less operations may be on their way, up to 4095.
   */
  uint16_t queue_size;
  /**
   * Keep alive timeout; 0 turns it off.
   */
  uint32_t keep_alive_ms;
  /**
   * A connection whose command takes longer is given up; 0: none is.
   */
  uint32_t command_timeout_ms;
  /**
   * How long each step of connecting may take.
   */
  uint32_t connect_timeout_ms;
  /**
   * How long a lost controller is connected again before it is given up: -1 for ever, 0 not at
   * all.
   */
  int32_t ctrl_loss_tmo_s;
} raceline_config;

/**
 * A namespace.
 */
typedef struct {
  /**
   * Its identifier.
   */
  uint32_t nsid;
  /**
   * Bytes of a block.
   */
  uint32_t block_size;
  /**
   * How many blocks it has.
   */
  uint64_t block_count;
  /**
   * Bytes that one command moves at most; larger operations go in several commands.
   */
  uint32_t max_transfer_bytes;
  /**
   * RACELINE_NAMESPACE_*
   */
  uint32_t flags;
  /**
   * UUID, zeroes for none.
   */
  uint8_t uuid[16];
  /**
   * NGUID, zeroes for none.
   */
  uint8_t nguid[16];
} raceline_namespace;

/**
 * What raceline_queues_open() is to open. All zeroes but the size: one queue.
 */
typedef struct {
  /**
   * Bytes of this structure: sizeof(raceline_queues_options).
   */
  size_t size;
  /**
   * As in raceline_config; 0 for 1.
   */
  uint16_t nr_io_queues;
  /**
   * As in raceline_config.
   */
  uint16_t nr_write_queues;
  /**
   * As in raceline_config.
   */
  uint16_t nr_poll_queues;
  /**
   * Must be 0.
   */
  uint16_t reserved;
  /**
   * How long raceline_wait() looks for completions itself before it sleeps, in microseconds.
   */
  uint32_t spin_us;
} raceline_queues_options;

/**
 * Some blocks.
 */
typedef struct {
  /**
   * First block.
   */
  uint64_t slba;
  /**
   * How many.
   */
  uint32_t block_count;
  /**
   * 0.
   */
  uint32_t reserved;
} raceline_range;

/**
 * An operation that has ended.
 */
typedef struct {
  /**
   * The name that the caller gave it.
   */
  uint64_t user;
  /**
   * First block of the operation, or of its command that failed.
   */
  uint64_t slba;
  /**
   * Number of blocks of the command that failed; 0 on success.
   */
  uint32_t block_count;
  /**
   * Namespace of the command that failed.
   */
  uint32_t nsid;
  /**
   * RACELINE_OK, or why it failed.
   */
  int32_t result;
  /**
   * NVMe status of RACELINE_COMMAND_FAILED: status code in bits 7:0, its type in bits 10:8, DNR in
   * bit 14.
   */
  uint16_t status;
  /**
   * NVMe opcode of the command that failed.
   */
  uint8_t opcode;
  /**
   * 0.
   */
  uint8_t reserved;
} raceline_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What was wrong with the last call that failed on this thread, and what to do about it; empty when
 * none has. Valid until the next call that fails on this thread.
 */
const char *raceline_error_text(void);

/**
 * What a code means, in a few words. Never null.
 */
const char *raceline_code_text(int32_t code);

/**
 * The library's version, major << 16 | minor << 8 | patch.
 */
uint32_t raceline_version(void);

/**
 * Fills a configuration with what is usual. `size` is sizeof(raceline_config).
 */
int32_t raceline_config_init(raceline_config *config, size_t size);

/**
 * Connects to a controller and waits until it is up: at most a few times connect_timeout_ms.
 */
int32_t raceline_connect(const raceline_config *config,
                         raceline_host **host);

/**
 * Shuts the controller down in order and waits for that; the handle is closed then. Queues that are
 * still open end with it, and are closed on their own.
 */
int32_t raceline_disconnect(raceline_host *host);

/**
 * Writes the identifiers of the active namespaces, in ascending order, up to `max` of them to `nsids`,
 * and gives how many there are.
 */
int32_t raceline_namespace_ids(const raceline_host *host,
                               uint32_t *nsids,
                               size_t max);

/**
 * Describes a namespace as it is now. `size` is sizeof(raceline_namespace).
 */
int32_t raceline_namespace_info(const raceline_host *host,
                                uint32_t nsid,
                                raceline_namespace *namespace_info,
                                size_t size);

/**
 * Opens queues and waits until they are connected. `options` may be NULL: one queue.
 */
int32_t raceline_queues_open(const raceline_host *host,
                             const raceline_queues_options *options,
                             raceline_queues **queues);

/**
 * Closes queues. What is on its way ends here, without a completion: writes may have been executed or
 * not. The memory of all operations is the caller's again.
 */
int32_t raceline_queues_close(raceline_queues *queues);

/**
 * Reads blocks from `slba` on into `data`; `bytes` are whole blocks. RACELINE_POLLED.
 *
 * Like all operations, it leaves with the next raceline_send(), raceline_poll() or raceline_wait();
 * `user` comes back with its completion. RACELINE_FULL asks to take completions first.
 */
int32_t raceline_read(raceline_queues *queues,
                      uint32_t nsid,
                      uint64_t slba,
                      void *data,
                      size_t bytes,
                      uint32_t flags,
                      uint64_t user);

/**
 * Writes blocks from `slba` on from `data`; `bytes` are whole blocks. RACELINE_POLLED, RACELINE_FUA.
 */
int32_t raceline_write(raceline_queues *queues,
                       uint32_t nsid,
                       uint64_t slba,
                       const void *data,
                       size_t bytes,
                       uint32_t flags,
                       uint64_t user);

/**
 * Compares blocks from `slba` on with `data`; where they differ, the status is Compare Failure, 285h.
 * RACELINE_POLLED.
 */
int32_t raceline_compare(raceline_queues *queues,
                         uint32_t nsid,
                         uint64_t slba,
                         const void *data,
                         size_t bytes,
                         uint32_t flags,
                         uint64_t user);

/**
 * Makes blocks read zeroes. RACELINE_POLLED, RACELINE_FUA, RACELINE_DEALLOCATE.
 */
int32_t raceline_write_zeroes(raceline_queues *queues,
                              uint32_t nsid,
                              uint64_t slba,
                              uint32_t block_count,
                              uint32_t flags,
                              uint64_t user);

/**
 * Frees up to 256 ranges of blocks. The ranges are copied. RACELINE_POLLED.
 */
int32_t raceline_deallocate(raceline_queues *queues,
                            uint32_t nsid,
                            const raceline_range *ranges,
                            size_t count,
                            uint32_t flags,
                            uint64_t user);

/**
 * When it completes, all that completed before it was submitted is on stable media. RACELINE_POLLED.
 */
int32_t raceline_flush(raceline_queues *queues,
                       uint32_t nsid,
                       uint32_t flags,
                       uint64_t user);

/**
 * Sends what was submitted, on this thread.
 */
int32_t raceline_send(raceline_queues *queues);

/**
 * How many more operations the queues take, all together.
 */
int32_t raceline_room(raceline_queues *queues);

/**
 * Receives what has come and sends what can go, without waiting; writes up to `max` completions and
 * gives how many. When one of them failed, raceline_completion_text() says how.
 */
int32_t raceline_poll(raceline_queues *queues, raceline_completion *completions, size_t max);

/**
 * As raceline_poll(), waiting for at least `min` completions: up to `timeout_ns` nanoseconds, or
 * without end when that is negative. First it looks as long as spin_us says, then it sleeps.
 */
int32_t raceline_wait(raceline_queues *queues,
                      raceline_completion *completions,
                      size_t min,
                      size_t max,
                      int64_t timeout_ns);

/**
 * Says in words what a completion says: which command, of which blocks, failed why. Writes up to
 * `size` bytes with a 0 at their end, and gives how many the whole text has without it.
 */
int32_t raceline_completion_text(const raceline_completion *completion, char *text, size_t size);

/**
 * Memory of `bytes` zeroes that begins at a page, in huge pages where the kernel has some. Data move
 * without a copy from and to any memory; this is what direct I/O would want, too. NULL when there is
 * no memory.
 */
void *raceline_buffer_alloc(size_t bytes);

/**
 * Gives memory of raceline_buffer_alloc() back. No operation may have it. NULL is nothing to give;
 * any other address is refused.
 */
int32_t raceline_buffer_free(void *buffer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RACELINE_H */
