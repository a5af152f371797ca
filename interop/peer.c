/*
 * A libfabric peer for the interop tests: reads commands from its standard input, one per line, and
 * answers each with one line. Between commands it polls its completion queue, because libfabric's
 * tcp provider makes progress only while it is polled.
 *
 *     peer PROVIDER ADDRESS PORT [msg | srx | atomic]
 *
 * prints "listening PORT" and then accepts these commands:
 *
 *     dest ADDRESS PORT            sets the destination of the commands below
 *                                  -> "dest"
 *     region KEY LENGTH            registers memory for remote access
 *                                  -> "region"
 *     fill AT LENGTH SEED          writes a pattern to that memory
 *                                  -> "filled"
 *     check AT LENGTH SEED         compares that memory with a pattern
 *                                  -> "same" or "different"
 *     send CONTEXT LENGTH SEED FLAGS DATA TAG
 *                                  FLAGS: d CQ data, a FI_DELIVERY_COMPLETE, t tag, - none
 *                                  -> "posted"
 *     recv CONTEXT LENGTH FLAGS TAG
 *                                  FLAGS: t tag, - none
 *                                  -> "posted"
 *     check_rx LENGTH SEED         compares the bytes received or read with a pattern
 *                                  -> "same" or "different"
 *     write CONTEXT SEED FLAGS DATA IOVS..
 *                                  FLAGS: d CQ data, a FI_DELIVERY_COMPLETE, i FI_INJECT, - none
 *                                  -> "posted"
 *     read CONTEXT IOVS..          each IOV is KEY:AT:LENGTH
 *                                  -> "posted"
 *     atomic CONTEXT CALL OP TYPE FLAGS OPERANDS COMPARANDS IOVS..
 *                                  CALL: 0 base, 1 fetch, 2 compare; OP, TYPE: numbers of
 *                                  fi_atomic(3); FLAGS as of write; operands and comparands as
 *                                  hexadecimal digits, or "-"; each IOV is KEY:AT:COUNT
 *                                  -> "posted"
 *     query_atomic CALL OP TYPE    -> "query_atomic COUNT", the maximum number of values, or 0 if
 *                                  the operation is not supported
 *     dump AT LENGTH               prints the registered memory
 *                                  -> "bytes DIGITS"
 *     dump_rx LENGTH               prints the bytes received, read or fetched
 *                                  -> "bytes DIGITS"
 *     cq                           waits for a completion
 *                                  -> "done CONTEXT FLAGS LENGTH DATA" or "failed CONTEXT ERROR"
 *
 * A failed call is reported with "error CALL NUMBER", and ends the program.
 *
 * With "msg" the endpoints are of type FI_EP_MSG, and a passive endpoint listens on the port. "srx"
 * adds tagged messages and a shared receive context. With "atomic" the endpoint is of type
 * FI_EP_RDM, and has atomic operations. FI_EP_MSG endpoints have these commands instead of "dest":
 *
 *     connect ADDRESS PORT [DATA]  sends a connection request
 *                                  -> "connecting"
 *     eq                           waits for an event
 *                                  -> "request DATA", "connected DATA", "shutdown" or
 *                                  "rejected ERROR DATA"
 *     accept [DATA], reject [DATA] answers the latest request
 *                                  -> "accepted" or "rejected"
 *     shutdown                     -> "shut down"
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

#define BUFFER_LEN (8 << 20)
#define MAX_IOVS 4
#define MAX_CONTEXTS 4096
#define ATOMIC_BUFFER_LEN (1 << 16)

static struct fi_info *hints, *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_ep *srx;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fi_info *connreq_info;
static fi_addr_t dest_addr = FI_ADDR_UNSPEC;
static char *region_buf, *rx_buf, *tx_buf;
static struct fi_context contexts[MAX_CONTEXTS];

static void check(const char *call, long result)
{
	if (result >= 0)
		return;
	printf("error %s %ld\n", call, -result);
	fflush(stdout);
	exit(1);
}

static void fill_pattern(char *into, size_t length, int seed)
{
	for (size_t at = 0; at < length; at++)
		into[at] = (char)(at * 7 + seed);
}

static const char *compare_pattern(const char *bytes, size_t length, int seed)
{
	for (size_t at = 0; at < length; at++)
		if (bytes[at] != (char)(at * 7 + seed))
			return "different";
	return "same";
}

/* Opens a connection-oriented endpoint. */
static void open_msg_ep(struct fi_info *ep_info)
{
	check("fi_endpoint", fi_endpoint(domain, ep_info, &ep, NULL));
	check("fi_ep_bind", fi_ep_bind(ep, &eq->fid, 0));
	check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (srx)
		check("fi_ep_bind", fi_ep_bind(ep, &srx->fid, 0));
	check("fi_enable", fi_enable(ep));
}

static void open_msg(const char *provider, const char *address, const char *port, int use_srx)
{
	struct fi_eq_attr eq_attr = { .size = 64, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED,
				      .size = 1024,
				      .wait_obj = FI_WAIT_NONE };

	hints = fi_allocinfo();
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA | (use_srx ? FI_TAGGED : 0);
	if (use_srx)
		hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	hints->domain_attr->mr_mode = 0;
	hints->fabric_attr->prov_name = strdup(provider);
	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, FI_SOURCE, hints, &info));
	check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	check("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL));
	check("fi_domain", fi_domain(fabric, info, &domain, NULL));
	check("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	if (use_srx)
		check("fi_srx_context", fi_srx_context(domain, info->rx_attr, &srx, NULL));
	check("fi_passive_ep", fi_passive_ep(fabric, info, &pep, NULL));
	check("fi_pep_bind", fi_pep_bind(pep, &eq->fid, 0));
	check("fi_listen", fi_listen(pep));
}

static void open_rdm(const char *provider, const char *address, const char *port, int is_atomic)
{
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED,
				      .size = 1024,
				      .wait_obj = FI_WAIT_NONE };

	hints = fi_allocinfo();
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | (is_atomic ? FI_ATOMIC : 0);
	hints->domain_attr->mr_mode = 0;
	hints->fabric_attr->prov_name = strdup(provider);
	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, FI_SOURCE, hints, &info));
	check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	check("fi_domain", fi_domain(fabric, info, &domain, NULL));
	check("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
	check("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	check("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	check("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
	check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	check("fi_enable", fi_enable(ep));
}

/*
 * Polls the completion queue, which makes progress. With `consume` an entry is read and printed.
 * Returns whether an entry was printed.
 */
static int poll_cq(int consume)
{
	struct fi_cq_tagged_entry done;
	struct fi_cq_err_entry failed = { 0 };
	ssize_t count = fi_cq_read(cq, &done, consume ? 1 : 0);
	long context;

	if (count == -FI_EAGAIN || count == 0)
		return 0;
	if (count == -FI_EAVAIL) {
		if (!consume)
			return 0;
		check("fi_cq_readerr", fi_cq_readerr(cq, &failed, 0));
		context = failed.op_context ? (struct fi_context *)failed.op_context - contexts
					    : -1;
		printf("failed %ld %d\n", context, failed.err);
		return 1;
	}
	check("fi_cq_read", count);
	context = done.op_context ? (struct fi_context *)done.op_context - contexts : -1;
	printf("done %ld %llx %zu %llu\n", context, (unsigned long long)done.flags, done.len,
	       (unsigned long long)done.data);
	return 1;
}

/* Retries a call that returns FI_EAGAIN, and makes progress in between. */
#define RETRY_EAGAIN(call, attempt)                      \
	do {                                            \
		ssize_t result;                         \
		while ((result = (attempt)) == -FI_EAGAIN) \
			poll_cq(0);                       \
		check(call, result);                     \
	} while (0)

static int parse_rma_iovs(struct fi_rma_iov *into, size_t *total)
{
	int count = 0;
	char *token;

	for (*total = 0; count < MAX_IOVS && (token = strtok(NULL, " \n")); count++) {
		unsigned long long key, at, length;
		if (sscanf(token, "%llu:%llu:%llu", &key, &at, &length) != 3)
			break;
		into[count] = (struct fi_rma_iov){ .addr = at, .len = length, .key = key };
		*total += length;
	}
	return count;
}

static unsigned long long parse_number(void)
{
	char *token = strtok(NULL, " \n");
	return token ? strtoull(token, NULL, 0) : 0;
}

static void reply(const char *what)
{
	printf("%s\n", what);
}

static void do_dest(void)
{
	char *address = strtok(NULL, " \n"), *port = strtok(NULL, " \n");
	struct fi_info *dest_info;

	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, 0, hints, &dest_info));
	int inserted = fi_av_insert(av, dest_info->dest_addr, 1, &dest_addr, 0, NULL);
	check("fi_av_insert", inserted == 1 ? 0 : -FI_EINVAL);
	fi_freeinfo(dest_info);
	reply("dest");
}

static void do_connect(void)
{
	char *address = strtok(NULL, " \n"), *port = strtok(NULL, " \n");
	char *data = strtok(NULL, " \n");
	struct fi_info *dest_info;

	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 16), address, port, 0, hints, &dest_info));
	open_msg_ep(dest_info);
	check("fi_connect", fi_connect(ep, dest_info->dest_addr, data, data ? strlen(data) : 0));
	fi_freeinfo(dest_info);
	puts("connecting");
}

/* Polls the event queue; prints an event. Returns whether there was one. */
static int poll_eq(void)
{
	struct {
		struct fi_eq_cm_entry entry;
		char data[512];
	} event = { 0 };
	char data[512] = "";
	struct fi_eq_err_entry failed = { .err_data = data, .err_data_size = sizeof data - 1 };
	uint32_t event_type;
	ssize_t size = fi_eq_read(eq, &event_type, &event, sizeof event, 0);

	if (size == -FI_EAGAIN || size == 0)
		return 0;
	if (size == -FI_EAVAIL) {
		check("fi_eq_readerr", fi_eq_readerr(eq, &failed, 0));
		printf("rejected %d %.*s\n", failed.err, (int)failed.err_data_size,
		       (char *)failed.err_data);
		return 1;
	}
	check("fi_eq_read", size);
	int length = (int)(size - (ssize_t)sizeof event.entry);
	if (length < 0)
		length = 0;
	if (event_type == FI_CONNREQ) {
		connreq_info = event.entry.info;
		printf("request %.*s\n", length, event.data);
	} else if (event_type == FI_CONNECTED) {
		printf("connected %.*s\n", length, event.data);
	} else {
		puts(event_type == FI_SHUTDOWN ? "shutdown" : "unexpected");
	}
	return 1;
}

static void do_accept_or_reject(int accept)
{
	char *data = strtok(NULL, " \n");
	size_t length = data ? strlen(data) : 0;

	if (accept) {
		open_msg_ep(connreq_info);
		check("fi_accept", fi_accept(ep, data, length));
	} else {
		check("fi_reject", fi_reject(pep, connreq_info->handle, data, length));
	}
	fi_freeinfo(connreq_info);
	puts(accept ? "accepted" : "rejected");
}

static void do_region(void)
{
	struct fid_mr *mr;
	uint64_t key = parse_number(), length = parse_number();

	check("fi_mr_reg", fi_mr_reg(domain, region_buf, length, FI_REMOTE_READ | FI_REMOTE_WRITE,
				     0, key, 0, &mr, NULL));
	reply("region");
}

static void do_send(void)
{
	unsigned long long context = parse_number(), length = parse_number();
	int seed = (int)parse_number();
	char *flag_letters = strtok(NULL, " \n");
	uint64_t data = parse_number(), tag = parse_number();
	uint64_t flags = FI_COMPLETION | (strchr(flag_letters, 'd') ? FI_REMOTE_CQ_DATA : 0) |
			 (strchr(flag_letters, 'a') ? FI_DELIVERY_COMPLETE : 0);
	struct iovec iov = { tx_buf, length };
	struct fi_msg plain = { .msg_iov = &iov, .iov_count = 1, .addr = dest_addr, .data = data,
				.context = &contexts[context % MAX_CONTEXTS] };
	struct fi_msg_tagged tagged = { .msg_iov = &iov, .iov_count = 1, .addr = dest_addr,
					.data = data, .tag = tag,
					.context = &contexts[context % MAX_CONTEXTS] };

	fill_pattern(tx_buf, length, seed);
	if (strchr(flag_letters, 't'))
		RETRY_EAGAIN("fi_tsendmsg", fi_tsendmsg(ep, &tagged, flags));
	else
		RETRY_EAGAIN("fi_sendmsg", fi_sendmsg(ep, &plain, flags));
	reply("posted");
}

static void do_recv(void)
{
	unsigned long long context = parse_number(), length = parse_number();
	char *flag_letters = strtok(NULL, " \n");
	uint64_t tag = parse_number();
	void *op_context = &contexts[context % MAX_CONTEXTS];
	struct fid_ep *rx_ep = srx ? srx : ep;

	if (strchr(flag_letters, 't'))
		RETRY_EAGAIN("fi_trecv", fi_trecv(rx_ep, rx_buf, length, NULL, FI_ADDR_UNSPEC, tag,
						  0, op_context));
	else
		RETRY_EAGAIN("fi_recv", fi_recv(rx_ep, rx_buf, length, NULL, FI_ADDR_UNSPEC,
						op_context));
	reply("posted");
}

static void do_write(void)
{
	unsigned long long context = parse_number();
	int seed = (int)parse_number();
	char *flag_letters = strtok(NULL, " \n");
	uint64_t data = parse_number();
	uint64_t flags = FI_COMPLETION | (strchr(flag_letters, 'd') ? FI_REMOTE_CQ_DATA : 0) |
			 (strchr(flag_letters, 'a') ? FI_DELIVERY_COMPLETE : 0) |
			 (strchr(flag_letters, 'i') ? FI_INJECT : 0);
	struct fi_rma_iov iovs[MAX_IOVS];
	size_t total;
	int count = parse_rma_iovs(iovs, &total);
	struct iovec iov = { tx_buf, total };
	struct fi_msg_rma msg = { .msg_iov = &iov, .iov_count = 1, .addr = dest_addr,
				  .rma_iov = iovs, .rma_iov_count = count,
				  .data = data, .context = &contexts[context % MAX_CONTEXTS] };

	fill_pattern(tx_buf, total, seed);
	RETRY_EAGAIN("fi_writemsg", fi_writemsg(ep, &msg, flags));
	reply("posted");
}

static void do_read(void)
{
	unsigned long long context = parse_number();
	struct fi_rma_iov iovs[MAX_IOVS];
	size_t total;
	int count = parse_rma_iovs(iovs, &total);
	struct iovec iov = { rx_buf, total };
	struct fi_msg_rma msg = { .msg_iov = &iov, .iov_count = 1, .addr = dest_addr,
				  .rma_iov = iovs, .rma_iov_count = count,
				  .context = &contexts[context % MAX_CONTEXTS] };

	RETRY_EAGAIN("fi_readmsg", fi_readmsg(ep, &msg, FI_COMPLETION));
	reply("posted");
}

/* Parses hexadecimal digits; returns the number of bytes. */
static size_t parse_hex(char *into)
{
	char *token = strtok(NULL, " \n");
	size_t length = 0;
	unsigned byte;

	for (; token && sscanf(token, "%2x", &byte) == 1; token += 2)
		into[length++] = (char)byte;
	return length;
}

static void print_hex(const char *from, size_t length)
{
	printf("bytes ");
	for (size_t at = 0; at < length; at++)
		printf("%02x", (unsigned char)from[at]);
	puts("");
}

static void do_atomic(void)
{
	static char operands[ATOMIC_BUFFER_LEN], comparands[ATOMIC_BUFFER_LEN];
	unsigned long long context = parse_number(), call = parse_number();
	int op = (int)parse_number(), type = (int)parse_number();
	char *flag_letters = strtok(NULL, " \n");
	uint64_t flags = FI_COMPLETION | (strchr(flag_letters, 'a') ? FI_DELIVERY_COMPLETE : 0) |
			 (strchr(flag_letters, 'i') ? FI_INJECT : 0);
	parse_hex(operands);
	parse_hex(comparands);
	struct fi_rma_iov iovs[MAX_IOVS];
	struct fi_rma_ioc iocs[MAX_IOVS];
	size_t total;
	int count = parse_rma_iovs(iovs, &total);
	struct fi_ioc operand_ioc = { operands, total };
	struct fi_ioc comparand_ioc = { comparands, total };
	struct fi_ioc result_ioc = { rx_buf, total };
	struct fi_msg_atomic msg = { .msg_iov = &operand_ioc, .iov_count = 1,
				     .addr = dest_addr, .rma_iov = iocs,
				     .rma_iov_count = count, .datatype = type, .op = op,
				     .context = &contexts[context % MAX_CONTEXTS] };

	for (int at = 0; at < count; at++)
		iocs[at] = (struct fi_rma_ioc){ iovs[at].addr, iovs[at].len, iovs[at].key };
	if (call == 0)
		RETRY_EAGAIN("fi_atomicmsg", fi_atomicmsg(ep, &msg, flags));
	else if (call == 1)
		RETRY_EAGAIN("fi_fetch_atomicmsg",
			     fi_fetch_atomicmsg(ep, &msg, &result_ioc, NULL, 1, flags));
	else
		RETRY_EAGAIN("fi_compare_atomicmsg",
			     fi_compare_atomicmsg(ep, &msg, &comparand_ioc, NULL, 1, &result_ioc,
						  NULL, 1, flags));
	reply("posted");
}

static void do_query_atomic(void)
{
	unsigned long long call = parse_number();
	int op = (int)parse_number(), type = (int)parse_number();
	struct fi_atomic_attr attr = { 0 };
	uint64_t flags = call == 0 ? 0 : call == 1 ? FI_FETCH_ATOMIC : FI_COMPARE_ATOMIC;

	printf("query_atomic %zu\n", fi_query_atomic(domain, type, op, &attr, flags) ? 0 : attr.count);
}

static void run_command(char *line)
{
	char *command = strtok(line, " \n");

	if (!command)
		return;
	if (!strcmp(command, "dest")) {
		do_dest();
	} else if (!strcmp(command, "region")) {
		do_region();
	} else if (!strcmp(command, "fill")) {
		unsigned long long at = parse_number(), length = parse_number();
		fill_pattern(region_buf + at, length, (int)parse_number());
		reply("filled");
	} else if (!strcmp(command, "check")) {
		unsigned long long at = parse_number(), length = parse_number();
		reply(compare_pattern(region_buf + at, length, (int)parse_number()));
	} else if (!strcmp(command, "check_rx")) {
		unsigned long long length = parse_number();
		reply(compare_pattern(rx_buf, length, (int)parse_number()));
	} else if (!strcmp(command, "send")) {
		do_send();
	} else if (!strcmp(command, "recv")) {
		do_recv();
	} else if (!strcmp(command, "write")) {
		do_write();
	} else if (!strcmp(command, "read")) {
		do_read();
	} else if (!strcmp(command, "atomic")) {
		do_atomic();
	} else if (!strcmp(command, "query_atomic")) {
		do_query_atomic();
	} else if (!strcmp(command, "dump")) {
		unsigned long long at = parse_number();
		print_hex(region_buf + at, parse_number());
	} else if (!strcmp(command, "dump_rx")) {
		print_hex(rx_buf, parse_number());
	} else if (!strcmp(command, "connect")) {
		do_connect();
	} else if (!strcmp(command, "accept") || !strcmp(command, "reject")) {
		do_accept_or_reject(command[0] == 'a');
	} else if (!strcmp(command, "shutdown")) {
		check("fi_shutdown", fi_shutdown(ep, 0));
		reply("shut down");
	} else if (!strcmp(command, "eq")) {
		while (!poll_eq())
			poll_cq(0);
	} else if (!strcmp(command, "cq")) {
		while (!poll_cq(1))
			poll(NULL, 0, 0);
	} else {
		reply("unknown");
	}
}

int main(int argc, char **argv)
{
	static char lines[1 << 16];
	size_t buffered = 0;
	unsigned char name[64];
	size_t size = sizeof name;

	if (argc != 4 && argc != 5)
		return 2;
	region_buf = calloc(1, BUFFER_LEN);
	rx_buf = calloc(1, BUFFER_LEN);
	tx_buf = calloc(1, BUFFER_LEN);
	if (argc == 5 && strcmp(argv[4], "atomic"))
		open_msg(argv[1], argv[2], argv[3], !strcmp(argv[4], "srx"));
	else
		open_rdm(argv[1], argv[2], argv[3], argc == 5);
	check("fi_getname", fi_getname(pep ? &pep->fid : &ep->fid, name, &size));
	printf("listening %u\n", name[2] << 8 | name[3]);
	fflush(stdout);
	for (;;) {
		struct pollfd input = { .fd = 0, .events = POLLIN };
		char *end;

		poll_cq(0);
		if (poll(&input, 1, 1) <= 0)
			continue;
		ssize_t got = read(0, lines + buffered, sizeof lines - 1 - buffered);
		if (got <= 0)
			return 0;
		buffered += got;
		lines[buffered] = 0;
		while ((end = strchr(lines, '\n'))) {
			size_t length = end + 1 - lines;
			*end = 0;
			run_command(lines);
			fflush(stdout);
			memmove(lines, lines + length, buffered - length + 1);
			buffered -= length;
		}
	}
}
