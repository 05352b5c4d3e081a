/*
 * A stand-in for libnvidia-ml.so.1: it answers the calls that the agent makes, with the signatures
 * of the NVML API Reference Guide, from a plain text file that the variable XCE_NVML_DATA names.
 *
 *   driver 550.54.15
 *   cuda 12040
 *   init 9                     what nvmlInit returns (9: NVML_ERROR_DRIVER_NOT_LOADED)
 *   slow 2                     how many seconds nvmlInit takes
 *   count 7                    what nvmlDeviceGetCount says, whatever there is
 *   hang FUNCTION              it blocks for ever
 *   fail FUNCTION CODE         it returns the code
 *   gpu bus=00000000:1B:00.0 uuid=GPU-1 name=NVIDIA_H100 minor=3 memory=85520809984 cc=9.0 mig=0
 *   gi id=9 index=0 profile=19 slices=1 sm=16 mib=9984 place=7,1
 *   mig uuid=MIG-1 name=NVIDIA_H100_MIG_1g.10gb gi=9 ci=0 memory=10468982784
 *   gap                        an index that no slice has
 *
 * `mig`, `gi` and `gap` lines belong to the `gpu` line above them. `_` in a text stands for a
 * space, `~` for a byte that is no UTF-8. A key that is absent is answered with
 * NVML_ERROR_NOT_SUPPORTED. More keys, of a card:
 *
 *   serial=  ecc=1  remap=PENDING,FAILED  power=MILLIWATTS  persistence=1  mode=COMPUTE_MODE
 *   module=  cores=  cpus=HEX,HEX  nodes=HEX (64-bit words, the lowest first)
 *   platform=SLOT,TRAY,HOST (255: not told)  fabric=STATE,STATUS,CLIQUE,CLUSTER_HEX,SUMMARY
 *   nvlinks=TYPE:COUNT:BUS_ID;... (TYPE gpu, npu, switch, or - where it is not told; BUS_ID - where
 *   it is hidden)  ports=LINKS (of the silicon; those beyond `nvlinks` are down)
 *   migcount=MOST  private=1 (no privilege to see GPU instances)
 *
 * and of a slice: sm=  gslices=  cslices=  media=  place=START,SIZE (in its GPU instance)
 *
 * Of any of them: `lost=1` answers every call but the PCI one with NVML_ERROR_GPU_IS_LOST,
 * `hang=KEY` and `hang=FUNCTION` block for ever, `fail=FUNCTION:CODE` returns the code. Before it
 * blocks, the name of the function is written to the file that XCE_NVML_HUNG names.
 *
 * What cards tell of their health while they run is in `health.h`.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
       NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
       VERSION_MISMATCH = 25 };

enum kind { CARD, SLICE, INSTANCE, GAP };

struct device {
	char line[4200];
	enum kind kind;
	int card; /* the place of the card that it belongs to; its own for a card */
	int node; /* the descriptor of its node; 0 while it is not open */
	unsigned watched; /* the types of events that are asked for */
};

struct pci {
	char old_bus_id[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};

struct memory { unsigned long long total, free, used; };

struct attributes {
	unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
	unsigned long long memory_mib;
};

struct profile {
	unsigned id, p2p, slices, instances, multiprocessors, copy, decoder, encoder, jpeg, ofa;
	unsigned long long memory_mib;
};

struct placement { unsigned start, size; };
struct gpu_instance { struct device *device; unsigned id, profile; struct placement placement; };
struct compute_instance {
	struct device *device, *gpu_instance;
	unsigned id, profile;
	struct placement placement;
};

struct fabric { unsigned char cluster[16]; unsigned status, clique; unsigned char state; };
struct fabric_v {
	unsigned version;
	unsigned char cluster[16];
	unsigned status, clique;
	unsigned char state;
	unsigned mask;
	unsigned char summary;
};
struct platform {
	unsigned version;
	unsigned char ib_guid[16], chassis[16], slot, tray, host, peer, module;
};

static struct device devices[600];
static int count, started, init_result, told_count;
static char driver[80], hangs[80], fails[64][90], fifo[200];
static int failing;
static unsigned slow, cuda;

static void hang(const char *function)
{
	const char *name = getenv("XCE_NVML_HUNG");
	int fd = name ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;

	if (fd >= 0) {
		if (write(fd, function, strlen(function)) < 0)
			abort();
		close(fd);
	}
	for (;;)
		pause();
}

/* What every function does first: block, or give the code that it is told to fail with. */
static int enter(const struct device *device, const char *function)
{
	char wanted[100];
	const char *at;
	int i;

	snprintf(wanted, sizeof wanted, " hang=%s ", function);
	if (!strcmp(hangs, function) || (device && strstr(device->line, wanted)))
		hang(function);
	snprintf(wanted, sizeof wanted, "%s ", function);
	for (i = 0; i < failing; i++)
		if (!strncmp(fails[i], wanted, strlen(wanted)))
			return atoi(fails[i] + strlen(wanted));
	if (!device)
		return SUCCESS;
	snprintf(wanted, sizeof wanted, " fail=%s:", function);
	if ((at = strstr(device->line, wanted)))
		return atoi(at + strlen(wanted));
	if (strstr(device->line, " lost=1 ") && !strstr(function, "PciInfo_v3") &&
	    !strstr(function, "HandleByIndex_v2"))
		return GPU_IS_LOST;
	return SUCCESS;
}

#define ENTER(device)                                   \
	do {                                            \
		int code_ = enter((device), __func__);  \
		if (code_)                              \
			return code_;                   \
	} while (0)

static int load(void)
{
	const char *name = getenv("XCE_NVML_DATA");
	FILE *file = name ? fopen(name, "r") : NULL;
	static char line[4096];
	int card = -1;

	count = init_result = slow = cuda = failing = 0;
	told_count = -1;
	driver[0] = hangs[0] = fifo[0] = 0;
	memset(devices, 0, sizeof devices);
	if (!file)
		return DRIVER_NOT_LOADED;
	while (fgets(line, sizeof line, file)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "driver ", 7)) {
			snprintf(driver, sizeof driver, "%.79s", line + 7);
		} else if (!strncmp(line, "cuda ", 5)) {
			cuda = (unsigned)atoi(line + 5);
		} else if (!strncmp(line, "init ", 5)) {
			init_result = atoi(line + 5);
		} else if (!strncmp(line, "count ", 6)) {
			told_count = atoi(line + 6);
		} else if (!strncmp(line, "hang ", 5)) {
			snprintf(hangs, sizeof hangs, "%.79s", line + 5);
		} else if (!strncmp(line, "fail ", 5) && failing < 64) {
			snprintf(fails[failing++], sizeof fails[0], "%.89s", line + 5);
		} else if (!strncmp(line, "events ", 7)) {
			snprintf(fifo, sizeof fifo, "%.199s", line + 7);
		} else if (!strncmp(line, "slow ", 5)) {
			slow = (unsigned)atoi(line + 5);
		} else if (count < 600 && (!strncmp(line, "gpu", 3) || !strncmp(line, "mig", 3) ||
					   !strncmp(line, "gap", 3) || !strncmp(line, "gi ", 3))) {
			struct device *device = &devices[count];
			int skip = line[1] == 'i' && line[2] == ' ' ? 2 : 3;

			snprintf(device->line, sizeof device->line, "%s ", line + skip);
			device->kind = line[0] == 'm' ? SLICE : line[1] == 'a' ? GAP :
				       line[1] == 'i' ? INSTANCE : CARD;
			if (device->kind == CARD)
				card = count;
			device->card = card;
			count++;
		}
	}
	fclose(file);
	return init_result;
}

static int get(const struct device *device, const char *key, char *out, size_t size)
{
	char wanted[40];
	const char *at, *end;

	snprintf(wanted, sizeof wanted, " hang=%s ", key);
	if (strstr(device->line, wanted))
		hang(key);
	snprintf(wanted, sizeof wanted, " %s=", key);
	at = strstr(device->line, wanted);
	if (!at)
		return NOT_SUPPORTED;
	at += strlen(wanted);
	end = strchr(at, ' ');
	if (!end || (size_t)(end - at) >= size)
		return INSUFFICIENT_SIZE;
	memcpy(out, at, end - at);
	out[end - at] = 0;
	return SUCCESS;
}

static int text(const struct device *device, const char *key, char *out, unsigned size)
{
	int result = get(device, key, out, size);
	char *at;

	for (at = out; result == SUCCESS && *at; at++)
		*at = *at == '_' ? ' ' : *at == '~' ? (char)0xff : *at;
	return result;
}

static int number(const struct device *device, const char *key, unsigned *out)
{
	char value[40];
	int result = get(device, key, value, sizeof value);

	if (result == SUCCESS)
		*out = (unsigned)strtoul(value, NULL, 10);
	return result;
}

/* Read up to four numbers that commas part. */
static int numbers(const struct device *device, const char *key, unsigned *out, int wanted)
{
	char value[80];
	int result = get(device, key, value, sizeof value), i;
	char *at = value;

	for (i = 0; result == SUCCESS && i < wanted; i++) {
		out[i] = (unsigned)strtoul(at, &at, 10);
		at += *at == ',';
	}
	return result;
}

static int words(const struct device *device, const char *key, unsigned long long *out,
		 unsigned size)
{
	char value[1100];
	int result = get(device, key, value, sizeof value);
	char *at = value;
	unsigned i;

	if (result)
		return result;
	memset(out, 0, size * sizeof *out);
	for (i = 0; *at && i < size; i++) {
		out[i] = strtoull(at, &at, 16);
		at += *at == ',';
	}
	return *at ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Find the n-th of a kind that belongs to a card. */
static struct device *find(const struct device *card, enum kind kind, unsigned n)
{
	int i, gaps = kind == SLICE;

	for (i = 0; i < count; i++)
		if (devices[i].card == (int)(card - devices) &&
		    (devices[i].kind == kind || (gaps && devices[i].kind == GAP)) && n-- == 0)
			return &devices[i];
	return NULL;
}

int nvmlInitWithFlags(unsigned flags)
{
	int result = load();

	(void)flags;
	ENTER(NULL);
	sleep(slow);
	started = !result;
	return result;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
	int i;

	ENTER(NULL);
	if (!started)
		return UNINITIALIZED;
	for (i = 0; i < count; i++)
		if (devices[i].node)
			close(devices[i].node);
	started = 0;
	return SUCCESS;
}

const char *nvmlErrorString(int code)
{
	if (enter(NULL, __func__))
		return NULL;
	switch (code) {
	case UNINITIALIZED: return "Uninitialized";
	case NOT_SUPPORTED: return "Not Supported";
	case NOT_FOUND: return "Not Found";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case GPU_IS_LOST: return "GPU is lost";
	default: return "Unknown Error";
	}
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
	ENTER(NULL);
	if (!driver[0])
		return NOT_SUPPORTED;
	snprintf(out, size, "%s", driver);
	return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
	ENTER(NULL);
	*out = (int)cuda;
	return cuda ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
	int i;

	ENTER(NULL);
	if (!started)
		return UNINITIALIZED;
	for (*out = 0, i = 0; i < count; i++)
		*out += devices[i].kind == CARD;
	if (told_count >= 0)
		*out = (unsigned)told_count;
	return SUCCESS;
}

/* Take a card up: its node is open from now on, and longer by a byte. */
static int taken_up(struct device *device, struct device **out)
{
	char path[200];

	if (!device->node && get(device, "node", path, sizeof path) == SUCCESS)
		device->node = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (device->node > 0 && write(device->node, ".", 1) != 1)
		return NO_PERMISSION;
	*out = device;
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out)
{
	int i;

	ENTER(NULL);
	for (i = 0; i < count; i++)
		if (devices[i].kind == CARD && index-- == 0) {
			ENTER(&devices[i]);
			return taken_up(&devices[i], out);
		}
	return INVALID;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *out)
{
	ENTER(device);
	memset(out, 0, sizeof *out);
	return text(device, "bus", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetUUID(struct device *d, char *out, unsigned size)
{
	ENTER(d);
	return text(d, "uuid", out, size);
}

int nvmlDeviceGetName(struct device *d, char *out, unsigned size)
{
	ENTER(d);
	return text(d, "name", out, size);
}

int nvmlDeviceGetSerial(struct device *d, char *out, unsigned size)
{
	ENTER(d);
	return text(d, "serial", out, size);
}

int nvmlDeviceGetMinorNumber(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "minor", out);
}

int nvmlDeviceGetModuleId(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "module", out);
}

int nvmlDeviceGetNumGpuCores(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "cores", out);
}

int nvmlDeviceGetPowerManagementLimit(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "power", out);
}

int nvmlDeviceGetPersistenceMode(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "persistence", out);
}

int nvmlDeviceGetComputeMode(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "mode", out);
}

int nvmlDeviceGetEccMode(struct device *d, unsigned *current, unsigned *pending)
{
	ENTER(d);
	int result = number(d, "ecc", current);

	*pending = *current;
	return result;
}

int nvmlDeviceGetRemappedRows(struct device *d, unsigned *correctable, unsigned *uncorrectable,
			      unsigned *pending, unsigned *failed)
{
	ENTER(d);
	unsigned told[2] = { 0, 0 };
	int result = numbers(d, "remap", told, 2);

	*correctable = *uncorrectable = 0;
	*pending = told[0];
	*failed = told[1];
	return result;
}

int nvmlDeviceGetCpuAffinity(struct device *d, unsigned size, unsigned long long *out)
{
	ENTER(d);
	return words(d, "cpus", out, size);
}

int nvmlDeviceGetMemoryAffinity(struct device *d, unsigned size, unsigned long long *out,
				unsigned scope)
{
	ENTER(d);
	return scope ? INVALID : words(d, "nodes", out, size);
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out)
{
	char value[40];
	int result;

	ENTER(device);
	result = get(device, "memory", value, sizeof value);
	memset(out, 0, sizeof *out);
	if (result == SUCCESS)
		out->total = out->free = strtoull(value, NULL, 10);
	return result;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
	char value[40];
	int result;

	ENTER(device);
	result = get(device, "cc", value, sizeof value);
	if (result == SUCCESS && sscanf(value, "%d.%d", major, minor) != 2)
		return INVALID;
	return result;
}

static int fabric(const struct device *d, struct fabric_v *out)
{
	char value[160], cluster[40] = "";
	unsigned state = 0, status = 0, clique = 0, summary = 0, byte, i;
	int result = get(d, "fabric", value, sizeof value);

	if (result)
		return result;
	sscanf(value, "%u,%u,%u,%32[0-9a-f],%u", &state, &status, &clique, cluster, &summary);
	for (i = 0; i < 16 && sscanf(cluster + 2 * i, "%2x", &byte) == 1; i++)
		out->cluster[i] = (unsigned char)byte;
	out->status = status;
	out->clique = clique;
	out->state = (unsigned char)state;
	out->summary = (unsigned char)summary;
	return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(struct device *d, struct fabric_v *out)
{
	unsigned version = out->version, newest = 3;
	struct fabric_v told;
	int result;

	ENTER(d);
	number(d, "fabricversion", &newest);
	if (version >> 24 > newest)
		return VERSION_MISMATCH;
	memset(&told, 0, sizeof told);
	result = fabric(d, &told);
	told.version = version;
	memcpy(out, &told, version & 0xffffff); /* the size is part of the version */
	return result;
}

int nvmlDeviceGetGpuFabricInfo(struct device *d, struct fabric *out)
{
	struct fabric_v told;
	int result;

	ENTER(d);
	memset(&told, 0, sizeof told);
	result = fabric(d, &told);
	memcpy(out->cluster, told.cluster, sizeof out->cluster);
	out->status = told.status;
	out->clique = told.clique;
	out->state = told.state;
	return result;
}

int nvmlDeviceGetPlatformInfo(struct device *d, struct platform *out)
{
	unsigned told[3] = { 0, 0, 0 }, newest = 2;
	int result;

	ENTER(d);
	number(d, "platformversion", &newest);
	if (out->version >> 24 > newest)
		return VERSION_MISMATCH;
	result = numbers(d, "platform", told, 3);
	memset(out->chassis, 0xfe, sizeof out->chassis);
	out->slot = (unsigned char)told[0];
	out->tray = (unsigned char)told[1];
	out->host = (unsigned char)told[2];
	return result;
}

/* Find what a link leads to: its type, and its bus id. INVALID beyond the card's links. */
static int link_end(const struct device *d, unsigned link, char *type, char *bus_id)
{
	char value[2000], *part, *rest;
	unsigned before = 0, some = 0, ports = 0;
	int result = get(d, "nvlinks", value, sizeof value);

	if (result)
		return result;
	*type = *bus_id = 0;
	for (part = strtok_r(value, ";", &rest); part; part = strtok_r(NULL, ";", &rest)) {
		if (sscanf(part, "%9[^:]:%u:%31s", type, &some, bus_id) != 3)
			return INVALID;
		if (link < before + some)
			return SUCCESS;
		before += some;
	}
	*type = *bus_id = 0;
	return number(d, "ports", &ports) == SUCCESS && link < ports ? SUCCESS : INVALID;
}

int nvmlDeviceGetNvLinkState(struct device *d, unsigned link, unsigned *out)
{
	char type[10], bus_id[32];
	int result;

	ENTER(d);
	result = link_end(d, link, type, bus_id);
	*out = result == SUCCESS && *bus_id;
	return result;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *d, unsigned link, unsigned *out)
{
	char type[10], bus_id[32];
	int result;

	ENTER(d);
	result = link_end(d, link, type, bus_id);
	if (result == SUCCESS && *type == '-')
		return NOT_SUPPORTED;
	*out = *type == 'g' ? 0 : *type == 'n' ? 1 : *type == 's' ? 2 : 255;
	return result;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *d, unsigned link, struct pci *out)
{
	char type[10], bus_id[32];
	int result;

	ENTER(d);
	result = link_end(d, link, type, bus_id);
	memset(out, 0, sizeof *out);
	if (result == SUCCESS)
		memcpy(out->bus_id, *bus_id == '-' ? "FFFFFFFF:FF:FF.0" : bus_id,
		       sizeof "FFFFFFFF:FF:FF.0");
	return result;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
	ENTER(device);
	int result = number(device, "mig", current);

	*pending = *current;
	return result;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *out)
{
	ENTER(device);
	if (number(device, "migcount", out) == SUCCESS)
		return SUCCESS;
	for (*out = 0; find(device, SLICE, *out); ++*out)
		;
	return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out)
{
	ENTER(device);
	struct device *slice = find(device, SLICE, index);

	if (!slice)
		return INVALID;
	if (slice->kind == GAP)
		return NOT_FOUND;
	ENTER(slice);
	*out = slice;
	return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "gi", out);
}

int nvmlDeviceGetComputeInstanceId(struct device *d, unsigned *out)
{
	ENTER(d);
	return number(d, "ci", out);
}

int nvmlDeviceGetAttributes_v2(struct device *d, struct attributes *out)
{
	ENTER(d);
	memset(out, 0, sizeof *out);
	number(d, "gslices", &out->gpu_slices);
	number(d, "cslices", &out->compute_slices);
	number(d, "media", &out->ofa);
	return number(d, "sm", &out->multiprocessors);
}

int nvmlDeviceGetGpuInstanceProfileInfo(struct device *card, unsigned profile, struct profile *out)
{
	struct device *one;
	unsigned i, index, mib = 0;

	ENTER(card);
	memset(out, 0, sizeof *out);
	for (i = 0; (one = find(card, INSTANCE, i)); i++)
		if (number(one, "index", &index) == SUCCESS && index == profile) {
			out->instances = 7;
			number(one, "profile", &out->id);
			number(one, "slices", &out->slices);
			number(one, "sm", &out->multiprocessors);
			number(one, "mib", &mib);
			out->memory_mib = mib;
			return SUCCESS;
		}
	return NOT_SUPPORTED;
}

static int hidden(const struct device *card)
{
	return strstr(card->line, " private=1 ") ? NO_PERMISSION : SUCCESS;
}

int nvmlDeviceGetGpuInstances(struct device *card, unsigned profile, struct device **out,
			      unsigned *found)
{
	struct device *one;
	unsigned i, id;

	ENTER(card);
	for (*found = i = 0; (one = find(card, INSTANCE, i)); i++)
		if (number(one, "profile", &id) == SUCCESS && id == profile)
			out[(*found)++] = one;
	return hidden(card);
}

int nvmlDeviceGetGpuInstanceById(struct device *card, unsigned wanted, struct device **out)
{
	unsigned i, id;

	ENTER(card);
	if (hidden(card))
		return NO_PERMISSION;
	for (i = 0; (*out = find(card, INSTANCE, i)); i++)
		if (number(*out, "id", &id) == SUCCESS && id == wanted)
			return SUCCESS;
	return NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(struct device *one, struct gpu_instance *out)
{
	unsigned place[2] = { 0, 0 };

	ENTER(one);
	memset(out, 0, sizeof *out);
	out->device = &devices[one->card];
	number(one, "id", &out->id);
	number(one, "profile", &out->profile);
	if (numbers(one, "place", place, 2))
		return NOT_SUPPORTED;
	out->placement = (struct placement){ place[0], place[1] };
	return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceById(struct device *one, unsigned wanted, struct device **out)
{
	unsigned i, instance, id = 0, gi;

	ENTER(one);
	number(one, "id", &instance);
	for (i = 0; (*out = find(&devices[one->card], SLICE, i)); i++)
		if (number(*out, "gi", &gi) == SUCCESS && gi == instance &&
		    number(*out, "ci", &id) == SUCCESS && id == wanted)
			return SUCCESS;
	return NOT_FOUND;
}

int nvmlComputeInstanceGetInfo_v2(struct device *one, struct compute_instance *out)
{
	unsigned place[2] = { 0, 0 };

	ENTER(one);
	memset(out, 0, sizeof *out);
	out->device = &devices[one->card];
	number(one, "ci", &out->id);
	if (numbers(one, "place", place, 2))
		return NOT_SUPPORTED;
	out->placement = (struct placement){ place[0], place[1] };
	return SUCCESS;
}

#include "health.h"
