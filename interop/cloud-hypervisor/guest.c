/* A guest for cloud-hypervisor that is nothing but a driver of its virtio-blk disk.
 *
 * It runs in 32-bit protected mode without paging, so that it also runs where a hypervisor emulates each instruction. The
 * step `cloud-hypervisor` of `cargo xtask test` builds it, and says on the command line what it is to do: `load=N` rounds
 * of load, `reboot=1` to begin with a reset of the machine. Each check is a line of the serial port, `ok NAME` or
 * `not ok NAME: WHY`; the last line is `end`. A device that answers nothing is waited for: the step has a limit.
 *
 * Sections are those of Virtual I/O Device (VIRTIO) 1.2.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define QUEUES 2
#define SIZE 64
/* Requests of a queue that are on their way at once, and bytes of each. */
#define DEPTH 8
#define BLOCK 4096
#define SECTORS (BLOCK / 512)
/* Where the load of each queue begins, in sectors, and how many blocks it has there: step `cloud-hypervisor` knows both. */
#define LOAD_AT(queue) (8192u + 16384u * (queue))
#define LOAD_BLOCKS 1024

/* Features, 5.2.3 and 6. */
#define F_FLUSH 9
#define F_CONFIG_WCE 11
#define F_MQ 12
#define F_DISCARD 13
#define F_ZEROES 14
#define F_EVENT_IDX 29
#define F_VERSION_1 32

enum { READ = 0, WRITE = 1, FLUSH = 4, IDENTIFY = 8, DISCARD = 11, ZEROES = 13 };

/* -- The processor -- */

static inline void out8(u16 port, u8 value) { asm volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static inline void out32(u16 port, u32 value) { asm volatile("outl %0, %1" : : "a"(value), "Nd"(port)); }
static inline u8 in8(u16 port) { u8 v; asm volatile("inb %1, %0" : "=a"(v) : "Nd"(port)); return v; }
static inline u32 in32(u16 port) { u32 v; asm volatile("inl %1, %0" : "=a"(v) : "Nd"(port)); return v; }
static inline void barrier(void) { asm volatile("lock; addl $0, (%%esp)" : : : "memory"); }

static inline u8 get8(u32 at) { return *(volatile u8 *)at; }
static inline u16 get16(u32 at) { return *(volatile u16 *)at; }
static inline u32 get32(u32 at) { return *(volatile u32 *)at; }
static inline void put8(u32 at, u8 value) { *(volatile u8 *)at = value; }
static inline void put16(u32 at, u16 value) { *(volatile u16 *)at = value; }
static inline void put32(u32 at, u32 value) { *(volatile u32 *)at = value; }

/* -- Words -- */

static void print(const char *text)
{
    for (; *text; text++) {
        while (!(in8(0x3fd) & 0x20))
            ;
        out8(0x3f8, *text);
    }
}

static void number(u32 value)
{
    char digits[11];
    int at = 10;
    digits[at] = 0;
    do
        digits[--at] = '0' + value % 10;
    while (value /= 10);
    print(digits + at);
}

static void check(const char *name, int is_good, const char *why, u32 value)
{
    print(is_good ? "ok " : "not ok ");
    print(name);
    if (!is_good) {
        print(": ");
        print(why);
        print(" ");
        number(value);
    }
    print("\n");
}

static void end(void)
{
    print("end\n");
    /* cloud-hypervisor's port of ACPI for sleep states: S5. */
    out8(0x600, 0x34);
    for (;;)
        asm volatile("cli; hlt");
}

static void fail(const char *name, const char *why, u32 value)
{
    check(name, 0, why, value);
    end();
}

/* -- Interrupts: one vector for each queue, one for changes of the configuration -- */

#define LAPIC 0xfee00000u
#define FIRST_VECTOR 0x40

static volatile u32 interrupts[QUEUES + 1];
static struct { u16 low, selector, flags, high; } __attribute__((packed, aligned(8))) idt[FIRST_VECTOR + QUEUES + 1];

void handle_interrupt(u32 which)
{
    interrupts[which]++;
    put32(LAPIC + 0xb0, 0);
}

/* KVM's emulator of instructions has no IRET for protected mode, so the flags and the place are taken off the stack without. */
asm(".text\n"
    "vector0: pushal; push $0; jmp 1f\n"
    "vector1: pushal; push $1; jmp 1f\n"
    "vector2: pushal; push $2\n"
    "1: cld; call handle_interrupt; add $4, %esp; popal; push 8(%esp); popf; ret $8\n"
    "lost: mov $0x3f8, %dx; mov $'!', %al; out %al, %dx; mov $10, %al; out %al, %dx; cli; hlt\n");
extern void vector0(void), vector1(void), vector2(void), lost(void);

static void take_interrupts(void)
{
    void (*const vectors[QUEUES + 1])(void) = { vector0, vector1, vector2 };
    struct { u16 limit; u32 base; } __attribute__((packed)) table = { sizeof idt - 1, (u32)idt };
    for (u32 n = 0; n < FIRST_VECTOR + QUEUES + 1; n++) {
        u32 to = n < FIRST_VECTOR ? (u32)lost : (u32)vectors[n - FIRST_VECTOR];
        idt[n].low = to;
        idt[n].selector = 8;
        idt[n].flags = 0x8e00;
        idt[n].high = to >> 16;
    }
    asm volatile("lidt %0" : : "m"(table));
    /* The interrupt controller of before PCI has all of its inputs masked. */
    out8(0x21, 0xff);
    out8(0xa1, 0xff);
    put32(LAPIC + 0xf0, 0x1ff);
    put32(LAPIC + 0x80, 0);
}

/* -- The disk -- */

static struct {
    u32 function, common, notify, notify_step, device, msix;
    u64 features;
} disk;

static u32 config_get(u32 function, u32 at)
{
    out32(0xcf8, 0x80000000u | function << 8 | at);
    return in32(0xcfc);
}

static void config_put(u32 function, u32 at, u32 value)
{
    out32(0xcf8, 0x80000000u | function << 8 | at);
    out32(0xcfc, value);
}

static u32 bar(u32 index)
{
    u32 at = 0x10 + 4 * index, low = config_get(disk.function, at);
    if ((low & 6) == 4 && config_get(disk.function, at + 4) != 0)
        fail("disk", "its registers are above 4 GiB: BAR", index);
    return low & ~15u;
}

/* 4.1.4: where its structures are. */
static void find_structures(void)
{
    u32 at = config_get(disk.function, 0x34) & 0xfc;
    for (; at; at = config_get(disk.function, at) >> 8 & 0xfc) {
        u32 head = config_get(disk.function, at), offset = config_get(disk.function, at + 8);
        if ((head & 0xff) == 0x11) {
            u32 table = config_get(disk.function, at + 4);
            disk.msix = bar(table & 7) + (table & ~7u);
            /* MSI-X on, no vector masked. */
            config_put(disk.function, at, (head & 0x3fffffff) | 0x80000000u);
        }
        if ((head & 0xff) != 9)
            continue;
        u32 base = bar(config_get(disk.function, at + 4) & 0xff);
        switch (head >> 24) {
        case 1: disk.common = base + offset; break;
        case 2:
            disk.notify = base + offset;
            disk.notify_step = config_get(disk.function, at + 16);
            break;
        case 4: disk.device = base + offset; break;
        }
    }
    if (!disk.common || !disk.notify || !disk.device || !disk.msix)
        fail("disk", "a structure is missing", disk.common);
}

static void find_disk(void)
{
    for (u32 slot = 0; slot < 32; slot++) {
        if (config_get(slot << 3, 0) != 0x10421af4)
            continue;
        disk.function = slot << 3;
        config_put(disk.function, 4, (config_get(disk.function, 4) & 0xffff) | 6);
        find_structures();
        return;
    }
    fail("disk", "there is no virtio-blk device; slots", 32);
}

/* -- Rings, 2.7 -- */

struct descriptor { u32 address, high, len; u16 flags, next; };

static struct queue {
    struct descriptor table[SIZE] __attribute__((aligned(4096)));
    struct { volatile u16 flags, index, ring[SIZE], event; } available __attribute__((aligned(4096)));
    struct {
        volatile u16 flags, index;
        struct { volatile u32 id, len; } ring[SIZE];
        volatile u16 event;
    } used __attribute__((aligned(4096)));
    struct { u32 kind, priority, low, high; } headers[DEPTH];
    volatile u8 status[DEPTH];
    u16 seen;
    u32 posted, kicks;
} queues[QUEUES] __attribute__((aligned(4096)));

static u8 data[QUEUES][DEPTH][BLOCK] __attribute__((aligned(4096)));

static void start_queue(u32 number)
{
    struct queue *queue = &queues[number];
    u8 *bytes = (u8 *)queue;
    for (u32 n = 0; n < sizeof *queue; n++)
        bytes[n] = 0;
    put32(disk.msix + 16 * number, LAPIC);
    put32(disk.msix + 16 * number + 4, 0);
    put32(disk.msix + 16 * number + 8, FIRST_VECTOR + number);
    put32(disk.msix + 16 * number + 12, 0);
    put16(disk.common + 22, number);
    if (get16(disk.common + 24) < SIZE)
        fail("queues", "the ring's size is at most", get16(disk.common + 24));
    put16(disk.common + 24, SIZE);
    put16(disk.common + 26, number);
    if (get16(disk.common + 26) != number)
        fail("queues", "there is no vector for queue", number);
    u32 parts[] = { (u32)queue->table, (u32)&queue->available, (u32)&queue->used };
    for (u32 n = 0; n < 3; n++) {
        put32(disk.common + 32 + 8 * n, parts[n]);
        put32(disk.common + 36 + 8 * n, 0);
    }
    put16(disk.common + 28, 1);
}

/* 3.1.1: reset, features, queues. */
static void start_disk(void)
{
    u64 offered = 0, wanted = 1ull << F_FLUSH | 1ull << F_CONFIG_WCE | 1ull << F_MQ | 1ull << F_DISCARD | 1ull << F_ZEROES
                              | 1ull << F_EVENT_IDX | 1ull << F_VERSION_1;
    put8(disk.common + 20, 0);
    while (get8(disk.common + 20))
        ;
    put8(disk.common + 20, 3);
    for (u32 half = 0; half < 2; half++) {
        put32(disk.common, half);
        offered |= (u64)get32(disk.common + 4) << 32 * half;
    }
    disk.features = offered & wanted;
    for (u32 half = 0; half < 2; half++) {
        put32(disk.common + 8, half);
        put32(disk.common + 12, disk.features >> 32 * half);
    }
    put8(disk.common + 20, 11);
    if (!(get8(disk.common + 20) & 8))
        fail("features", "they were refused:", disk.features);
    /* Changes of the configuration have the vector after those of the queues. */
    put16(disk.common + 16, QUEUES);
    for (u32 number = 0; number < QUEUES; number++)
        start_queue(number);
    put8(disk.common + 20, 15);
    u8 status = get8(disk.common + 20);
    if (status != 15)
        fail("features", "the device's status is", status);
}

/* Puts a request into a ring. Its place is that of its descriptors, header and status. */
static void post(u32 number, u32 place, u32 kind, u32 sector, void *bytes, u32 len)
{
    struct queue *queue = &queues[number];
    u32 head = 3 * place, reads = kind == READ || kind == IDENTIFY;
    queue->headers[place].kind = kind;
    queue->headers[place].priority = 0;
    queue->headers[place].low = sector;
    queue->headers[place].high = 0;
    queue->status[place] = 0xff;
    queue->table[head] = (struct descriptor){ (u32)&queue->headers[place], 0, 16, 1, len ? head + 1 : head + 2 };
    queue->table[head + 1] = (struct descriptor){ (u32)bytes, 0, len, reads ? 3 : 1, head + 2 };
    queue->table[head + 2] = (struct descriptor){ (u32)&queue->status[place], 0, 1, 2, 0 };
    queue->available.ring[queue->available.index % SIZE] = head;
    barrier();
    queue->available.index++;
    queue->posted++;
}

/* 2.7.7.2 and 2.7.10: tells the device, if it wants to be told of what came after index `old`. */
static void kick(u32 number, u16 old)
{
    struct queue *queue = &queues[number];
    barrier();
    u16 now = queue->available.index;
    if (disk.features >> F_EVENT_IDX & 1 && (u16)(now - queue->used.event - 1) >= (u16)(now - old))
        return;
    put16(disk.common + 22, number);
    put16(disk.notify + disk.notify_step * get16(disk.common + 30), number);
    queue->kicks++;
}

/* Waits until all requests of a queue have been returned: the processor sleeps until there is an interrupt. */
static void wait(u32 number)
{
    struct queue *queue = &queues[number];
    while (queue->seen != queue->available.index) {
        /* An interrupt for the next one that is returned. */
        queue->available.event = queue->seen;
        barrier();
        asm volatile("cli");
        if (queue->used.index == queue->seen) {
            asm volatile("sti; hlt");
            continue;
        }
        asm volatile("sti");
        queue->seen = queue->used.index;
        if ((u16)(queue->available.index - queue->seen) > DEPTH)
            fail("rings", "the device has returned more than it was given:", queue->seen);
    }
}

/* Carries a request out; gives its status. */
static u8 call(u32 number, u32 kind, u32 sector, void *bytes, u32 len)
{
    u16 old = queues[number].available.index;
    post(number, 0, kind, sector, bytes, len);
    kick(number, old);
    wait(number);
    return queues[number].status[0];
}

/* -- What is checked -- */

/* Word `n` of what belongs at a sector: step `cloud-hypervisor` computes the same. */
static u32 word(u32 sector, u32 n) { return sector * 0x9e3779b1u ^ n * 0x85ebca6bu ^ 0x5bd1e995u; }

static void fill(u8 *bytes, u32 sector)
{
    for (u32 n = 0; n < BLOCK / 4; n++)
        ((u32 *)bytes)[n] = word(sector, n);
}

static u32 differs(const u8 *bytes, u32 sector)
{
    for (u32 n = 0; n < BLOCK / 4; n++)
        if (((const u32 *)bytes)[n] != word(sector, n))
            return n + 1;
    return 0;
}

static u32 is_zero(const u8 *bytes, u32 len)
{
    for (u32 n = 0; n < len / 4; n++)
        if (((const u32 *)bytes)[n])
            return 0;
    return 1;
}

static void check_data(void)
{
    u8 *bytes = data[0][0];
    for (u32 queue = 0; queue < QUEUES; queue++) {
        u32 sector = 64 + 64 * queue;
        fill(bytes, sector);
        check(queue ? "write on queue 1" : "write on queue 0", call(queue, WRITE, sector, bytes, BLOCK) == 0, "status",
              queues[queue].status[0]);
    }
    check("flush", call(0, FLUSH, 0, 0, 0) == 0, "status", queues[0].status[0]);
    for (u32 queue = 0; queue < QUEUES; queue++) {
        /* What the one has written, the other reads. */
        u32 sector = 64 + 64 * (1 - queue);
        fill(bytes, 0);
        u8 status = call(queue, READ, sector, bytes, BLOCK);
        check(queue ? "read on queue 1" : "read on queue 0", status == 0 && !differs(bytes, sector), "status or word",
              status + differs(bytes, sector));
        check(queue ? "interrupts of queue 1" : "interrupts of queue 0", interrupts[queue] > 0, "there were", 0);
    }
    /* Far beyond: the disk may have grown since the machine was told its size. */
    check("beyond the end", call(0, READ, 0x7ffffff8, bytes, BLOCK) == 1, "status", queues[0].status[0]);
}

static void check_ranges(void)
{
    struct { u32 low, high, sectors, flags; } range = { 0, 0, SECTORS, 0 };
    u8 *bytes = data[0][0];
    for (u32 n = 0; n < 2; n++) {
        fill(bytes, 256 + SECTORS * n);
        call(0, WRITE, 256 + SECTORS * n, bytes, BLOCK);
    }
    range.low = 256;
    if (disk.features >> F_ZEROES & 1) {
        check("write zeroes", call(1, ZEROES, 0, &range, 16) == 0, "status", queues[1].status[0]);
        call(0, READ, 256, bytes, BLOCK);
        check("zeroes are read", is_zero(bytes, BLOCK), "the first word is", *(u32 *)bytes);
        call(0, READ, 256 + SECTORS, bytes, BLOCK);
        check("nothing else is zeroed", !differs(bytes, 256 + SECTORS), "word", differs(bytes, 256 + SECTORS));
    } else
        check("write zeroes", 0, "it is not offered", 0);
    range.low = 256 + SECTORS;
    if (disk.features >> F_DISCARD & 1)
        check("discard", call(1, DISCARD, 0, &range, 16) == 0, "status", queues[1].status[0]);
    else
        check("discard", 0, "it is not offered", 0);
}

static void check_identity(void)
{
    static char id[32];
    u8 status = call(1, IDENTIFY, 0, id, 20);
    print("serial ");
    print(id);
    print("\n");
    check("identity", status == 0 && id[0], "status", status);
}

/* 5.2.4: whether writes may be cached is the guest's choice. */
static void check_cache(void)
{
    check("cache", get8(disk.device + 32) == 1, "writeback is", get8(disk.device + 32));
    put8(disk.device + 32, 0);
    check("cache off", get8(disk.device + 32) == 0, "writeback is", get8(disk.device + 32));
    fill(data[0][0], 512);
    check("write without a cache", call(0, WRITE, 512, data[0][0], BLOCK) == 0, "status", queues[0].status[0]);
    put8(disk.device + 32, 1);
}

/* A round writes 8 blocks by each queue, both at once, and reads them by the other one. */
static void load_round(u32 round)
{
    for (u32 kind = WRITE;; kind = READ) {
        for (u32 queue = 0; queue < QUEUES; queue++) {
            u32 region = kind == WRITE ? queue : 1 - queue;
            u16 old = queues[queue].available.index;
            for (u32 n = 0; n < DEPTH; n++) {
                u32 sector = LOAD_AT(region) + (round * DEPTH + n) % LOAD_BLOCKS * SECTORS;
                u8 *bytes = data[queue][n];
                if (kind == WRITE)
                    fill(bytes, sector);
                else
                    *(u32 *)bytes = 0;
                post(queue, n, kind, sector, bytes, BLOCK);
            }
            kick(queue, old);
        }
        for (u32 queue = 0; queue < QUEUES; queue++) {
            wait(queue);
            for (u32 n = 0; n < DEPTH; n++) {
                u32 region = 1 - queue, sector = LOAD_AT(region) + (round * DEPTH + n) % LOAD_BLOCKS * SECTORS;
                if (queues[queue].status[n])
                    fail("load", "status of a request", queues[queue].status[n]);
                if (kind == READ && differs(data[queue][n], sector))
                    fail("load", "wrong data at sector", sector);
            }
        }
        if (kind == READ)
            return;
        if (call(0, FLUSH, 0, 0, 0))
            fail("load", "status of a flush", queues[0].status[0]);
    }
}

static void load(u32 rounds)
{
    for (u32 round = 0; round < rounds; round++) {
        load_round(round);
        print("round ");
        number(round + 1);
        print("\n");
    }
    check("load", 1, "", 0);
    for (u32 n = 0; n < QUEUES; n++)
        check(n ? "queue 1 returned each request once" : "queue 0 returned each request once",
              queues[n].used.index == (u16)queues[n].posted, "it has returned", queues[n].used.index);
}

/* The driver resets the device and begins anew with it: its rings end, and others begin. */
static void check_reset(void)
{
    start_disk();
    fill(data[0][0], 0);
    check("read after a reset of the device", call(1, READ, 64, data[0][0], BLOCK) == 0 && !differs(data[0][0], 64), "status",
          queues[1].status[0]);
    fill(data[0][0], 1024);
    check("write after a reset of the device", call(0, WRITE, 1024, data[0][0], BLOCK) == 0 && call(0, FLUSH, 0, 0, 0) == 0,
          "status", queues[0].status[0]);
}

/* The number after `name` on the command line, or 0. */
static u32 option(const char *line, const char *name)
{
    for (; line && *line; line++) {
        u32 n = 0, value = 0;
        while (name[n] && line[n] == name[n])
            n++;
        if (name[n])
            continue;
        for (line += n; *line >= '0' && *line <= '9'; line++)
            value = 10 * value + *line - '0';
        return value;
    }
    return 0;
}

/* Counts in the disk's sector 8 how often a machine has started from it. */
static u32 count_boot(void)
{
    u32 *sector = (u32 *)data[0][0];
    if (call(0, READ, 8, sector, 512))
        fail("boot", "status", queues[0].status[0]);
    u32 count = sector[0] + 1;
    sector[0] = count;
    if (call(0, WRITE, 8, sector, 512) || call(0, FLUSH, 0, 0, 0))
        fail("boot", "status", queues[0].status[0]);
    print("boot ");
    number(count);
    print("\n");
    return count;
}

/* `info` is what PVH hands over (hvm_start_info): the command line is its word 6. */
void run(u32 *info)
{
    const char *line = (const char *)info[6];
    take_interrupts();
    find_disk();
    start_disk();
    print("capacity ");
    number(get32(disk.device));
    print("\n");
    check("capacity", get32(disk.device) > 0, "sectors", get32(disk.device));
    check("queues", get16(disk.device + 34) == QUEUES, "the device has", get16(disk.device + 34));
    check("event index", disk.features >> F_EVENT_IDX & 1, "it is offered", 0);
    u32 boot = count_boot();
    if (option(line, "reboot=") && boot == 1) {
        print("reset\n");
        out8(0x64, 0xfe);
        for (;;)
            asm volatile("cli; hlt");
    }
    check_data();
    check_ranges();
    check_identity();
    check_cache();
    load(option(line, "load="));
    check_reset();
    end();
}

static u8 stack[16384] __attribute__((aligned(16), used));

static const u64 gdt[] __attribute__((used)) = { 0, 0x00cf9b000000ffffull, 0x00cf93000000ffffull };

/* Where PVH begins: 32-bit protected mode, no paging, EBX has the address of hvm_start_info. */
asm(".section .note.Xen, \"a\", @note\n"
    ".align 4\n .long 4, 4, 18\n .asciz \"Xen\"\n .long start\n"
    ".text\n"
    ".globl start\n"
    "start: cli; cld; lgdt 2f; ljmp $8, $1f\n"
    "1: mov $16, %eax; mov %eax, %ds; mov %eax, %es; mov %eax, %ss\n"
    "mov $stack + 16384, %esp; push %ebx; call run\n"
    "1: hlt; jmp 1b\n"
    "2: .word 23\n .long gdt\n");
