/*
 * A libdcgm.so.4 for tests. It reads dcgm.scenario in its own directory, whose
 * language is in README.md, and notes every call in dcgm.calls beside it.
 *
 * Its structures are those of the header that go-dcgm has, so that a program
 * that lays them out in another way is found out.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "dcgm_agent.h"
#include "dcgm_fields.h"
#include "dcgm_structs.h"
#include "dcgm_test_structs.h"

#define MAX_LINES 400

static char lines[MAX_LINES][1024];
static int num_lines = -1;
static char dir[900];

static void load(void)
{
	Dl_info info;
	char path[1024];
	FILE *f;

	if (num_lines >= 0)
		return;
	num_lines = 0;
	dladdr((void *)load, &info);
	snprintf(dir, sizeof dir, "%s", info.dli_fname);
	char *slash = strrchr(dir, '/');
	if (slash)
        *slash = 0;
	snprintf(path, sizeof path, "%s/dcgm.scenario", dir);
	if (!(f = fopen(path, "r")))
		return;
	while (num_lines < MAX_LINES && fgets(lines[num_lines], sizeof lines[0], f))
	{
		lines[num_lines][strcspn(lines[num_lines], "\n")] = 0;
		num_lines++;
	}
	fclose(f);
}

static void note(const char *call)
{
	char path[1024];
	FILE *f;

	snprintf(path, sizeof path, "%s/dcgm.calls", dir);
	if ((f = fopen(path, "a")))
	{
		fprintf(f, "%s\n", call);
		fclose(f);
	}
}

/* The number behind the words of a line, or preset. */
static int setting(const char *words, int preset)
{
	size_t n = strlen(words);
	int value = preset;

	for (int i = 0; i < num_lines; i++)
		if (!strncmp(lines[i], words, n) && (lines[i][n] == ' ' || !lines[i][n]))
			value = lines[i][n] ? atoi(lines[i] + n) : 1;
	return value;
}

/* The beginning of every call: it may hang, crash, or fail. */
static dcgmReturn_t call(const char *name)
{
	char words[256];

	load();
	note(name);
	snprintf(words, sizeof words, "hang %s", name);
	if (setting(words, 0))
		for (;;)
			pause();
	snprintf(words, sizeof words, "crash %s", name);
	if (setting(words, 0))
		raise(SIGSEGV);
	snprintf(words, sizeof words, "error %s", name);
	return setting(words, DCGM_ST_OK);
}

#define CALL(name)                  \
	do                              \
	{                               \
		dcgmReturn_t st = call(name); \
		if (st != DCGM_ST_OK)       \
			return st;              \
	} while (0)

const char *errorString(dcgmReturn_t result)
{
	switch (result)
	{
		case DCGM_ST_OK: return "Success";
		case DCGM_ST_TIMEOUT: return "Timeout";
		case DCGM_ST_VER_MISMATCH: return "API version mismatch";
		case DCGM_ST_NVVS_ERROR: return "GPU Diagnostic returned an error.";
		case DCGM_ST_DIAG_ALREADY_RUNNING: return "A diag instance is already running";
		case DCGM_ST_NVVS_KILLED: return "The NVVS process was killed by a signal";
		case DCGM_ST_CONNECTION_NOT_VALID: return "Host engine connection invalid/disconnected";
		case DCGM_ST_UNINITIALIZED: return "Object is in an undefined state";
		default: return "Generic unspecified error";
	}
}

dcgmReturn_t dcgmInit(void) { CALL("dcgmInit"); return DCGM_ST_OK; }
dcgmReturn_t dcgmShutdown(void) { CALL("dcgmShutdown"); return DCGM_ST_OK; }

static int connections;

dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_t *params, dcgmHandle_t *handle)
{
	char text[400];

	load();
	snprintf(text, sizeof text, "address %s %u", address, params->addressIsUnixSocket);
	note(text);
	CALL("dcgmConnect_v2");
	if (params->version != dcgmConnectV2Params_version)
		return DCGM_ST_VER_MISMATCH;
    *handle = ++connections;
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmDisconnect(dcgmHandle_t handle) { CALL("dcgmDisconnect"); return handle ? DCGM_ST_OK : DCGM_ST_BADPARAM; }

dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *handle)
{
	CALL("dcgmStartEmbedded");
    *handle = 0x7fffffff;
	return mode == DCGM_OPERATION_MODE_AUTO ? DCGM_ST_OK : DCGM_ST_BADPARAM;
}

dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t handle) { CALL("dcgmStopEmbedded"); return handle == 0x7fffffff ? DCGM_ST_OK : DCGM_ST_BADPARAM; }

dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t handle, dcgm_field_entity_group_t group, dcgm_field_eid_t *entities, int *count, unsigned int flags)
{
	CALL("dcgmGetEntityGroupEntities");
    *count = group == DCGM_FE_GPU ? setting("gpus", 8) : group == DCGM_FE_SWITCH ? setting("switches", 0) : 0;
	for (int i = 0; i < *count; i++) /* DCGM's indexes may differ from NVML's */
		entities[i] = setting("reversed", 0) ? *count - 1 - i : i;
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmEntitiesGetLatestValues(dcgmHandle_t handle, dcgmGroupEntityPair_t entities[], unsigned int entityCount, unsigned short fields[],
										 unsigned int fieldCount, unsigned int flags, dcgmFieldValue_v2 values[])
{
	int last = setting("gpus", 8) - 1;

	CALL("dcgmEntitiesGetLatestValues");
	for (unsigned int i = 0; i < entityCount; i++)
		for (unsigned int j = 0; j < fieldCount; j++)
		{
			dcgmFieldValue_v2 *v = &values[i * fieldCount + j];
			int gpu = setting("reversed", 0) ? last - (int)entities[i].entityId : (int)entities[i].entityId;

			v->version = dcgmFieldValue_version2;
			v->entityGroupId = entities[i].entityGroupId;
			v->entityId = entities[i].entityId;
			v->fieldId = fields[j];
			v->fieldType = DCGM_FT_STRING;
			v->status = DCGM_ST_OK;
			if (setting("nameless", 0))
				snprintf(v->value.str, sizeof v->value.str, "%s", "<<<NOT_SUPPORTED>>>");
			else if (fields[j] == DCGM_FI_DEV_GPU_UUID)
				snprintf(v->value.str, sizeof v->value.str, "GPU-00000000-0000-0000-0000-0000000000%02x", gpu);
			else
				snprintf(v->value.str, sizeof v->value.str, "00000000:%02X:00.0", 0x10 + gpu);
		}
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmUpdateAllFields(dcgmHandle_t handle, int wait) { CALL("dcgmUpdateAllFields"); return DCGM_ST_OK; }

/* The program's own group, and the kinds of its entities. */
static const dcgmGpuGrp_t own_group = 7;
static int in_group[DCGM_FE_COUNT];

dcgmReturn_t dcgmGroupCreate(dcgmHandle_t handle, dcgmGroupType_t type, const char *name, dcgmGpuGrp_t *group)
{
	CALL("dcgmGroupCreate");
    *group = own_group;
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmGroupAddEntity(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgm_field_entity_group_t kind, dcgm_field_eid_t id)
{
	CALL("dcgmGroupAddEntity");
	if (kind == DCGM_FE_GPU && (int)id == setting("unaddable", -1))
		return DCGM_ST_BADPARAM;
	in_group[kind] = 1;
	return group == own_group ? DCGM_ST_OK : DCGM_ST_BADPARAM;
}

dcgmReturn_t dcgmGroupDestroy(dcgmHandle_t handle, dcgmGpuGrp_t group) { CALL("dcgmGroupDestroy"); return group == own_group ? DCGM_ST_OK : DCGM_ST_BADPARAM; }

dcgmReturn_t dcgmHealthGet(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthSystems_t *systems)
{
	CALL("dcgmHealthGet");
    *systems = setting(group == DCGM_GROUP_ALL_NVSWITCHES ? "switchwatches" : "watched", 0);
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmHealthSet(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthSystems_t systems)
{
	CALL("dcgmHealthSet");
	return group == own_group ? DCGM_ST_OK : DCGM_ST_BADPARAM; /* the program must not change the group of all GPUs */
}

/* Whether a group has entities of this kind: the group of all GPUs has no switch. Every group
   reports an event without an entity. */
static int has(dcgmGpuGrp_t group, unsigned int kind)
{
	if (kind != DCGM_FE_GPU && kind != DCGM_FE_SWITCH)
		return 1;
	if (group == own_group)
		return in_group[kind];
	return (kind == DCGM_FE_SWITCH) == (group == DCGM_GROUP_ALL_NVSWITCHES);
}

/* incident KIND ID SYSTEM HEALTH CODE message */
dcgmReturn_t dcgmHealthCheck(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthResponse_t *r)
{
	CALL("dcgmHealthCheck");
	if (r->version != dcgmHealthResponse_version)
		return DCGM_ST_VER_MISMATCH;
	r->overallHealth = DCGM_HEALTH_RESULT_PASS;
	for (int i = 0; i < num_lines; i++)
	{
		unsigned int kind, id, system, health, code;
		int at = 0;

		if (sscanf(lines[i], "incident %u %u %u %u %u %n", &kind, &id, &system, &health, &code, &at) < 5 || !has(group, kind))
			continue;
		dcgmIncidentInfo_t *in = &r->incidents[r->incidentCount++];
		in->entityInfo.entityGroupId = kind;
		in->entityInfo.entityId = id;
		in->system = system;
		in->health = health;
		in->error.code = code;
		snprintf(in->error.msg, sizeof in->error.msg, "%s", lines[i] + at);
		if (health > r->overallHealth)
			r->overallHealth = health;
	}
	return DCGM_ST_OK;
}

static volatile int stopped;

dcgmReturn_t dcgmStopDiagnostic(dcgmHandle_t handle)
{
	CALL("dcgmStopDiagnostic");
	stopped = 1;
	return DCGM_ST_OK;
}

static dcgmDiagTestRun_v2 *test_of(dcgmDiagResponse_v12 *r, const char *name)
{
	for (int i = 0; i < r->numTests; i++)
		if (!strcmp(r->tests[i].name, name))
			return &r->tests[i];
	dcgmDiagTestRun_v2 *t = &r->tests[r->numTests++];
	snprintf(t->name, sizeof t->name, "%.31s", name);
	t->result = DCGM_DIAG_RESULT_PASS;
	return t;
}

/* result TEST KIND ID STATUS, note TEST KIND ID CODE message; TEST - is none */
static void respond(dcgmDiagResponse_v12 *r)
{
	for (int i = 0; i < num_lines; i++)
	{
		char name[32];
		unsigned int kind, id, what;
		int at = 0;

		if (sscanf(lines[i], "result %31s %u %u %u", name, &kind, &id, &what) == 4)
		{
			dcgmDiagTestRun_v2 *t = test_of(r, name);
			dcgmDiagEntityResult_v1 *e = &r->results[r->numResults];
			e->entity.entityGroupId = kind;
			e->entity.entityId = id;
			e->result = what;
			if (what > t->result)
				t->result = what;
			t->resultIndices[t->numResults++] = r->numResults++;
		}
		else if (sscanf(lines[i], "note %31s %u %u %u %n", name, &kind, &id, &what, &at) >= 4)
		{
			dcgmDiagError_v1 *e = &r->errors[r->numErrors];
			e->entity.entityGroupId = kind;
			e->entity.entityId = id;
			e->code = what;
			e->testId = DCGM_DIAG_RESPONSE_SYSTEM_ERROR;
			snprintf(e->msg, sizeof e->msg, "%.511s", lines[i] + at);
			if (strcmp(name, "-"))
			{
				dcgmDiagTestRun_v2 *t = test_of(r, name);
				t->errorIndices[t->numErrors++] = r->numErrors;
			}
			r->numErrors++;
		}
	}
	if (setting("garbage", 0))
		memset((char *)r + sizeof r->version, 0xff, sizeof *r - sizeof r->version);
}

dcgmReturn_t dcgmActionValidate_v2(dcgmHandle_t handle, dcgmRunDiag_v10 *run, dcgmDiagResponse_v12 *r)
{
	char text[8192];

	load();
	snprintf(text, sizeof text, "diag level=%u entities=%s group=%#lx timeout=%u parms=%s,%s", run->validate, run->entityIds,
			 (unsigned long)run->groupId, run->timeoutSeconds, run->testParms[0], run->testParms[1]);
	note(text);
	call("dcgmActionValidate_v2");
	if (run->version != dcgmRunDiag_version10 || r->version != dcgmDiagResponse_version12)
		return DCGM_ST_VER_MISMATCH;
	for (int tenths = 10 * setting("seconds", 0); tenths > 0; tenths--)
	{
		if (stopped)
			return DCGM_ST_NVVS_KILLED;
		usleep(100 * 1000);
	}
	respond(r);
	return setting("error dcgmActionValidate_v2", DCGM_ST_OK);
}
