package active

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestDiskWrite(t *testing.T) { checktest.Run(t, "check_disk_write") }

var _ = checktest.Table("check_disk_write", func(name string) []checktest.Scenario {
	on := func(text string, words []string, disks string, want ...checks.Finding) checktest.Scenario {
		return checktest.Scenario{Name: text, Words: words, Files: map[string]string{"proc/sys/kernel/random/boot_id": "658f832e-2c36-42e1-a29c-a17c2e3298d2\n", "diskwrite": disks}, Past: "/past", Want: want}
	}
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	says := func(severity checks.Severity, code, want, got, text string, remedy checks.Remedy) checks.Finding {
		f := checks.Finding{Code: "disk.write." + code, Severity: severity, Device: checks.Device{Kind: "directory", Name: "/scratch"}, Want: want, Got: got, Remedy: remedy}
		f.Message = name + ":  /scratch: " + text + checktest.WantGot(f)
		return f
	}
	bad := func(kind, text string) string {
		return `{"/scratch": {"kind": "` + kind + `", "text": "` + text + `"}}`
	}
	const good = `{"/scratch": {"write": 2500.5, "read": 3000, "longest": 4000000, "written": 1073741824, "direct": true}}`
	const cached = `{"/scratch": {"write": 2500.5, "read": 9000, "longest": 4000000, "written": 1073741824}}`
	const inMemory = `{"/scratch": {"write": 9000, "read": 9000, "longest": 40000, "written": 1073741824, "memory": true}}`
	const late = `{"/scratch": {"write": 20.5, "read": 20, "longest": 4000000000, "written": 104857600, "direct": true}}`
	memory := says(checks.Skip, "memory", "", "", "not measured: its file system is in memory", "")
	memory.Got = "not measured: its file system is in memory"
	n := checktest.FabricNode(fakesys.DGXH100())
	n.Files["diskwrite"] = good
	floor := checktest.Scenario{Name: "below the floor", Words: checktest.Of("/scratch"), Files: n.Files, Links: n.Links, NVML: n.NVML, Past: "/past", UnitOnly: true,
		Want: []checks.Finding{says(checks.Warn, "floor", "at least 4000 MB/s", "2500 MB/s", "write (figure disk_write of the platform HGX H100)", "")}}
	floor.Platform = &checks.Platform{Name: "HGX H100", Floors: []checks.Floor{
		{Test: "disk_write", Algorithm: "direct", Size: 1 << 30, Value: 4000, Unit: "MB/s"}, {Test: "disk_write", Algorithm: "direct", Size: 1 << 20, Value: 9000, Unit: "MB/s"}}}
	return []checktest.Scenario{
		floor,
		on("healthy", checktest.Of("/scratch"), good).OrTable(map[string]any{"dir": "/scratch"}),
		on("as wanted", checktest.Of("-w", "2000", "-s", "1G", "-t", "20", "/scratch"), good).OrTable(map[string]any{"dir": "/scratch", "rate": int64(2000), "size": "1G", "time": int64(20)}),
		on("page cache", checktest.Of("/scratch"), cached),
		on("slow", checktest.Of("-w", "3000", "/scratch"), good, says(checks.Fail, "slow", "at least 3000 MB/s", "2500 MB/s", "write", "")),
		on("slower than the time", checktest.Of("-w", "1500", "/scratch"), late, says(checks.Fail, "slow", "at least 1500 MB/s", "20.5 MB/s", "write", "")),
		on("I/O error", checktest.Of("/scratch"), bad("io", "input/output error"), says(checks.Fail, "io", "", "write at byte 4194304: input/output error", "I/O error", checks.ReseatOrRMA)),
		on("wrong data", checktest.Of("/scratch"), bad("wrong", "wrote 0x12, got 0x02"), says(checks.Fail, "wrong", "", "write at byte 4194304: wrote 0x12, got 0x02", "data read differ from data written", checks.ReseatOrRMA)),
		on("read-only", checktest.Of("/scratch"), bad("read-only", "read-only file system"), says(checks.Fail, "read-only", "", "write at byte 4194304: read-only file system", "file system is read-only", "")),
		on("full", checktest.Of("/scratch"), bad("full", "no space left on device"), says(checks.Warn, "full", "", "write at byte 4194304: no space left on device", "not measured: too little free space", "")),
		on("in memory", checktest.Of("/scratch"), inMemory, memory),
		broken(on("no such directory", checktest.Of("/scratch"), "{}", says(checks.Unknown, "directory", "", "open: no such file or directory", "not measured", checks.FixConfig))),
		broken(on("the kernel refuses", checktest.Of("/scratch"), bad("other", "operation not permitted"), says(checks.Unknown, "error", "", "write at byte 4194304: operation not permitted", "not measured", ""))),
		broken(on("garbage", checktest.Of("/scratch"), "{", says(checks.Unknown, "error", "", "parse /diskwrite: unexpected end of JSON input", "not measured", ""))),
	}
})

func TestDiskWriteRefuses(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{nil, {"scratch"}, {"-s", "0", "/scratch"}, {"-s", "2T", "/scratch"}, {"-w", "fast", "/scratch"}, {"/a", "/b"}} {
		if err := checks.Bind(&diskWrite{Size: 1 << 30}, words); err == nil {
			t.Errorf("%q is bound", words)
		}
	}
	if err := checks.BindTable(&diskWrite{Size: 1 << 30}, map[string]any{"rate": 5.0}); err == nil {
		t.Error("a table without a directory is bound")
	}
}

// The rates are reported, with the kind of access.
func TestDiskWriteRates(t *testing.T) {
	t.Parallel()
	for record, want := range map[string][]string{
		`"direct": true, "written": 1073741824`: {"1024 MiB written, the longest 4 MiB in 4ms", "write, MB/s: /scratch 2500", "read back, MB/s: /scratch 3000"},
		`"direct": true, "written": 104857600`:  {"100 MiB written, the longest 4 MiB in 4ms; time limit reached before 1024 MiB", "write, MB/s: /scratch 2500", "read back, MB/s: /scratch 3000"},
		`"written": 1073741824`:                 {"1024 MiB written, the longest 4 MiB in 4ms", "write through the page cache, MB/s: /scratch 2500"},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
			t.Fatal(err)
		}
		text := `{"/scratch": {"write": 2500, "read": 3000, "longest": 4000000, ` + record + `}}`
		if err := os.WriteFile(filepath.Join(root, "diskwrite"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c := &diskWrite{Dir: "/scratch", Size: 1 << 30, Time: 20 * time.Second}
		var got []string
		for _, f := range c.Run(t.Context(), &checks.Env{Host: probe.NewHost(root)}) {
			if f.Code == "disk.write.rates" {
				got = append(got, f.Got)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
}

// On this machine, isolated from jobs of other tests' Slurm: a test stops when a job runs.
func TestDiskWriteHere(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	dir, err := os.MkdirTemp("/var/tmp", "nhc-gpu-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := &diskWrite{Dir: dir, Size: 16 << 20, Time: 20 * time.Second}
	got := c.Run(t.Context(), &checks.Env{Host: probe.NewHost("/")})
	if len(got) > 0 && (got[0].Code == "active.busy" || got[0].Code == "disk.write.full" || got[0].Code == "disk.write.memory") {
		t.Skipf("not here: %v", got)
	}
	if checks.Worst(got) != checks.OK || len(got) < 2 || got[0].Code != "disk.write.rates" {
		t.Errorf("%v", got)
	}
	for _, f := range got {
		t.Log(f.Message)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("left there: %v, %v", list, err)
	}
}
