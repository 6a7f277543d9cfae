/* The calls of NVML by their form, from which fakenvml.c makes the functions.
   A name that has versions stands with the one that go-nvml looks for. */
SYSTEM_STRING(nvmlSystemGetDriverVersion)
SYSTEM_STRING(nvmlSystemGetNVMLVersion)

STRING(nvmlDeviceGetName)
STRING(nvmlDeviceGetSerial)
STRING(nvmlDeviceGetVbiosVersion)
STRING(nvmlDeviceGetInforomImageVersion)

NOTHING(nvmlDeviceValidateInforom)

NUMBER(nvmlDeviceGetMinorNumber, unsigned int)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int)
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t)
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int)
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long)

PAIR(nvmlDeviceGetEccMode, nvmlEnableState_t)
PAIR(nvmlDeviceGetMigMode, unsigned int)

NUMBER_OF(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t)
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, nvmlTemperatureThresholds_t)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, nvmlClockType_t)
NUMBER_OF(nvmlDeviceGetApplicationsClock, nvmlClockType_t)
NUMBER_OF(nvmlDeviceGetDefaultApplicationsClock, nvmlClockType_t)
NUMBER_OF(nvmlDeviceGetNvLinkState, unsigned int)

PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
