/*
 * libraceline: namespaces over NVMe/TCP and NVMe/RDMA, in user space.
 *
 * Made by `cargo xtask capi` from crates/capi/src; do not edit.
 *
 * Results. A call that gives an int32_t gives 0 (RACELINE_OK) or a count when it succeeds, and a negative
 * code when it fails. After a failure, raceline_error_text() says on the same thread what was wrong
 * and what to do.
 *
 * Threads. Several threads may use one raceline_host at a time. One thread at a time may use a
 * raceline_queues; another thread may use it after that one. The library checks this: a call on
 * queues that are in another call gives RACELINE_BUSY and does nothing else. Handles and buffers do
 * not survive fork(): the process that uses them opens them.
 *
 * Memory. The caller owns the memory of an operation, and lends it to the library when a call that
 * submits the operation gives RACELINE_OK. The loan ends when raceline_poll() or raceline_wait() has
 * given the operation's completion, or when raceline_queues_close() has given RACELINE_OK. During the
 * loan the caller keeps the memory allocated. It neither reads nor writes the memory of a read, and
 * does not write the memory of a write or a compare. The memory may have any alignment; the library
 * does not copy the data. When a call that submits gives a negative code, nothing is lent.
 *
 * Polling. The library looks for completions only inside raceline_poll() and raceline_wait(). The
 * caller calls one of them at least once per command_timeout_ms while operations are outstanding. A
 * completion that the library has not seen within that time counts as missing.
 *
 * Lost connections. The library makes lost connections of queues again inside raceline_poll() and
 * raceline_wait(). Operations that were not sent wait for that. Reads that were sent are sent again.
 * Other operations that were sent may have been executed, and end with RACELINE_UNKNOWN_FATE. When
 * the controller is given up (ctrl_loss_tmo_s), all outstanding operations end with an error.
 */


#ifndef RACELINE_H
#define RACELINE_H

#include <stddef.h>
#include <stdint.h>

/**
 * The call, or the operation of a completion, has succeeded.
 */
#define RACELINE_OK 0

/**
 * The call cannot use an argument: raceline_error_text() names it.
 */
#define RACELINE_INVALID -1

/**
 * The queues have no room for the operation: take completions, then submit it again.
 */
#define RACELINE_FULL -2

/**
 * The controller was given up or disconnected, or the handle was closed. No completion will come any
 * more.
 */
#define RACELINE_CLOSED -3

/**
 * The controller cannot be reached: its name has no address, or the connection failed or timed out.
 */
#define RACELINE_CANNOT_CONNECT -4

/**
 * The controller was reached, but it refuses the host, or the library cannot use it.
 */
#define RACELINE_REFUSED -5

/**
 * The controller completed the command with an error: `status` of the completion says which.
 */
#define RACELINE_COMMAND_FAILED -6

/**
 * The connection was lost when the command may already have been sent. The controller may have
 * executed the command, or may still do so. The library does not send it again.
 */
#define RACELINE_UNKNOWN_FATE -7

/**
 * The connection was lost before the command had an effect. The library does not send the command
 * again.
 */
#define RACELINE_NOT_SENT -8

/**
 * The command was not completed within command_timeout_ms.
 */
#define RACELINE_TIMEOUT -9

/**
 * The data of a read had a wrong data digest each time, also after the library had sent the command
 * again, up to 5 times.
 */
#define RACELINE_DIGEST -10

/**
 * Another thread is in a call on the same queues; this call has done nothing.
 */
#define RACELINE_BUSY -11

/**
 * The operating system has refused memory, a file descriptor, or an operation on one.
 */
#define RACELINE_NO_MEMORY -12

/**
 * The library has a fault. If the call was on queues, only raceline_queues_close() still works on them.
 */
#define RACELINE_INTERNAL -13

/**
 * Flag of raceline_config: a CRC32C protects the headers of PDUs.
 */
#define RACELINE_HEADER_DIGEST 1

/**
 * Flag of raceline_config: a CRC32C protects the data of PDUs.
 */
#define RACELINE_DATA_DIGEST 2

/**
 * Flag of raceline_config: each queue gathers commands before it sends them together.
 *
 * A queue sends its waiting commands when there are 16, when they have 64 KiB of data, or when the first
 * has waited for 50 us. A command on a queue that has nothing in flight is not held back.
 */
#define RACELINE_I10 4

/**
 * Flag of raceline_config: operations stay with a path that is as good as the first when the first is back.
 */
#define RACELINE_NO_FAILBACK 8

/**
 * Flag of raceline_namespace: the controller refuses writes to the namespace.
 */
#define RACELINE_NAMESPACE_READ_ONLY 1

/**
 * Flag of raceline_namespace: the controller supports raceline_write_zeroes().
 */
#define RACELINE_NAMESPACE_WRITE_ZEROES 2

/**
 * Flag of raceline_namespace: the controller supports raceline_deallocate().
 */
#define RACELINE_NAMESPACE_DEALLOCATE 4

/**
 * Flag of raceline_namespace: the controller has a volatile write cache. Written data are on stable media
 * only after raceline_flush() or with RACELINE_FUA.
 */
#define RACELINE_NAMESPACE_CACHE 8

/**
 * Flag of an operation: it goes to a poll queue, if these queues have any. Otherwise the flag has no effect.
 */
#define RACELINE_POLLED 1

/**
 * Flag of raceline_write() and raceline_write_zeroes(): the blocks are on stable media when the operation
 * completes.
 */
#define RACELINE_FUA 2

/**
 * Flag of raceline_write_zeroes(): the controller may free the blocks.
 */
#define RACELINE_DEALLOCATE 4

/**
 * A connected controller. raceline_connect() makes it, and raceline_disconnect() ends it. Several threads
 * may use it at a time. A thread of the library sends its keep alives, and reconnects it when it is lost.
 */
typedef struct raceline_host raceline_host;

/**
 * I/O queues with one connection each. raceline_queues_open() makes them, and raceline_queues_close() ends
 * them. One thread at a time may use them.
 */
typedef struct raceline_queues raceline_queues;

/**
 * A controller, and how to connect to it. raceline_config_init() fills in everything but traddr and nqn,
 * which the caller must set.
 *
 * The texts end with a 0 byte, have at most 4096 bytes and are UTF-8. They belong to the caller:
 * raceline_connect() reads them, and no call needs them after that one has returned.
 */
typedef struct {
  /**
   * Bytes of this structure: sizeof(raceline_config). raceline_config_init() sets it.
   */
  size_t size;
  /**
   * Address of the target, or a name that the system resolves; the first address of a name is used.
   */
  const char *traddr;
  /**
   * Port of the target, in decimal digits; NULL: 4420.
   */
  const char *trsvcid;
  /**
   * NQN of the subsystem.
   */
  const char *nqn;
  /**
   * NQN of this host. NULL: the one in /etc/nvme/hostnqn; without that file, one that is made from
   * the identity of this machine and stays the same.
   */
  const char *hostnqn;
  /**
   * UUID that identifies this host together with hostnqn. NULL: the one in /etc/nvme/hostid, if this
   * host uses the NQN in /etc/nvme/hostnqn; otherwise one that is made from the NQN.
   */
  const char *hostid;
  /**
   * Any of RACELINE_HEADER_DIGEST | RACELINE_DATA_DIGEST | RACELINE_I10 | RACELINE_NO_FAILBACK.
   */
  uint32_t flags;
  /**
   * I/O queues that the library asks the controller for, for all raceline_queues_open() of this host
   * together. They take all operations; when nr_write_queues is not 0, they take only reads.
   */
  uint16_t nr_io_queues;
  /**
   * Further I/O queues, for operations that are not reads.
   */
  uint16_t nr_write_queues;
  /**
   * Further I/O queues, for operations with RACELINE_POLLED.
   */
  uint16_t nr_poll_queues;
  /**
   * Entries of each I/O queue, from 2 to 4096. A queue has at most one command less outstanding. A
   * controller that allows fewer entries reduces the number.
   */
  uint16_t queue_size;
  /**
   * Keep alive timeout in milliseconds; 0: no keep alive.
   */
  uint32_t keep_alive_ms;
  /**
   * Milliseconds after which the library gives up the connection of a command that has no completion;
   * 0: commands have no time limit.
   */
  uint32_t command_timeout_ms;
  /**
   * Milliseconds that each of three steps may take: the connection, the answer to ICReq (which RDMA has not), and
   * the answer to Connect.
   */
  uint32_t connect_timeout_ms;
  /**
   * Seconds for which the library tries to reconnect a lost controller before it gives the controller
   * up. -1: it never gives up. 0: it does not reconnect.
   */
  int32_t ctrl_loss_tmo_s;
  /**
   * Seconds without a connected path after which operations fail; -1: they wait until all paths are given up. It has
   * a meaning with paths or path_policy.
   */
  int32_t fast_io_fail_tmo_s;
  /**
   * Further paths to the same subsystem, ADDR[:PORT][,SOURCE] with spaces between them. SOURCE is the address of this
   * machine to connect from. A path that is not of `trtype` has tcp:// or rdma:// before it. NULL: one path.
   */
  const char *paths;
  /**
   * Which path an operation takes: active-passive, round-robin, queue-depth or numa. NULL: active-passive if there
   * are paths; without paths, an operation whose connection is lost ends with RACELINE_UNKNOWN_FATE.
   */
  const char *path_policy;
  /**
   * Milliseconds between attempts to reconnect a lost path. 0: 100 at first, and doubled up to 10,000.
   */
  uint32_t reconnect_delay_ms;
  /**
   * What carries the queues: "tcp" or "rdma", in capitals or not; NULL: tcp. RDMA needs the libraries libibverbs and
   * librdmacm, which the library loads at the first raceline_connect() over RDMA. It has no digests.
   */
  const char *trtype;
} raceline_config;

/**
 * What the controller says of a namespace. The caller owns the structure.
 */
typedef struct {
  /**
   * Identifier of the namespace.
   */
  uint32_t nsid;
  /**
   * Bytes of a block.
   */
  uint32_t block_size;
  /**
   * Number of blocks.
   */
  uint64_t block_count;
  /**
   * Most bytes that one command moves; UINT32_MAX: the controller sets no limit. The library sends a
   * larger operation as several commands, which are not one atomic write.
   */
  uint32_t max_transfer_bytes;
  /**
   * Any of RACELINE_NAMESPACE_*.
   */
  uint32_t flags;
  /**
   * UUID; zeroes: the namespace has none.
   */
  uint8_t uuid[16];
  /**
   * NGUID; zeroes: the namespace has none.
   */
  uint8_t nguid[16];
} raceline_namespace;

/**
 * What raceline_queues_open() is to open. When all fields but the size are 0, that is one queue, and
 * raceline_wait() sleeps at once.
 */
typedef struct {
  /**
   * Bytes of this structure: sizeof(raceline_queues_options).
   */
  size_t size;
  /**
   * Queues for all operations, or only for reads when nr_write_queues is not 0. 0 means 1.
   */
  uint16_t nr_io_queues;
  /**
   * Further queues, for operations that are not reads.
   */
  uint16_t nr_write_queues;
  /**
   * Further queues, for operations with RACELINE_POLLED.
   */
  uint16_t nr_poll_queues;
  /**
   * The caller sets it to 0.
   */
  uint16_t reserved;
  /**
   * Microseconds for which raceline_wait() looks for completions before it sleeps.
   */
  uint32_t spin_us;
} raceline_queues_options;

/**
 * Consecutive blocks, for raceline_deallocate().
 */
typedef struct {
  /**
   * First block.
   */
  uint64_t slba;
  /**
   * Number of blocks.
   */
  uint32_t block_count;
  /**
   * The caller sets it to 0.
   */
  uint32_t reserved;
} raceline_range;

/**
 * The end of an operation. The caller owns the structure; the library writes it once.
 */
typedef struct {
  /**
   * The `user` that the caller gave when it submitted the operation.
   */
  uint64_t user;
  /**
   * First block of the command that failed; 0 on success, or if that command names no blocks.
   */
  uint64_t slba;
  /**
   * Number of blocks of the command that failed; 0 on success, or if that command names no blocks.
   */
  uint32_t block_count;
  /**
   * Namespace of the command that failed; 0 on success.
   */
  uint32_t nsid;
  /**
   * RACELINE_OK, or the code that says why the operation failed. When several commands of an operation
   * fail, the first failure counts.
   */
  int32_t result;
  /**
   * NVMe status if `result` is RACELINE_COMMAND_FAILED, otherwise 0. Bits 7:0 are the status code, bits
   * 10:8 its type, and bit 14 is Do Not Retry.
   */
  uint16_t status;
  /**
   * NVMe opcode of the command that failed; 0 on success.
   */
  uint8_t opcode;
  /**
   * Always 0.
   */
  uint8_t reserved;
} raceline_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Says what was wrong with the last call that failed on this thread, and what to do about it.
 *
 * The text is empty when no call has failed on this thread. The library owns the text: it is valid
 * until the next call that fails on this thread, or until the thread ends. Never NULL.
 */
const char *raceline_error_text(void);

/**
 * Says what a code means. The library owns the text, which is valid for as long as the library is
 * loaded. Never NULL: a code that the library does not know is called unknown.
 */
const char *raceline_code_text(int32_t code);

/**
 * Gives the library's version: major << 16 | minor << 8 | patch.
 */
uint32_t raceline_version(void);

/**
 * Fills a configuration with default values. `size` is sizeof(raceline_config) of the caller.
 *
 * The values are one I/O queue of 128 entries, a keep alive timeout of 5 s, a command timeout of 30 s, a
 * connect timeout of 10 s, and 600 s for reconnecting. All texts become NULL. RACELINE_INVALID
 * means that the caller's header does not fit this library.
 */
int32_t raceline_config_init(raceline_config *config,
                             size_t size);

/**
 * Connects to a controller, and waits until the controller is ready and the library knows its namespaces.
 *
 * On success `*host` is a handle, which the caller ends with raceline_disconnect(). On failure `*host` is
 * NULL. The call makes one attempt. The three steps of connecting take at most connect_timeout_ms
 * each, and each admin command after them takes at most command_timeout_ms.
 *
 * It gives RACELINE_INVALID when `config` cannot be used, RACELINE_CANNOT_CONNECT when the controller
 * cannot be reached, and RACELINE_REFUSED when the controller refuses this host or cannot be used.
 */
int32_t raceline_connect(const raceline_config *config,
                         raceline_host **host);

/**
 * Shuts the controller down in order, waits until that has ended, and closes the handle.
 *
 * Later calls on the handle give RACELINE_CLOSED. Queues of this host that are still open take no more
 * operations, and their outstanding operations end with an error. The caller still closes each of them
 * with raceline_queues_close().
 */
int32_t raceline_disconnect(raceline_host *host);

/**
 * Writes the identifiers of the active namespaces to `nsids`, in ascending order and at most `max` of them.
 *
 * It gives the number of active namespaces, which may be more than `max`. While the controller is lost,
 * it gives those that the library knew at raceline_connect().
 */
int32_t raceline_namespace_ids(const raceline_host *host,
                               uint32_t *nsids,
                               size_t max);

/**
 * Describes a namespace as the library knows it now. `size` is sizeof(raceline_namespace) of the caller.
 *
 * It gives RACELINE_INVALID when the controller has no active namespace `nsid`: raceline_error_text() then
 * lists those that it has.
 */
int32_t raceline_namespace_info(const raceline_host *host,
                                uint32_t nsid,
                                raceline_namespace *namespace_info,
                                size_t size);

/**
 * Opens queues, and waits until all are connected, at most 1 s longer than connect_timeout_ms.
 *
 * NULL for `options` means one queue and a spin_us of 50. On success `*queues` is a handle, which the
 * caller ends with raceline_queues_close(). On failure `*queues` is NULL. RACELINE_INVALID also means
 * that fewer queues are left, of those that raceline_connect() asked for and the controller granted.
 */
int32_t raceline_queues_open(const raceline_host *host,
                             const raceline_queues_options *options,
                             raceline_queues **queues);

/**
 * Closes queues. Later calls on the handle give RACELINE_CLOSED.
 *
 * Outstanding operations end without a completion; the controller may have executed them or not. When the
 * call gives RACELINE_OK, the library uses the memory of no operation any more. When another thread is in
 * a call on these queues, this call gives RACELINE_BUSY, and the queues stay open.
 */
int32_t raceline_queues_close(raceline_queues *queues);

/**
 * Submits a read of the blocks from `slba` on into `data`. `bytes` is the size of one or more whole blocks.
 * The flag RACELINE_POLLED is possible.
 *
 * What follows holds for all six operations. RACELINE_OK means that the queues have taken the operation, and
 * that one completion with this `user` will come, unless the queues are closed first. The operation is sent
 * by the next raceline_send(), or when raceline_poll() or raceline_wait() next looks at the connections.
 * Operations may complete in any order.
 *
 * A negative code means that the operation was not taken, and that no completion will come.
 * RACELINE_FULL: the caller takes completions, and submits the operation again. RACELINE_INVALID:
 * an argument is wrong, such as the namespace, the size or a flag. RACELINE_CLOSED: the controller was given
 * up or disconnected, or the queues were closed.
 */
int32_t raceline_read(raceline_queues *queues,
                      uint32_t nsid,
                      uint64_t slba,
                      void *data,
                      size_t bytes,
                      uint32_t flags,
                      uint64_t user);

/**
 * Submits a write of `data` to the blocks from `slba` on. `bytes` is the size of one or more whole blocks.
 * The flags RACELINE_POLLED and RACELINE_FUA are possible.
 */
int32_t raceline_write(raceline_queues *queues,
                       uint32_t nsid,
                       uint64_t slba,
                       const void *data,
                       size_t bytes,
                       uint32_t flags,
                       uint64_t user);

/**
 * Submits a comparison of the blocks from `slba` on with `data`. `bytes` is the size of one or more whole
 * blocks. The flag RACELINE_POLLED is possible.
 *
 * If they differ, the completion's `result` is RACELINE_COMMAND_FAILED, and bits 10:0 of its `status` are
 * 285h, Compare Failure.
 */
int32_t raceline_compare(raceline_queues *queues,
                         uint32_t nsid,
                         uint64_t slba,
                         const void *data,
                         size_t bytes,
                         uint32_t flags,
                         uint64_t user);

/**
 * Submits a write of zeroes to `block_count` blocks from `slba` on, without sending zeroes. `block_count` is at
 * least 1. The flags RACELINE_POLLED, RACELINE_FUA and RACELINE_DEALLOCATE are possible.
 */
int32_t raceline_write_zeroes(raceline_queues *queues,
                              uint32_t nsid,
                              uint64_t slba,
                              uint32_t block_count,
                              uint32_t flags,
                              uint64_t user);

/**
 * Submits the deallocation of `count` ranges of blocks, from 1 to 256. The flag RACELINE_POLLED is possible.
 *
 * The library copies the ranges before the call returns: `ranges` is then the caller's again.
 */
int32_t raceline_deallocate(raceline_queues *queues,
                            uint32_t nsid,
                            const raceline_range *ranges,
                            size_t count,
                            uint32_t flags,
                            uint64_t user);

/**
 * Submits a flush of a namespace. The flag RACELINE_POLLED is possible.
 *
 * When the flush completes with RACELINE_OK, all writes to the namespace whose completion was given before
 * the flush was submitted are on stable media.
 */
int32_t raceline_flush(raceline_queues *queues,
                       uint32_t nsid,
                       uint32_t flags,
                       uint64_t user);

/**
 * Sends the submitted operations now, on the calling thread and without waiting.
 *
 * Operations that a socket does not take yet, or that RACELINE_I10 holds back, are sent later, inside
 * raceline_poll() or raceline_wait().
 */
int32_t raceline_send(raceline_queues *queues);

/**
 * Gives how many more commands all queues together can take. An operation of more bytes than
 * max_transfer_bytes takes several of them.
 */
int32_t raceline_room(raceline_queues *queues);

/**
 * Gives completions without waiting: it writes at most `max` of them, and gives how many it wrote.
 *
 * If the library has received completions that the caller has not taken, the call gives those, and neither
 * sends nor receives. Otherwise it receives what has arrived, sends what was submitted, and gives the
 * completions that came of it; 0 means that there are none.
 *
 * `completion.result` says whether an operation has succeeded; raceline_completion_text() says it in words.
 * RACELINE_CLOSED: the controller was given up or disconnected, and all completions were given.
 */
int32_t raceline_poll(raceline_queues *queues,
                      raceline_completion *completions,
                      size_t max);

/**
 * As raceline_poll(), but waits until there are at least `min` completions.
 *
 * It waits at most `timeout_ns` nanoseconds; a negative number means no limit. While it waits, it sends and
 * receives. It looks for completions for spin_us, then sleeps until something arrives. A `min` above `max`
 * counts as `max`. When the time is over, or when no operation is outstanding, the call gives the completions
 * that there are: fewer than `min`, maybe 0. When at least `min` completions were received before the call,
 * or when `timeout_ns` is 0, the call neither sends nor receives.
 */
int32_t raceline_wait(raceline_queues *queues,
                      raceline_completion *completions,
                      size_t min,
                      size_t max,
                      int64_t timeout_ns);

/**
 * Says in words which command of an operation failed, on which blocks, and why; on success "success".
 *
 * It writes at most `size` bytes to `text`, the last of which is 0. A longer text is cut off. It gives the
 * number of bytes of the whole text without the 0. `text` may be NULL if `size` is 0. Any thread may
 * call it.
 */
int32_t raceline_completion_text(const raceline_completion *completion,
                                 char *text,
                                 size_t size);

/**
 * Allocates `bytes` bytes of zeroes that begin at a page, in huge pages where the kernel has some.
 *
 * The caller owns the memory until it calls raceline_buffer_free(). Operations do not need such memory:
 * they move data to and from any memory without a copy. NULL means failure (RACELINE_NO_MEMORY):
 * raceline_error_text() says why.
 */
void *raceline_buffer_alloc(size_t bytes);

/**
 * Frees memory of raceline_buffer_alloc(), on any thread. No outstanding operation may use the memory.
 *
 * For NULL the call does nothing and gives RACELINE_OK. For any address that raceline_buffer_alloc()
 * has not given, or that was freed, it gives RACELINE_INVALID.
 */
int32_t raceline_buffer_free(void *buffer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RACELINE_H */
