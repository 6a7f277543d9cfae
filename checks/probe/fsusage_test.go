package probe

import (
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestFSUsage(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"statfs": "/a\\040b 4096 1000000 60000 10000 65536 32768\nshort 1 2\n/rubbish a b c d e f\n"}))
	for what, want := range map[Amount]Amounts{
		Space:  {Total: 4000000, Used: 3760000, Free: 40000, Percent: 99}, // 98.947 %
		Inodes: {Total: 65536, Used: 32768, Free: 32768, Percent: 50},
	} {
		got, err := FSUsage(h, "/a b", what)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("FSUsage of %s: %v (-want +got):\n%s", what, err, diff)
		}
	}
	if got, err := FSUsage(h, "/rubbish", Space); err != nil || got != (Amounts{}) {
		t.Errorf("without numbers: %+v, %v", got, err)
	}
	if _, err := FSUsage(h, "short", Space); probetest.Message(err) != "statfs short: no such file or directory" {
		t.Errorf("not recorded: %v", err)
	}
	if _, err := FSUsage(NewHost(probetest.Tree(t, map[string]string{"x": ""})), "/", Space); probetest.Message(err) != "statfs /: no such file or directory" {
		t.Errorf("nothing recorded: %v", err)
	}
	if _, err := FSUsage(NewHost("/"), "/no/such/place", Inodes); probetest.Message(err) != "statfs /no/such/place: no such file or directory" {
		t.Errorf("no such place: %v", err)
	}
}

// TestUsage compares with df's results for unknown, negative and very large numbers.
func TestUsage(t *testing.T) {
	t.Parallel()
	const none = math.MaxUint64
	for name, c := range map[string]struct {
		in   fsNumbers
		want Amounts
	}{
		"pseudo":                  {fsNumbers{unit: 4096}, Amounts{}},
		"rounded up to kB":        {fsNumbers{512, 2001, 1001, 1001, 0, 0}, Amounts{1001, 500, 501, 50}},
		"percent is rounded up":   {fsNumbers{1024, 1000, 999, 999, 0, 0}, Amounts{1000, 1, 999, 1}},
		"a unit of no size":       {fsNumbers{0, 10, 5, 5, 0, 0}, Amounts{Percent: 50}},
		"nothing is known":        {fsNumbers{1024, none, none, none, 0, 0}, Amounts{}},
		"free is not known":       {fsNumbers{1024, 10, none - 1, 5, 0, 0}, Amounts{Total: 10, Free: 5}},
		"what users get is not":   {fsNumbers{1024, 10, 5, none, 0, 0}, Amounts{Total: 10, Used: 5}},
		"users ate the reserve":   {fsNumbers{1024, 1000, 40, none - 9, 0, 0}, Amounts{1000, 960, -10, 102}},
		"more free than there is": {fsNumbers{1024, 10, 12, 12, 0, 0}, Amounts{10, -2, 12, 0}},
		"all of it reserved":      {fsNumbers{1024, 10, 10, 0, 0, 0}, Amounts{Total: 10}},
		"too much for an int64":   {fsNumbers{1 << 20, 1 << 62, 1 << 61, 1 << 61, 0, 0}, Amounts{math.MaxInt64, math.MaxInt64, math.MaxInt64, 50}},
		"too much for the easy sum": {fsNumbers{1, 1<<63 + 2048, 2048, 1 << 62, 0, 0},
			Amounts{1<<53 + 2, 1 << 53, 1 << 52, 67}},
	} {
		if diff := cmp.Diff(c.want, c.in.usage(Space)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestUsageAgainstDF compares with df itself, if it is installed, on file systems that do not
// change in between.
func TestUsageAgainstDF(t *testing.T) {
	t.Parallel()
	df := need.Program(t, "df")
	amount := func(word string) int64 {
		n, _ := strconv.ParseInt(strings.TrimSuffix(word, "%"), 10, 64) // "-" is 0
		return n
	}
	ask := func(option, path string) (a Amounts, ok bool) {
		out, err := exec.CommandContext(t.Context(), df, option, path).Output()
		lines := strings.Split(string(out), "\n")
		if err != nil || len(lines) < 2 {
			return a, false
		}
		f := strings.Fields(lines[1])
		if len(f) != 6 || f[5] != path {
			return a, false
		}
		return Amounts{amount(f[1]), amount(f[2]), amount(f[3]), int(amount(f[4]))}, true
	}
	for _, path := range []string{"/", "/proc", "/sys", "/dev", "/dev/shm", "/boot", "/boot/efi"} {
		for what, option := range map[Amount]string{Space: "-Pk", Inodes: "-Pi"} {
			for try := 0; ; try++ {
				want, ok := ask(option, path)
				got, err := FSUsage(NewHost("/"), path, what)
				if !ok || err == nil && want == got {
					break
				}
				if try == 20 { // another process writes to it all the time
					t.Errorf("%s, %s: %v (-df +got):\n%s", path, what, err, cmp.Diff(want, got))
					break
				}
			}
		}
	}
}

// FuzzUsage tests invariants for any numbers of a file system.
func FuzzUsage(f *testing.F) {
	f.Add(uint64(4096), uint64(1000), uint64(500), uint64(400))
	f.Add(uint64(1), uint64(1)<<63, uint64(math.MaxUint64), uint64(math.MaxUint64-9))
	f.Fuzz(func(t *testing.T, unit, blocks, bfree, bavail uint64) {
		a := fsNumbers{unit, blocks, bfree, bavail, blocks, bfree}.usage(Space)
		if a.Total < 0 || a.Percent < 0 {
			t.Errorf("total %d, %d%%", a.Total, a.Percent)
		}
		sane := unit > 0 && blocks < 1<<50 && unit < 1<<20 && bfree <= blocks && bavail <= bfree
		if sane && (a.Percent > 100 || a.Used < 0 || a.Free < 0 || a.Used > a.Total || a.Free > a.Total) {
			t.Errorf("unit %d, %d blocks, %d and %d free: %+v", unit, blocks, bfree, bavail, a)
		}
		if sane && bavail == 0 && bfree < blocks && a.Percent != 100 {
			t.Errorf("nothing is left: %d%%", a.Percent)
		}
	})
}

func FuzzStatfs(f *testing.F) {
	f.Add([]byte("/ 4096 1 2 3 4 5\n"))
	f.Add([]byte("\\040 0x10 -1 18446744073709551616 a b c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for point := range parseStatfs(data) {
			if point == "" {
				t.Error("a file system without a mount point")
			}
		}
	})
}
