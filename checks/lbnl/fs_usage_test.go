package lbnl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// usageNode has file systems of all kinds. /s/half is half used; /s/ext4 reserves 5 % for root.
var usageNode = map[string]string{
	"proc/mounts": `rootfs / rootfs rw 0 0
half /s/half tmpfs rw 0 0
big /s/big tmpfs rw 0 0
g /s/g tmpfs rw 0 0
proc /s/pseudo proc rw 0 0
x1 /s/over tmpfs rw 0 0
x2 /s/over tmpfs rw 0 0
y1 /s/hid hidden rw 0 0
proc /s/hid proc rw 0 0
sp /s/a\040b tmpfs rw 0 0
/dev/sda1 /s/ext4 ext4 rw 0 0
fat /s/fat vfat rw 0 0
nfs:/x /s/dead nfs rw 0 0
none /s/eaten ufs rw 0 0
`,
	"statfs": `/s/half 4096 2560 1280 1280 10 5
/s/big 4096 2147483648 2147483648 2147483648 5000000 4999999
/s/g 4096 393216 393216 393216 1500000 1499999
/s/pseudo 4096 0 0 0 0 0
/s/over 4096 512 512 512 1000 999
/s/hid 4096 0 0 0 0 0
/s/a\040b 4096 256 256 256 1000 999
/s/ext4 4096 1000000 60000 10000 65536 32768
/s/fat 512 2001 1 1 0 0
/s/eaten 1024 1000 40 0xfffffffffffffff6 100 40
`,
}

func onUsage(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Words: words, Files: usageNode, Want: want}
}

// usageFail returns the finding of the check with the same name as the code.
func usageFail(code, fs, text, want, got string) checks.Finding {
	check := map[string]string{"fs.size.": "check_fs_size", "fs.inodes.": "check_fs_inodes"}[code[:strings.LastIndexByte(code, '.')+1]]
	if check == "" {
		check = "check_fs_" + strings.TrimPrefix(code, "fs.")
	}
	return checks.Finding{Code: code, Severity: checks.Fail, Device: checks.Device{Kind: "mount", Name: fs}, Want: want, Got: got, Message: check + ":  " + fs + " " + text}
}

func pseudo(check, fs string) checks.Finding {
	return checks.Finding{Code: "fs.pseudo", Severity: checks.Warn, Device: checks.Device{Kind: "mount", Name: fs}, Remedy: checks.FixConfig, Syslog: true,
		Message: "WARNING:  Possible bogus check:  " + check + " on pseudofilesystem " + fs}
}

func noAnswer(text string) checks.Finding {
	return checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: text}
}

// common returns the scenarios that all six checks share; limit is a limit that passes.
func common(check, what, limit, want string) []checktest.Scenario {
	fraction := cmdValue(check, what, "1.5.2G", want)
	return []checktest.Scenario{
		onUsage("blank in the mount point", checktest.Of("/s/a b", limit)),
		onUsage("no arguments", checktest.Of()),
		onUsage("no limit", checktest.Of("/s/half")),
		onUsage("empty limit", checktest.Of("/s/half", "")),
		onUsage("not mounted", checktest.Of("/s/none", limit)),
		onUsage("another name", checktest.Of("/s/half/", limit)),
		onUsage("raw name", checktest.Of("/s/a040b", limit)),
		onUsage("more arguments", checktest.Of("/s/half", limit, "", "more")),
		onUsage("pseudo file system", checktest.Of("/s/pseudo", limit), pseudo(check, "/s/pseudo")),
		onUsage("pseudo file system on top", checktest.Of("/s/hid", limit), pseudo(check, "/s/hid")),
		onUsage("pseudo file system, no limit", checktest.Of("/s/pseudo"), pseudo(check, "/s/pseudo")),

		onUsage("malformed", checktest.Of("/s/half", "1.5.2G"), fraction),
		onUsage("malformed, not mounted", checktest.Of("/s/none", "1.5.2G"), fraction),
		onUsage("a word", checktest.Of("/s/half", "ten"), cmdValue(check, what, "ten", want)),
		onUsage("only a percent sign", checktest.Of("/s/half", "%"), cmdValue(check, what, "%", want)),

		onUsage("does not answer", checktest.Of("/s/dead", limit), noAnswer("statfs /s/dead: no such file or directory")).OnBroken(),
		{Name: "no mount table", Broken: true, Words: checktest.Of("/s/half", limit),
			Want: []checks.Finding{noAnswer("read /proc/mounts: no such file or directory")}},
		{Name: "garbage in the mount table", Broken: true, Words: checktest.Of("/s/half", limit),
			Files: map[string]string{"proc/mounts": "\x00\xff\nrubbish\n"}},
		{Name: "this machine", Live: true, Words: checktest.Of("/proc", limit), Want: []checks.Finding{pseudo(check, "/proc")}},
	}
}

const (
	wantInodes  = "a number such as 500000 or 1.5M"
	wantPercent = ", or a percentage"
)

func TestFSSize(t *testing.T) { checktest.Run(t, "check_fs_size") }

var _ = checktest.Table("check_fs_size", func(string) []checktest.Scenario {
	return append(common("check_fs_size", "minimum", "1", wantSize),
		onUsage("limits are inclusive", checktest.Of("/s/half", "10240", "10240")).
			OrTable(map[string]any{"fs": "/s/half", "min": int64(10240), "max": "10240"}),
		onUsage("units", checktest.Of("/s/half", "10m", "10MB")),
		onUsage("no minimum", checktest.Of("/s/half", "", "1gb")),
		onUsage("fractions", checktest.Of("/s/half", "9.5M", "10.5M")),
		onUsage("large", checktest.Of("/s/big", "8T", "1p")),
		onUsage("negative", checktest.Of("/s/half", "-5")),
		onUsage("blocks of half a kB", checktest.Of("/s/fat", "1001", "1001")), // 1000.5 kB, which df rounds up

		onUsage("too small", checktest.Of("/s/half", "10241"), usageFail("fs.size.small", "/s/half", "size 10MB less than minimum of 10MB", "at least 10MB", "10MB")),
		onUsage("too small, large", checktest.Of("/s/big", "8.5T"), usageFail("fs.size.small", "/s/big", "size 8TB less than minimum of 8704GB", "at least 8704GB", "8TB")),
		onUsage("too large", checktest.Of("/s/half", "1", "9.5M"), usageFail("fs.size.large", "/s/half", "size 10MB exceeds maximum of 9728kB", "at most 9728kB", "10MB")),
		onUsage("negative maximum", checktest.Of("/s/half", "", "-5"), usageFail("fs.size.large", "/s/half", "size 10MB exceeds maximum of -5kB", "at most -5kB", "10MB")),
		onUsage("hexadecimal", checktest.Of("/s/half", "", "0x10"), usageFail("fs.size.large", "/s/half", "size 10MB exceeds maximum of 0x10kB", "at most 0x10kB", "10MB")),
		onUsage("the last mount counts", checktest.Of("/s/over", "1T"), usageFail("fs.size.small", "/s/over", "size 2MB less than minimum of 1TB", "at least 1TB", "2MB")),
		onUsage("no percentages", checktest.Of("/s/half", "10%"), cmdValue("check_fs_size", "minimum", "10%", wantSize)),
		onUsage("malformed maximum", checktest.Of("/s/half", "", "12x"), cmdValue("check_fs_size", "maximum", "12x", wantSize)),
	)
})

func TestFSInodes(t *testing.T) { checktest.Run(t, "check_fs_inodes") }

var _ = checktest.Table("check_fs_inodes", func(string) []checktest.Scenario {
	return append(common("check_fs_inodes", "minimum", "1", wantInodes),
		onUsage("limits are inclusive", checktest.Of("/s/half", "10", "10")).OrTable(map[string]any{"fs": "/s/half", "min": "10", "max": int64(10)}),
		onUsage("units", checktest.Of("/s/g", "1500k", "1500K")),
		onUsage("fractions", checktest.Of("/s/g", "1.5M", "1.5m")),
		onUsage("no minimum", checktest.Of("/s/g", "", "2M")),

		onUsage("too few", checktest.Of("/s/g", "1.6m"), usageFail("fs.inodes.small", "/s/g", "inodes 1500000 less than minimum of 1600k", "at least 1600k", "1500000")),
		onUsage("too many", checktest.Of("/s/g", "", "999999"), usageFail("fs.inodes.large", "/s/g", "inodes 1500000 exceeds maximum of 1000k", "at most 1000k", "1500000")),
		onUsage("octal", checktest.Of("/s/half", "1", "010"), usageFail("fs.inodes.large", "/s/half", "inodes 10 exceeds maximum of 010", "at most 010", "10")),
		onUsage("no bytes", checktest.Of("/s/half", "10b"), cmdValue("check_fs_inodes", "minimum", "10b", wantInodes)),
		onUsage("no inodes", checktest.Of("/s/fat", "10"), pseudo("check_fs_inodes", "/s/fat")),
	)
})

func TestFSFree(t *testing.T) { checktest.Run(t, "check_fs_free") }

var _ = checktest.Table("check_fs_free", func(string) []checktest.Scenario {
	return append(common("check_fs_free", "minimum", "0", wantSize+wantPercent),
		onUsage("percent at the limit", checktest.Of("/s/half", "50%")).OrTable(map[string]any{"fs": "/s/half", "min": "50%"}),
		onUsage("size at the limit", checktest.Of("/s/half", "5MB")),
		onUsage("percent with a fraction", checktest.Of("/s/half", "49.5%")),
		onUsage("all of it", checktest.Of("/s/big", "100%")),
		onUsage("negative percentage", checktest.Of("/s/half", "-1%")),

		onUsage("percent", checktest.Of("/s/half", "50.5%"), usageFail("fs.free", "/s/half", "has only 50% free (5MB), minimum is 50.5%", "at least 50.5%", "50%")),
		onUsage("size", checktest.Of("/s/half", "5.5M"), usageFail("fs.free", "/s/half", "has only 5MB free, minimum is 5632kB", "at least 5632kB", "5MB")),
		onUsage("size by one", checktest.Of("/s/half", "5121"), usageFail("fs.free", "/s/half", "has only 5MB free, minimum is 5MB", "at least 5MB", "5MB")),
		onUsage("the reserve of root is not free", checktest.Of("/s/ext4", "2%"), usageFail("fs.free", "/s/ext4", "has only 1% free (39MB), minimum is 2%", "at least 2%", "1%")),
		onUsage("users have used the reserve", checktest.Of("/s/eaten", "1"), usageFail("fs.free", "/s/eaten", "has only -10kB free, minimum is 1kB", "at least 1kB", "-10kB")),
		onUsage("malformed percentage", checktest.Of("/s/half", "5x%"), cmdValue("check_fs_free", "minimum", "5x%", wantSize+wantPercent)),
	)
})

func TestFSIfree(t *testing.T) { checktest.Run(t, "check_fs_ifree") }

var _ = checktest.Table("check_fs_ifree", func(string) []checktest.Scenario {
	return append(common("check_fs_ifree", "minimum", "0", wantInodes+wantPercent),
		onUsage("at the limit", checktest.Of("/s/half", "5")).OrTable(map[string]any{"fs": "/s/half", "min": int64(5)}),
		onUsage("percent at the limit", checktest.Of("/s/half", "50%")),
		onUsage("percent, rounded", checktest.Of("/s/g", "99%")),

		onUsage("count", checktest.Of("/s/half", "1k"), usageFail("fs.ifree", "/s/half", "has only 5 inodes free, minimum is 1k", "at least 1k", "5")),
		onUsage("percent", checktest.Of("/s/half", "51%"), usageFail("fs.ifree", "/s/half", "has only 50% of inodes free (5), minimum is 51%", "at least 51%", "50%")),
		onUsage("fraction", checktest.Of("/s/g", "1.5M"), usageFail("fs.ifree", "/s/g", "has only 1499999 inodes free, minimum is 1500k", "at least 1500k", "1499999")),
	)
})

func TestFSUsed(t *testing.T) { checktest.Run(t, "check_fs_used") }

var _ = checktest.Table("check_fs_used", func(string) []checktest.Scenario {
	return append(common("check_fs_used", "threshold", "100%", wantSize+wantPercent),
		onUsage("below", checktest.Of("/s/half", "51%")).OrTable(map[string]any{"fs": "/s/half", "max": "51%"}),
		onUsage("size below", checktest.Of("/s/half", "5121")),
		onUsage("empty", checktest.Of("/s/big", "1%")),

		onUsage("percent reached", checktest.Of("/s/half", "50%"), usageFail("fs.used", "/s/half", "is 50% full (5MB), threshold is 50%", "less than 50%", "50%")),
		onUsage("size reached", checktest.Of("/s/half", "5M"), usageFail("fs.used", "/s/half", "has 5MB used, threshold is 5MB", "less than 5MB", "5MB")),
		onUsage("fraction", checktest.Of("/s/half", "4.5m"), usageFail("fs.used", "/s/half", "has 5MB used, threshold is 4608kB", "less than 4608kB", "5MB")),
		onUsage("Use% is rounded up", checktest.Of("/s/ext4", "98.95%"), usageFail("fs.used", "/s/ext4", "is 99% full (3760000kB), threshold is 98.95%", "less than 98.95%", "99%")),
		onUsage("a limit of 0", checktest.Of("/s/half", "0"), usageFail("fs.used", "/s/half", "has 5MB used, threshold is 0kB", "less than 0kB", "5MB")),
		onUsage("users have used the reserve", checktest.Of("/s/eaten", "100%"),
			usageFail("fs.used", "/s/eaten", "is 102% full (960kB), threshold is 100%", "less than 100%", "102%")),
		onUsage("letter for a digit", checktest.Of("/s/half", "9O%"), cmdValue("check_fs_used", "threshold", "9O%", wantSize+wantPercent)),
	)
})

func TestFSIused(t *testing.T) { checktest.Run(t, "check_fs_iused") }

var _ = checktest.Table("check_fs_iused", func(string) []checktest.Scenario {
	return append(common("check_fs_iused", "threshold", "1M", wantInodes+wantPercent),
		onUsage("below", checktest.Of("/s/half", "6")).OrTable(map[string]any{"fs": "/s/half", "max": "6"}),
		onUsage("percent below", checktest.Of("/s/half", "50.5%")),
		onUsage("fraction", checktest.Of("/s/half", "0.5k")),

		onUsage("reached", checktest.Of("/s/half", "5"), usageFail("fs.iused", "/s/half", "has 5 inodes used, threshold is 5", "less than 5", "5")),
		onUsage("percent reached", checktest.Of("/s/half", "0%"), usageFail("fs.iused", "/s/half", "has 50% of inodes used (5), threshold is 0%", "less than 0%", "50%")),
	)
})

// TestMountTables shows that the checks of space, of inodes and of mounts have a mount table each,
// which the first of them reads. A line between them can mount a file system.
func TestMountTables(t *testing.T) {
	t.Parallel()
	root := checktest.Scenario{Files: usageNode}.Build(t)
	env := &checks.Env{Host: probe.NewHost(root), Line: "check_fs_mount"}
	judge := func(line string) string {
		t.Helper()
		words := strings.Fields(line)
		info, _ := checks.Lookup(words[0])
		c := info.New()
		if err := checks.Bind(c, words[1:]); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range c.Run(t.Context(), env) {
			got = append(got, f.Message)
		}
		return strings.Join(got, "\n")
	}
	for _, step := range []struct{ mounts, line, want string }{
		{mounts: "half /s/half tmpfs rw 0 0\n", line: "check_fs_free /s/half 1%"},
		{mounts: "half /s/half tmpfs rw 0 0\nbig /s/big tmpfs rw 0 0\n", line: "check_fs_mount -f /s/big"},
		{line: "check_fs_inodes /s/big 6M", want: "check_fs_inodes:  /s/big inodes 5000000 less than minimum of 6M"},
		{line: "check_fs_size /s/big 9T"}, // not mounted when the first check of space read the table
		{mounts: "x / tmpfs rw 0 0\n", line: "check_fs_mount -f /s/big"},
		{line: "check_all_fs_inodes tmpfs 11", want: "check_fs_inodes:  /s/half inodes 10 less than minimum of 11"},
		{line: "check_all_fs_used tmpfs 50%", want: "check_fs_used:  /s/half is 50% full (5MB), threshold is 50%"},
	} {
		if step.mounts != "" {
			if err := os.WriteFile(filepath.Join(root, "proc/mounts"), []byte(step.mounts), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(step.want, judge(step.line)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.line, diff)
		}
	}
}
