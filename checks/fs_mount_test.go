package checks

import "testing"

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

// mountNode is a node with that mount table, a directory that is not mounted,
// and a shell for actions.
var mountNode = scenario{
	files: map[string]string{
		"proc/mounts": mountTable,
		"m/plain/":    "",
		"m/file":      "",
		"bin/mount":   "#!/bin/sh\necho mount \"$@\" >> {root}/log\n",
	},
	tools: []string{"bash"},
	vars:  map[string]string{"PWD": "/"},
}

func onMounts(name string, words []string, want ...Finding) scenario {
	s := mountNode
	s.name, s.words, s.want = name, words, want
	return s
}

func mountFinding(code, fs, text, want, got string) Finding {
	return Finding{
		Code: "fs.mount." + code, Severity: Fail, Device: Device{Kind: "mount", Name: fs}, Want: want, Got: got,
		Message: "check_fs_mount:  " + fs + text}
}

func notMounted(fs, text string) Finding {
	return mountFinding("missing", fs, " not mounted"+text, "mounted", "not mounted")
}

// notFixed is one whose mount point could not be created.
func notFixed(fs, err string) Finding {
	f := notMounted(fs, "; directory "+fs+" missing (auto-fixed)")
	f.Got += ", and " + err
	return f
}

func nonfatal(f Finding) Finding {
	f.Severity = Warn
	f.Message += " (non-fatal)"
	return f
}

// What is wrong with some of them.
var (
	plain       = notMounted("/m/plain", "")
	homeType    = mountFinding("type", "/m/home", " has incorrect type nfs4 (should match tmpfs)", "tmpfs", "nfs4")
	homeOptions = mountFinding("options", "/m/home", " mount options incorrect (should match /noexec/)", "/noexec/", "rw,nosuid,vers=4.2")
)

// fixedOptions is a file system that is not mounted the way check_fs_mount_rw
// or _ro asks for.
func fixedOptions(fs, want, got string) Finding {
	return mountFinding("options", fs, " mount options incorrect (should match "+want+")", want, got)
}

func TestFSMount(t *testing.T) { testCheck(t, "check_fs_mount") }

var _ = table("check_fs_mount", func(string) []scenario {
	return []scenario{
		onMounts("mounted", of("-f", "/m/home")).orTable(map[string]any{"fs": "/m/home"}),
		onMounts("all options", of("-0", "-t", "nfs4", "-s", "nfs1:*", "-o", "/nosuid/", "-o", "!*noexec*", "-f", "/m/home")).
			orTable(map[string]any{"nonfatal": true, "type": "nfs4", "source": "nfs1:*", "options": []any{"/nosuid/", "!*noexec*"}, "fs": []any{"/m/home"}}),
		onMounts("several", of("-f", "/m/home", "-f", "/m/scratch", "/m/ram", "", "/m/none")),
		onMounts("old syntax", of("/m/home", "nfs1:*", "nfs4", "/(^|,)rw(,|$)/", "more")),
		onMounts("old syntax, empty words", of("/m/home", "", "nfs*", "")),
		onMounts("nothing to look at", of()),
		onMounts("automount", of("-F", "/m/home")).orTable(map[string]any{"automount": "/m/home"}),
		onMounts("the last mount counts", of("-s", "over", "-t", "tmpfs", "-f", "/m/twice")),
		onMounts("blank in the source and the options", of("-s", "srv:/a040share", "-o", "ro,x=040", "-f", "/m/share")),
		onMounts("blank in the mount point", of("-t", "tmpfs", "-f", "/m/a b")),
	}
})

var _ = table("check_fs_mount", func(string) []scenario {
	return []scenario{
		onMounts("not mounted", of("-f", "/m/plain"), plain),
		onMounts("not mounted, old syntax", of("/m/plain"), plain),
		onMounts("automount fails", of("-F", "/m/plain"), plain),
		onMounts("second one fails", of("-t", "nfs4", "/m/home", "/m/ram", "/m/plain"),
			mountFinding("type", "/m/ram", " has incorrect type ramfs (should match nfs4)", "nfs4", "ramfs")),
		onMounts("source", of("-s", "nfs2:*", "-f", "/m/home"),
			mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should match nfs2:*)", "nfs2:*", "nfs1:/export/home")),
		onMounts("source it must not have", of("-s", "!nfs1:*", "-f", "/m/home"),
			mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should NOT match nfs1:*)", "!nfs1:*", "nfs1:/export/home")),
		onMounts("type", of("-t", "tmpfs", "-f", "/m/home"), homeType),
		onMounts("options", of("-o", "/noexec/", "-f", "/m/home"), homeOptions),
		onMounts("source comes before type and options", of("-o", "none", "-t", "none", "-s", "none", "-f", "/m/ram"),
			mountFinding("source", "/m/ram", " mounted from ram0 (should match none)", "none", "ram0")),
		onMounts("trailing slash", of("/m/home/"), notMounted("/m/home/", "; directory /m/home/ missing (auto-fixed)")),
		onMounts("undecoded blank", of("-f", "/m/a040b"), notMounted("/m/a040b", "; directory /m/a040b missing (auto-fixed)")),
		onMounts("missing directory", of("-f", "/m/x/y"), notMounted("/m/x/y", "; directory /m/x/y missing (auto-fixed)")),
		onMounts("a file in the way", of("-f", "/m/file"),
			notFixed("/m/file", "mkdir /m/file: not a directory")),
		onMounts("empty name", of("-f", ""), notFixed("", "invalid argument")),
		onMounts("-0 goes on", of("-0", "-t", "tmpfs", "-f", "/m/home", "/m/plain"), nonfatal(homeType), nonfatal(plain)),
		onMounts("bad range in a match string", of("-0", "-s", "{nfs[1}", "-f", "/m/home"),
			Finding{Code: "config.match", Severity: Warn, Remedy: FixConfig, Message: "mcheck_range:  Range not in pdsh syntax:  nfs[1"},
			nonfatal(mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should match {nfs[1})", "{nfs[1}", "nfs1:/export/home"))),
		onMounts("match string that cannot be judged", of("-0", "-s", `/(n)\1/`, "-f", "/m/home"),
			Finding{Code: "config.match", Severity: Unknown, Remedy: FixConfig,
				Message: `match expression "/(n)\\1/": back-references are not supported`},
			nonfatal(mountFinding("source", "/m/home", ` mounted from nfs1:/export/home (should match /(n)\1/)`, `/(n)\1/`, "nfs1:/export/home"))),
	}
})

var _ = table("check_fs_mount", func(string) []scenario {
	return []scenario{
		onMounts("found action", of("-e", "echo missing > act", "-E", "echo found > act", "-f", "/m/home")).
			leaving(map[string]string{"act": "found\n"}).
			orTable(map[string]any{"missing_action": "echo missing > act", "found_action": "echo found > act", "fs": "/m/home"}),
		onMounts("missing action", of("-e", "echo missing > act", "-E", "echo found > act", "-f", "/m/plain"), plain).
			leaving(map[string]string{"act": "missing\n"}),
		onMounts("no found action after a failure", of("-E", "echo found > act", "-t", "tmpfs", "-f", "/m/home"), homeType).
			leaving(map[string]string{"act": ""}),
		onMounts("mount", of("-r", "-f", "/m/plain"), plain).leaving(map[string]string{"log": "mount /m/plain\n"}).
			orTable(map[string]any{"remount": true, "fs": "/m/plain"}),
		onMounts("mount with options", of("-r", "-O", "rw,nolock", "-f", "/m/plain"), plain).
			leaving(map[string]string{"log": "mount -o rw,nolock /m/plain\n"}).
			orTable(map[string]any{"remount": true, "mount_options": "rw,nolock", "fs": "/m/plain"}),
		onMounts("mount on a missing directory", of("-r", "-O", "ro", "-f", "/m/gone"), notMounted("/m/gone", "; directory /m/gone missing (auto-fixed)")).
			leaving(map[string]string{"log": "mount -o ro /m/gone\n"}),
		onMounts("remount without options", of("-r", "-o", "/noexec/", "-f", "/m/home"), homeOptions).
			leaving(map[string]string{"log": "mount /m/home\n"}),
		onMounts("remount with options", of("-r", "-o", "/noexec/", "-O", "noexec", "-f", "/m/home"), homeOptions).
			leaving(map[string]string{"log": "mount -o remount,noexec /m/home\n"}),
		onMounts("own command", of("-r", "-O", "a b", "-f", "/m/plain"), plain).with("MOUNT_CMD", "mount 'with blanks' -v").
			leaving(map[string]string{"log": "mount with blanks -v -o a b /m/plain\n"}),
		onMounts("own command line", of("-r", "-O", "ro", "-f", "/m/plain"), plain).with("MOUNT_CMD", "echo first >>log; echo >>log").
			leaving(map[string]string{"log": "first\n-o ro /m/plain\n"}),
		onMounts("mount and go on", of("-0", "-r", "-f", "/m/plain"), nonfatal(plain)).
			leaving(map[string]string{"log": "mount /m/plain\n"}),
	}
})

const mountLetters = "one of -f -F -s -t -o -O -r -0 -e -E"

var _ = table("check_fs_mount", func(string) []scenario {
	return []scenario{
		onMounts("unknown option", of("-q", "-f", "/m/home"),
			usageFinding("check_fs_mount -q -f /m/home:  Invalid option:  -q", mountLetters)),
		onMounts("option without its argument", of("-f"), usageFinding("check_fs_mount -f:  Option -f requires an argument.", "")),
		{name: "no mount table", broken: true, words: of("-f", "/m/home"), want: []Finding{{
			Code: "fs.mounts.unreadable", Severity: Fail, Message: "check_fs_mount:  /proc/mounts unreadable",
			Got: "read /proc/mounts: no such file or directory"}}},
		{name: "garbage", broken: true, words: of("-f", "/m/plain"), want: []Finding{plain},
			files: map[string]string{"proc/mounts": "\x00\xff\nrubbish\n\n", "m/plain/": ""}},
	}
})

func TestFSMountRw(t *testing.T) { testCheck(t, "check_fs_mount_rw") }

var _ = table("check_fs_mount_rw", func(string) []scenario {
	rw := fixedOptions("/m/soft", "/(^|,)rw($|,)/", "ro,errors=remount-ro")
	return []scenario{
		onMounts("new syntax", of("-t", "nfs4", "/m/home")).orTable(map[string]any{"fs": "/m/home", "type": "nfs4"}),
		onMounts("old syntax", of("/m/home", "*", "nfs4", "none")),
		onMounts("nothing to look at", of()),
		onMounts("read-only", of("-f", "/m/soft"), rw),
		onMounts("read-only, old syntax", of("/m/soft", "*"), rw),
		onMounts("read-only, not fatal", of("-0", "-f", "/m/soft"), nonfatal(rw)),
		onMounts("other options, too", of("-o", "/noexec/", "-f", "/m/home"), homeOptions),
		onMounts("not mounted", of("-f", "/m/plain"), plain),
		onMounts("source", of("/m/home", "other"),
			mountFinding("source", "/m/home", " mounted from nfs1:/export/home (should match other)", "other", "nfs1:/export/home")),
		onMounts("unknown option", of("-q", "-f", "/m/home"),
			usageFinding("check_fs_mount_rw -q -f /m/home:  Invalid option:  -q", mountLetters)),
		{name: "unreadable mount table", broken: true, files: map[string]string{"proc/mounts/": ""}, words: of("/m/home"),
			want: []Finding{{Code: "fs.mounts.unreadable", Severity: Fail, Message: "check_fs_mount:  /proc/mounts unreadable",
				Got: "read /proc/mounts: is a directory"}}},
	}
})

func TestFSMountRo(t *testing.T) { testCheck(t, "check_fs_mount_ro") }

var _ = table("check_fs_mount_ro", func(string) []scenario {
	return []scenario{
		onMounts("new syntax", of("-f", "/m/soft")),
		onMounts("old syntax", of("/m/a b", "blank", "tmpfs")),
		onMounts("writable", of("/m/home"), fixedOptions("/m/home", "/(^|,)ro($|,)/", "rw,nosuid,vers=4.2")),
		onMounts("not mounted", of("/m/plain"), plain),
		{name: "no mount table", broken: true, words: of("/m/home"), want: []Finding{{
			Code: "fs.mounts.unreadable", Severity: Fail, Message: "check_fs_mount:  /proc/mounts unreadable",
			Got: "read /proc/mounts: no such file or directory"}}},
	}
})
