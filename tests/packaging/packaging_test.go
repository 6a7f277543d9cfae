// Package packaging_test shows that the installed and packaged files work: `make install`, the
// systemd units, and the package from a real rpmbuild.
package packaging_test

import (
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

const root = "../.."

// installed has the files that `make install` puts below DESTDIR, without docs and the trees in
// usr/share/nhc-gpu.
var installed = []string{
	"etc/logrotate.d/nhc-gpu",
	"usr/lib/systemd/system/nhc-gpu-active.service",
	"usr/lib/systemd/system/nhc-gpu-active.timer",
	"usr/lib/systemd/system/nhc-gpu-boot.service",
	"usr/lib/systemd/system/nhc-gpu-monitor.service",
	"usr/lib/systemd/system/nhc-gpu-sweep.service",
	"usr/lib/systemd/system/nhc-gpu-sweep.timer",
	"usr/lib/systemd/system/nhc-gpu.service",
	"usr/lib/systemd/system/nhc-gpu.timer",
	"usr/lib/tmpfiles.d/nhc-gpu.conf",
	"usr/libexec/nhc/node-mark-offline",
	"usr/libexec/nhc/node-mark-online",
	"usr/sbin/nhc",
	"usr/sbin/nhc-genconf",
	"usr/sbin/nhc-gpu",
	"usr/sbin/nhc-wrapper",
	"usr/share/bash-completion/completions/nhc-gpu",
	"usr/share/fish/vendor_completions.d/nhc-gpu.fish",
	"usr/share/man/man5/nhc.conf.5",
	"usr/share/man/man5/nhc.toml.5",
	"usr/share/man/man8/nhc-genconf.8",
	"usr/share/man/man8/nhc-gpu.8",
	"usr/share/man/man8/nhc-wrapper.8",
	"usr/share/man/man8/nhc.8",
	"usr/share/nhc-gpu/slurm/epilog.d/50-nhc-gpu",
	"usr/share/nhc-gpu/slurm/prolog.d/50-nhc-gpu",
	"usr/share/nhc-gpu/slurm/slurm.conf.example",
	"usr/share/zsh/site-functions/_nhc-gpu",
}

func TestInstall(t *testing.T) {
	t.Parallel()
	dest, bin := t.TempDir(), "BIN="+filepath.Join(t.TempDir(), "nhc-gpu")
	run(t, exec.Command("make", "-C", root, "build", bin, "VERSION=v1.2.3"))
	run(t, exec.Command("make", "-C", root, "install", "DESTDIR="+dest, bin, "GO=false", "HELPERDIR=/usr/libexec/nhc")) // it builds nothing again
	mustBeInstalled(t, dest)
	if text, err := os.ReadFile(filepath.Join(dest, "etc/logrotate.d/nhc-gpu")); err != nil || !strings.Contains(string(text), "\n    create 0640 root root\n") {
		t.Errorf("logrotate makes a log that everyone can read: %v\n%s", err, text)
	}
	links := []string{
		"usr/sbin/nhc", "usr/sbin/nhc-genconf", "usr/sbin/nhc-wrapper", "usr/libexec/nhc/node-mark-offline", "usr/libexec/nhc/node-mark-online",
	}
	for _, link := range links {
		path, err := filepath.EvalSymlinks(filepath.Join(dest, link))
		if want := filepath.Join(dest, "usr/sbin/nhc-gpu"); path != want {
			t.Errorf("%s is %s (%v), want %s", link, path, err, want)
		}
	}
	mustStart(t, filepath.Join(dest, "usr/sbin/nhc-gpu"), "1.2.3")
	mustBindLazily(t, filepath.Join(dest, "usr/sbin/nhc-gpu"))

	beside := t.TempDir()
	run(t, exec.Command("make", "-C", root, "install", "DESTDIR="+beside, bin, "GO=false", "PARTS=main"))
	if names, err := filepath.Glob(filepath.Join(beside, "usr/*bin/nhc*")); err != nil || len(names) != 1 {
		t.Errorf("without LBNL NHC's names there are %v (%v), want nhc-gpu", names, err)
	}
}

// most is the exposure that systemd-analyze security may report, of 10. The monitor makes no check that
// changes something, and is restricted further.
func most(unit string) int {
	if strings.Contains(unit, "monitor") {
		return 50
	}
	return 63
}

func TestUnits(t *testing.T) {
	t.Parallel()
	need.Program(t, "systemd-analyze")
	dir := t.TempDir()
	names, err := filepath.Glob(filepath.Join(root, "systemd/*.*"))
	if err != nil {
		t.Fatal(err)
	}
	var units []string
	hardening := map[string]string{}
	for _, name := range names {
		kind := filepath.Ext(name)
		if kind != ".service" && kind != ".timer" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, same, ok := strings.Cut(string(text), "\nNoNewPrivileges=yes\n"); ok {
			same, _, _ = strings.Cut(same, "\n\n[Install]")
			if strings.Contains(name, "monitor") {
				same += " (the monitor)"
			}
			hardening[strings.TrimSpace(same)] = name
		}
		// systemd requires that the program exists, and nothing is installed here
		text = []byte(strings.ReplaceAll(string(text), "/usr/sbin/nhc-gpu", "/bin/true"))
		unit := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(unit, text, 0o644); err != nil {
			t.Fatal(err)
		}
		units = append(units, unit)
		// In one version of systemd or another each of them takes devices from a run: DeviceAllow=char-* those of
		// drivers that are loaded later (239), ProtectClock without DeviceAllow all (245 to 251).
		m := regexp.MustCompile(`(?m)^(Device|PrivateDevices|ProtectClock).*`).Find(text)
		if m != nil && !strings.Contains(name, "monitor") {
			t.Errorf("%s restricts devices: %s", name, m)
		}
		if kind == ".service" {
			check := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+strconv.Itoa(most(name)), unit)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	}
	monitor, err := os.ReadFile(filepath.Join(root, "systemd/nhc-gpu-monitor.service"))
	for _, needs := range []string{`CapabilityBoundingSet=.*\bCAP_NET_RAW\b`, `DeviceAllow=char-\* rw`} { // ping, the GPUs
		if err != nil || !regexp.MustCompile("(?m)^"+needs).Match(monitor) {
			t.Errorf("the monitor lacks %s (%v)", needs, err)
		}
	}
	if len(units) != 8 || len(hardening) != 2 {
		t.Errorf("%d units, want 8; %d kinds of hardening, want that of the monitor and one more: %v", len(units), len(hardening), hardening)
	}
	verify := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...)
	verify.Env = append(os.Environ(), "SYSTEMD_LOG_LEVEL=warning")
	out := run(t, verify)
	for line := range strings.Lines(out) {
		if strings.Contains(line, "nhc-gpu") { // it only warns about an unknown key
			t.Errorf("systemd-analyze: %s", line)
		}
	}
}

// slurmd starts whatever the unit before it finds. TestInstallAndRemove shows that the next run
// delivers a drain that this one could not.
func TestBootUnit(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "systemd/nhc-gpu-boot.service"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nBefore=slurmd.service\n", "\nWants=network-online.target nhc-gpu.service\n", "\nType=oneshot\n", "\nExecStart=-/usr/sbin/nhc-gpu\n", "\nWantedBy=multi-user.target\n", "\nTimeoutStartSec=60s\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("nhc-gpu-boot.service has no line %q", strings.TrimSpace(want))
		}
	}
	for _, never := range []string{"RequiredBy=", "FailureAction=", "BindsTo=", "Requires="} {
		if strings.Contains(string(text), never) {
			t.Errorf("nhc-gpu-boot.service has %s: a failure would stop slurmd", never)
		}
	}
}

func TestRPM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "rpmbuild")
	need.Program(t, "cpio")
	top := t.TempDir()
	run(t, exec.Command("make", "-C", root, "rpm", "RPM_TOPDIR="+top, "VERSION=v1.2.3-4-gabcdef0"))

	dest := t.TempDir()
	pkgs := []string{one(t, filepath.Join(top, "RPMS/*/nhc-gpu-1.2.3^4.gabcdef0-*.rpm")), one(t, filepath.Join(top, "RPMS/noarch/nhc-gpu-compat-1.2.3^4.gabcdef0-*.rpm"))}
	t.Run("replaces", func(t *testing.T) { mustReplace(t, pkgs) })
	for _, pkg := range pkgs {
		unpack := exec.Command("sh", "-c", `rpm2cpio "$1" | cpio --quiet -idm`, "sh", pkg)
		unpack.Dir = dest
		run(t, unpack)
	}
	mustBeInstalled(t, dest)
	mustStart(t, filepath.Join(dest, "usr/sbin/nhc-gpu"), "1.2.3-4-gabcdef0")
	mustBindLazily(t, filepath.Join(dest, "usr/sbin/nhc-gpu"))
}

// mustReplace fails unless rpm replaces each package that has LBNL NHC's files.
func mustReplace(t *testing.T, pkgs []string) {
	t.Helper()
	need.Root(t, "to install packages")
	for _, name := range []string{"lbnl-nhc", "warewulf-nhc", "nhc-ohpc", "warewulf-nhc-ohpc"} {
		old := buildRPM(t, strings.Replace(lbnlSpec, "Name: lbnl-nhc", "Name: "+name, 1))
		rpm := []string{"--root", t.TempDir(), "--nodeps", "--noscripts"}
		run(t, exec.Command("rpm", append(rpm, "-i", old)...))
		run(t, exec.Command("rpm", append(rpm, append([]string{"-U"}, pkgs...)...)...))
		if out, err := exec.Command("rpm", append(rpm[:2:2], "-q", name)...).CombinedOutput(); err == nil {
			t.Errorf("still installed: %s", out)
		}
	}
}

func mustBeInstalled(t *testing.T, dest string) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(dest, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(path, "/share/doc/") && (!strings.Contains(path, "/share/nhc-gpu/") || strings.Contains(path, "/share/nhc-gpu/slurm/")) {
			name, _ := filepath.Rel(dest, path)
			got = append(got, strings.TrimSuffix(name, ".gz")) // rpmbuild compresses manual pages
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if diff := cmp.Diff(installed, got); diff != "" {
		t.Errorf("installed files (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(dest, "usr/share/doc/nhc-gpu/README.md")); err != nil {
		t.Error(err)
	}
}

// mustStart runs the program as slurmd would, with an almost empty environment.
func mustStart(t *testing.T, program, version string) {
	t.Helper()
	cmd := exec.Command(program, "version")
	cmd.Env = []string{"SLURMD_NODENAME=packaging01"}
	if out := run(t, cmd); !strings.Contains(out, version) {
		t.Errorf("%s version says %q, want %s", program, out, version)
	}
}

// mustBindLazily fails if the loader would bind every symbol at the start: those of NVML and DCGM
// exist only after their libraries have been opened.
func mustBindLazily(t *testing.T, program string) {
	t.Helper()
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for tag, now := range map[elf.DynTag]uint64{elf.DT_FLAGS: uint64(elf.DF_BIND_NOW), elf.DT_FLAGS_1: uint64(elf.DF_1_NOW)} {
		values, err := file.DynValue(tag)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if v&now != 0 {
				t.Errorf("%s is linked with -z now (%v %#x)", program, tag, v)
			}
		}
	}
	if values, _ := file.DynValue(elf.DT_BIND_NOW); len(values) > 0 {
		t.Errorf("%s is linked with -z now", program)
	}
}

func one(t *testing.T, pattern string) string {
	t.Helper()
	files, _ := filepath.Glob(pattern)
	if len(files) != 1 {
		t.Fatalf("%s: got %d files, want 1", pattern, len(files))
	}
	return files[0]
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}
