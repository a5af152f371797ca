/*
 * A peer that is libfabric: does what it is told on its standard input, line by line, and says what has come of it.
 * Between the lines it makes progress, which libfabric's tcp provider only does while somebody asks it to.
 *
 *     peer PROVIDER ADDRESS PORT [msg | srx | atomic]
 *
 * says "at PORT", and then knows
 *
 *     to ADDRESS PORT                     whom what follows is for                            "to"
 *     region KEY LENGTH                   memory that peers reach                             "region"
 *     put AT LENGTH SEED                  writes a pattern there                              "put"
 *     look AT LENGTH SEED                 whether the pattern is there                        "same" or "other"
 *     send CONTEXT LENGTH SEED FLAGS DATA TAG     FLAGS: d data, a delivery, t tag            "posted"
 *     recv CONTEXT LENGTH FLAGS TAG       FLAGS: t tag                                        "posted"
 *     seen LENGTH SEED                    whether that pattern was received or read           "same" or "other"
 *     write CONTEXT SEED FLAGS DATA PLACES..      FLAGS: d data, a delivery, i inject         "posted"
 *     read CONTEXT PLACES..               a place is KEY:AT:LENGTH                            "posted"
 *     atomic CONTEXT CALL OP TYPE FLAGS OPERANDS COMPARANDS PLACES..
 *                                         CALL: 0 base, 1 fetch, 2 compare; OP, TYPE: numbers of fi_atomic(3); FLAGS as of
 *                                         write; bytes as hexadecimal digits, or "-"; a place is KEY:AT:COUNT     "posted"
 *     knows CALL OP TYPE                  how many values such an operation may have          "knows COUNT", 0 if it is none
 *     bytes AT LENGTH                     what lies in the memory                             "bytes DIGITS"
 *     got LENGTH                          what was received, read or fetched                  "bytes DIGITS"
 *     entry                               waits for a completion         "done CONTEXT FLAGS LENGTH DATA" or "failed CONTEXT ERROR"
 *
 * and says "error CALL NUMBER" when a call fails. With "msg" endpoints are connected: a passive one listens at the port. With
 * "srx" they are as well, with tagged messages, and have a shared receive context; with "atomic" they are not, and have atomic
 * operations. Of those that are connected there are instead of "to"
 *
 *     connect ADDRESS PORT [DATA]         asks whoever listens there                          "asked"
 *     event                               waits for one: "request DATA", "connected DATA", "shutdown" or "refused ERROR DATA"
 *     accept [DATA], reject [DATA]        the request that came last                          "accepted", "rejected"
 *     shutdown                                                                                "shut"
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define ROOM (8 << 20)
#define PLACES 4
#define CONTEXTS 4096
#define ROOM_OF_VALUES (1 << 16)

static struct fi_info *hints, *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_ep *srx;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fi_info *request;
static fi_addr_t to = FI_ADDR_UNSPEC;
static char *memory, *in, *out;
static struct fi_context contexts[CONTEXTS];

static void must(const char *call, long result)
{
	if (result >= 0)
		return;
	printf("error %s %ld\n", call, -result);
	fflush(stdout);
	exit(1);
}

static void pattern(char *into, size_t length, int seed)
{
	for (size_t at = 0; at < length; at++)
		into[at] = (char)(at * 7 + seed);
}

static const char *compare(const char *with, size_t length, int seed)
{
	for (size_t at = 0; at < length; at++)
		if (with[at] != (char)(at * 7 + seed))
			return "other";
	return "same";
}

/* An endpoint to be connected. */
static void open_ep(struct fi_info *from)
{
	must("fi_endpoint", fi_endpoint(domain, from, &ep, NULL));
	must("fi_ep_bind", fi_ep_bind(ep, &eq->fid, 0));
	must("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (srx)
		must("fi_ep_bind", fi_ep_bind(ep, &srx->fid, 0));
	must("fi_enable", fi_enable(ep));
}

static void open_door(const char *provider, const char *address, const char *port, int shares)
{
	struct fi_eq_attr eq_attr = { .size = 64, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 1024, .wait_obj = FI_WAIT_NONE };

	hints = fi_allocinfo();
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA | (shares ? FI_TAGGED : 0);
	if (shares)
		hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	hints->domain_attr->mr_mode = 0;
	hints->fabric_attr->prov_name = strdup(provider);
	must("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, FI_SOURCE, hints, &info));
	must("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	must("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL));
	must("fi_domain", fi_domain(fabric, info, &domain, NULL));
	must("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	if (shares)
		must("fi_srx_context", fi_srx_context(domain, info->rx_attr, &srx, NULL));
	must("fi_passive_ep", fi_passive_ep(fabric, info, &pep, NULL));
	must("fi_pep_bind", fi_pep_bind(pep, &eq->fid, 0));
	must("fi_listen", fi_listen(pep));
}

static void open_all(const char *provider, const char *address, const char *port, int is_atomic)
{
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 1024, .wait_obj = FI_WAIT_NONE };

	hints = fi_allocinfo();
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | (is_atomic ? FI_ATOMIC : 0);
	hints->domain_attr->mr_mode = 0;
	hints->fabric_attr->prov_name = strdup(provider);
	must("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, FI_SOURCE, hints, &info));
	must("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	must("fi_domain", fi_domain(fabric, info, &domain, NULL));
	must("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
	must("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	must("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	must("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
	must("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	must("fi_enable", fi_enable(ep));
}

/* One look at the queue: whether there was an entry, which is said. */
static int entry(int wanted)
{
	struct fi_cq_tagged_entry done;
	struct fi_cq_err_entry failed = { 0 };
	ssize_t count = fi_cq_read(cq, &done, wanted ? 1 : 0);
	long context;

	if (count == -FI_EAGAIN || count == 0)
		return 0;
	if (count == -FI_EAVAIL) {
		if (!wanted)
			return 0;
		must("fi_cq_readerr", fi_cq_readerr(cq, &failed, 0));
		context = failed.op_context ? (struct fi_context *)failed.op_context - contexts : -1;
		printf("failed %ld %d\n", context, failed.err);
		return 1;
	}
	must("fi_cq_read", count);
	context = done.op_context ? (struct fi_context *)done.op_context - contexts : -1;
	printf("done %ld %llx %zu %llu\n", context, (unsigned long long)done.flags, done.len,
	       (unsigned long long)done.data);
	return 1;
}

/* What is to be tried again is, while progress is made. */
#define UNTIL_TAKEN(call, attempt)                      \
	do {                                            \
		ssize_t result;                         \
		while ((result = (attempt)) == -FI_EAGAIN) \
			entry(0);                       \
		must(call, result);                     \
	} while (0)

static int places(struct fi_rma_iov *into, size_t *total)
{
	int count = 0;
	char *word;

	for (*total = 0; count < PLACES && (word = strtok(NULL, " \n")); count++) {
		unsigned long long key, at, length;
		if (sscanf(word, "%llu:%llu:%llu", &key, &at, &length) != 3)
			break;
		into[count] = (struct fi_rma_iov){ .addr = at, .len = length, .key = key };
		*total += length;
	}
	return count;
}

static unsigned long long number(void)
{
	char *word = strtok(NULL, " \n");
	return word ? strtoull(word, NULL, 0) : 0;
}

static void say(const char *what)
{
	printf("%s\n", what);
}

static void do_to(void)
{
	char *address = strtok(NULL, " \n"), *port = strtok(NULL, " \n");
	struct fi_info *found;

	must("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, 0, hints, &found));
	must("fi_av_insert", fi_av_insert(av, found->dest_addr, 1, &to, 0, NULL) == 1 ? 0 : -FI_EINVAL);
	fi_freeinfo(found);
	say("to");
}

static void do_connect(void)
{
	char *address = strtok(NULL, " \n"), *port = strtok(NULL, " \n"), *data = strtok(NULL, " \n");
	struct fi_info *found;

	must("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, 0, hints, &found));
	open_ep(found);
	must("fi_connect", fi_connect(ep, found->dest_addr, data, data ? strlen(data) : 0));
	fi_freeinfo(found);
	puts("asked");
}

/* One look at the event queue: whether there was something, which is said. */
static int event(void)
{
	struct {
		struct fi_eq_cm_entry entry;
		char data[512];
	} got = { 0 };
	char data[512] = "";
	struct fi_eq_err_entry failed = { .err_data = data, .err_data_size = sizeof data - 1 };
	uint32_t kind;
	ssize_t size = fi_eq_read(eq, &kind, &got, sizeof got, 0);

	if (size == -FI_EAGAIN || size == 0)
		return 0;
	if (size == -FI_EAVAIL) {
		must("fi_eq_readerr", fi_eq_readerr(eq, &failed, 0));
		printf("refused %d %.*s\n", failed.err, (int)failed.err_data_size, (char *)failed.err_data);
		return 1;
	}
	must("fi_eq_read", size);
	int length = (int)(size - (ssize_t)sizeof got.entry);
	if (length < 0)
		length = 0;
	if (kind == FI_CONNREQ) {
		request = got.entry.info;
		printf("request %.*s\n", length, got.data);
	} else if (kind == FI_CONNECTED) {
		printf("connected %.*s\n", length, got.data);
	} else {
		puts(kind == FI_SHUTDOWN ? "shutdown" : "something");
	}
	return 1;
}

static void do_answer(int accepts)
{
	char *data = strtok(NULL, " \n");
	size_t length = data ? strlen(data) : 0;

	if (accepts) {
		open_ep(request);
		must("fi_accept", fi_accept(ep, data, length));
	} else {
		must("fi_reject", fi_reject(pep, request->handle, data, length));
	}
	fi_freeinfo(request);
	puts(accepts ? "accepted" : "rejected");
}

static void do_region(void)
{
	struct fid_mr *mr;
	uint64_t key = number(), length = number();

	must("fi_mr_reg", fi_mr_reg(domain, memory, length, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &mr, NULL));
	say("region");
}

static void do_send(void)
{
	unsigned long long context = number(), length = number();
	int seed = (int)number();
	char *letters = strtok(NULL, " \n");
	uint64_t data = number(), tag = number();
	uint64_t flags = FI_COMPLETION | (strchr(letters, 'd') ? FI_REMOTE_CQ_DATA : 0) |
			 (strchr(letters, 'a') ? FI_DELIVERY_COMPLETE : 0);
	struct iovec iov = { out, length };
	struct fi_msg plain = { .msg_iov = &iov, .iov_count = 1, .addr = to, .data = data,
				.context = &contexts[context % CONTEXTS] };
	struct fi_msg_tagged tagged = { .msg_iov = &iov, .iov_count = 1, .addr = to, .data = data, .tag = tag,
					.context = &contexts[context % CONTEXTS] };

	pattern(out, length, seed);
	if (strchr(letters, 't'))
		UNTIL_TAKEN("fi_tsendmsg", fi_tsendmsg(ep, &tagged, flags));
	else
		UNTIL_TAKEN("fi_sendmsg", fi_sendmsg(ep, &plain, flags));
	say("posted");
}

static void do_recv(void)
{
	unsigned long long context = number(), length = number();
	char *letters = strtok(NULL, " \n");
	uint64_t tag = number();
	void *own = &contexts[context % CONTEXTS];
	struct fid_ep *at = srx ? srx : ep;

	if (strchr(letters, 't'))
		UNTIL_TAKEN("fi_trecv", fi_trecv(at, in, length, NULL, FI_ADDR_UNSPEC, tag, 0, own));
	else
		UNTIL_TAKEN("fi_recv", fi_recv(at, in, length, NULL, FI_ADDR_UNSPEC, own));
	say("posted");
}

static void do_write(void)
{
	unsigned long long context = number();
	int seed = (int)number();
	char *letters = strtok(NULL, " \n");
	uint64_t data = number();
	uint64_t flags = FI_COMPLETION | (strchr(letters, 'd') ? FI_REMOTE_CQ_DATA : 0) |
			 (strchr(letters, 'a') ? FI_DELIVERY_COMPLETE : 0) | (strchr(letters, 'i') ? FI_INJECT : 0);
	struct fi_rma_iov rows[PLACES];
	size_t total;
	int count = places(rows, &total);
	struct iovec iov = { out, total };
	struct fi_msg_rma msg = { .msg_iov = &iov, .iov_count = 1, .addr = to, .rma_iov = rows, .rma_iov_count = count,
				  .data = data, .context = &contexts[context % CONTEXTS] };

	pattern(out, total, seed);
	UNTIL_TAKEN("fi_writemsg", fi_writemsg(ep, &msg, flags));
	say("posted");
}

static void do_read(void)
{
	unsigned long long context = number();
	struct fi_rma_iov rows[PLACES];
	size_t total;
	int count = places(rows, &total);
	struct iovec iov = { in, total };
	struct fi_msg_rma msg = { .msg_iov = &iov, .iov_count = 1, .addr = to, .rma_iov = rows, .rma_iov_count = count,
				  .context = &contexts[context % CONTEXTS] };

	UNTIL_TAKEN("fi_readmsg", fi_readmsg(ep, &msg, FI_COMPLETION));
	say("posted");
}

/* Bytes that were written as digits. */
static size_t digits(char *into)
{
	char *word = strtok(NULL, " \n");
	size_t length = 0;
	unsigned byte;

	for (; word && sscanf(word, "%2x", &byte) == 1; word += 2)
		into[length++] = (char)byte;
	return length;
}

static void do_bytes(const char *from, size_t length)
{
	printf("bytes ");
	for (size_t at = 0; at < length; at++)
		printf("%02x", (unsigned char)from[at]);
	puts("");
}

static void do_atomic(void)
{
	static char operands[ROOM_OF_VALUES], comparands[ROOM_OF_VALUES];
	unsigned long long context = number(), call = number();
	int op = (int)number(), type = (int)number();
	char *letters = strtok(NULL, " \n");
	uint64_t flags = FI_COMPLETION | (strchr(letters, 'a') ? FI_DELIVERY_COMPLETE : 0) |
			 (strchr(letters, 'i') ? FI_INJECT : 0);
	digits(operands);
	digits(comparands);
	struct fi_rma_iov rows[PLACES];
	struct fi_rma_ioc there[PLACES];
	size_t total;
	int count = places(rows, &total);
	struct fi_ioc mine = { operands, total }, with = { comparands, total }, back = { in, total };
	struct fi_msg_atomic msg = { .msg_iov = &mine, .iov_count = 1, .addr = to, .rma_iov = there,
				     .rma_iov_count = count, .datatype = type, .op = op,
				     .context = &contexts[context % CONTEXTS] };

	for (int at = 0; at < count; at++)
		there[at] = (struct fi_rma_ioc){ rows[at].addr, rows[at].len, rows[at].key };
	if (call == 0)
		UNTIL_TAKEN("fi_atomicmsg", fi_atomicmsg(ep, &msg, flags));
	else if (call == 1)
		UNTIL_TAKEN("fi_fetch_atomicmsg", fi_fetch_atomicmsg(ep, &msg, &back, NULL, 1, flags));
	else
		UNTIL_TAKEN("fi_compare_atomicmsg",
			    fi_compare_atomicmsg(ep, &msg, &with, NULL, 1, &back, NULL, 1, flags));
	say("posted");
}

static void do_knows(void)
{
	unsigned long long call = number();
	int op = (int)number(), type = (int)number();
	struct fi_atomic_attr attr = { 0 };
	uint64_t flags = call == 0 ? 0 : call == 1 ? FI_FETCH_ATOMIC : FI_COMPARE_ATOMIC;

	printf("knows %zu\n", fi_query_atomic(domain, type, op, &attr, flags) ? 0 : attr.count);
}

static void obey(char *line)
{
	char *word = strtok(line, " \n");

	if (!word)
		return;
	if (!strcmp(word, "to")) {
		do_to();
	} else if (!strcmp(word, "region")) {
		do_region();
	} else if (!strcmp(word, "put")) {
		unsigned long long at = number(), length = number();
		pattern(memory + at, length, (int)number());
		say("put");
	} else if (!strcmp(word, "look")) {
		unsigned long long at = number(), length = number();
		say(compare(memory + at, length, (int)number()));
	} else if (!strcmp(word, "seen")) {
		unsigned long long length = number();
		say(compare(in, length, (int)number()));
	} else if (!strcmp(word, "send")) {
		do_send();
	} else if (!strcmp(word, "recv")) {
		do_recv();
	} else if (!strcmp(word, "write")) {
		do_write();
	} else if (!strcmp(word, "read")) {
		do_read();
	} else if (!strcmp(word, "atomic")) {
		do_atomic();
	} else if (!strcmp(word, "knows")) {
		do_knows();
	} else if (!strcmp(word, "bytes")) {
		unsigned long long at = number();
		do_bytes(memory + at, number());
	} else if (!strcmp(word, "got")) {
		do_bytes(in, number());
	} else if (!strcmp(word, "connect")) {
		do_connect();
	} else if (!strcmp(word, "accept") || !strcmp(word, "reject")) {
		do_answer(word[0] == 'a');
	} else if (!strcmp(word, "shutdown")) {
		must("fi_shutdown", fi_shutdown(ep, 0));
		say("shut");
	} else if (!strcmp(word, "event")) {
		while (!event())
			entry(0);
	} else if (!strcmp(word, "entry")) {
		while (!entry(1))
			poll(NULL, 0, 0);
	} else {
		say("unknown");
	}
}

int main(int count, char **words)
{
	static char lines[1 << 16];
	size_t have = 0;
	unsigned char name[64];
	size_t size = sizeof name;

	if (count != 4 && count != 5)
		return 2;
	memory = calloc(1, ROOM);
	in = calloc(1, ROOM);
	out = calloc(1, ROOM);
	if (count == 5 && strcmp(words[4], "atomic"))
		open_door(words[1], words[2], words[3], !strcmp(words[4], "srx"));
	else
		open_all(words[1], words[2], words[3], count == 5);
	must("fi_getname", fi_getname(pep ? &pep->fid : &ep->fid, name, &size));
	printf("at %u\n", name[2] << 8 | name[3]);
	fflush(stdout);
	for (;;) {
		struct pollfd input = { .fd = 0, .events = POLLIN };
		char *end;

		entry(0);
		if (poll(&input, 1, 1) <= 0)
			continue;
		ssize_t got = read(0, lines + have, sizeof lines - 1 - have);
		if (got <= 0)
			return 0;
		have += got;
		lines[have] = 0;
		while ((end = strchr(lines, '\n'))) {
			size_t length = end + 1 - lines;
			*end = 0;
			obey(lines);
			fflush(stdout);
			memmove(lines, lines + length, have - length + 1);
			have -= length;
		}
	}
}
