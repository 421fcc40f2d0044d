/* A GPU management library for tests: the few calls that matter, answering so
 * that a caller who asks wrongly gets a wrong answer. Declarations are those of
 * the public interface; nothing of any driver is in here.
 *
 *   OLD    a driver before 550: no versioned fabric call, no field values
 *   SECOND a driver that knows the second version of fabric information and the
 *          first of platform information only
 *   HANG   the second GPU never answers for its links
 *   CRASH  the second GPU's links end the process
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *gpu;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, OTHER_VERSION = 25 };

static long number(gpu device) { return (long)device - 1; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
#ifdef OLD
    snprintf(text, size, "535.104.05");
#else
    snprintf(text, size, "580.95.05");
#endif
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu *device) {
    *device = (gpu)(long)(index + 1);
    return index < 2 ? SUCCESS : INVALID;
}

int nvmlDeviceGetUUID(gpu device, char *text, unsigned size) {
    snprintf(text, size, "GPU-%ld", number(device));
    return SUCCESS;
}

/* Hopper, then Blackwell. */
int nvmlDeviceGetArchitecture(gpu device, unsigned *architecture) {
    *architecture = number(device) == 0 ? 9 : 10;
    return SUCCESS;
}

static void stumble(gpu device) {
    if (number(device) != 1) return;
#ifdef HANG
    for (;;) sleep(1000);
#endif
#ifdef CRASH
    abort();
#endif
}

/* 0 is down, 2 sleeps, the others are up. */
static unsigned state(unsigned link) { return link == 13 ? 0 : link == 5 ? 2 : 1; }

int nvmlDeviceGetNvLinkState(gpu device, unsigned link, unsigned *value) {
    stumble(device);
    if (17 < link) return INVALID;
    *value = state(link);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkErrorCounter(gpu device, unsigned link, unsigned counter,
                                    unsigned long long *value) {
    if (number(device) == 1) return NOT_SUPPORTED;
    *value = link * 10 + counter;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(gpu device, unsigned link, unsigned *kind) {
    (void)device, (void)link;
    *kind = 2;
    return SUCCESS;
}

struct fabric_first {
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
};

int nvmlDeviceGetGpuFabricInfo(gpu device, struct fabric_first *info) {
    (void)device;
    memset(info->uuid, 0x11, 16);
    info->status = 0;
    info->clique = 1;
    info->state = 3;
    return SUCCESS;
}

#ifndef OLD
struct fabric {
    unsigned version;
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned mask;
    unsigned char summary;
};

int nvmlDeviceGetGpuFabricInfoV(gpu device, struct fabric *info) {
    (void)device;
    unsigned version = info->version >> 24, size = info->version & 0xffffff;
#ifdef SECOND
    if (version != 2 || size != 36) return OTHER_VERSION;
#else
    if (version != 3 || size != sizeof *info) return OTHER_VERSION;
    info->summary = 1;
#endif
    memset(info->uuid, 0x22, 16);
    info->status = 0;
    info->clique = version;
    info->state = 3;
    info->mask = 0x1aa;
    return SUCCESS;
}

struct platform {
    unsigned version;
    unsigned char guid[16], serial[16];
    unsigned char slot, tray, host, peer, module;
};

int nvmlDeviceGetPlatformInfo(gpu device, struct platform *info) {
#ifdef SECOND
    unsigned known = 1;
#else
    unsigned known = 2;
#endif
    if (info->version != ((known << 24) | sizeof *info)) return OTHER_VERSION;
    memset(info->serial, 0, 16);
    memcpy(info->serial, "1821225190042", 13);
    info->slot = 7;
    info->tray = 3;
    info->host = 1;
    info->module = (unsigned char)(number(device) + 1);
    return SUCCESS;
}

struct mode {
    unsigned version, is_best;
    unsigned char mode;
};

int nvmlDeviceGetNvlinkBwMode(gpu device, struct mode *info) {
    (void)device;
    if (info->version != ((1 << 24) | sizeof *info)) return OTHER_VERSION;
    info->is_best = 0;
    info->mode = 4;
    return SUCCESS;
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int result;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
        unsigned short us;
    } value;
};

int nvmlDeviceGetFieldValues(gpu device, int count, struct field *fields) {
    for (int at = 0; at < count; at++) {
        struct field *field = &fields[at];
        /* Renumbered between drivers: a caller cannot know the meaning. */
        if (251 <= field->id && field->id <= 273) abort();
        memset(&field->value, 0, sizeof field->value);
        field->result = SUCCESS;
        field->type = 1;
        switch (field->id) {
        case 91:
            field->type = 6;
            field->value.us = 18;
            break;
        case 161: case 162: case 163:
            break;
        case 164: field->value.u = 26000 + field->scope; break;
        case 165:
            stumble(device);
            field->value.u = state(field->scope);
            break;
        case 166: field->value.u = 6; break;
        case 221:
            field->type = 3;
            field->value.ull = 5000000000ull + field->scope;
            field->result = number(device) == 1 ? SUCCESS : NOT_SUPPORTED;
            break;
        default: field->result = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}
#endif
