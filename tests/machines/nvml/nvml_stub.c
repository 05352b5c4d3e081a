/*
 * A stand-in for libnvidia-ml.so.1: it answers the calls that the agent makes, with the signatures
 * of the NVML API Reference Guide, from a plain text file that the variable XCE_NVML_DATA names.
 *
 *   driver 550.54.15
 *   init 9                     what nvmlInit returns (9: NVML_ERROR_DRIVER_NOT_LOADED)
 *   gpu bus=00000000:1B:00.0 uuid=GPU-1 name=NVIDIA_H100 minor=3 memory=85520809984 cc=9.0 mig=0
 *   mig uuid=MIG-1 name=NVIDIA_H100_MIG_1g.10gb gi=9 ci=0 memory=10468982784
 *
 * A `mig` line belongs to the `gpu` line above it. `_` in a name stands for a space. A key that is
 * absent is answered with NVML_ERROR_NOT_SUPPORTED. `hang=KEY` blocks for ever in the call for that
 * key, `hang=FUNCTION` in that function when it is about this device, and a line `hang FUNCTION` in
 * that function whatever it is about; `slow SECONDS` is how long nvmlInit takes. `lost=1` answers every call but the PCI one with NVML_ERROR_GPU_IS_LOST, and `gap` lines
 * between `mig` lines are indexes that no slice has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

struct device {
	char line[1100];
	int slice; /* the place of the card that it is a slice of; -1 for a card */
};

struct pci {
	char old_bus_id[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};

struct memory { unsigned long long total, free, used; };

static struct device devices[256];
static int count, started, init_result;
static char driver[80], hangs[80];
static unsigned slow;

/* Block for ever in a function that is to hang, for this device or for every one. */
static void stuck(const struct device *device, const char *function)
{
	char wanted[100];

	snprintf(wanted, sizeof wanted, " hang=%s ", function);
	if (!strcmp(hangs, function) || (device && strstr(device->line, wanted)))
		for (;;)
			pause();
}

static int load(void)
{
	const char *name = getenv("XCE_NVML_DATA");
	FILE *file = name ? fopen(name, "r") : NULL;
	char line[1024];
	int card = -1;

	count = init_result = slow = 0;
	driver[0] = hangs[0] = 0;
	if (!file)
		return DRIVER_NOT_LOADED;
	while (fgets(line, sizeof line, file)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "driver ", 7)) {
			snprintf(driver, sizeof driver, "%.79s", line + 7);
		} else if (!strncmp(line, "init ", 5)) {
			init_result = atoi(line + 5);
		} else if (!strncmp(line, "hang ", 5)) {
			snprintf(hangs, sizeof hangs, "%.79s", line + 5);
		} else if (!strncmp(line, "slow ", 5)) {
			slow = (unsigned)atoi(line + 5);
		} else if (count < 256 && (!strncmp(line, "gpu", 3) || !strncmp(line, "mig", 3) ||
					   !strncmp(line, "gap", 3))) {
			struct device *device = &devices[count];
			snprintf(device->line, sizeof device->line, "%s ", line + 3);
			device->slice = card;
			if (line[0] == 'g' && line[1] == 'p') {
				device->slice = -1;
				card = count;
			}
			count++;
		}
	}
	fclose(file);
	return init_result;
}

static int get(struct device *device, const char *key, char *out, size_t size)
{
	char wanted[40], *at, *end;

	snprintf(wanted, sizeof wanted, " hang=%s ", key);
	if (strstr(device->line, wanted))
		for (;;)
			pause();
	if (strstr(device->line, " lost=1 ") && strcmp(key, "bus"))
		return GPU_IS_LOST;
	snprintf(wanted, sizeof wanted, " %s=", key);
	at = strstr(device->line, wanted);
	if (!at)
		return NOT_SUPPORTED;
	at += strlen(wanted);
	end = strchr(at, ' ');
	if (!end || (size_t)(end - at) >= size)
		return INVALID;
	memcpy(out, at, end - at);
	out[end - at] = 0;
	return SUCCESS;
}

static int text(struct device *device, const char *key, char *out, unsigned size)
{
	int result = get(device, key, out, size);
	char *at;

	for (at = out; result == SUCCESS && *at; at++)
		if (*at == '_')
			*at = ' ';
	return result;
}

static int number(struct device *device, const char *key, unsigned *out)
{
	char value[40];
	int result = get(device, key, value, sizeof value);

	if (result == SUCCESS)
		*out = (unsigned)strtoul(value, NULL, 10);
	return result;
}

int nvmlInitWithFlags(unsigned flags)
{
	int result = load();

	(void)flags;
	stuck(NULL, __func__);
	sleep(slow);
	started = !result;
	return result;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
	stuck(NULL, __func__);
	if (!started)
		return UNINITIALIZED;
	started = 0;
	return SUCCESS;
}

const char *nvmlErrorString(int code)
{
	stuck(NULL, __func__);
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
	stuck(NULL, __func__);
	if (!driver[0])
		return NOT_SUPPORTED;
	snprintf(out, size, "%s", driver);
	return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
	int i;

	stuck(NULL, __func__);
	if (!started)
		return UNINITIALIZED;
	for (*out = 0, i = 0; i < count; i++)
		*out += devices[i].slice == -1;
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out)
{
	int i;

	for (i = 0; i < count; i++)
		if (devices[i].slice == -1 && index-- == 0) {
			stuck(&devices[i], __func__);
			*out = &devices[i];
			return SUCCESS;
		}
	return INVALID;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *out)
{
	stuck(device, __func__);
	memset(out, 0, sizeof *out);
	return get(device, "bus", out->bus_id, sizeof out->bus_id);
}


int nvmlDeviceGetUUID(struct device *d, char *out, unsigned size)
{
	stuck(d, __func__);
	return text(d, "uuid", out, size);
}

int nvmlDeviceGetName(struct device *d, char *out, unsigned size)
{
	stuck(d, __func__);
	return text(d, "name", out, size);
}

int nvmlDeviceGetSerial(struct device *d, char *out, unsigned size)
{
	stuck(d, __func__);
	return text(d, "serial", out, size);
}

int nvmlDeviceGetMinorNumber(struct device *d, unsigned *out)
{
	stuck(d, __func__);
	return number(d, "minor", out);
}

int nvmlDeviceGetGpuInstanceId(struct device *d, unsigned *out)
{
	stuck(d, __func__);
	return number(d, "gi", out);
}

int nvmlDeviceGetComputeInstanceId(struct device *d, unsigned *out)
{
	stuck(d, __func__);
	return number(d, "ci", out);
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out)
{
	char value[40];
	int result = (stuck(device, __func__), get(device, "memory", value, sizeof value));

	memset(out, 0, sizeof *out);
	if (result == SUCCESS)
		out->total = out->free = strtoull(value, NULL, 10);
	return result;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
	char value[40];
	int result = (stuck(device, __func__), get(device, "cc", value, sizeof value));

	if (result == SUCCESS && sscanf(value, "%d.%d", major, minor) != 2)
		return INVALID;
	return result;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
	int result = (stuck(device, __func__), number(device, "mig", current));

	*pending = *current;
	return result;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *out)
{
	int place = (int)(device - devices), i;

	stuck(device, __func__);
	for (*out = 0, i = 0; i < count; i++)
		*out += devices[i].slice == place;
	return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out)
{
	int place = (int)(device - devices), i;

	for (i = 0; i < count; i++)
		if (devices[i].slice == place && index-- == 0) {
			if (!strstr(devices[i].line, " uuid=") && !strstr(devices[i].line, " gi="))
				return NOT_FOUND; /* a gap */
			stuck(&devices[i], __func__);
			*out = &devices[i];
			return SUCCESS;
		}
	return INVALID;
}
