package lbnl

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// The user who runs the test owns its files.
var (
	testUID = strconv.Itoa(os.Geteuid())
	testGID = strconv.Itoa(os.Getegid())
)

// onStat returns a scenario of a node with eight equal files of mode 0755, created by the test.
func onStat(name string, words []string, want ...checks.Finding) checktest.Scenario {
	files := map[string]string{
		"etc/passwd": "tester:x:" + testUID + ":0::/:/bin/sh\n",
		"etc/group":  "hpc users:x:" + testGID + ":\n",
		"a b":        "",
		"d/":         "",
	}
	for i := range 8 {
		files[fmt.Sprintf("f%d", i)] = ""
	}
	return checktest.Scenario{Name: name, Words: words, Want: want, Files: files, Links: map[string]string{"l": "nowhere"}}
}

// nameless removes the accounts from /etc/passwd and /etc/group.
func nameless(s checktest.Scenario) checktest.Scenario {
	s.Files["etc/passwd"], s.Files["etc/group"] = "\x00:::\n", "rubbish\n"
	return s
}

func written(s checktest.Scenario, file string, when time.Time) checktest.Scenario {
	s.Mtimes = map[string]time.Time{file: when}
	return s
}

func statFinding(code, file, text, want, got string) checks.Finding {
	return checks.Finding{Code: "file.stat." + code, Severity: checks.Fail, Device: checks.Device{Kind: "file", Name: file}, Want: want, Got: got,
		Message: `check_file_stat:  File "` + file + `" ` + text}
}

func statMissing(file, got string) checks.Finding {
	return checks.Finding{Code: "file.stat.missing", Severity: checks.Fail, Device: checks.Device{Kind: "file", Name: file}, Want: "a file", Got: got,
		Message: "check_file_stat:  stat(" + file + ") returned 1:  "}
}

func statValue(what, word string) checks.Finding {
	return cmdValue("check_file_stat", what, word, "a whole number")
}

const statLetters = "one of -D -G -M -N -O -T -U -d -g -m -n -o -t -u"

func TestFileStat(t *testing.T) { checktest.Run(t, "check_file_stat") }

var _ = checktest.Table("check_file_stat", func(string) []checktest.Scenario {
	all := checktest.Of("/f0", "/f1", "/f2", "/f3", "/f4", "/f5", "/f6", "/f7")
	return []checktest.Scenario{
		onStat("everything", append(checktest.Of("-m", "0755", "-M", "0111", "-u", testUID, "-g", testGID, "-U", "tester", "-G", "hpc users",
			"-n", "3600", "-o", "-100", "-N", "3600", "-O", "-100", "-d", checktest.TestDevice(), "-t", "0", "-T", "0x0"), all...)).
			OrTable(map[string]any{"mode": "0755", "mode_has": "0111", "uid": testUID, "gid": testGID, "user": "tester", "group": "hpc users",
				"mtime_newer": int64(3600), "mtime_older": int64(-100), "ctime_newer": "3600", "ctime_older": "-100", "device": checktest.TestDevice(),
				"major": int64(0), "minor": "0x0", "files": []any{"/f0", "/f1", "/f2", "/f3", "/f4", "/f5", "/f6", "/f7"}}),
		onStat("a mode in decimal", checktest.Of("-m", "493", "/f0")),
		onStat("a mode in hexadecimal", checktest.Of("-m0x1ed", "/f0")),
		onStat("directory, blank", checktest.Of("-m", "0755", "/d", "/a b")),
		onStat("link, not what it points to", checktest.Of("-m", "0777", "/l")),
		inside(onStat("relative", checktest.Of("-m", "0755", "f0")), "/"),
		nameless(onStat("nameless owner", checktest.Of("-U", "UNKNOWN", "-G", "UNKNOWN", "/f0"))),
		onStat("no options", checktest.Of("/f0")),
		onStat("empty values", checktest.Of("-m", "", "-u", "", "-n", "", "-U", "", "/f0")),
		onStat("no files", checktest.Of("-m", "0644")),
		onStat("the last -d or -D counts", checktest.Of("-d", "1", "-D", checktest.TestDevice(), "/f0")),
		onStat("no options and no files", checktest.Of()),
		onStat("a mask without bits", checktest.Of("-M", "0", "/f0")),
		{Name: "device file", Live: true, Words: checktest.Of("-t", "1", "-T", "0x3", "/dev/null")},
	}
})

var _ = checktest.Table("check_file_stat", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onStat("one of eight", checktest.Of("-m", "0755", "/f0", "/f1", "/f2", "/f3", "/none", "/f4", "/f5", "/f6"),
			statMissing("/none", "stat /none: no such file or directory")),
		onStat("mode", checktest.Of("-m", "0644", "/f0"), statFinding("mode", "/f0", "has permissions 0755; should be 0644", "0644", "0755")),
		onStat("a mode without 0 is decimal", checktest.Of("-m", "755", "/f0"), statFinding("mode", "/f0", "has permissions 0755; should be 755", "755", "0755")),
		onStat("bits", checktest.Of("-M", "0022", "/f0"), statFinding("mode", "/f0", "has permissions 0755; should be at least 0022", "0022", "0755")),
		onStat("some of the bits", checktest.Of("-M", "0777", "/f0"), statFinding("mode", "/f0", "has permissions 0755; should be at least 0777", "0777", "0755")),
		onStat("uid", checktest.Of("-u", "00", "/f0"), statFinding("owner", "/f0", `UID is "`+testUID+`"; should be "00"`, "00", testUID)),
		onStat("gid", checktest.Of("-g", "4711", "/f0"), statFinding("group", "/f0", `GID is "`+testGID+`"; should be "4711"`, "4711", testGID)),
		onStat("user", checktest.Of("-U", "alice", "/f0"), statFinding("owner", "/f0", `username is "tester"; should be "alice"`, "alice", "tester")),
		onStat("group", checktest.Of("-G", "hpc", "/f0"), statFinding("group", "/f0", `groupname is "hpc users"; should be "hpc"`, "hpc", "hpc users")),
		onStat("device", checktest.Of("-d", "1", "/f0"),
			statFinding("device", "/f0", "device number is "+checktest.TestDevice()+"; should be 1", "1", checktest.TestDevice())),
		onStat("major", checktest.Of("-t", "7", "/f0"), statFinding("node", "/f0", "has device major number 0x0; should be 7", "7", "0x0")),
		{Name: "minor", Live: true, Words: checktest.Of("-t", "1", "-T", "5", "/dev/null"),
			Want: []checks.Finding{statFinding("node", "/dev/null", "has device minor number 0x3; should be 5", "5", "0x3")}},
		written(onStat("too old", checktest.Of("-n", "86400", "/f0", "/f7"),
			statFinding("age", "/f7", "mtime is not newer than 86400s", "newer than 86400s", "2020-02-29T12:00:00Z")), "f7", time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC)),
		written(onStat("too new", checktest.Of("-o", "86400", "/f0"),
			statFinding("age", "/f0", "mtime is not older than 86400s", "older than 86400s", "2100-01-01T00:00:00Z")), "f0", time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)),
		onStat("order", checktest.Of("-U", "alice", "-m", "0644", "-G", "x", "-u", "4711", "-g", "4711", "/f0"),
			statFinding("group", "/f0", `GID is "`+testGID+`"; should be "4711"`, "4711", testGID)),
		onStat("order of the names", checktest.Of("-U", "alice", "-m", "0644", "-G", "x", "/f0"),
			statFinding("group", "/f0", `groupname is "hpc users"; should be "x"`, "x", "hpc users")),
		onStat("mode before the owner's name", checktest.Of("-U", "alice", "-m", "0644", "/f0"),
			statFinding("mode", "/f0", "has permissions 0755; should be 0644", "0644", "0755")),
	}
})

var _ = checktest.Table("check_file_stat", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onStat("unknown option", checktest.Of("-z", "/f0"), checktest.UsageFinding("check_file_stat:  Invalid option:  -z", statLetters)),
		onStat("option without its argument", checktest.Of("-m"), checktest.UsageFinding("check_file_stat:  Option -m requires an argument.", "")),
		onStat("mode is no octal number", checktest.Of("-m", "0899", "/f0"), statValue("mode", "0899")),
		onStat("bits are no number", checktest.Of("-M", "rwx", "/f0"), statValue("mode", "rwx")),
		onStat("device is no number", checktest.Of("-D", "1x", "/f0"), statValue("device number", "1x")),
		onStat("major is no number", checktest.Of("-t", "0x", "/f0"), statValue("major number", "0x")),
		onStat("minor is no number", checktest.Of("-T", "1,5", "/f0"), statValue("minor number", "1,5")),
		onStat("age with a unit", checktest.Of("-n", "1h", "/f0"), statValue("mtime", "1h")),
		onStat("age with a fraction", checktest.Of("-o", "1.5", "/f0"), statValue("mtime", "1.5")),
		onStat("age is a word", checktest.Of("-N", "old", "/f0"), statValue("ctime", "old")),
		onStat("age with a percent sign", checktest.Of("-O", "5%", "/none"), statValue("ctime", "5%")),

		onStat("below a file", checktest.Of("-m", "0755", "/f0/x"), statMissing("/f0/x", "stat /f0/x: not a directory")).OnBroken(),
		onStat("no name", checktest.Of("-m", "0755", ""), statMissing("", "stat : no such file or directory")).OnBroken(),
	}
})

// TestFileAge shows which time of a file each option compares, and the order of the tests.
func TestFileAge(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path := filepath.Join(root, "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	env := &checks.Env{Host: probe.NewHost(root)}
	for options, want := range map[string]string{
		"-n 3700":         "",
		"-n 3000":         "mtime is not newer than 3000s",
		"-o 3000":         "",
		"-o 3700":         "mtime is not older than 3700s",
		"-N 600":          "", // os.Chtimes has just changed the inode
		"-N -100":         "ctime is not newer than -100s",
		"-O 600":          "ctime is not older than 600s",
		"-n 1 -N -100":    "ctime is not newer than -100s",
		"-n 1 -O 600":     "ctime is not older than 600s",
		"-O 600 -d 1":     "ctime is not older than 600s",
		"-n 0 -o 3700":    "mtime is not newer than 0s",
		"-U nobody -n 9":  "mtime is not newer than 9s",
		"-N 600 -o 0x100": "",
	} {
		c := &fileStat{}
		if err := checks.Bind(c, append(strings.Fields(options), "/f")); err != nil {
			t.Fatal(err)
		}
		got := ""
		if found := c.Run(t.Context(), env); len(found) > 0 {
			got = strings.TrimPrefix(found[0].Message, `check_file_stat:  File "/f" `)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", options, got, want)
		}
	}
}
