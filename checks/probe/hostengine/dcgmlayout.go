package hostengine

// These are the structures of the diagnostic, as in dcgm_structs.h of DCGM 4.2 to 4.6. Go lays them
// out as C does; tests/fakedcgm compares them with the header of go-dcgm.

const dcgmGroupNull = 0x7ffffffa

// dcgmVersionOf returns the version field of a structure: MAKE_DCGM_VERSION.
func dcgmVersionOf(size uintptr, version uint32) uint32 { return uint32(size) | version<<24 }

// dcgmConnectParams is dcgmConnectV2Params_v2.
type dcgmConnectParams struct {
	Version, Persist, TimeoutMs, UnixSocket uint32
}

// dcgmRunDiag is dcgmRunDiag_v10.
type dcgmRunDiag struct {
	Version, Flags, DebugLevel uint32
	GroupID                    uintptr
	Validate                   uint32 // the level
	TestNames                  [20][50]byte
	TestParms                  [100][1050]byte
	FakeGPUs                   [50]byte
	DebugLog, Stats            [128]byte
	Config                     [10000]byte
	ClocksEventMask            [50]byte
	PluginPath                 [128]byte
	Iteration, Iterations      uint32
	TimeoutSeconds             uint32
	_                          [128]byte
	FailCheckInterval          uint32
	ExpectedEntities           [50]byte
	EntityIDs                  [2048]byte // "0,1,3"
	WatchFrequency             uint32
	IgnoreErrors               [512]byte
}

// dcgmEntityPair is dcgmGroupEntityPair_t.
type dcgmEntityPair struct{ Group, ID uint32 }

// dcgmDiagTest is dcgmDiagTestRun_v2.
type dcgmDiagTest struct {
	Name, Plugin       [32]byte
	Result             uint32
	NumErrors, NumInfo uint8
	Category           uint8
	_                  uint8
	NumResults         uint16
	ErrorIndices       [32]uint8
	InfoIndices        [128]uint8
	ResultIndices      [1024]uint16
	AuxVersion         uint32
	AuxData            [2048]byte
}

// dcgmDiagEntity is dcgmDiagEntity_v1.
type dcgmDiagEntity struct {
	Entity dcgmEntityPair
	Serial [256]byte
	Device [5]byte
}

// dcgmDiagError is dcgmDiagError_v1.
type dcgmDiagError struct {
	Entity                   dcgmEntityPair
	Code, Category, Severity uint32
	Msg                      [512]byte
	TestID                   uint32
}

// dcgmDiagInfo is dcgmDiagInfo_v1.
type dcgmDiagInfo struct {
	Entity dcgmEntityPair
	Msg    [512]byte
	TestID uint32
}

// dcgmDiagResult is dcgmDiagEntityResult_v1.
type dcgmDiagResult struct {
	Entity         dcgmEntityPair
	Result, TestID uint32
}

// dcgmDiagResponse is dcgmDiagResponse_v12.
type dcgmDiagResponse struct {
	Version                                   uint32
	NumTests, NumErrors, NumInfo, NumCategory uint8
	NumEntities, NumResults                   uint16
	Tests                                     [20]dcgmDiagTest
	Entities                                  [1024]dcgmDiagEntity
	Errors                                    [32]dcgmDiagError
	Info                                      [128]dcgmDiagInfo
	Results                                   [20480]dcgmDiagResult
	Categories                                [5][20]byte
	DCGMVersion                               [12]byte
	DriverVersion                             [256]byte
	_                                         [621952]byte
}
