package cuda

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// NCCL is libnccl.so.2 in this process. NCCL reads its environment only once in a process, so a
// process that has loaded it cannot use other settings: see [OpenNCCL].
type NCCL struct {
	Path     string // the loaded library: libnccl.so.2 or the value of NCCL_LIBRARY
	Version  int    // NCCL_VERSION_CODE: 22203 is 2.22.3, and before 2.9 it is 2708 for 2.7.8
	Settings NCCLSettings

	log *os.File // NCCL's own log, see NCCL_DEBUG_FILE

	getVersion     func(version *int32) int32
	getUniqueID    func(id *ncclUniqueID) int32
	getErrorString func(code int32) string
	getLastError   func(comm uintptr) string // from 2.13 on; nil before
	commInitAll    func(comms *uintptr, n int32, devices *int32) int32
	commInitRank   func(comm *uintptr, n int32, id ncclUniqueID, rank int32) int32
	commDestroy    func(comm uintptr) int32
	commAbort      func(comm uintptr) int32
	asyncError     func(comm uintptr, code *int32) int32
	groupStart     func() int32
	groupEnd       func() int32
	allReduce      func(send, recv uintptr, count uint64, datatype, op int32, comm, stream uintptr) int32
	allGather      func(send, recv uintptr, count uint64, datatype int32, comm, stream uintptr) int32
	reduceScatter  func(send, recv uintptr, count uint64, datatype, op int32, comm, stream uintptr) int32
	broadcast      func(send, recv uintptr, count uint64, datatype, root int32, comm, stream uintptr) int32
	send           func(buffer uintptr, count uint64, datatype, peer int32, comm, stream uintptr) int32 // from 2.7 on; nil before
	recv           func(buffer uintptr, count uint64, datatype, peer int32, comm, stream uintptr) int32 // the same

	commInitRankConfig func(comm *uintptr, n int32, id ncclUniqueID, rank int32, config *ncclConfig) int32 // from 2.14 on; nil before
}

// Of nccl.h: the data type and the reduction that the tests use, and
// NCCL_SUCCESS.
const (
	ncclFloat32 = 7
	ncclSum     = 0
	ncclSuccess = 0

	ncclUnhandledCUDA = 1
	ncclInProgress    = 7
)

// NCCLSettings are a test's settings of NCCL, which it gets by its environment.
type NCCLSettings struct {
	Algorithm string // NCCL_ALGO: ring, tree, nvls; "" is NCCL's own choice
	TopoFile  string // NCCL_TOPO_FILE; "": the test sets none
	GDR       bool   // the network reads and writes a GPU's memory directly, however far the HCA is from it
	More      string // lines NAME=VALUE of the site, which take precedence over the settings above
	NoP2P     bool   // all traffic goes through the network: no NVLink, PCIe peer to peer or shared memory

	// These are for ranks on several nodes.
	Across    bool
	Interface string // NCCL_SOCKET_IFNAME: eth0; "" is NCCL's choice
	HCA       string // NCCL_IB_HCA: mlx5_0:1; "" is NCCL's choice
	Net       string // NCCL_NET: IB, which fails rather than use sockets; Socket; "" is NCCL's choice
}

// buildEnviron returns the environment for NCCL. NCCL writes its own log to a file in memory.
func (s NCCLSettings) buildEnviron(log *os.File) []string {
	return overlay(s.Environ(), "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,ENV,NET,TUNING", fmt.Sprintf("NCCL_DEBUG_FILE=/proc/self/fd/%d", log.Fd()))
}

// Environ returns the environment for a process that has no other NCCL_ variables. It does not
// change the settings of files. On one node the bootstrap uses the loopback interface, so that a
// test does not depend on the node's Ethernet.
func (s NCCLSettings) Environ() []string {
	env := []string{"NCCL_SOCKET_IFNAME=lo", "NCCL_CONF_FILE=/dev/null", "NCCL_COMM_BLOCKING=1"}
	if s.Across {
		env = s.acrossEnviron()
	}
	if s.Algorithm != "" {
		env = append(env, "NCCL_ALGO="+s.Algorithm)
	}
	if s.TopoFile != "" {
		env = append(env, "NCCL_TOPO_FILE="+s.TopoFile)
	}
	if s.NoP2P {
		env = append(env, "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_NVLS_ENABLE=0")
	}
	if s.GDR {
		env = append(env, "NCCL_NET_GDR_LEVEL=SYS", "NCCL_IB_PCI_RELAXED_ORDERING=1")
	}
	return overlay(env, strings.FieldsFunc(s.More, func(r rune) bool { return r == '\n' })...)
}

// acrossEnviron returns the settings for ranks on several nodes. No call of NCCL blocks, so that a
// rank that waits for a faulty one can be ended. RAS listens on ports, and nothing asks it.
func (s NCCLSettings) acrossEnviron() []string {
	env := []string{"NCCL_CONF_FILE=/dev/null", "NCCL_COMM_BLOCKING=0", "NCCL_RAS_ENABLE=0"}
	for _, one := range []struct{ name, prefix, value string }{
		{"NCCL_SOCKET_IFNAME", "=", s.Interface}, {"NCCL_IB_HCA", "=", s.HCA}, {"NCCL_NET", "", s.Net},
	} {
		if one.value != "" {
			env = append(env, one.name+"="+one.prefix+one.value) // the prefix: exactly this name
		}
	}
	return env
}

// overlay returns an environment with additional settings; each replaces one of the same name.
func overlay(env []string, more ...string) []string {
	for _, m := range more {
		name, _, _ := strings.Cut(m, "=")
		env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		env = append(env, m)
	}
	return env
}

// NCCLPrefixes are the prefixes of NCCL's and its network plug-ins' variables. A test ignores all
// such variables of its process.
var NCCLPrefixes = []string{"NCCL_", "OFI_NCCL_", "FI_", "UCX_"}

// OpenNCCL loads the library. Before that it removes all NCCL_ variables of this process and the
// site from the environment, and adds the settings of the test; /etc/nccl.conf applies
// nevertheless, as for every job. The process is [Worn] from then on. Without a library the error
// is [probe.ErrNoLibrary].
func OpenNCCL(h *probe.Host, s NCCLSettings, doing func(string)) (*NCCL, error) {
	n, err := probe.Once(h, "nccl", func() (*NCCL, error) { return openNCCL(h, s, doing) })
	if err != nil {
		return nil, err
	}
	if n.Settings != s {
		return nil, fmt.Errorf("use %s with other settings: it reads its environment only once in a process", n.Path)
	}
	return n, nil
}

// worn is set when the process has loaded a library that keeps its settings for the life of the
// process.
var worn atomic.Bool

// Worn reports whether another process should replace this one before the next check: NCCL, which
// this process has loaded, would ignore other settings.
func Worn() bool { return worn.Load() }

// environMutex is held while a library reads its environment.
var environMutex sync.Mutex

func openNCCL(h *probe.Host, s NCCLSettings, doing func(string)) (*NCCL, error) {
	fd, err := unix.MemfdCreate("nccl-log", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file for NCCL's log: %w", err)
	}
	n := &NCCL{Settings: s, log: os.NewFile(uintptr(fd), "nccl-log")}
	// The environment must not change until NCCL has read it: tests have several libraries in one
	// process.
	environMutex.Lock()
	defer environMutex.Unlock()
	if err := setNCCLEnviron(s.buildEnviron(n.log)); err != nil {
		return nil, err
	}
	lib, err := probe.LoadLibrary(h, &probe.LibNCCL, probe.CUDAMajor(h), func(path string) (uintptr, error) {
		doing("load " + path)
		n.Path = path
		return probe.Dlopen(path)
	})
	if err != nil {
		return nil, err
	}
	worn.Store(true)
	if err := n.bind(lib); err != nil {
		return nil, err
	}
	var version int32
	doing("call ncclGetVersion")
	if code := n.getVersion(&version); code != ncclSuccess {
		return nil, n.fail("ncclGetVersion", code, 0)
	}
	n.Version = int(version)
	return n, nil
}

// ncclOwn are the original NCCL_ variables of this process, guarded by environMutex.
var ncclOwn []string

// setNCCLEnviron replaces every variable of NCCL and its plug-ins in this process's environment.
func setNCCLEnviron(env []string) error {
	ncclOwn = env
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if slices.ContainsFunc(NCCLPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			if err := os.Unsetenv(name); err != nil {
				return fmt.Errorf("unset %s: %w", name, err)
			}
		}
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// bind finds the functions. Functions that an old release lacks are nil.
func (n *NCCL) bind(lib uintptr) error {
	for _, f := range []struct {
		to    any
		name  string
		since bool // only later releases have it: its absence is not an error
	}{
		{&n.getVersion, "ncclGetVersion", false}, {&n.getErrorString, "ncclGetErrorString", false}, {&n.getLastError, "ncclGetLastError", true},
		{&n.commInitAll, "ncclCommInitAll", false}, {&n.commDestroy, "ncclCommDestroy", false}, {&n.commAbort, "ncclCommAbort", true},
		{&n.asyncError, "ncclCommGetAsyncError", true}, {&n.groupStart, "ncclGroupStart", false}, {&n.groupEnd, "ncclGroupEnd", false},
		{&n.allReduce, "ncclAllReduce", false}, {&n.allGather, "ncclAllGather", false}, {&n.reduceScatter, "ncclReduceScatter", false},
		{&n.broadcast, "ncclBroadcast", false}, {&n.send, "ncclSend", true}, {&n.recv, "ncclRecv", true},
		{&n.getUniqueID, "ncclGetUniqueId", true}, {&n.commInitRank, "ncclCommInitRank", true}, {&n.commInitRankConfig, "ncclCommInitRankConfig", true},
	} {
		sym, err := probe.Dlsym(lib, f.name)
		switch {
		case err == nil:
			purego.RegisterFunc(f.to, sym)
		case !f.since:
			return fmt.Errorf("load %s: it lacks the function %s", n.Path, f.name)
		}
	}
	return nil
}

// Release returns the version as text: 2.22.3.
func (n *NCCL) Release() string {
	if n.Version < 10000 { // NCCL_VERSION of nccl.h: up to 2.8 the minor number had one digit
		return fmt.Sprintf("%d.%d.%d", n.Version/1000, n.Version/100%10, n.Version%100)
	}
	return fmt.Sprintf("%d.%d.%d", n.Version/10000, n.Version/100%100, n.Version%100)
}

// CanSend reports whether the library has send and receive, which 2.7 added.
func (n *NCCL) CanSend() bool { return n.send != nil && n.recv != nil }

// NCCLError is the error of a call of NCCL.
type NCCLError struct {
	Call string // ncclAllReduce
	Code int    // ncclResult_t
	Name string // ncclSystemError
	Last string // the cause by NCCL's last warning; "" if unknown
	GPU  int    // CUDA's index of the GPU of the call; -1: not of one GPU
}

// ncclResults are the names of ncclResult_t in nccl.h of 2.22.
var ncclResults = []string{
	"ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
	"ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress",
}

func (e *NCCLError) Error() string {
	text := fmt.Sprintf("%s: %s (NCCL error %d)", e.Call, e.Name, e.Code)
	if e.Last != "" {
		text += ": " + e.Last
	}
	return text
}

// fail converts a result to an error. Its text is the last warning of NCCL's log, or NCCL's last
// error. After an error of CUDA, NCCL may log its consequence ("Failed to CUDA calloc 536870912
// bytes", alloc.h): then the text is that of CUDA.
func (n *NCCL) fail(call string, code int32, comm uintptr) *NCCLError {
	e := &NCCLError{Call: call, Code: int(code), Name: "unknown result", GPU: -1}
	if code >= 0 && int(code) < len(ncclResults) {
		e.Name = ncclResults[code]
	}
	if warnings := n.Log(0).Warnings; len(warnings) > 0 {
		e.Last = warnings[len(warnings)-1]
		for _, w := range slices.Backward(warnings) {
			if e.Code == ncclUnhandledCUDA && ncclCUDAFailure().MatchString(w) {
				e.Last = w
				break
			}
		}
	}
	if n.getLastError != nil && e.Last == "" {
		e.Last = probe.OneLine(n.getLastError(comm))
	}
	return e
}

// ncclCUDAFailure matches NCCL's text of a CUDA error: Cuda failure 719 'unspecified launch
// failure'. Many releases, such as 2.22, do not print the number.
var ncclCUDAFailure = probe.Lazily(`Cuda failure (?:(\d+)|'(.+)')`)

// cudaTexts are the texts of cudaGetErrorString for errors that indicate a problem of the node.
var cudaTexts = map[string]int{
	"out of memory": 2,
	"CUDA-capable device(s) is/are busy or unavailable":               46,
	"uncorrectable ECC error encountered":                             214,
	"uncorrectable NVLink error detected during the execution":        220,
	"an illegal memory access was encountered":                        700,
	"unspecified launch failure":                                      719,
	"system not yet initialized":                                      802,
	"system has unsupported display driver / cuda driver combination": 803,
}

// CUDACode returns the CUDA error that caused an NCCL error, if known. NCCL uses the numbers of the
// runtime, which are the same as the driver's.
func (e *NCCLError) CUDACode() (code int, ok bool) {
	m := ncclCUDAFailure().FindStringSubmatch(e.Last)
	if m == nil || e.Code != ncclUnhandledCUDA {
		return 0, false
	}
	if code, err := strconv.Atoi(m[1]); err == nil {
		return code, true
	}
	code, ok = cudaTexts[m[2]]
	return code, ok
}

// NCCLLog is the parsed part of NCCL's own log.
type NCCLLog struct {
	Algorithms []string // of collectives: ring, tree, nvls ..., each once
	Networks   []string // to other nodes, or between GPUs without another connection: IB, Socket
	Warnings   []string
	Facts      []string // see NoIB and GDR
	End        int64    // size of the log, bytes: where the next part begins
}

// maxNCCLLog bounds one read of the log, bytes.
const maxNCCLLog = 8 << 20

// Log reads NCCL's log from an offset on.
func (n *NCCL) Log(from int64) NCCLLog {
	if n.log == nil {
		return NCCLLog{}
	}
	data, _ := io.ReadAll(io.NewSectionReader(n.log, from, maxNCCLLog)) // a part that cannot be read is ignored
	l := parseNCCLLog(data)
	l.End = from + int64(len(data))
	return l
}

// These match the algorithm in the log at NCCL_DEBUG=INFO, subsystem TUNING. 2.18 to 2.22 print its
// number, later releases its name, and earlier releases neither:
//
// 8589934592 Bytes -> Algo 4 proto 2 time 41943.121094
// AllReduce: 8589934592 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
var (
	ncclAlgorithm = probe.Lazily(`Bytes -> Algo (\w+) proto`)
	ncclNetwork   = probe.Lazily(`Using network (.+)$`)
)

// ncclAlgorithms are NCCL_ALGO_... of nccl_tuner.h, by number. 2.7 to 2.13 had
// CollNet at 2; none of those writes the line.
var ncclAlgorithms = []string{"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}

func parseNCCLLog(data []byte) (l NCCLLog) {
	add := func(list *[]string, word string) {
		if !slices.Contains(*list, word) {
			*list = append(*list, word)
		}
	}
	for line := range bytes.Lines(data) {
		text := probe.OneLine(strings.TrimSpace(string(line)))
		if _, warning, ok := strings.Cut(text, "NCCL WARN "); ok {
			add(&l.Warnings, warning)
		}
		for _, fact := range []string{ncclNoIB, ncclGDR} {
			if strings.Contains(text, fact) {
				add(&l.Facts, fact)
			}
		}
		if m := ncclAlgorithm().FindStringSubmatch(text); m != nil {
			add(&l.Algorithms, nameAlgorithm(m[1]))
		}
		if m := ncclNetwork().FindStringSubmatch(text); m != nil {
			add(&l.Networks, strings.TrimSpace(m[1]))
		}
	}
	return l
}

// nameAlgorithm converts a number or a name of an algorithm to this program's name.
func nameAlgorithm(word string) string {
	if n, err := strconv.Atoi(word); err == nil {
		if n >= 0 && n < len(ncclAlgorithms) {
			return ncclAlgorithms[n]
		}
		return "algorithm " + word
	}
	switch word = strings.ToLower(word); word {
	case "collnetdirect":
		return "collnet_direct"
	case "collnetchain":
		return "collnet_chain"
	case "nvlstree":
		return "nvls_tree"
	}
	return word
}
