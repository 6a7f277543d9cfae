package hostengine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// This is the output of "dcgmi diag -j" of DCGM 4 for a GPU without persistence mode, and for one
// with faulty memory: the format is that of Diag.cpp, DCGM 4.2.
const diag4 = `{
	"DCGM Diagnostic" : { "test_categories" : [
		{ "category" : "Deployment", "tests" : [ { "name" : "software",
			"results" : [
				{ "entity_group" : "GPU", "entity_group_id" : 1, "entity_id" : 0, "status" : "Pass" },
				{ "entity_group" : "GPU", "entity_group_id" : 1, "entity_id" : 3, "status" : "Fail", "warnings" : [
					{ "error_category" : 8, "error_id" : 29, "error_severity" : 5, "warning" : "Persistence Mode: Persistence mode for GPU 3 is disabled." } ] } ],
			"test_summary" : { "info" : [ "SRAM Threshold checking was skipped." ], "status" : "Fail" } } ] },
		{ "category" : "Hardware", "tests" : [ { "name" : "memory",
			"results" : [ { "entity_group" : "GPU", "entity_group_id" : 1, "entity_id" : 0, "status" : "Skip" } ],
			"test_summary" : { "status" : "Fail", "warnings" : [ { "error_id" : 64, "warning" : "API call failed" } ] } } ] } ] },
	"entity_groups" : [ { "entities" : [ { "device_id" : "2330", "entity_id" : 0, "serial_num" : "1650" } ], "entity_group" : "GPU", "entity_group_id" : 1 } ],
	"metadata" : { "Driver Version Detected" : "580.82.09", "version" : "4.2.3" }
}`

// This is the same for DCGM 3.3, whose deployment tests are for the node.
const diag3 = `Some log line
{ "DCGM GPU Diagnostic" : { "Driver Version Detected" : "535.129.03", "version" : "3.3.7", "test_categories" : [
	{ "category" : "Deployment", "tests" : [
		{ "name" : "Denylist", "results" : [ { "status" : "Pass" } ] }, null,
		{ "name" : "Persistence Mode", "results" : [ { "gpu_id" : 0, "status" : "Fail", "warnings" : [ { "warnings" : "Persistence mode for GPU 0 is disabled.", "error_id" : 29 } ] } ] } ] },
	{ "category" : "Hardware", "tests" : [ { "name" : "GPU Memory", "results" : [
		{ "gpu_id" : "0", "status" : "Pass", "info" : "Allocated 78 GB" },
		{ "gpu_id" : "3", "status" : "Fail", "warnings" : [ { "error_category" : 10, "error_id" : 58, "error_severity" : 2, "warning" : "A memory mismatch" } ] } ] } ] },
	{ "category" : "Integration", "tests" : [ { "name" : "PCIe", "results" : [ { "gpu_ids" : "0,1,2", "status" : "Skip", "warnings" : "one text" } ] } ] } ] } }`

func TestParseDCGMIDiag(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, output, want string }{
		{"4", diag4, "software gpu0 pass\nsoftware gpu3 fail; 29 Persistence Mode: Persistence mode for GPU 3 is disabled.\nmemory gpu0 skip\nmemory 0 fail; 64 API call failed"},
		{"3", diag3, "Denylist 0 pass\nPersistence Mode gpu0 fail; 29 Persistence mode for GPU 0 is disabled.\nmemory gpu0 pass\nmemory gpu3 fail; 58 A memory mismatch\npcie 0 skip; -1 one text"},
		{"empty", "", "error: read dcgmi's JSON: its output has none"},
		{"text", "Error: unable to run", "error: read dcgmi's JSON: its output has none"},
		{"another JSON", `{"a": 1}`, `error: read dcgmi's JSON: "DCGM Diagnostic" is missing`},
		{"cut", diag4[:300], "error: read dcgmi's JSON: unexpected EOF"},
		{"other types", `{"DCGM Diagnostic": {"test_categories": 7}}`, `error: read dcgmi's JSON: "DCGM Diagnostic.test_categories" is an unexpected number`},
		{"refused", `{"DCGM Diagnostic": {"runtime_error": "Error: Diagnostic can only be performed on a homogeneous group of GPUs.", "version": "4.2.3"}}`,
			"said: Error: Diagnostic can only be performed on a homogeneous group of GPUs."},
		{"new status", `{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "new", "results": [{"entity_group": "GPU", "entity_id": 1, "status": "Maybe"}]}]}]}}`, "new gpu1 maybe"},
	} {
		results, said, err := parseDCGMIDiag([]byte(test.output))
		got := dcgmResultsText(results, err)
		if said != "" {
			got = strings.TrimSpace(got + "\nsaid: " + said)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// health4 is the output of "dcgmi health -c -j": DcgmiOutput.cpp and Health.cpp of DCGM 3 and 4.
const health4 = `{ "body" : { "GPU" : { "children" : { "3" : { "children" : { "Errors" : { "children" : {
	"Memory system" : { "overflow" : [ "Detected 2 volatile double-bit", "ECC error(s) in GPU 3." ], "value" : "Failure" },
	"PCIe system" : { "overflow" : [ "Detected more than 8 PCIe replays" ], "value" : "Warning" } } } }, "value" : "Failure" } } },
	"Overall Health" : { "value" : "Failure" } }, "header" : [ "Health Monitor Report" ] }`

const discovery = `2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:10:00.0                                         |
|        | Device UUID: GPU-00000000-0000-0000-0000-000000000000                |
+--------+----------------------------------------------------------------------+
| 3      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:13:00.0                                         |
|        | Device UUID: GPU-00000000-0000-0000-0000-000000000003                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
`

// dcgmiNode returns a node whose dcgmi is a script.
func dcgmiNode(t *testing.T, script string) *probe.Host {
	t.Helper()
	h := scriptNode(t, "dcgmi", script)
	h.SetEnviron([]string{"PATH=/bin", "NVVS_BIN_PATH=/tmp", "CUDA_VISIBLE_DEVICES=3"})
	return h
}

// scriptNode returns a node with bash and one program, a script.
func scriptNode(t *testing.T, name, script string) *probe.Host {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"bash", "cat", "sleep"} {
		if err := os.Symlink("/bin/"+tool, filepath.Join(root, "bin", tool)); err != nil {
			t.Fatal(err)
		}
	}
	if err := probetest.WriteProgram(filepath.Join(root, "bin", name), []byte(script)); err != nil {
		t.Fatal(err)
	}
	return probe.NewHost(root)
}

func TestDCGMI(t *testing.T) {
	t.Parallel()
	say := func(text string) string { return "cat <<'END'\n" + text + "\nEND\n" }
	for _, test := range []struct{ name, script, wantHealth, wantGPUs, wantDiag string }{
		{"DCGM 4", `case "$*" in
*"health -c -j"*) ` + say(health4) + `;;
*discovery*) ` + say(discovery) + `;;
"diag -r 2 -j -i 0,3 -p pcie.is_allowed=false --host there") ` + say(diag4) + ` exit 226;;
*) echo "what? $*";; esac`,
			"dcgmi, fresh false\ngpu 3 0x10 true -1 Detected 2 volatile double-bit ECC error(s) in GPU 3.\ngpu 3 0x1 false -1 Detected more than 8 PCIe replays",
			"0000:10:00.0 0000:13:00.0",
			"software gpu0 pass\nsoftware gpu3 fail; 29 Persistence Mode: Persistence mode for GPU 3 is disabled.\nmemory gpu0 skip\nmemory 0 fail; 64 API call failed"},
		{"the environment is clean", `echo "Error: $NVVS_BIN_PATH$CUDA_VISIBLE_DEVICES."; exit 1`,
			"dcgmi: dcgmi health: Error: . (status 1)\nread dcgmi's JSON: its output has none", "dcgmi discovery: Error: . (status 1)",
			"error: dcgmi diag: Error: . (status 1)\nread dcgmi's JSON: its output has none"},
		{"watches are off", `echo "Error: Health watches not enabled. Please enable watches. "; exit 253`, "dcgmi: its health watches are off",
			"dcgmi discovery: Error: Health watches not enabled. Please enable watches. (status 253) (DCGM error -3)",
			"error: dcgmi diag: Error: Health watches not enabled. Please enable watches. (status 253) (DCGM error -3)\nread dcgmi's JSON: its output has none"},
		{"no process listens", `echo "Error: unable to establish a connection to the specified host: there"; exit 235`,
			"dcgmi: dcgmi health: no process listens\nread dcgmi's JSON: its output has none", "dcgmi discovery: no process listens",
			"error: dcgmi diag: no process listens\nread dcgmi's JSON: its output has none"},
		{"silent", `exit 205`, "dcgmi: dcgmi health: it said nothing (status 205) (DCGM error -51)\nread dcgmi's JSON: its output has none",
			"dcgmi discovery: it said nothing (status 205) (DCGM error -51)",
			"error: dcgmi diag: it said nothing (status 205) (DCGM error -51)\nread dcgmi's JSON: its output has none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := dcgmiNode(t, test.script)
			s := Settings{Mode: "auto", Address: "there"}
			if diff := cmp.Diff(test.wantHealth, health(h, s, DCGMAll)); diff != "" {
				t.Errorf("health (-want +got):\n%s", diff)
			}
			e, err := Connect(t.Context(), h, s, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			gpus, err := e.GPUs(t.Context())
			for _, g := range gpus {
				got = append(got, g.PCI)
			}
			if err != nil {
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(test.wantGPUs, strings.Join(got, " ")); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			r := DiagRequest{Level: 2, GPUs: []int{0, 3}, Exclude: []string{"pcie"}, Timeout: time.Minute}
			if diff := cmp.Diff(test.wantDiag, diagnose(t.Context(), h, s, r)); diff != "" {
				t.Errorf("diag (-want +got):\n%s", diff)
			}
		})
	}
}

// When dcgmi gets a signal to end, it stops the engine's diagnostic.
func TestDCGMIIsStopped(t *testing.T) {
	t.Parallel()
	h := dcgmiNode(t, `trap 'echo stopped >`+`$0.stopped; exit 203' TERM; sleep 30 & wait`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	if got, want := diagnose(ctx, h, Settings{}, DiagRequest{Level: 1, Timeout: time.Minute}), "error: dcgmi diag: stopped: context deadline exceeded"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v to end", took)
	}
	if _, err := os.Stat(h.Path("/bin/dcgmi.stopped")); err != nil {
		t.Errorf("dcgmi was not told: %v", err)
	}
}

func TestParseDCGMIHealth(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, output string
		systems      System
		incidents    int
		broken       bool
	}{
		{"all", health4, DCGMAll, 2, false},
		{"memory", health4, DCGMMemory, 1, false},
		{"none of these", health4, DCGMNVLink, 0, false},
		{"healthy", `{"body": {"Overall Health": {"value": "Healthy"}}}`, DCGMAll, 0, false},
		{"bad, without a reason", `{"body": {"Overall Health": {"value": "Failure"}}}`, DCGMAll, 1, false},
		{"another JSON", `{"body": {}}`, DCGMAll, 0, true},
		{"null", `{"body": {"Overall Health": {"value": "Healthy"}, "GPU": {"children": {"0": null, "x": {}, "1": {"children": {"Errors": null}}}}}}`, DCGMAll, 0, false},
	} {
		h, err := parseDCGMIHealth([]byte(test.output), test.systems)
		if (err != nil) != test.broken || err == nil && len(h.Incidents) != test.incidents {
			t.Errorf("%s: %+v, %v", test.name, h, err)
		}
	}
}

func FuzzDCGMI(f *testing.F) {
	for _, seed := range []string{diag4, diag3, health4, discovery, "{", `{"DCGM Diagnostic":null}`, `{"body":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, output []byte) {
		_, _, _ = parseDCGMIDiag(output)
		_, _ = parseDCGMIHealth(output, DCGMAll)
		_ = parseDiscovery(output)
	})
}
