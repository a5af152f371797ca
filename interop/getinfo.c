/*
 * libfabric's answers for the differential test of discovery: reads sets of hints from its standard
 * input, one per line, and answers each with one line: 0 if fi_getinfo(3) finds an offer, or the
 * error number.
 *
 * A set is a list of NAME=VALUE, separated by spaces, which begins with provider=NAME. A value is a
 * number, names of constants without FI_, joined by "|", "@" for the limit of the offers, or "+"
 * for a value beyond the limit. The offers are those of the provider, and of the endpoint type if
 * the set has one. A name that occurs twice has the flags of both values.
 *
 * The answer to the line "version" is the version of the library.
 */

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

struct constant {
	const char *name;
	uint64_t value;
};

#define CONSTANT(name) { #name, FI_##name }

static const struct constant constants[] = {
	CONSTANT(EP_MSG), CONSTANT(EP_DGRAM), CONSTANT(EP_RDM),
	CONSTANT(MSG), CONSTANT(TAGGED), CONSTANT(RMA), CONSTANT(ATOMIC), CONSTANT(MULTICAST),
	CONSTANT(COLLECTIVE), CONSTANT(NAMED_RX_CTX), CONSTANT(DIRECTED_RECV), CONSTANT(HMEM),
	CONSTANT(VARIABLE_MSG), CONSTANT(READ), CONSTANT(WRITE), CONSTANT(SEND), CONSTANT(RECV),
	CONSTANT(REMOTE_READ), CONSTANT(REMOTE_WRITE), CONSTANT(MULTI_RECV), CONSTANT(SOURCE),
	CONSTANT(SOURCE_ERR), CONSTANT(RMA_EVENT), CONSTANT(SHARED_AV), CONSTANT(TRIGGER),
	CONSTANT(FENCE), CONSTANT(LOCAL_COMM), CONSTANT(REMOTE_COMM), CONSTANT(RMA_PMEM),
	CONSTANT(CONTEXT), CONSTANT(ASYNC_IOV), CONSTANT(RX_CQ_DATA), CONSTANT(LOCAL_MR),
	CONSTANT(ADDR_STR), CONSTANT(SOCKADDR), CONSTANT(SOCKADDR_IN), CONSTANT(SOCKADDR_IN6),
	CONSTANT(THREAD_SAFE), CONSTANT(THREAD_FID), CONSTANT(THREAD_DOMAIN),
	CONSTANT(THREAD_COMPLETION), CONSTANT(THREAD_ENDPOINT),
	CONSTANT(PROGRESS_AUTO), CONSTANT(PROGRESS_MANUAL),
	CONSTANT(RM_ENABLED), CONSTANT(RM_DISABLED), CONSTANT(AV_MAP), CONSTANT(AV_TABLE),
	CONSTANT(MR_BASIC), CONSTANT(MR_SCALABLE), CONSTANT(MR_LOCAL), CONSTANT(MR_RAW),
	CONSTANT(MR_VIRT_ADDR), CONSTANT(MR_ALLOCATED), CONSTANT(MR_PROV_KEY),
	CONSTANT(MR_RMA_EVENT), CONSTANT(MR_ENDPOINT),
	CONSTANT(SHARED_CONTEXT),
	CONSTANT(COMPLETION), CONSTANT(INJECT), CONSTANT(INJECT_COMPLETE),
	CONSTANT(TRANSMIT_COMPLETE), CONSTANT(DELIVERY_COMPLETE), CONSTANT(MATCH_COMPLETE),
	CONSTANT(COMMIT_COMPLETE),
	CONSTANT(ORDER_RAR), CONSTANT(ORDER_RAW), CONSTANT(ORDER_RAS), CONSTANT(ORDER_WAR),
	CONSTANT(ORDER_WAW), CONSTANT(ORDER_WAS), CONSTANT(ORDER_SAR), CONSTANT(ORDER_SAW),
	CONSTANT(ORDER_SAS),
};

static void fail(const char *what, const char *text)
{
	fprintf(stderr, "%s: %s\n", what, text);
	exit(2);
}

static uint64_t constant(const char *name, size_t len)
{
	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
		if (strlen(constants[i].name) == len && !strncmp(constants[i].name, name, len))
			return constants[i].value;
	}
	fail("no constant", name);
	return 0;
}

/* Returns the value of a text, where the limit of the offers is `limit`. */
static uint64_t parse(const char *text, uint64_t limit)
{
	uint64_t value = 0;

	if (!strcmp(text, "@"))
		return limit;
	if (!strcmp(text, "+"))
		return limit == SIZE_MAX ? limit : limit + 1;
	if (isdigit((unsigned char) *text))
		return strtoull(text, NULL, 0);
	for (;;) {
		size_t len = strcspn(text, "|");

		value |= constant(text, len);
		if (!text[len])
			return value;
		text += len + 1;
	}
}

/* Returns the text itself, the name of the first offer for "@", or a name that no offer has. */
static char *parse_name(const char *text, const char *first)
{
	if (!strcmp(text, "@"))
		return strdup(first);
	return strdup(!strcmp(text, "+") ? "none" : text);
}

/* Sets a field whose limit is the largest value of the offers. */
#define FIELD(name, field) \
	if (!strcmp(key, name)) { \
		uint64_t limit = 0; \
		for (struct fi_info *info = offers; info; info = info->next) { \
			if ((uint64_t) info->field > limit) \
				limit = (uint64_t) info->field; \
		} \
		hints->field = parse(text, limit); \
		return; \
	}

/* Adds flags to a field. */
#define FLAGS(name, field) \
	if (!strcmp(key, name)) { \
		hints->field |= parse(text, 0); \
		return; \
	}

static void set(struct fi_info *hints, struct fi_info *offers, const char *key, const char *text)
{
	FLAGS("caps", caps)
	FLAGS("mode", mode)
	FLAGS("tx_caps", tx_attr->caps)
	FLAGS("rx_caps", rx_attr->caps)
	FLAGS("domain_caps", domain_attr->caps)
	FLAGS("domain_mode", domain_attr->mode)
	FLAGS("mr_mode", domain_attr->mr_mode)
	FLAGS("tx_op_flags", tx_attr->op_flags)
	FLAGS("rx_op_flags", rx_attr->op_flags)
	FLAGS("tx_msg_order", tx_attr->msg_order)
	FLAGS("rx_msg_order", rx_attr->msg_order)
	FIELD("ep_type", ep_attr->type)
	FIELD("addr_format", addr_format)
	FIELD("provider_version", fabric_attr->prov_version)
	FIELD("threading", domain_attr->threading)
	FIELD("control_progress", domain_attr->control_progress)
	FIELD("data_progress", domain_attr->data_progress)
	FIELD("resource_mgmt", domain_attr->resource_mgmt)
	FIELD("av_type", domain_attr->av_type)
	FIELD("mr_key_size", domain_attr->mr_key_size)
	FIELD("cq_data_size", domain_attr->cq_data_size)
	FIELD("cq_cnt", domain_attr->cq_cnt)
	FIELD("ep_cnt", domain_attr->ep_cnt)
	FIELD("domain_tx_ctx_cnt", domain_attr->tx_ctx_cnt)
	FIELD("domain_rx_ctx_cnt", domain_attr->rx_ctx_cnt)
	FIELD("max_ep_tx_ctx", domain_attr->max_ep_tx_ctx)
	FIELD("max_ep_rx_ctx", domain_attr->max_ep_rx_ctx)
	FIELD("max_ep_stx_ctx", domain_attr->max_ep_stx_ctx)
	FIELD("max_ep_srx_ctx", domain_attr->max_ep_srx_ctx)
	FIELD("cntr_cnt", domain_attr->cntr_cnt)
	FIELD("mr_iov_limit", domain_attr->mr_iov_limit)
	FIELD("max_err_data", domain_attr->max_err_data)
	FIELD("mr_cnt", domain_attr->mr_cnt)
	FIELD("protocol_version", ep_attr->protocol_version)
	FIELD("max_msg_size", ep_attr->max_msg_size)
	FIELD("ep_tx_ctx_cnt", ep_attr->tx_ctx_cnt)
	FIELD("ep_rx_ctx_cnt", ep_attr->rx_ctx_cnt)
	FIELD("max_order_raw_size", ep_attr->max_order_raw_size)
	FIELD("max_order_war_size", ep_attr->max_order_war_size)
	FIELD("max_order_waw_size", ep_attr->max_order_waw_size)
	FIELD("mem_tag_format", ep_attr->mem_tag_format)
	FIELD("tx_size", tx_attr->size)
	FIELD("tx_iov_limit", tx_attr->iov_limit)
	FIELD("inject_size", tx_attr->inject_size)
	FIELD("rma_iov_limit", tx_attr->rma_iov_limit)
	FIELD("rx_size", rx_attr->size)
	FIELD("rx_iov_limit", rx_attr->iov_limit)
	if (!strcmp(key, "fabric_name")) {
		hints->fabric_attr->name = parse_name(text, offers->fabric_attr->name);
	} else if (!strcmp(key, "domain_name")) {
		hints->domain_attr->name = parse_name(text, offers->domain_attr->name);
	} else if (!strcmp(key, "protocol")) {
		/* No provider of the test has the protocol of mxm. */
		struct fi_info *info = offers;

		while (info->next && info->ep_attr->type != FI_EP_RDM)
			info = info->next;
		hints->ep_attr->protocol =
			!strcmp(text, "@") ? info->ep_attr->protocol : FI_PROTO_MXM;
	} else if (!strcmp(key, "auth_key")) {
		hints->domain_attr->auth_key_size = parse(text, 0);
		hints->domain_attr->auth_key = calloc(1, 64);
	} else {
		fail("no attribute", key);
	}
}

/* Returns the offers of the provider, and of the endpoint type if there is one. */
static struct fi_info *offers_of(const char *provider, const char *ep_type)
{
	static struct {
		char key[64];
		struct fi_info *offers;
	} cache[16];
	char key[64];
	struct fi_info *hints = fi_allocinfo();
	int i;

	snprintf(key, sizeof(key), "%s %s", provider, ep_type ? ep_type : "");
	for (i = 0; cache[i].key[0]; i++) {
		if (!strcmp(cache[i].key, key)) {
			fi_freeinfo(hints);
			return cache[i].offers;
		}
	}
	hints->fabric_attr->prov_name = strdup(provider);
	hints->mode = ~0ULL;
	if (ep_type)
		hints->ep_attr->type = parse(ep_type, 0);
	/* A type that the provider does not offer has the limits of its other types. */
	if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &cache[i].offers) && ep_type)
		cache[i].offers = offers_of(provider, NULL);
	else if (!cache[i].offers)
		fail("no offer of", provider);
	/* An entry that the recursive call has added is at `i`; this one comes behind it. */
	while (cache[i].key[0])
		i++;
	cache[i].offers = cache[i].offers ? cache[i].offers : offers_of(provider, NULL);
	strcpy(cache[i].key, key);
	fi_freeinfo(hints);
	return cache[i].offers;
}

/* Returns the value of an attribute in a set; NULL if it has none. */
static const char *find(char *items[], int count, const char *name)
{
	size_t len = strlen(name);

	for (int i = 0; i < count; i++) {
		if (!strncmp(items[i], name, len) && items[i][len] == '=')
			return items[i] + len + 1;
	}
	return NULL;
}

int main(void)
{
	static char line[4096];
	char *items[64];

	while (fgets(line, sizeof(line), stdin)) {
		struct fi_info *hints = fi_allocinfo(), *found = NULL, *offers;
		uint32_t version = FI_VERSION(1, 17);
		const char *provider, *api;
		int count = 0, ret;

		for (char *item = strtok(line, " \n"); item; item = strtok(NULL, " \n"))
			items[count++] = item;
		if (count == 1 && !strcmp(items[0], "version")) {
			printf("%d.%d\n", (int) FI_MAJOR(fi_version()),
			       (int) FI_MINOR(fi_version()));
			fflush(stdout);
			fi_freeinfo(hints);
			continue;
		}
		provider = find(items, count, "provider");
		if (!provider)
			fail("no provider in", count ? items[0] : "an empty line");
		offers = offers_of(provider, find(items, count, "ep_type"));
		hints->fabric_attr->prov_name = strdup(provider);
		api = find(items, count, "api_version");
		if (api)
			version = FI_VERSION(atoi(api), atoi(strchr(api, '.') + 1));
		for (int i = 0; i < count; i++) {
			char *value = strchr(items[i], '=');

			if (!value)
				fail("no value", items[i]);
			*value++ = 0;
			if (strcmp(items[i], "provider") && strcmp(items[i], "api_version"))
				set(hints, offers, items[i], value);
		}
		ret = fi_getinfo(version, NULL, NULL, 0, hints, &found);
		printf("%d\n", -ret);
		fflush(stdout);
		fi_freeinfo(found);
		fi_freeinfo(hints);
	}
	return 0;
}
