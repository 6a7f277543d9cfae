package lbnl

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// fsMount checks that file systems are mounted from the right source, with the right type and the
// right options. Each of these is given by match strings, which must all match. The last file
// system that was mounted on a path counts. The check creates a missing mount point.
// check_fs_mount_rw also fails if ext4 refuses all writes after an error: since Linux 6.12 (and
// 5.15.168) the mount options then still contain rw. A reboot or e2fsck ends that failure.
//
//	node* || check_fs_mount -t nfs4 -s 'nfs1:*' -f /home
//	node* || check_fs_mount /home 'nfs1:*' nfs4 '/(^|,)rw(,|$)/'
type fsMount struct {
	FS            []string `opt:"f" toml:"fs"`             // mount points
	More          []string `arg:"*"`                       // further mount points; Bind moves them to FS
	Automount     []string `opt:"F" toml:"automount"`      // mount points to open first, so that the automounter mounts them
	Source        []string `opt:"s" toml:"source"`         // match strings for the device or server
	Type          []string `opt:"t" toml:"type"`           // match strings for the type
	Options       []string `opt:"o" toml:"options"`        // match strings for the mount options
	MountOptions  string   `opt:"O" toml:"mount_options"`  // options that -r passes to mount -o
	Remount       bool     `opt:"r" toml:"remount"`        // run mount in the background for each failure
	Nonfatal      bool     `opt:"0" toml:"nonfatal"`       // failures only warn
	MissingAction string   `opt:"e" toml:"missing_action"` // shell line to run in the background for each failure
	FoundAction   string   `opt:"E" toml:"found_action"`   // shell line to run in the background for each file system that passes

	fixed []string // match strings for the options, of check_fs_mount_rw and _ro
	rw    bool     // check_fs_mount_rw
}

// The match strings of check_fs_mount_rw and check_fs_mount_ro for the mount options. A file system that
// has stopped all writes after an error keeps rw: ext4 of Linux 6.15 then shows emergency_ro or shutdown.
const (
	mountedRW  = "/(^|,)rw($|,)/"
	notStopped = "!/(^|,)(emergency_ro|shutdown)($|,)/"
	mountedRO  = "/(^|,)ro($|,)/"
)

func init() {
	registerMount("check_fs_mount", nil, "file systems are mounted with the right source, type and options")
	registerMount("check_fs_mount_rw", []string{mountedRW, notStopped}, "file systems are mounted read-write")
	registerMount("check_fs_mount_ro", []string{mountedRO}, "file systems are mounted read-only")
}

func registerMount(name string, options []string, summary string) {
	checks.Register(checks.Info{
		Name: name,
		Usage: "[-0] [-r] [-s SOURCE] [-t TYPE] [-o OPTIONS] [-O MOUNT_OPTIONS] [-e ACTION] [-E ACTION] [-F FS] -f FS ... " +
			"or FS [SOURCE [TYPE [OPTIONS]]]",
		Summary: summary,
		Lane:    checks.Local,
		New:     func() checks.Check { return &fsMount{fixed: options, rw: len(options) > 1} },
		Acts: func(c checks.Check) bool {
			m := c.(*fsMount)
			return m.Remount || m.MissingAction != "" || m.FoundAction != ""
		},
		BadUsage: checks.WrongOption,
		Do: func() map[string]string {
			return map[string]string{
				"fs.mount.missing":     "Mount the file system. If that fails, check the file server and /etc/fstab.",
				"fs.mount.source":      "Run findmnt: another file system is mounted there, perhaps on top of the right one.",
				"fs.mount.type":        "Run findmnt: another file system is mounted there, perhaps on top of the right one.",
				"fs.mount.options":     "Compare findmnt with /etc/fstab. If the kernel made the file system read-only, the reason is in dmesg.",
				"fs.mounts.unreadable": "Reboot the node: /proc cannot be read, and no check works without it.",
			}
		},
		Vars: map[string]string{"MOUNT_CMD": "mount"},
	})
}

// Bind accepts two forms: options, or a path as the first argument, then source, type and options.
func (m *fsMount) Bind(args []string) error {
	if len(args) == 0 || !strings.HasPrefix(args[0], "/") {
		if err := checks.BindTags(m, args); err != nil {
			return err
		}
		for _, fs := range m.More {
			if fs == "" { // an empty argument ends the list
				break
			}
			m.FS = append(m.FS, fs)
		}
		m.More = nil
		return nil
	}
	m.FS = args[:1]
	for i, list := range []*[]string{&m.Source, &m.Type, &m.Options} {
		if i+1 < len(args) && args[i+1] != "" && (list != &m.Options || m.fixed == nil) {
			*list = args[i+1 : i+2]
		}
	}
	return nil
}

func (m *fsMount) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	for _, fs := range m.Automount {
		env.At("open %s", fs)
		probe.Automount(env.Host, env.Abs(fs))
		probe.ForgetMounts(env.Host)
	}
	env.At("read /proc/mounts")
	mounts, err := probe.Mounts(env.Host)
	if err != nil {
		return []checks.Finding{{
			Code:     "fs.mounts.unreadable",
			Severity: checks.Fail,
			Message:  "check_fs_mount:  /proc/mounts unreadable",
			Got:      err.Error(),
		}}
	}
	var findings []checks.Finding
	match := env.Matcher(&findings)
	for _, fs := range slices.Concat(m.FS, m.Automount) {
		f := m.judge(ctx, env, fs, lastMount(mounts, fs), match)
		if f == nil {
			if on := lastMount(mounts, fs); on != nil {
				env.Fact("%s is %s from %s", fs, on.Type, on.Source)
			}
			if m.FoundAction != "" {
				env.Spawn(ctx, m.FoundAction, env.Shell(m.FoundAction))
			}
			continue
		}
		if f.Severity == checks.Unknown {
			findings = append(findings, *f)
			continue
		}
		if m.MissingAction != "" {
			env.Spawn(ctx, m.MissingAction, env.Shell(m.MissingAction))
		}
		f.Device = checks.Device{Kind: "mount", Name: fs}
		f.Message = "check_fs_mount:  " + f.Message
		if !m.Nonfatal {
			return append(findings, *f)
		}
		f.Severity = checks.Warn
		f.Message += " (non-fatal)"
		findings = append(findings, *f)
	}
	return findings
}

// lastMount returns the mount that hides all others on a path, nil if there is none.
func lastMount(mounts []probe.Mount, path string) *probe.Mount {
	for i := len(mounts) - 1; i >= 0; i-- {
		if mounts[i].Point == path {
			return &mounts[i]
		}
	}
	return nil
}

// judge returns the failure of one file system, or nil. It creates the mount point and runs mount
// as the options demand.
func (m *fsMount) judge(ctx context.Context, env *checks.Env, fs string, mount *probe.Mount, match func(s, expr string) bool) *checks.Finding {
	if mount == nil {
		f := m.missing(env, fs)
		m.remount(ctx, env, fs, m.MountOptions)
		return f
	}
	f := m.mismatch(fs, mount, match)
	if f == nil && m.rw && strings.HasPrefix(mount.Type, "ext") {
		f = m.stopped(env, fs)
	}
	if f != nil && f.Severity == checks.Fail {
		m.remount(ctx, env, fs, checks.Before("remount,", m.MountOptions, ""))
	}
	return f
}

// mismatch returns the first failure of source, type and options, in this order, or nil.
func (m *fsMount) mismatch(fs string, mount *probe.Mount, match func(s, expr string) bool) *checks.Finding {
	options := slices.Concat(m.fixed, m.Options)
	for _, test := range []struct {
		code, got, text string
		want            []string
	}{
		{code: "fs.mount.source", got: mount.Source, text: " mounted from " + mount.Source, want: m.Source},
		{code: "fs.mount.type", got: mount.Type, text: " has incorrect type " + mount.Type, want: m.Type},
		{code: "fs.mount.options", got: mount.Options, text: " mount options incorrect", want: options},
	} {
		for _, expr := range test.want {
			if !match(test.got, expr) {
				return &checks.Finding{
					Code:     test.code,
					Severity: checks.Fail,
					Message:  fs + test.text + " (" + checks.Should(expr) + ")",
					Want:     expr,
					Got:      test.got,
				}
			}
		}
	}
	return nil
}

// stopped reports an ext4 file system that has had an error since the boot, and stops writes at an error.
func (m *fsMount) stopped(env *checks.Env, fs string) *checks.Finding {
	env.At("read /sys/fs/ext4")
	at, err := probe.Ext4Stopped(env.Host, fs)
	if err != nil || at.IsZero() {
		return unknownMount(err)
	}
	booted, err := probe.BootTime(env.Host)
	if err != nil || at.Before(booted) { // an error before the boot is in the superblock until e2fsck runs
		return unknownMount(err)
	}
	return &checks.Finding{
		Code:     "fs.mount.options",
		Severity: checks.Fail,
		Message:  fs + " refuses writes unless it was mounted again: ext4 error at " + at.UTC().Format(time.RFC3339) + " (errors=remount-ro)",
		Want:     "rw",
		Got:      "ext4 error",
	}
}

// unknownMount returns the finding of a state that cannot be read; nil without an error.
func unknownMount(err error) *checks.Finding {
	if err == nil {
		return nil
	}
	return &checks.Unreadable(err)[0]
}

// missing reports a file system that is not mounted, and creates its mount point if that is also
// missing.
func (m *fsMount) missing(env *checks.Env, fs string) *checks.Finding {
	f := &checks.Finding{
		Code:     "fs.mount.missing",
		Severity: checks.Fail,
		Message:  fs + " not mounted",
		Want:     "mounted",
		Got:      "not mounted",
	}
	env.At("stat %s", fs)
	if path := env.Abs(fs); !probe.TestFile(env.Host, 'd', path) {
		f.Message += "; directory " + fs + " missing"
		if !env.Acts("create directory %s", fs) {
			return f
		}
		f.Message += " (auto-fixed)" // LBNL NHC prints this even if mkdir fails
		env.At("mkdir %s", fs)
		if err := probe.MakeDir(env.Host, path); err != nil {
			f.Got += ", and " + err.Error()
		}
	}
	return f
}

// remount runs mount in the background; source and type come from /etc/fstab.
func (m *fsMount) remount(ctx context.Context, env *checks.Env, fs, options string) {
	if !m.Remount {
		return
	}
	var words []string
	if options != "" {
		words = []string{"-o", options}
	}
	words = append(words, fs)
	line := cmp.Or(env.Lookup("MOUNT_CMD"), "mount")
	text := line + " " + strings.Join(words, " ")
	argv, ok := checks.ExpandWords(line, env.Lookup)
	if !ok || len(argv) == 0 { // more than a command and its arguments
		env.Spawn(ctx, text, env.Shell(line+` "$@"`, append([]string{"bash"}, words...)...))
		return
	}
	env.Spawn(ctx, text, env.Command(append(argv, words...)...))
}
