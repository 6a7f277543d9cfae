package hostengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakedcgm"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// A process loads only one libdcgm, and go-dcgm has one connection. So each test runs in its own
// process, this test binary with these variables.
const dcgmInChild, dcgmTestAddress = "NHC_TEST_DCGM", "NHC_TEST_DCGM_ADDRESS"

// inDCGMProcess runs the body of a test in its own process, with a library that answers as the
// lines define. body returns the text to compare.
func inDCGMProcess(t *testing.T, lines []string, want string, body func(h *probe.Host, address string) string) (calls []string) {
	t.Helper()
	if dir := os.Getenv(dcgmInChild); dir != "" {
		h := probe.NewHost("/")
		probe.SetLibraries(h, map[string]string{probe.SettingDCGM: filepath.Join(dir, "libdcgm.so.4")})
		text := body(h, os.Getenv(dcgmTestAddress))
		if err := os.WriteFile(filepath.Join(dir, "got"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Exit(0) // even if a call hangs
	}
	need.Program(t, "gcc")
	dir := t.TempDir()
	if _, err := fakedcgm.Place(dir, lines...); err != nil {
		t.Fatal(err)
	}
	address, closing, err := fakedcgm.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closing() }()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), dcgmInChild+"="+dir, dcgmTestAddress+"="+address, "CUDA_VISIBLE_DEVICES=3")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := os.ReadFile(filepath.Join(dir, "got"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, strings.ReplaceAll(strings.ReplaceAll(string(got), address, "{address}"), dir, "{dir}")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	return fakedcgm.Calls(dir)
}

func standaloneAt(address string) Settings {
	return Settings{Mode: "standalone", Address: address}
}

// health returns the results of the health watches, one per line.
func health(h *probe.Host, s Settings, systems System) string {
	e, err := Connect(context.Background(), h, s, nil)
	if err != nil {
		return err.Error()
	}
	defer e.Close()
	answer, err := e.Health(context.Background(), systems)
	text := ""
	if err != nil {
		text = e.Via() + ": " + err.Error()
	} else {
		text = fmt.Sprintf("%s, fresh %v", e.Via(), answer.Fresh)
	}
	if answer == nil {
		return text
	}
	for _, i := range answer.Incidents {
		text += fmt.Sprintf("\n%s %d %#x %v %d %s", i.Entity.Kind, i.Entity.ID, i.System, i.Failed, i.Code, i.Message)
	}
	return text
}

const (
	oneBad        = "incident 1 3 16 20 4 Detected 2 volatile double-bit ECC error(s) in GPU 3."
	oneBadText    = "gpu 3 0x10 true 4 Detected 2 volatile double-bit ECC error(s) in GPU 3."
	switchBad     = "incident 3 1 2048 20 15 Detected fatal errors"
	switchBadText = "switch 1 0x800 true 15 Detected fatal errors"
	dcgmiAll      = "watched 3539" // what "dcgmi health -s a" sets
)

func TestDCGMHealth(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		lines   []string
		systems System
		want    string
		calls   []string
	}{
		{"watched", []string{"watched -1", oneBad}, DCGMAll,
			"nv-hostengine at {address}, fresh false\n" + oneBadText,
			[]string{"dcgmInit", "dcgmConnect_v2", "dcgmGetEntityGroupEntities", "dcgmHealthGet", "dcgmHealthCheck", "dcgmDisconnect", "dcgmShutdown"}},
		{"watched by dcgmi health -s a", []string{dcgmiAll, oneBad}, DCGMAll, "nv-hostengine at {address}, fresh false\n" + oneBadText,
			[]string{"dcgmInit", "dcgmConnect_v2", "dcgmGetEntityGroupEntities", "dcgmHealthGet", "dcgmHealthCheck", "dcgmDisconnect", "dcgmShutdown"}},
		{"watched by dcgmi health -s a, all but NVLink", []string{"watched 3537"}, DCGMAll, "nv-hostengine at {address}, fresh true", nil},
		{"watched by dcgmi health -s n", []string{"watched 2", "switches 4", "switchwatches 3072"}, DCGMNVLink | DCGMSwitchFatal | DCGMSwitchNonFatal,
			"nv-hostengine at {address}, fresh false", nil},
		{"what dcgmi cannot watch", []string{dcgmiAll, "incident 0 0 8192 20 122 IMEX"}, DCGMIMEX, "nv-hostengine at {address}, fresh true\n 0 0x2000 true 122 IMEX", nil},
		{"switches are another group", []string{dcgmiAll, "switches 4", oneBad, switchBad}, DCGMAll, "nv-hostengine at {address}, fresh false\n" + oneBadText + "\n" + switchBadText,
			[]string{"dcgmInit", "dcgmConnect_v2", "dcgmGetEntityGroupEntities", "dcgmHealthGet", "dcgmHealthCheck", "dcgmHealthGet", "dcgmGroupCreate", "dcgmGetEntityGroupEntities",
				"dcgmGroupAddEntity", "dcgmHealthSet", "dcgmUpdateAllFields", "dcgmHealthCheck", "dcgmGroupDestroy", "dcgmDisconnect", "dcgmShutdown"}},
		{"switches are watched, too", []string{dcgmiAll, "switches 4", "switchwatches 3539", oneBad, switchBad}, DCGMAll,
			"nv-hostengine at {address}, fresh false\n" + oneBadText + "\n" + switchBadText,
			[]string{"dcgmInit", "dcgmConnect_v2", "dcgmGetEntityGroupEntities", "dcgmHealthGet", "dcgmHealthCheck", "dcgmHealthGet", "dcgmHealthCheck", "dcgmDisconnect", "dcgmShutdown"}},
		{"a GPU that DCGM does not add", []string{"unaddable 5", oneBad}, DCGMAll,
			"nv-hostengine at {address}: dcgmGroupAddEntity: error adding entity group type GPU, entity 5 to group: Generic unspecified error\n" + oneBadText, nil},
		{"the watches of the switches fail", []string{dcgmiAll, "switches 4", oneBad, "error dcgmHealthSet -3"}, DCGMAll,
			"nv-hostengine at {address}: dcgmHealthSet: error setting health watches: Generic unspecified error\n" + oneBadText, nil},
		{"the engine hangs at the switches", []string{dcgmiAll, "switches 4", oneBad, "hang dcgmGroupCreate"}, DCGMAll,
			"nv-hostengine at {address}: dcgmGroupCreate: no answer within 8s\n" + oneBadText, nil},
		{"only switches are watched", []string{"switches 4", "switchwatches 3072", oneBad, switchBad}, DCGMAll,
			"nv-hostengine at {address}, fresh true\n" + switchBadText + "\n" + oneBadText, nil},
		{"nothing is watched, with switches", []string{"switches 4", oneBad, switchBad}, DCGMAll, "nv-hostengine at {address}, fresh true\n" + oneBadText + "\n" + switchBadText, nil},
		{"not watched", nil, DCGMMemory, "nv-hostengine at {address}, fresh true", []string{"dcgmInit", "dcgmConnect_v2", "dcgmHealthGet", "dcgmGroupCreate",
			"dcgmGetEntityGroupEntities", "dcgmGroupAddEntity", "dcgmHealthSet", "dcgmUpdateAllFields", "dcgmHealthCheck",
			"dcgmGroupDestroy", "dcgmDisconnect", "dcgmShutdown"}},
		{"others' systems", []string{"watched 31", oneBad, "incident 1 2 1 10 3 replays"}, DCGMPCIe, "nv-hostengine at {address}, fresh false\ngpu 2 0x1 false 3 replays", nil},
		{"error", []string{"watched -1", "error dcgmHealthCheck -3"}, DCGMAll,
			"nv-hostengine at {address}: dcgmHealthCheck: Generic unspecified error (DCGM error -3)", nil},
		{"engine timed out", []string{"error dcgmHealthGet -11"}, DCGMAll, "nv-hostengine at {address}: dcgmHealthGet: no answer within 8s", nil},
		{"cannot connect", []string{"error dcgmConnect_v2 -21"}, DCGMAll,
			"dcgmConnect: error connecting to nv-hostengine: Host engine connection invalid/disconnected", nil},
		{"connecting timed out", []string{"error dcgmConnect_v2 -11"}, DCGMAll, "dcgmConnect: no answer within 8s", nil},
		{"hang", []string{"hang dcgmHealthGet"}, DCGMAll, "nv-hostengine at {address}: dcgmHealthGet: no answer within 8s", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			calls := inDCGMProcess(t, test.lines, test.want, func(h *probe.Host, address string) string { return health(h, standaloneAt(address), test.systems) })
			calls = slices.Compact(slices.DeleteFunc(calls, func(c string) bool { return strings.HasPrefix(c, "address ") }))
			if diff := cmp.Diff(test.calls, calls); test.calls != nil && diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// A process waits only once for a call that hangs: every later call fails at once.
func TestDCGMHangsOnce(t *testing.T) {
	t.Parallel()
	inDCGMProcess(t, []string{"hang dcgmConnect_v2"}, "dcgmConnect: no answer within 8s\ndcgmConnect: no answer within 8s", func(h *probe.Host, address string) string {
		first := health(h, standaloneAt(address), DCGMAll)
		start := time.Now()
		second := health(h, standaloneAt(address), DCGMAll)
		if took := time.Since(start); took > 4*time.Second {
			return fmt.Sprintf("waited again, for %v", took)
		}
		return first + "\n" + second
	})
}

func TestDCGMFindsItsWay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		s    Settings
		want string
	}{
		"no process listens":           {Settings{Mode: "standalone", Address: "127.0.0.1:1"}, "nv-hostengine at 127.0.0.1:1: no process listens"},
		"no socket":                    {Settings{Mode: "standalone", Address: "/nonexistent/dcgm.sock"}, "nv-hostengine at /nonexistent/dcgm.sock: no process listens"},
		"auto, and no process listens": {Settings{Mode: "auto", Address: "127.0.0.1:1"}, "DCGM in this process, fresh true"},
		"embedded":                     {Settings{Mode: "embedded"}, "DCGM in this process, fresh true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inDCGMProcess(t, nil, test.want, func(h *probe.Host, _ string) string { return health(h, test.s, DCGMAll) })
		})
	}
}

func TestDCGMGPUs(t *testing.T) {
	t.Parallel()
	inDCGMProcess(t, []string{"gpus 2", "reversed"}, "[{1 0000:10:00.0 GPU-00000000-0000-0000-0000-000000000000}]", func(h *probe.Host, address string) string {
		e, err := Connect(context.Background(), h, standaloneAt(address), nil)
		if err != nil {
			return err.Error()
		}
		gpus, err := e.GPUs(context.Background())
		if err != nil || len(gpus) != 2 {
			return fmt.Sprint(gpus, err)
		}
		return fmt.Sprint(gpus[:1])
	})
}

func TestNoDCGM(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(t.TempDir())
	if _, err := Connect(t.Context(), h, Settings{}, nil); !errors.Is(err, probe.ErrOtherNode) || !errors.Is(err, probe.ErrNoLibrary) {
		t.Errorf("error %v, want ErrOtherNode", err)
	}
	text := filepath.Join(t.TempDir(), "libdcgm.so.4")
	if err := os.WriteFile(text, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	h = probe.NewHost("/")
	probe.SetLibraries(h, map[string]string{probe.SettingDCGM: text})
	if _, err := Connect(t.Context(), h, Settings{}, nil); err == nil || errors.Is(err, probe.ErrNoLibrary) {
		t.Errorf("a file that is no library: error %v", err)
	}
}

func TestDCGMNetwork(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"localhost": "tcp localhost:5555", "node1:6666": "tcp node1:6666", "tcp://node1": "tcp node1:5555", "[::1]:7": "tcp [::1]:7", "::1": "tcp [::1]:5555",
		"/run/dcgm.sock": "unix /run/dcgm.sock", "unix:///run/dcgm.sock": "unix /run/dcgm.sock",
	} {
		network, target := splitAddress(address)
		if got := network + " " + target; got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
