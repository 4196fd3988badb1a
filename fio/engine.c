// SPDX-License-Identifier: MIT
// An external I/O engine for fio: namespaces over NVMe/TCP and NVMe/RDMA through libraceline.
//
// Each job has its own set of connections to each controller, and the thread of the job submits and polls.
// The engine makes the connections in the thread or process that runs the job. So jobs with `thread` and jobs
// that are processes work alike. Before that, engine_setup() connects once per file, asks for the size of the
// namespace, and disconnects.

#include "config-host.h"

#include "fio.h"
#include "optgroup.h"

#include "raceline.h"

enum {
	TEXT_BYTES = 512,
	// Least entries of a queue when queue_size is 0; iodepth may ask for more.
	QUEUE_ENTRIES = 128,
	MAX_QUEUE_ENTRIES = 4096,
	// A job with several controllers waits this long for one, then looks at the next.
	WAIT_NS = 50 * 1000,
	// This number of queued commands is sent even if more are about to follow.
	GATHERED_COMMANDS = 32,
	RETRY_US = 10,
	// The longest time for paths in seconds.
	MAX_TMO_S = 86400,
};

// The options of a job. fio does not accept an option at offset 0, so `pad` is the first member.
struct engine_options {
	void *pad;
	char *trtype;
	char *traddr;
	char *trsvcid;
	char *nqn;
	char *hostnqn;
	char *hostid;
	unsigned int nsid;
	unsigned int nr_io_queues;
	unsigned int nr_write_queues;
	unsigned int nr_poll_queues;
	unsigned int queue_size;
	unsigned int hdr_digest;
	unsigned int data_digest;
	unsigned int poll;
	unsigned int i10;
	unsigned int ctrl_loss_tmo;
	unsigned int command_timeout;
	unsigned int spin_us;
	char *path;
	char *policy;
	unsigned int multipath;
	unsigned int no_failback;
	char *fast_io_fail_tmo;
	unsigned int reconnect_delay;
};

// The namespace that a file stands for. The file's name overrides the job's options.
struct place {
	char *copy; // a copy of the file's name, or NULL; the texts below may point into it
	const char *trtype;
	const char *traddr;
	const char *trsvcid;
	const char *nqn;
	const char *hostnqn;
	unsigned int nsid;
};

// A controller that a job is connected to.
struct connection {
	struct place place;
	raceline_host *host;
	raceline_queues *queues;
};

// The engine's part of a file: fio_file.engine_data points at it.
struct file {
	struct connection *connection;
	raceline_namespace namespace;
	unsigned int block_shift; // block size as a power of two: a shift is cheaper than a division per I/O
};

// The engine's part of a job: td->io_ops_data points at it, and engine_cleanup() frees it.
struct engine_data {
	struct connection *connections;
	unsigned int connection_count;
	struct file *files;
	struct io_u **events;
	raceline_completion *completions;
	unsigned int ready; // index of the first completion that fio has not taken
	unsigned int ready_count; // number of completions that fio has not taken
	unsigned int depth;
	struct io_u **queued; // the I/Os submitted since the last send
	unsigned int queued_count;
	unsigned int next; // index of the connection that the engine looks at next
	uint32_t flags;
};

// Prints a message with the job's name, and gives fio the error with which the job ends.
static int fail(struct thread_data *td, int error, const char *what)
{
	log_err("raceline: %s: %s\n", td->o.name, what);
	td_verror(td, error, "raceline");
	return 1;
}

static int fail_code(struct thread_data *td, int code)
{
	(void)code;
	return fail(td, EIO, raceline_error_text());
}

// Takes one "key=value" of a file's name over. Gives NULL, or what is wrong with it. Changes `key`.
static const char *apply(struct place *place, char *key)
{
	char *value = strchr(key, '=');
	char *end;

	if (!value)
		return "is not key=value";
	*value++ = '\0';
	if (!strcmp(key, "traddr")) {
		place->traddr = value;
	} else if (!strcmp(key, "trsvcid")) {
		place->trsvcid = value;
	} else if (!strcmp(key, "nqn") || !strcmp(key, "subnqn")) {
		place->nqn = value;
	} else if (!strcmp(key, "hostnqn")) {
		place->hostnqn = value;
	} else if (!strcmp(key, "nsid") || !strcmp(key, "ns")) {
		place->nsid = strtoul(value, &end, 10);
		if (*end || end == value)
			return "is no number";
	} else if (!strcmp(key, "trtype")) {
		if (strcasecmp(value, "tcp") && strcasecmp(value, "rdma"))
			return "is not possible: this engine has TCP and RDMA";
		place->trtype = value;
	} else if (strcmp(key, "adrfam")) {
		return "is unknown: trtype, traddr, trsvcid, nqn, nsid and hostnqn are possible";
	}
	return NULL;
}

// Finds out which namespace a file stands for. A name without '=' leaves it to the job's options. The caller
// owns place->copy afterwards, which may be NULL.
static int find_place(struct thread_data *td, const char *name, struct place *place)
{
	const struct engine_options *options = td->eo;
	char text[TEXT_BYTES];
	char *save = NULL;

	*place = (struct place) {
		.trtype = options->trtype,
		.traddr = options->traddr,
		.trsvcid = options->trsvcid,
		.nqn = options->nqn,
		.hostnqn = options->hostnqn,
		.nsid = options->nsid,
	};
	if (!name || !strchr(name, '='))
		return 0;
	place->copy = strdup(name);
	if (!place->copy)
		return fail(td, ENOMEM, "no memory");
	for (char *word = strtok_r(place->copy, " ,", &save); word; word = strtok_r(NULL, " ,", &save)) {
		const char *why = apply(place, word);

		if (why) {
			snprintf(text, sizeof(text), "filename \"%s\": %s %s", name, word, why);
			return fail(td, EINVAL, text);
		}
	}
	return 0;
}

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

// Whether two names of transports mean the same one. NULL means TCP.
static bool same_transport(const char *a, const char *b)
{
	return !strcasecmp(a ? a : "tcp", b ? b : "tcp");
}

static bool same_controller(const struct place *a, const struct place *b)
{
	return same_transport(a->trtype, b->trtype) && same_text(a->traddr, b->traddr) && same_text(a->trsvcid, b->trsvcid) &&
	       same_text(a->nqn, b->nqn) && same_text(a->hostnqn, b->hostnqn);
}

// Sets what the options say of several paths. Files that name another controller have one path.
static int set_paths(struct thread_data *td, const struct place *place, raceline_config *config)
{
	const struct engine_options *options = td->eo;
	bool is_own = same_transport(place->trtype, options->trtype) &&
		      same_text(place->traddr, options->traddr) &&
		      same_text(place->trsvcid, options->trsvcid) &&
		      same_text(place->nqn, options->nqn);

	config->reconnect_delay_ms = options->reconnect_delay * 1000;
	if (options->fast_io_fail_tmo) {
		// fio has no numbers below 0 for options.
		char *end;
		long seconds = strtol(options->fast_io_fail_tmo, &end, 10);

		if (*end || end == options->fast_io_fail_tmo || seconds < -1 || seconds > MAX_TMO_S)
			return fail(td, EINVAL, "fast_io_fail_tmo is no number of seconds from -1 to 86400");
		config->fast_io_fail_tmo_s = seconds;
	}
	config->path_policy = options->policy;
	if ((options->multipath || options->no_failback || options->fast_io_fail_tmo) &&
	    !config->path_policy)
		config->path_policy = "active-passive";
	if (options->no_failback)
		config->flags |= RACELINE_NO_FAILBACK;
	if (is_own)
		config->paths = options->path;
	return 0;
}

// Connects to a controller. `with_queues`: it asks for the queues of this job, otherwise for one queue.
static int connect_to(struct thread_data *td, const struct place *place, bool with_queues,
		      raceline_host **host)
{
	const struct engine_options *options = td->eo;
	unsigned int entries = options->queue_size;
	raceline_config config;

	if (!place->traddr)
		return fail(td, EINVAL, "where is the target? set traddr=ADDRESS");
	if (!place->nqn)
		return fail(td, EINVAL, "which subsystem? set nqn=NAME");
	raceline_config_init(&config, sizeof(config));
	config.trtype = place->trtype;
	config.traddr = place->traddr;
	config.trsvcid = place->trsvcid;
	config.nqn = place->nqn;
	config.hostnqn = place->hostnqn;
	config.hostid = options->hostid;
	if (options->hdr_digest)
		config.flags |= RACELINE_HEADER_DIGEST;
	if (options->data_digest)
		config.flags |= RACELINE_DATA_DIGEST;
	if (options->i10)
		config.flags |= RACELINE_I10;
	config.ctrl_loss_tmo_s = options->ctrl_loss_tmo;
	config.command_timeout_ms = options->command_timeout * 1000;
	if (set_paths(td, place, &config))
		return 1;
	config.nr_io_queues = 1;
	if (with_queues) {
		config.nr_io_queues = options->nr_io_queues;
		config.nr_write_queues = options->nr_write_queues;
		config.nr_poll_queues = options->nr_poll_queues;
		if (!entries)
			entries = max((unsigned int)QUEUE_ENTRIES, td->o.iodepth + 1);
		config.queue_size = min(entries, (unsigned int)MAX_QUEUE_ENTRIES);
	}
	int code = raceline_connect(&config, host);
	return code ? fail_code(td, code) : 0;
}

// Asks for the sizes of a job's files. fio calls this before it forks a process for the job, so no connection
// stays open.
static int engine_setup(struct thread_data *td)
{
	struct fio_file *f;
	unsigned int i;

	for_each_file(td, f, i) {
		raceline_namespace namespace;
		raceline_host *host = NULL;
		struct place place;
		int result = find_place(td, f->file_name, &place);

		if (!result)
			result = connect_to(td, &place, false, &host);
		if (!result) {
			int code = raceline_namespace_info(host, place.nsid, &namespace, sizeof(namespace));

			if (code)
				result = fail_code(td, code);
		}
		if (host)
			raceline_disconnect(host);
		free(place.copy);
		if (result)
			return result;
		if (td_min_bs(td) % namespace.block_size) {
			char text[TEXT_BYTES];

			snprintf(text, sizeof(text), "bs=%llu is no multiple of the block size, %u bytes",
				 (unsigned long long)td_min_bs(td), namespace.block_size);
			return fail(td, EINVAL, text);
		}
		f->filetype = FIO_TYPE_BLOCK;
		f->real_file_size = namespace.block_size * namespace.block_count;
		fio_file_set_size_known(f);
	}
	return 0;
}

static void engine_cleanup(struct thread_data *td)
{
	struct engine_data *data = td->io_ops_data;

	if (!data)
		return;
	for (unsigned int i = 0; i < data->connection_count; i++) {
		struct connection *connection = &data->connections[i];

		if (connection->queues)
			raceline_queues_close(connection->queues);
		if (connection->host)
			raceline_disconnect(connection->host);
		free(connection->place.copy);
	}
	free(data->connections);
	free(data->files);
	free(data->events);
	free(data->completions);
	free(data->queued);
	free(data);
	td->io_ops_data = NULL;
}

// Finds the connection that a file uses: that of an earlier file with the same controller, or a new one. It
// takes place->copy over.
static int connection_of(struct thread_data *td, struct engine_data *data, struct place *place,
			 struct connection **found)
{
	const struct engine_options *options = td->eo;
	raceline_queues_options queues = {
		.size = sizeof(queues),
		.nr_io_queues = options->nr_io_queues,
		.nr_write_queues = options->nr_write_queues,
		.nr_poll_queues = options->nr_poll_queues,
		.spin_us = options->spin_us,
	};

	for (unsigned int i = 0; i < data->connection_count; i++) {
		*found = &data->connections[i];
		if (same_controller(&(*found)->place, place)) {
			free(place->copy);
			return 0;
		}
	}
	*found = &data->connections[data->connection_count++];
	(*found)->place = *place;
	if (connect_to(td, place, true, &(*found)->host))
		return 1;
	int code = raceline_queues_open((*found)->host, &queues, &(*found)->queues);
	return code ? fail_code(td, code) : 0;
}

static int engine_init(struct thread_data *td)
{
	const struct engine_options *options = td->eo;
	struct engine_data *data = calloc(1, sizeof(*data));
	struct fio_file *f;
	unsigned int i;

	if (!data)
		return fail(td, ENOMEM, "no memory");
	td->io_ops_data = data;
	data->depth = td->o.iodepth;
	data->flags = options->poll ? RACELINE_POLLED : 0;
	data->connections = calloc(td->o.nr_files, sizeof(*data->connections));
	data->files = calloc(td->o.nr_files, sizeof(*data->files));
	data->events = calloc(data->depth, sizeof(*data->events));
	data->completions = calloc(data->depth, sizeof(*data->completions));
	data->queued = calloc(data->depth, sizeof(*data->queued));
	if (!data->connections || !data->files || !data->events || !data->completions ||
	    !data->queued)
		return fail(td, ENOMEM, "no memory");
	for_each_file(td, f, i) {
		struct file *file = &data->files[i];
		struct place place;

		if (find_place(td, f->file_name, &place))
			return 1;
		unsigned int nsid = place.nsid;

		if (connection_of(td, data, &place, &file->connection))
			return 1;
		int code = raceline_namespace_info(file->connection->host, nsid, &file->namespace,
						   sizeof(file->namespace));
		if (code)
			return fail_code(td, code);
		file->block_shift = __builtin_ctz(file->namespace.block_size);
		f->engine_data = file;
	}
	return 0;
}

static int submit(struct engine_data *data, struct file *file, struct io_u *io_u, bool durable)
{
	raceline_queues *queues = file->connection->queues;
	uint32_t nsid = file->namespace.nsid;
	uint64_t slba = io_u->offset >> file->block_shift;
	uint64_t blocks = io_u->xfer_buflen >> file->block_shift;
	uint64_t user = (uintptr_t)io_u;
	uint32_t flags = data->flags;

	switch (io_u->ddir) {
	case DDIR_READ:
		return raceline_read(queues, nsid, slba, io_u->xfer_buf, io_u->xfer_buflen, flags, user);
	case DDIR_WRITE:
		return raceline_write(queues, nsid, slba, io_u->xfer_buf, io_u->xfer_buflen,
				      flags | (durable ? RACELINE_FUA : 0), user);
	case DDIR_TRIM: {
		raceline_range range = { .slba = slba, .block_count = blocks };

		return raceline_deallocate(queues, nsid, &range, 1, flags, user);
	}
	default:
		return raceline_flush(queues, nsid, flags, user);
	}
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct engine_data *data = td->io_ops_data;
	struct file *file = io_u->file->engine_data;
	uint32_t block_size = file->namespace.block_size;
	int code = RACELINE_INVALID;

	fio_ro_check(td, io_u);
	io_u->engine_data = NULL;
	if (io_u->offset & (block_size - 1)) {
		log_err("raceline: %s: offset %llu is not at a block of %u bytes\n", td->o.name,
			io_u->offset, block_size);
	} else {
		code = submit(data, file, io_u, td->o.sync_io);
	}
	if (code == RACELINE_OK) {
		data->queued[data->queued_count++] = io_u;
		return FIO_Q_QUEUED;
	}
	if (code == RACELINE_FULL)
		return FIO_Q_BUSY;
	fio_gettime(&io_u->issue_time, NULL);
	io_u->error = code == RACELINE_INVALID ? EINVAL : EIO;
	td_verror(td, io_u->error, code == RACELINE_INVALID ? "raceline" : raceline_error_text());
	return FIO_Q_COMPLETED;
}

// Whether fio fills the depth up without a pause. Then it takes completions once the depth is full.
static bool never_pauses(const struct thread_data *td)
{
	return !td->o.thinktime && !td->o.read_iolog_file && !(td->flags & TD_F_CHECK_RATE);
}

// Whether fio is about to queue further I/Os, so that the engine can send them together with those that are
// queued. That is so when fio queues I/Os one by one and the depth has room. It is also so when fio has yet
// to take completions that are ready: by default fio takes one completion and queues one I/O in turn, and
// sending at once would make a packet of each command. engine_getevents() sends the I/Os that are held back
// here.
static bool more_follows(const struct thread_data *td)
{
	const struct engine_data *data = td->io_ops_data;

	return never_pauses(td) &&
	       ((data->ready_count && data->queued_count < GATHERED_COMMANDS) ||
		(td->o.iodepth_batch == 1 && td->cur_depth < td->o.iodepth));
}

// Tells fio that the queued I/Os are sent now. The engine reads the clock once for all of them. Without
// FIO_ASYNCIO_SETS_ISSUE_TIME, fio would read the clock for each I/O.
static void mark_sent(struct thread_data *td)
{
	struct engine_data *data = td->io_ops_data;
	unsigned int count = data->queued_count;

	if (!count)
		return;
	data->queued_count = 0;
	io_u_mark_submit(td, count);
	if (!fio_fill_issue_time(td))
		return;
	struct timespec now;

	fio_gettime(&now, NULL);
	for (unsigned int i = 0; i < count; i++)
		data->queued[i]->issue_time = now;
	if (td->o.read_iolog_file)
		td->last_issue = now;
}

// Sends all queued I/Os on all connections.
static void send_queued(struct thread_data *td)
{
	struct engine_data *data = td->io_ops_data;

	if (!data->queued_count)
		return;
	mark_sent(td);
	for (unsigned int i = 0; i < data->connection_count; i++)
		raceline_send(data->connections[i].queues);
}

static int engine_commit(struct thread_data *td)
{
	if (!more_follows(td))
		send_queued(td);
	return 0;
}

// Gets completions from one connection. If `wait_ns` is not 0, it waits for `min` of them, at most that long,
// or without limit if `wait_ns` is negative. The caller has taken all earlier completions.
static int look(struct thread_data *td, struct connection *connection, unsigned int min,
		int64_t wait_ns)
{
	struct engine_data *data = td->io_ops_data;
	int got;

	if (wait_ns)
		got = raceline_wait(connection->queues, data->completions, min, data->depth, wait_ns);
	else
		got = raceline_poll(connection->queues, data->completions, data->depth);
	if (got < 0) {
		log_err("raceline: %s: %s\n", td->o.name, raceline_error_text());
		return -EIO;
	}
	data->ready = 0;
	data->ready_count = got;
	return 0;
}

// Adds ready completions to the `count` events that fio is to get, up to `max`. Gives the new count.
static unsigned int take(struct engine_data *data, unsigned int count, unsigned int max)
{
	for (; count < max && data->ready_count; data->ready_count--) {
		const raceline_completion *completion = &data->completions[data->ready++];
		struct io_u *io_u = (struct io_u *)(uintptr_t)completion->user;
		char text[TEXT_BYTES];

		data->events[count++] = io_u;
		if (completion->result == RACELINE_OK)
			continue;
		io_u->error = EIO;
		raceline_completion_text(completion, text, sizeof(text));
		io_u->engine_data = strdup(text);
	}
	return count;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			    const struct timespec *timeout)
{
	const struct engine_options *options = td->eo;
	struct engine_data *data = td->io_ops_data;
	bool alone = data->connection_count == 1;
	int64_t limit = timeout ? timeout->tv_sec * 1000000000LL + timeout->tv_nsec : -1;
	struct timespec start;
	unsigned int count;

	max = min(max, data->depth);
	count = take(data, 0, max);
	if (count == max || (count && count >= min))
		return count;
	if (limit > 0)
		fio_gettime(&start, NULL);
	send_queued(td);
	for (;;) {
		struct connection *connection = &data->connections[data->next];
		int64_t wait_ns = alone ? limit : WAIT_NS;

		if (options->poll || !min || count >= min)
			wait_ns = 0;
		int error = look(td, connection, alone ? min - count : 1, wait_ns);

		if (error)
			return count ? (int)count : error;
		count = take(data, count, max);
		data->next = (data->next + 1) % data->connection_count;
		if (count >= max || (count >= min && data->next == 0))
			return count;
		if (limit >= 0 && (!limit || (int64_t)ntime_since_now(&start) >= limit))
			return count;
	}
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	struct engine_data *data = td->io_ops_data;

	return data->events[event];
}

static char *engine_errdetails(struct io_u *io_u)
{
	char *text = io_u->engine_data;

	io_u->engine_data = NULL;
	return text ? text : strdup("raceline: no details");
}

static int engine_open_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int engine_close_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int engine_invalidate(struct thread_data *td, struct fio_file *f)
{
	return 0; // the engine has no cache
}

#define OPTION(option_name, member, option_type, option_help, ...) \
	{ \
		.name = option_name, .lname = option_name, .type = option_type, \
		.off1 = offsetof(struct engine_options, member), .help = option_help, \
		.category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_INVALID, __VA_ARGS__ \
	}

static struct fio_option engine_option_table[] = {
	OPTION("trtype", trtype, FIO_OPT_STR_STORE, "What carries the queues: TCP or RDMA (TCP)"),
	OPTION("traddr", traddr, FIO_OPT_STR_STORE, "Address or name of the target"),
	OPTION("trsvcid", trsvcid, FIO_OPT_STR_STORE, "Port of the target (4420)"),
	OPTION("nqn", nqn, FIO_OPT_STR_STORE, "Name of the subsystem"),
	OPTION("nsid", nsid, FIO_OPT_INT, "Namespace", .def = "1", .minval = 1),
	OPTION("hostnqn", hostnqn, FIO_OPT_STR_STORE, "Name of this host"),
	OPTION("hostid", hostid, FIO_OPT_STR_STORE, "UUID that goes with hostnqn"),
	OPTION("nr_io_queues", nr_io_queues, FIO_OPT_INT,
	       "Connections of each job; only for reads when there are write queues", .def = "1",
	       .minval = 1, .maxval = 1024),
	OPTION("nr_write_queues", nr_write_queues, FIO_OPT_INT,
	       "More connections of each job, for what is no read", .def = "0", .maxval = 1024),
	OPTION("nr_poll_queues", nr_poll_queues, FIO_OPT_INT,
	       "More connections of each job, for poll=1", .def = "0", .maxval = 1024),
	OPTION("queue_size", queue_size, FIO_OPT_INT,
	       "Entries of each queue; 0: as iodepth needs, at least 128", .def = "0", .maxval = 4096),
	OPTION("hdr_digest", hdr_digest, FIO_OPT_BOOL, "Protect PDU headers by CRC32C", .def = "0"),
	OPTION("data_digest", data_digest, FIO_OPT_BOOL, "Protect data by CRC32C", .def = "0"),
	OPTION("poll", poll, FIO_OPT_BOOL, "Never sleep while waiting for completions", .def = "0"),
	OPTION("i10", i10, FIO_OPT_BOOL, "Let commands gather for up to 50 us before they are sent",
	       .def = "0"),
	OPTION("ctrl_loss_tmo", ctrl_loss_tmo, FIO_OPT_INT,
	       "Seconds for which a lost target is connected again", .def = "10"),
	OPTION("command_timeout", command_timeout, FIO_OPT_INT,
	       "Seconds after which a command counts as lost", .def = "30"),
	OPTION("spin_us", spin_us, FIO_OPT_INT,
	       "Microseconds for which a job looks for completions before it sleeps", .def = "50"),
	OPTION("path", path, FIO_OPT_STR_STORE,
	       "More paths to the subsystem, [tcp://|rdma://]ADDR[:PORT][,SOURCE] with spaces between them"),
	OPTION("policy", policy, FIO_OPT_STR_STORE,
	       "Which path an I/O takes: active-passive, round-robin, queue-depth or numa"),
	OPTION("multipath", multipath, FIO_OPT_BOOL,
	       "Wait for a lost path rather than fail I/Os, even if it is the only one", .def = "0"),
	OPTION("no_failback", no_failback, FIO_OPT_BOOL,
	       "Stay with a path that is as good as the first when the first is back", .def = "0"),
	OPTION("fast_io_fail_tmo", fast_io_fail_tmo, FIO_OPT_STR_STORE,
	       "Seconds after the loss of the last path after which I/Os fail; -1: ctrl_loss_tmo (-1)"),
	OPTION("reconnect_delay", reconnect_delay, FIO_OPT_INT,
	       "Seconds between attempts to connect a lost path; 0: 0.1, doubled up to 10", .def = "0",
	       .maxval = 86400),
	{ .name = NULL },
};

struct ioengine_ops ioengine = {
	.name = "raceline",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_RAWIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_DISKLESSIO |
		 FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = engine_setup,
	.init = engine_init,
	.queue = engine_queue,
	.commit = engine_commit,
	.getevents = engine_getevents,
	.event = engine_event,
	.errdetails = engine_errdetails,
	.cleanup = engine_cleanup,
	.open_file = engine_open_file,
	.close_file = engine_close_file,
	.invalidate = engine_invalidate,
	.options = engine_option_table,
	.option_struct_size = sizeof(struct engine_options),
};
