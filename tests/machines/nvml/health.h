/*
 * A part of the stand-in: events, and the figures of a card's health.
 *
 * `node=PATH` of a card is opened when its handle is asked for, and closed by nvmlShutdown, as the
 * real library does with the card's device node; it grows by a byte each time. A line `events PATH`
 * names a FIFO from which nvmlEventSetWait reads lines `UUID XID GI CI [TYPE]` (-1 is no instance),
 * `fault CODE` (which it returns) or `hang`; without it the library has no events. Of a card come
 * the types that were asked for; it has those of `types=MASK`, else all. The figures are
 * read anew from the file each time: `temperature slowdown throttle corrected uncorrected retire
 * recovery`.
 */
#include <poll.h>

static int events = -1;

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct device **out)
{
	unsigned wanted[4], here[4];
	char text[40];
	int i;

	if (sscanf(bus, "%x:%x:%x.%x", wanted, wanted + 1, wanted + 2, wanted + 3) != 4)
		return INVALID;
	for (i = 0; i < count; i++)
		if (devices[i].kind == CARD && get(&devices[i], "bus", text, sizeof text) == SUCCESS &&
		    sscanf(text, "%x:%x:%x.%x", here, here + 1, here + 2, here + 3) == 4 &&
		    !memcmp(wanted, here, sizeof here)) {
			ENTER(&devices[i]);
			return taken_up(&devices[i], out);
		}
	return NOT_FOUND;
}

struct event {
	struct device *device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
};

struct field {
	unsigned id, scope;
	long long timestamp, latency;
	int type, result;
	union { unsigned whole; unsigned long long room; } value;
};

int nvmlEventSetCreate(void **out)
{
	ENTER(NULL);
	events = fifo[0] ? open(fifo, O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
	*out = &events;
	return events < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *out)
{
	char text[40];

	ENTER(device);
	*out = get(device, "types", text, sizeof text) ? 0xffff : strtoull(text, NULL, 0);
	return get(device, "uuid", text, sizeof text);
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set)
{
	(void)set;
	ENTER(device);
	device->watched = (unsigned)types;
	return SUCCESS;
}

static int line_of_fifo(char *line, int size, int timeout)
{
	struct pollfd ready = { events, POLLIN, 0 };
	int used = 0;

	if (poll(&ready, 1, timeout) < 1)
		return 0;
	while (used < size - 1 && read(events, line + used, 1) == 1 && line[used] != '\n')
		used++;
	line[used] = 0;
	return 1;
}

int nvmlEventSetWait_v2(void *set, struct event *out, unsigned timeout)
{
	char line[200], uuid[100], own[100];
	long long xid, gpu, compute, type;
	int i;

	(void)set;
	ENTER(NULL);
	while (line_of_fifo(line, sizeof line, (int)timeout)) {
		type = 8;
		if (!strcmp(line, "hang"))
			for (;;)
				pause();
		if (!strncmp(line, "fault ", 6))
			return atoi(line + 6);
		if (sscanf(line, "%99s %lld %lld %lld %lld", uuid, &xid, &gpu, &compute, &type) < 4)
			continue;
		for (i = 0; i < count; i++)
			if ((devices[i].watched & type) && get(&devices[i], "uuid", own, sizeof own) == SUCCESS &&
			    !strcmp(uuid, own)) {
				*out = (struct event){ &devices[i], (unsigned long long)type,
						       (unsigned long long)xid, (unsigned)gpu,
						       (unsigned)compute };
				return SUCCESS;
			}
	}
	return 10; /* NVML_ERROR_TIMEOUT */
}

/* Give a figure as the file has it now: of the card with the same bus address. */
static int figure(struct device *device, const char *key, unsigned long long *out)
{
	char bus[60], mark[80], value[40];
	const char *name = getenv("XCE_NVML_DATA");
	FILE *file;
	static struct device now;
	int result = get(device, "bus", bus, sizeof bus);

	snprintf(mark, sizeof mark, " bus=%s ", bus);
	file = result == SUCCESS && name ? fopen(name, "r") : NULL;
	if (!file)
		return INVALID;
	result = NOT_SUPPORTED;
	while (fgets(now.line, sizeof now.line - 1, file)) {
		now.line[strcspn(now.line, "\n")] = 0;
		strcat(now.line, " ");
		if (strstr(now.line, mark)) {
			result = get(&now, key, value, sizeof value);
			break;
		}
	}
	fclose(file);
	if (result == SUCCESS)
		*out = strtoull(value, NULL, 0);
	return result;
}

static int small(struct device *device, const char *key, unsigned *out)
{
	unsigned long long value = 0;
	int result = figure(device, key, &value);

	*out = (unsigned)value;
	return result;
}

int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned *out)
{
	(void)sensor;
	ENTER(device);
	return small(device, "temperature", out);
}

int nvmlDeviceGetTemperatureThreshold(struct device *device, int kind, unsigned *out)
{
	ENTER(device);
	return kind == 1 ? small(device, "slowdown", out) : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *out)
{
	ENTER(device);
	return figure(device, "throttle", out);
}

int nvmlDeviceGetTotalEccErrors(struct device *device, int kind, int counter, unsigned long long *out)
{
	ENTER(device);
	if (counter)
		return NOT_SUPPORTED;
	return figure(device, kind ? "uncorrected" : "corrected", out);
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct device *device, unsigned *out)
{
	ENTER(device);
	return small(device, "retire", out);
}

int nvmlDeviceGetFieldValues(struct device *device, int many, struct field *fields)
{
	ENTER(device);
	for (; many > 0; many--, fields++)
		fields->result = fields->id == 230 ? small(device, "recovery", &fields->value.whole)
						   : NOT_SUPPORTED;
	return SUCCESS;
}
