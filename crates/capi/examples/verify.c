// An example of libraceline: it writes a pattern to a namespace over NVMe/TCP or
// NVMe/RDMA, reads it back, and compares.
//
// Build:  cc -std=c11 -Wall -Wextra verify.c -I../include -L../../../target/release -lraceline
// Run:    ./a.out ADDRESS PORT NQN [tcp|rdma]     (this overwrites the first 4 MiB of namespace 1)

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "raceline.h"

enum { OPERATIONS = 256, DEPTH = 32, BYTES = 16 * 1024 };

static const uint32_t NSID = 1;

// Ends the program with the library's text if a call has given a negative code.
static void check(int code, const char *what)
{
	if (code < 0) {
		fprintf(stderr, "%s: %s (%s)\n", what, raceline_error_text(), raceline_code_text(code));
		exit(1);
	}
}

static void fill(unsigned char *buffer, uint64_t operation)
{
	for (size_t i = 0; i < BYTES; i++)
		buffer[i] = (unsigned char)(operation * 31 + i / 7);
}

// Submits one operation: a write in pass 0, a read in pass 1.
static int submit(raceline_queues *queues, const raceline_namespace *ns, int pass,
		  unsigned char *buffer, uint64_t operation)
{
	uint64_t slba = operation * (BYTES / ns->block_size);

	if (pass == 0) {
		fill(buffer, operation);
		return raceline_write(queues, NSID, slba, buffer, BYTES, 0, operation);
	}
	memset(buffer, 0, BYTES);
	return raceline_read(queues, NSID, slba, buffer, BYTES, 0, operation);
}

// Runs one pass: writes all in pass 0, reads and compares all in pass 1. It keeps up to DEPTH operations
// outstanding. A buffer is the library's from the submission until the completion.
static void run(raceline_queues *queues, const raceline_namespace *ns, unsigned char *memory, int pass)
{
	static unsigned char expected[BYTES];
	raceline_completion done[DEPTH];
	uint64_t next = 0, ended = 0;
	unsigned char *free_buffers[DEPTH];
	unsigned char *buffer_of[OPERATIONS];
	int free_count = 0;

	for (int i = 0; i < DEPTH; i++)
		free_buffers[free_count++] = memory + (size_t)i * BYTES;
	while (ended < OPERATIONS) {
		while (next < OPERATIONS && free_count > 0) {
			unsigned char *buffer = free_buffers[--free_count];

			buffer_of[next] = buffer;
			check(submit(queues, ns, pass, buffer, next), "submit");
			next++;
		}
		// Sends the submitted operations, and waits for at least one completion.
		int count = raceline_wait(queues, done, 1, DEPTH, -1);

		check(count, "wait");
		for (int i = 0; i < count; i++) {
			if (done[i].result != RACELINE_OK) {
				char text[200];

				raceline_completion_text(&done[i], text, sizeof(text));
				fprintf(stderr, "%s\n", text);
				exit(1);
			}
			if (pass == 1) {
				fill(expected, done[i].user);
				if (memcmp(expected, buffer_of[done[i].user], BYTES) != 0) {
					fprintf(stderr, "operation %llu: wrong data\n",
						(unsigned long long)done[i].user);
					exit(1);
				}
			}
			free_buffers[free_count++] = buffer_of[done[i].user];
			ended++;
		}
	}
}

int main(int argc, char **argv)
{
	raceline_config config;
	raceline_namespace ns;
	raceline_host *host = NULL;
	raceline_queues *queues = NULL;
	raceline_completion done;

	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: %s ADDRESS PORT NQN [tcp|rdma]\n", argv[0]);
		return 2;
	}
	check(raceline_config_init(&config, sizeof(config)), "raceline_config_init");
	config.traddr = argv[1];
	config.trsvcid = argv[2];
	config.nqn = argv[3];
	config.trtype = argc == 5 ? argv[4] : NULL; // NULL: tcp
	check(raceline_connect(&config, &host), "connect");
	check(raceline_namespace_info(host, NSID, &ns, sizeof(ns)), "namespace");
	printf("namespace %u: %llu blocks of %u bytes\n", ns.nsid, (unsigned long long)ns.block_count,
	       ns.block_size);
	check(raceline_queues_open(host, NULL, &queues), "queues");

	unsigned char *memory = raceline_buffer_alloc((size_t)DEPTH * BYTES);

	check(memory ? RACELINE_OK : RACELINE_NO_MEMORY, "memory");
	run(queues, &ns, memory, 0);
	check(raceline_flush(queues, NSID, 0, 0), "flush");
	check(raceline_wait(queues, &done, 1, 1, -1), "wait for the flush");
	run(queues, &ns, memory, 1);

	check(raceline_queues_close(queues), "close");
	check(raceline_buffer_free(memory), "free");
	check(raceline_disconnect(host), "disconnect");
	printf("all data are right\n");
	return 0;
}
