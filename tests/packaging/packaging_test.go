// Package packaging_test shows that the installed and packaged files work: `make install`, the
// systemd units, and the package from a real rpmbuild.
package packaging_test

import (
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// installed has the files that `make install` puts below DESTDIR, except docs.
var installed = []string{
	"etc/logrotate.d/nhc",
	"usr/lib/systemd/system/nhc-gpu-active.service",
	"usr/lib/systemd/system/nhc-gpu-active.timer",
	"usr/lib/systemd/system/nhc-gpu.service",
	"usr/lib/systemd/system/nhc-gpu.timer",
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
	"usr/share/man/man8/nhc-gpu.8",
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
	if text, err := os.ReadFile(filepath.Join(dest, "etc/logrotate.d/nhc")); err != nil || !strings.Contains(string(text), "\n    create 0640 root root\n") {
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
}

func TestUnits(t *testing.T) {
	t.Parallel()
	need(t, "systemd-analyze")
	dir := t.TempDir()
	var units []string
	for _, name := range []string{"nhc-gpu.service", "nhc-gpu.timer", "nhc-gpu-active.service", "nhc-gpu-active.timer"} {
		text, err := os.ReadFile(filepath.Join(root, "systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		// systemd requires that the program exists, and nothing is installed here
		text = []byte(strings.ReplaceAll(string(text), "/usr/sbin/nhc-gpu", "/bin/true"))
		unit := filepath.Join(dir, name)
		if err := os.WriteFile(unit, text, 0o644); err != nil {
			t.Fatal(err)
		}
		units = append(units, unit)
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

func TestRPM(t *testing.T) {
	t.Parallel()
	need(t, "rpmbuild")
	need(t, "cpio")
	top := t.TempDir()
	run(t, exec.Command("make", "-C", root, "rpm", "RPM_TOPDIR="+top, "VERSION=v1.2.3-4-gabcdef0"))
	pkg := one(t, filepath.Join(top, "RPMS/*/nhc-gpu-1.2.3^4.gabcdef0-*.rpm"))

	dest := t.TempDir()
	unpack := exec.Command("sh", "-c", `rpm2cpio "$1" | cpio --quiet -idm`, "sh", pkg)
	unpack.Dir = dest
	run(t, unpack)
	mustBeInstalled(t, dest)
	mustStart(t, filepath.Join(dest, "usr/sbin/nhc-gpu"), "1.2.3-4-gabcdef0")
	mustBindLazily(t, filepath.Join(dest, "usr/sbin/nhc-gpu"))

	t.Run("Replaces LBNL NHC", func(t *testing.T) { replacesLBNL(t, pkg) })
}

// replacesLBNL upgrades a system with LBNL NHC and a site's nhc.conf to pkg.
func replacesLBNL(t *testing.T, pkg string) {
	if os.Getuid() != 0 {
		t.Skip("rpm --root needs root")
	}
	top := t.TempDir()
	spec := filepath.Join(top, "lbnl-nhc.spec")
	if err := os.WriteFile(spec, []byte(lbnlSpec), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command("rpmbuild", "-bb", "--define", "_topdir "+top, spec))
	old := one(t, filepath.Join(top, "RPMS/noarch/lbnl-nhc-*.rpm"))

	system := t.TempDir()
	rpm := func(args ...string) {
		t.Helper()
		run(t, exec.Command("rpm", append([]string{"--root", system, "--nodeps", "--noscripts"}, args...)...))
	}
	rpm("-i", old)
	conf := filepath.Join(system, "etc/nhc/nhc.conf")
	const site = "* || check_fs_mount_rw -f /scratch\n"
	if err := os.WriteFile(conf, []byte(site), 0o644); err != nil {
		t.Fatal(err)
	}
	rpm("-U", pkg)
	if got, err := os.ReadFile(conf); string(got) != site {
		t.Errorf("nhc.conf is %q (%v) after the upgrade, want the site's", got, err)
	}
	if got := run(t, exec.Command("rpm", "--root", system, "-qa", "--queryformat", "%{NAME} ")); strings.TrimSpace(got) != "nhc-gpu" {
		t.Errorf("installed are %q, want nhc-gpu alone", got)
	}
	if got, err := os.Readlink(filepath.Join(system, "usr/sbin/nhc")); got != "nhc-gpu" {
		t.Errorf("/usr/sbin/nhc is %q (%v), want a link to nhc-gpu", got, err)
	}
}

// lbnlSpec builds a package with LBNL NHC's name, version and files.
const lbnlSpec = `
Name: lbnl-nhc
Version: 1.4.3
Release: 1
Summary: stand-in
License: none
BuildArch: noarch
Provides: nhc = 1.4.3-1
%description
%install
mkdir -p %{buildroot}/usr/sbin %{buildroot}/usr/libexec/nhc %{buildroot}/etc/nhc %{buildroot}/etc/logrotate.d
touch %{buildroot}/usr/sbin/nhc %{buildroot}/usr/libexec/nhc/node-mark-{offline,online}
touch %{buildroot}/etc/nhc/nhc.conf %{buildroot}/etc/logrotate.d/nhc
%files
/usr/sbin/nhc
/usr/libexec/nhc
%config(noreplace) /etc/nhc/nhc.conf
%config(noreplace) /etc/logrotate.d/nhc
`

func mustBeInstalled(t *testing.T, dest string) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(dest, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(path, "/share/doc/") {
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

func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("no %s: tests/install-deps.sh installs it", program)
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
