/* Stands for NVIDIA's management library: two GPUs, the first of which tells everything and has had two Xid events; the second tells its name alone. */
#include <string.h>

typedef unsigned int u;
typedef unsigned long long l;
struct memory { u version; l total, reserved, free, used; };
struct event { void *device; l type, data; u gpu, compute; };

/* Not supported (3) by all but the first. */
static int first(void *device) { return device == (void *)1 ? 0 : 3; }

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(u *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u index, void **device) { *device = (void *)(l)(index + 1); return 0; }
int nvmlDeviceGetName(void *device, char *name, u bytes) { strcpy(name, "NVIDIA Fake"); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, u bytes) { strcpy(uuid, "GPU-1"); return first(device); }
int nvmlDeviceGetUtilizationRates(void *device, u *rates) { rates[0] = 97; rates[1] = 41; return first(device); }
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *of) { of->free = 30; of->used = 50; return first(device); }
int nvmlDeviceGetTemperature(void *device, u sensor, u *celsius) { *celsius = 61; return first(device); }
int nvmlDeviceGetClockInfo(void *device, u clock, u *mhz) { *mhz = clock == 1 ? 1980 : 2619; return first(device); }
int nvmlDeviceGetTotalEccErrors(void *device, u kind, u counter, l *errors) { *errors = kind ? 2 : 7; return first(device); }
int nvmlEventSetCreate(void **set) { *set = (void *)9; return 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceRegisterEvents(void *device, l events, void *set) { return first(device); }
int nvmlEventSetWait_v2(void *set, struct event *event, u ms) {
    static int waited = 0;
    event->device = (void *)1;
    event->type = 8;
    event->data = waited ? 79 : 31;
    return waited++ < 2 ? 0 : 10;
}
