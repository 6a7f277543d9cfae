package checks

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestDiskWrite(t *testing.T) { testCheck(t, "check_disk_write") }

var _ = table("check_disk_write", func(name string) []scenario {
	on := func(text string, words []string, disks string, want ...Finding) scenario {
		return scenario{name: text, words: words, files: map[string]string{"proc/sys/kernel/random/boot_id": "658f832e-2c36-42e1-a29c-a17c2e3298d2\n", "diskwrite": disks}, past: "/past", want: want}
	}
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	says := func(severity Severity, code, want, got, text string, remedy Remedy) Finding {
		f := Finding{Code: "disk.write." + code, Severity: severity, Device: Device{Kind: "directory", Name: "/scratch"}, Want: want, Got: got, Remedy: remedy}
		f.Message = name + ":  /scratch: " + text + wantGot(f)
		return f
	}
	bad := func(kind, text string) string {
		return `{"/scratch": {"kind": "` + kind + `", "text": "` + text + `"}}`
	}
	const good = `{"/scratch": {"write": 2500.5, "read": 3000, "longest": 4000000, "written": 1073741824, "direct": true}}`
	const cached = `{"/scratch": {"write": 2500.5, "read": 9000, "longest": 4000000, "written": 1073741824}}`
	const inMemory = `{"/scratch": {"write": 9000, "read": 9000, "longest": 40000, "written": 1073741824, "memory": true}}`
	const late = `{"/scratch": {"write": 20.5, "read": 20, "longest": 4000000000, "written": 104857600, "direct": true}}`
	memory := says(Skip, "memory", "", "", "not measured: its file system is in memory", "")
	memory.Got = "not measured: its file system is in memory"
	n := fabricNode(fakesys.DGXH100())
	n.files["diskwrite"] = good
	floor := scenario{name: "below the floor", words: of("/scratch"), files: n.files, links: n.links, nvml: n.nvml, past: "/past", unitOnly: true,
		want: []Finding{says(Warn, "floor", "at least 4000 MB/s", "2500 MB/s", "write (disk_write of HGX H100)", "")}}
	floor.platform = &Platform{Name: "HGX H100", Floors: []Floor{
		{Test: "disk_write", Algorithm: "direct", Size: 1 << 30, Value: 4000, Unit: "MB/s"}, {Test: "disk_write", Algorithm: "direct", Size: 1 << 20, Value: 9000, Unit: "MB/s"}}}
	return []scenario{
		floor,
		on("healthy", of("/scratch"), good).orTable(map[string]any{"dir": "/scratch"}),
		on("as wanted", of("-w", "2000", "-s", "1G", "-t", "20", "/scratch"), good).orTable(map[string]any{"dir": "/scratch", "rate": int64(2000), "size": "1G", "time": int64(20)}),
		on("page cache", of("/scratch"), cached),
		on("slow", of("-w", "3000", "/scratch"), good, says(Fail, "slow", "at least 3000 MB/s", "2500 MB/s", "write", "")),
		on("slower than the time", of("-w", "1500", "/scratch"), late, says(Fail, "slow", "at least 1500 MB/s", "20.5 MB/s", "write", "")),
		on("I/O error", of("/scratch"), bad("io", "input/output error"), says(Fail, "io", "", "write at byte 4194304: input/output error", "I/O error", ReseatOrRMA)),
		on("wrong data", of("/scratch"), bad("wrong", "wrote 0x12, got 0x02"), says(Fail, "wrong", "", "write at byte 4194304: wrote 0x12, got 0x02", "it does not give back what was written", ReseatOrRMA)),
		on("read-only", of("/scratch"), bad("read-only", "read-only file system"), says(Fail, "read-only", "", "write at byte 4194304: read-only file system", "it is read-only", "")),
		on("full", of("/scratch"), bad("full", "no space left on device"), says(Warn, "full", "", "write at byte 4194304: no space left on device", "not measured: too little is free", "")),
		on("in memory", of("/scratch"), inMemory, memory),
		broken(on("no such directory", of("/scratch"), "{}", says(Unknown, "directory", "", "open: no such file or directory", "not measured", FixConfig))),
		broken(on("the kernel refuses", of("/scratch"), bad("other", "operation not permitted"), says(Unknown, "error", "", "write at byte 4194304: operation not permitted", "not measured", ""))),
		broken(on("garbage", of("/scratch"), "{", says(Unknown, "error", "", "parse /diskwrite: unexpected end of JSON input", "not measured", ""))),
	}
})

func TestDiskWriteRefuses(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{nil, {"scratch"}, {"-s", "0", "/scratch"}, {"-s", "2T", "/scratch"}, {"-w", "fast", "/scratch"}, {"/a", "/b"}} {
		if err := Bind(&diskWrite{Size: 1 << 30}, words); err == nil {
			t.Errorf("%q is bound", words)
		}
	}
	if err := BindTable(&diskWrite{Size: 1 << 30}, map[string]any{"rate": 5.0}); err == nil {
		t.Error("a table without a directory is bound")
	}
}

// What was measured is told, and through what.
func TestDiskWriteRates(t *testing.T) {
	t.Parallel()
	for record, want := range map[string][]string{
		`"direct": true, "written": 1073741824`: {"1024 MiB written, the longest 4 MiB in 4ms", "write, MB/s: /scratch 2500", "read back, MB/s: /scratch 3000"},
		`"direct": true, "written": 104857600`:  {"100 MiB written, the longest 4 MiB in 4ms; the time was up before 1024 MiB", "write, MB/s: /scratch 2500", "read back, MB/s: /scratch 3000"},
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
		for _, f := range c.Run(t.Context(), &Env{Host: probe.NewHost(root)}) {
			if f.Code == "disk.write.rates" {
				got = append(got, f.Got)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
}

// On this machine, where no job of another test's Slurm is seen: a test ends beside one.
func TestDiskWriteHere(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	dir, err := os.MkdirTemp("/var/tmp", "nhc-gpu-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	c := &diskWrite{Dir: dir, Size: 16 << 20, Time: 20 * time.Second}
	got := c.Run(t.Context(), &Env{Host: probe.NewHost("/")})
	if len(got) > 0 && (got[0].Code == "active.busy" || got[0].Code == "disk.write.full" || got[0].Code == "disk.write.memory") {
		t.Skipf("not here: %v", got)
	}
	if Worst(got) != OK || len(got) < 2 || got[0].Code != "disk.write.rates" {
		t.Errorf("%v", got)
	}
	for _, f := range got {
		t.Log(f.Message)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("left there: %v, %v", list, err)
	}
}
