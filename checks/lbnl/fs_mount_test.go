package lbnl

import (
	"errors"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

const mountTable = `rootfs / rootfs rw 0 0
nfs1:/export/home /m/home nfs4 rw,nosuid,vers=4.2 0 0
scratchfs /m/scratch lustre rw 0 0
/dev/sdb /m/soft ext4 ro,errors=remount-ro 0 0
ram0 /m/ram ramfs rw 0 0
under /m/twice ext4 ro 0 0
over /m/twice tmpfs rw 0 0
blank /m/a\040b tmpfs ro 0 0
srv:/a\040share /m/share nfs ro,x=\040 0 0
`

// mountNode is a node with that mount table, a directory without a mount, and a shell for actions.
var mountNode = checktest.Scenario{
	Files: map[string]string{
		"proc/mounts": mountTable,
		"m/plain/":    "",
		"m/file":      "",
		"bin/mount":   "#!/bin/sh\necho mount \"$@\" >> {root}/log\n",
	},
	Tools: []string{"bash"},
	Vars:  map[string]string{"PWD": "/"},
}

func onMounts(name string, words []string, want ...checks.Finding) checktest.Scenario {
	s := mountNode
	s.Name, s.Words, s.Want = name, words, want
	return s
}

func mountFinding(code, fs, text, want, got string) checks.Finding {
	return checks.Finding{
		Code: "fs.mount." + code, Severity: checks.Fail, Device: checks.Device{Kind: "mount", Name: fs}, Want: want, Got: got,
		Message: "check_fs_mount:  " + fs + text}
}

func notMounted(fs, text string) checks.Finding {
	return mountFinding("missing", fs, " not mounted"+text, "mounted", "not mounted")
}

// notFixed returns the finding of a mount point that could not be created.
func notFixed(fs, err string) checks.Finding {
	f := notMounted(fs, "; directory "+fs+" missing (auto-fixed)")
	f.Got += ", and " + err
	return f
}

func nonfatal(f checks.Finding) checks.Finding {
	f.Severity = checks.Warn
	f.Message += " (non-fatal)"
	return f
}

// The failures that several scenarios expect.
var (
	plain       = notMounted("/m/plain", "")
	homeType    = mountFinding("type", "/m/home", " has incorrect type nfs4 (should match tmpfs)", "tmpfs", "nfs4")
	homeOptions = mountFinding("options", "/m/home", " mount options incorrect (should match /noexec/)", "/noexec/", "rw,nosuid,vers=4.2")
)

// fixedOptions returns the finding of a file system without the options that check_fs_mount_rw or
// _ro expects.
func fixedOptions(fs, want, got string) checks.Finding {
	return mountFinding("options", fs, " mount options incorrect (should match "+want+")", want, got)
}

func TestFSMount(t *testing.T) { checktest.Run(t, "check_fs_mount") }

var _ = checktest.Table("check_fs_mount", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onMounts("mounted", checktest.Of("-f", "/m/home")).OrTable(map[string]any{"fs": "/m/home"}),
		onMounts("all options", checktest.Of("-0", "-t", "nfs4", "-s", "nfs1:*", "-o", "/nosuid/", "-o", "!*noexec*", "-f", "/m/home")).
			OrTable(map[string]any{"nonfatal": true, "type": "nfs4", "source": "nfs1:*", "options": []any{"/nosuid/", "!*noexec*"}, "fs": []any{"/m/home"}}),
		onMounts("several", checktest.Of("-f", "/m/home", "-f", "/m/scratch", "/m/ram", "", "/m/none")),
		onMounts("old syntax", checktest.Of("/m/home", "nfs1:*", "nfs4", "/(^|,)rw(,|$)/", "more")),
		onMounts("old syntax, empty words", checktest.Of("/m/home", "", "nfs*", "")),
		onMounts("no arguments", checktest.Of()),
		onMounts("automount", checktest.Of("-F", "/m/home")).OrTable(map[string]any{"automount": "/m/home"}),
		onMounts("the last mount counts", checktest.Of("-s", "over", "-t", "tmpfs", "-f", "/m/twice")),
		onMounts("blank in the source and the options", checktest.Of("-s", "srv:/a040share", "-o", "ro,x=040", "-f", "/m/share")),
		onMounts("blank in the mount point", checktest.Of("-t", "tmpfs", "-f", "/m/a b")),
	}
})

var _ = checktest.Table("check_fs_mount", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onMounts("not mounted", checktest.Of("-f", "/m/plain"), plain),
		onMounts("not mounted, old syntax", checktest.Of("/m/plain"), plain),
		onMounts("automount fails", checktest.Of("-F", "/m/plain"), plain),
		onMounts("second one fails", checktest.Of("-t", "nfs4", "/m/home", "/m/ram", "/m/plain"),
			mountFinding("type", "/m/ram", " has incorrect type ramfs (should match nfs4)", "nfs4", "ramfs")),
		onMounts("source", checktest.Of("-s", "nfs2:*", "-f", "/m/home"),
			mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should match nfs2:*)", "nfs2:*", "nfs1:/export/home")),
		onMounts("forbidden source", checktest.Of("-s", "!nfs1:*", "-f", "/m/home"),
			mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should NOT match nfs1:*)", "!nfs1:*", "nfs1:/export/home")),
		onMounts("type", checktest.Of("-t", "tmpfs", "-f", "/m/home"), homeType),
		onMounts("options", checktest.Of("-o", "/noexec/", "-f", "/m/home"), homeOptions),
		onMounts("source comes before type and options", checktest.Of("-o", "none", "-t", "none", "-s", "none", "-f", "/m/ram"),
			mountFinding("source", "/m/ram", " mounted from ram0 (should match none)", "none", "ram0")),
		onMounts("trailing slash", checktest.Of("/m/home/"), notMounted("/m/home/", "; directory /m/home/ missing (auto-fixed)")),
		onMounts("undecoded blank", checktest.Of("-f", "/m/a040b"), notMounted("/m/a040b", "; directory /m/a040b missing (auto-fixed)")),
		onMounts("missing directory", checktest.Of("-f", "/m/x/y"), notMounted("/m/x/y", "; directory /m/x/y missing (auto-fixed)")),
		onMounts("a file in the way", checktest.Of("-f", "/m/file"),
			notFixed("/m/file", "mkdir /m/file: not a directory")),
		onMounts("empty name", checktest.Of("-f", ""), notFixed("", "invalid argument")),
		onMounts("-0 goes on", checktest.Of("-0", "-t", "tmpfs", "-f", "/m/home", "/m/plain"), nonfatal(homeType), nonfatal(plain)),
		onMounts("bad range in a match string", checktest.Of("-0", "-s", "{nfs[1}", "-f", "/m/home"),
			checks.Finding{Code: "config.match", Severity: checks.Warn, Remedy: checks.FixConfig, Message: "mcheck_range:  Range not in pdsh syntax:  nfs[1"},
			nonfatal(mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should match {nfs[1})", "{nfs[1}", "nfs1:/export/home"))),
		onMounts("match string that cannot be judged", checktest.Of("-0", "-s", `/(n)\1/`, "-f", "/m/home"),
			checks.Finding{Code: "config.match", Severity: checks.Unknown, Remedy: checks.FixConfig,
				Message: `match expression "/(n)\\1/": back-references are not supported`},
			nonfatal(mountFinding("source", "/m/home", ` mounted from nfs1:/export/home (should match /(n)\1/)`, `/(n)\1/`, "nfs1:/export/home"))),
	}
})

var _ = checktest.Table("check_fs_mount", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onMounts("found action", checktest.Of("-e", "echo missing > act", "-E", "echo found > act", "-f", "/m/home")).
			Leaving(map[string]string{"act": "found\n"}).
			OrTable(map[string]any{"missing_action": "echo missing > act", "found_action": "echo found > act", "fs": "/m/home"}),
		onMounts("missing action", checktest.Of("-e", "echo missing > act", "-E", "echo found > act", "-f", "/m/plain"), plain).
			Leaving(map[string]string{"act": "missing\n"}),
		onMounts("no found action after a failure", checktest.Of("-E", "echo found > act", "-t", "tmpfs", "-f", "/m/home"), homeType).
			Leaving(map[string]string{"act": ""}),
		onMounts("mount", checktest.Of("-r", "-f", "/m/plain"), plain).Leaving(map[string]string{"log": "mount /m/plain\n"}).
			OrTable(map[string]any{"remount": true, "fs": "/m/plain"}),
		onMounts("mount with options", checktest.Of("-r", "-O", "rw,nolock", "-f", "/m/plain"), plain).
			Leaving(map[string]string{"log": "mount -o rw,nolock /m/plain\n"}).
			OrTable(map[string]any{"remount": true, "mount_options": "rw,nolock", "fs": "/m/plain"}),
		onMounts("mount on a missing directory", checktest.Of("-r", "-O", "ro", "-f", "/m/gone"), notMounted("/m/gone", "; directory /m/gone missing (auto-fixed)")).
			Leaving(map[string]string{"log": "mount -o ro /m/gone\n"}),
		onMounts("remount without options", checktest.Of("-r", "-o", "/noexec/", "-f", "/m/home"), homeOptions).
			Leaving(map[string]string{"log": "mount /m/home\n"}),
		onMounts("remount with options", checktest.Of("-r", "-o", "/noexec/", "-O", "noexec", "-f", "/m/home"), homeOptions).
			Leaving(map[string]string{"log": "mount -o remount,noexec /m/home\n"}),
		with(onMounts("own command", checktest.Of("-r", "-O", "a b", "-f", "/m/plain"), plain), "MOUNT_CMD", "mount 'with blanks' -v").
			Leaving(map[string]string{"log": "mount with blanks -v -o a b /m/plain\n"}),
		with(onMounts("own command line", checktest.Of("-r", "-O", "ro", "-f", "/m/plain"), plain), "MOUNT_CMD", "echo first >>log; echo >>log").
			Leaving(map[string]string{"log": "first\n-o ro /m/plain\n"}),
		onMounts("mount and go on", checktest.Of("-0", "-r", "-f", "/m/plain"), nonfatal(plain)).
			Leaving(map[string]string{"log": "mount /m/plain\n"}),
	}
})

const mountLetters = "one of -f -F -s -t -o -O -r -0 -e -E"

var _ = checktest.Table("check_fs_mount", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onMounts("unknown option", checktest.Of("-q", "-f", "/m/home"),
			checktest.UsageFinding("check_fs_mount -q -f /m/home:  Invalid option:  -q", mountLetters)),
		onMounts("option without its argument", checktest.Of("-f"), checktest.UsageFinding("check_fs_mount -f:  Option -f requires an argument.", "")),
		{Name: "no mount table", Broken: true, Words: checktest.Of("-f", "/m/home"), Want: []checks.Finding{{
			Code: "fs.mounts.unreadable", Severity: checks.Fail, Message: "check_fs_mount:  /proc/mounts unreadable",
			Got: "read /proc/mounts: no such file or directory"}}},
		{Name: "garbage", Broken: true, Words: checktest.Of("-f", "/m/plain"), Want: []checks.Finding{plain},
			Files: map[string]string{"proc/mounts": "\x00\xff\nrubbish\n\n", "m/plain/": ""}},
	}
})

// onExt4 has an ext4 file system below a name of LVM, with the time of its last error.
func onExt4(name, errorTime, options, atErrors string, want ...checks.Finding) checktest.Scenario {
	s := onMounts(name, checktest.Of("-f", "/m/ext"), want...)
	s.Files = map[string]string{
		"proc/mounts":                      "/dev/mapper/vg-root /m/ext ext4 " + options + ",relatime 0 0\n",
		"proc/self/mountinfo":              "22 1 8:2 / /m/ext rw - ext4 /dev/sda2 rw\n29 1 253:0 / /m/ext rw,relatime shared:1 - ext4 /dev/mapper/vg-root rw\n",
		"sys/dev/block/253:0/uevent":       "MAJOR=253\nMINOR=0\nDEVNAME=dm-0\nDEVTYPE=disk\n",
		"sys/fs/ext4/dm-0/last_error_time": errorTime + "\n",
		"proc/fs/ext4/dm-0/options":        "rw\nbsddf\n" + atErrors + "\ncommit=5\n",
		"proc/stat":                        "cpu 0\nbtime 1700000000\n",
	}
	return s
}

var ext4Error = mountFinding("options", "/m/ext", " refuses writes unless it was mounted again: ext4 error at 2023-11-14T22:21:40Z (errors=remount-ro)", "rw", "ext4 error")

func stopped(options string) checks.Finding {
	const want = "/(^|,)(emergency_ro|shutdown)($|,)/"
	return mountFinding("options", "/m/ext", " mount options incorrect (should NOT match "+want+")", "!"+want, options+",relatime")
}

func TestFSMountRw(t *testing.T) { checktest.Run(t, "check_fs_mount_rw") }

var _ = checktest.Table("check_fs_mount_rw", func(string) []checktest.Scenario {
	rw := fixedOptions("/m/soft", "/(^|,)rw($|,)/", "ro,errors=remount-ro")
	return []checktest.Scenario{
		onMounts("new syntax", checktest.Of("-t", "nfs4", "/m/home")).OrTable(map[string]any{"fs": "/m/home", "type": "nfs4"}),
		onMounts("old syntax", checktest.Of("/m/home", "*", "nfs4", "none")),
		onMounts("no arguments", checktest.Of()),
		onMounts("read-only", checktest.Of("-f", "/m/soft"), rw),
		onMounts("read-only, old syntax", checktest.Of("/m/soft", "*"), rw),
		onMounts("read-only, not fatal", checktest.Of("-0", "-f", "/m/soft"), nonfatal(rw)),
		onMounts("also other options", checktest.Of("-o", "/noexec/", "-f", "/m/home"), homeOptions),
		onMounts("not mounted", checktest.Of("-f", "/m/plain"), plain),
		onMounts("source", checktest.Of("/m/home", "other"),
			mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should match other)", "other", "nfs1:/export/home")),
		onExt4("an ext4 error since the boot", "1700000500", "rw", "errors=remount-ro", ext4Error),
		onExt4("an ext4 error since the boot, not fatal", "1700000500", "rw", "errors=remount-ro", nonfatal(ext4Error)).Saying("-0", "-f", "/m/ext"),
		onExt4("an ext4 error before the boot", "1699999000", "rw", "errors=remount-ro"),
		onExt4("no ext4 error", "0", "rw", "errors=remount-ro"),
		onExt4("an ext4 error that stops nothing", "1700000500", "rw", "errors=continue"),
		onExt4("stopped after an ext4 error", "0", "rw,emergency_ro", "errors=continue", stopped("rw,emergency_ro")),
		onExt4("shut down", "0", "rw,shutdown", "errors=continue", stopped("rw,shutdown")),
		onExt4("an option of a similar name", "0", "rw,noshutdown", "errors=continue"),
		onExt4("no number of an ext4 error", "x", "rw", "errors=remount-ro",
			checks.Unreadable(errors.New("parse /sys/fs/ext4/dm-0/last_error_time: invalid argument"))...).OnBroken(),
		onMounts("unknown option", checktest.Of("-q", "-f", "/m/home"),
			checktest.UsageFinding("check_fs_mount_rw -q -f /m/home:  Invalid option:  -q", mountLetters)),
		{Name: "unreadable mount table", Broken: true, Files: map[string]string{"proc/mounts/": ""}, Words: checktest.Of("/m/home"),
			Want: []checks.Finding{{Code: "fs.mounts.unreadable", Severity: checks.Fail, Message: "check_fs_mount:  /proc/mounts unreadable",
				Got: "read /proc/mounts: is a directory"}}},
	}
})

func TestFSMountRo(t *testing.T) { checktest.Run(t, "check_fs_mount_ro") }

var _ = checktest.Table("check_fs_mount_ro", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onMounts("new syntax", checktest.Of("-f", "/m/soft")),
		onMounts("old syntax", checktest.Of("/m/a b", "blank", "tmpfs")),
		onMounts("writable", checktest.Of("/m/home"), fixedOptions("/m/home", "/(^|,)ro($|,)/", "rw,nosuid,vers=4.2")),
		onMounts("not mounted", checktest.Of("/m/plain"), plain),
		{Name: "no mount table", Broken: true, Words: checktest.Of("/m/home"), Want: []checks.Finding{{
			Code: "fs.mounts.unreadable", Severity: checks.Fail, Message: "check_fs_mount:  /proc/mounts unreadable",
			Got: "read /proc/mounts: no such file or directory"}}},
	}
})
