package packaging_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// roots are the systems in which packages are installed: made once, and never changed. There is no
// mirror of an EL or a SLES for this suite, so the rpm is installed by rpm --root on a Debian.
var roots = map[string]func() (string, error){
	"bookworm":       sync.OnceValues(func() (string, error) { return makeRoot("bookworm") }),
	"noble":          sync.OnceValues(func() (string, error) { return makeRoot("noble") }),
	"bookworm-slurm": sync.OnceValues(func() (string, error) { return makeRoot("bookworm-slurm") }),
	"noble-slurm":    sync.OnceValues(func() (string, error) { return makeRoot("noble-slurm") }),
}

var errNoMirror = errors.New("the mirror cannot be reached")

func makeRoot(release string) (string, error) {
	cmd := exec.Command("./roots.sh", release)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
		return "", errNoMirror
	}
	if err != nil {
		return "", errors.Join(err, errors.New(said.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// system is a copy of a root, made by overlayfs, in which a test installs packages.
type system struct {
	t   *testing.T
	dir string // has upper, work, and files for the system in share
	low string
	rpm bool
}

func newSystem(t *testing.T, release string, rpm bool) *system {
	t.Helper()
	need.Root(t, "to change the root directory")
	need.Program(t, "debootstrap")
	low, err := roots[release]()
	if errors.Is(err, errNoMirror) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, dir: t.TempDir(), low: low, rpm: rpm}
	for _, d := range []string{"upper", "work", "share", "root"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if rpm {
		need.Program(t, "rpm")
		s.must("true") // the directory is there
		s.installFirst(systemSpec)
	}
	return s
}

const enter = `set -e
mount -t overlay overlay -o "lowerdir=$LOW,upperdir=$DIR/upper,workdir=$DIR/work" "$DIR/root"
mount -t proc proc "$DIR/root/proc"
mount --rbind /dev "$DIR/root/dev"
mkdir -p "$DIR/root/mnt"
mount --bind "$DIR/share" "$DIR/root/mnt"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive HOME=/root
`

// sh runs a script in the system. Each script has namespaces of its own, without a network; files
// stay.
func (s *system) sh(script string) (string, error) {
	return s.command(enter+`exec chroot "$DIR/root" /bin/bash -c "$0"`, script)
}

func (s *system) command(how, what string, args ...string) (string, error) {
	cmd := exec.Command("unshare", append([]string{"-mpfinu", "--kill-child", "sh", "-c", how, what}, args...)...)
	cmd.Env = append(os.Environ(), "LOW="+s.low, "DIR="+s.dir, "TMPDIR=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *system) must(script string) string {
	s.t.Helper()
	out, err := s.sh(script)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// share copies packages to where the packager reads them, and returns these paths. Other arguments
// stay.
func (s *system) share(args []string) []string {
	s.t.Helper()
	shared := slices.Clone(args)
	for i, a := range args {
		if !filepath.IsAbs(a) {
			continue
		}
		text, err := os.ReadFile(a)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, "share", filepath.Base(a)), text, 0o644); err != nil {
			s.t.Fatal(err)
		}
		shared[i] = "/mnt/" + filepath.Base(a)
		if s.rpm {
			shared[i] = filepath.Join(s.dir, "share", filepath.Base(a))
		}
	}
	return shared
}

// packager runs dpkg in the system, or rpm on this machine for the system.
func (s *system) packager(args ...string) (string, error) {
	s.t.Helper()
	if s.rpm {
		return s.command(enter+`exec rpm --root "$DIR/root" "$@"`, "rpm", s.share(args)...)
	}
	return s.command(enter+`exec chroot "$DIR/root" dpkg "$@"`, "dpkg", s.share(args)...)
}

func (s *system) mustPackage(args ...string) string {
	s.t.Helper()
	out, err := s.packager(args...)
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// install installs or upgrades packages, in one transaction.
func (s *system) install(pkgs ...string) string {
	s.t.Helper()
	if s.rpm {
		return s.mustPackage(append([]string{"-U", "--oldpackage"}, pkgs...)...)
	}
	return s.mustPackage(append([]string{"-i"}, pkgs...)...)
}

// systemSpec stands for what an rpm requires of a system: a Debian has it, but not in rpm's
// database.
const systemSpec = `
Name: system
Version: 1
Release: 1
Summary: stand-in
License: none
BuildArch: noarch
Provides: bash, /bin/bash, /bin/sh, libc.so.6()(64bit), rtld(GNU_HASH)
Provides: libc.so.6(GLIBC_2.2.5)(64bit), libc.so.6(GLIBC_2.3.2)(64bit), libc.so.6(GLIBC_2.32)(64bit), libc.so.6(GLIBC_2.34)(64bit)
%description
%files
`

// installFirst builds an rpm and installs it.
func (s *system) installFirst(spec string) {
	s.t.Helper()
	s.mustPackage("-i", buildRPM(s.t, spec))
}

func buildRPM(t *testing.T, text string) string {
	t.Helper()
	need.Program(t, "rpmbuild")
	top := t.TempDir()
	spec := filepath.Join(top, "a.spec")
	if err := os.WriteFile(spec, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command("rpmbuild", "-bb", "--quiet", "--define", "_topdir "+top, spec))
	return one(t, filepath.Join(top, "RPMS/*/*.rpm"))
}

// packDeb packs a directory. Files in /etc are conffiles.
func packDeb(t *testing.T, from, control string) string {
	t.Helper()
	dir := t.TempDir()
	const script = `cp -a "$1" "$2/root" && cd "$2/root" && mkdir DEBIAN && printf %s "$3" >DEBIAN/control &&
find etc -type f -printf '/%p\n' >DEBIAN/conffiles && dpkg-deb --root-owner-group -b . ../a.deb`
	run(t, exec.Command("sh", "-c", script, "sh", from, dir, control))
	return filepath.Join(dir, "a.deb")
}

// lbnl makes a package with LBNL NHC's name, version and file names.
func (s *system) lbnl() string {
	if s.rpm {
		return buildRPM(s.t, lbnlSpec)
	}
	dir := s.t.TempDir()
	run(s.t, exec.Command("sh", "-ec", strings.NewReplacer("%{buildroot}", dir, "libexec", "lib").Replace(lbnlFiles)))
	return packDeb(s.t, dir, "Package: lbnl-nhc\nVersion: 1.4.3-1\nArchitecture: all\nMaintainer: x <x@localhost>\nDescription: stand-in\n")
}

// lbnlFiles makes files with the names of LBNL NHC's.
const lbnlFiles = `
mkdir -p %{buildroot}/usr/sbin %{buildroot}/usr/libexec/nhc %{buildroot}/etc/nhc/scripts %{buildroot}/etc/logrotate.d %{buildroot}/var/lib/nhc
for p in /usr/sbin/nhc /usr/sbin/nhc-genconf /usr/sbin/nhc-wrapper /usr/libexec/nhc/node-mark-offline /usr/libexec/nhc/node-mark-online; do
  printf '#!/bin/bash\necho LBNL\n' >%{buildroot}$p
  chmod 755 %{buildroot}$p
done
echo '# sample' >%{buildroot}/etc/nhc/nhc.conf
echo '# common' >%{buildroot}/etc/nhc/scripts/common.nhc
echo '# fs' >%{buildroot}/etc/nhc/scripts/lbnl_fs.nhc
printf '/var/log/nhc.log {\n\tmissingok\n\tnotifempty\n\tweekly\n}\n' >%{buildroot}/etc/logrotate.d/nhc
`

// lbnlSpec builds a package with LBNL NHC's name, version, file names and flags.
const lbnlSpec = `
Name: lbnl-nhc
Version: 1.4.3
Release: 1
Summary: stand-in
License: none
BuildArch: noarch
%description
%install
` + lbnlFiles + `
%files
%config(noreplace) /usr/sbin/nhc
%config(noreplace) /usr/sbin/nhc-genconf
%config(noreplace) /usr/sbin/nhc-wrapper
%config(noreplace) /usr/libexec/nhc/*
%dir /usr/libexec/nhc
%dir /etc/nhc
%dir /etc/nhc/scripts
%dir /var/lib/nhc
%config(noreplace) /etc/nhc/nhc.conf
%config(noreplace) /etc/nhc/scripts/*.nhc
%config(noreplace) /etc/logrotate.d/nhc
`

// site is a site's nhc.conf and scripts, and a stand-in for scontrol that knows one node.
const site = `mkdir -p /etc/nhc/scripts /opt/slurm
cat >/etc/nhc/nhc.conf <<'E'
* || check_file_test -d /etc
* || site_check
* || { [ ! -e /opt/slow ] || { touch /opt/started; sleep 3; }; }
E
echo 'site_check() { [ ! -e /opt/faulty ] || die 1 "site_check: /opt/faulty exists"; }' >/etc/nhc/scripts/site.nhc
chmod 644 /etc/nhc/nhc.conf /etc/nhc/scripts/site.nhc
cat >/usr/bin/scontrol <<'E'
#!/bin/bash
read -r state reason </opt/slurm/node
case "$*" in
*show*) echo "NodeName=n1 State=$state ThreadsPerCore=1 ${reason:+Reason=$reason [root@2026-11-21T06:23:00]}" ;;
update*) echo "$*" >>/opt/slurm/calls
  case $2 in State=DRAIN) echo "IDLE+DRAIN ${4#Reason=}" ;; *) echo IDLE ;; esac >/opt/slurm/node ;;
esac
E
chmod 755 /usr/bin/scontrol
echo IDLE >/opt/slurm/node
touch /opt/slurm/calls
`

// health is how slurmd starts a health check; the program follows.
const health = `env -i SLURMD_NODENAME=n1 PATH=/usr/sbin:/usr/bin:/sbin:/bin `

// calls returns the changes of the node's state since the last call.
func (s *system) calls() []string {
	s.t.Helper()
	out := strings.TrimSpace(s.must("cat /opt/slurm/calls; : >/opt/slurm/calls"))
	if out == "" {
		return nil
	}
	return strings.Split(out, "\n")
}

const (
	drained = "update State=DRAIN NodeName=n1 Reason=NHC: site_check: /opt/faulty exists"
	resumed = "update State=RESUME NodeName=n1"
)

func (s *system) wantCalls(when string, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.calls()); diff != "" {
		s.t.Errorf("changes of the node %s (-want +got):\n%s", when, diff)
	}
}

// systems runs a test on each system with each packager that it has.
func systems(t *testing.T, test func(t *testing.T, s *system, k *kit)) {
	t.Helper()
	k := makePackages(t)
	for _, c := range []struct {
		name, release string
		rpm           bool
	}{
		{"Debian 12", "bookworm", false},
		{"Ubuntu 24.04", "noble", false},
		{"rpm", "bookworm", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, newSystem(t, c.release, c.rpm), k)
		})
	}
}

// pkg returns the path of a package for the system.
func (s *system) pkg(k *kit, dir, name string) string {
	s.t.Helper()
	if s.rpm {
		return k.rpm(s.t, dir, name)
	}
	return k.deb(s.t, dir, name)
}

// files lists all files, without those of the packagers and their caches.
func (s *system) files() []string {
	s.t.Helper()
	const theirs = "-path /var/lib/dpkg -o -path /var/lib/rpm -o -path /var/lib/rpm-state -o -path /var/cache -o -path /var/log/dpkg.log"
	out := s.must(`find / -xdev \( -path /mnt -o -path /dev -o -path /proc -o -path /tmp -o ` + theirs + ` \) -prune -o -print`)
	list := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(list)
	return list
}

// A package installs on an empty system, the program runs, and its removal leaves nothing of ours.
func TestInstallAndRemove(t *testing.T) {
	tier.All(t)
	t.Parallel()
	systems(t, func(t *testing.T, s *system, k *kit) {
		before := s.files()
		s.install(s.pkg(k, k.dir, program), s.pkg(k, k.dir, compat))
		for _, ask := range []string{"nhc-gpu --version", "nhc-gpu version"} {
			if got := s.must(ask); !strings.Contains(got, newVersion+" (commit abcdef0123)") {
				t.Errorf("%s prints %q", ask, got)
			}
		}
		if got := s.must("nhc-gpu --check -e 'check_file_test -d /etc'"); !strings.Contains(got, "\n1 ok, 0 skipped") {
			t.Errorf("--check:\n%s", got)
		}
		s.must(site + "nhc-gpu lint /etc/nhc")
		s.must("nhc-gpu selftest check_gpu_count")
		s.must("touch /opt/faulty; " + health + "nhc-gpu; rm /opt/faulty; " + health + "nhc-gpu")
		s.wantCalls("by health checks", drained, resumed)
		boot := health + "$(sed -n 's/^ExecStart=-//p' /usr/lib/systemd/system/nhc-gpu-boot.service)"
		s.must("touch /opt/faulty; mv /usr/bin/scontrol /opt; " + boot + "; mv /opt/scontrol /usr/bin")
		s.wantCalls("at boot, without slurmctld")
		s.must(health + "nhc-gpu; rm /opt/faulty; " + health + "nhc-gpu")
		s.wantCalls("after a boot without slurmctld", drained, resumed)
		s.mustPackage("-V", program)
		s.mustPackage("-V", compat)
		s.must(`command -v systemctl >/dev/null || exit 0
systemctl enable nhc-gpu.timer nhc-gpu-active.timer nhc-gpu-boot.service && ls /etc/systemd/system/*.wants/nhc-gpu*`)
		s.must("echo line >/var/log/nhc-active.log; ls /run/nhc-gpu/n1; mkdir -p /var/lib/nhc-gpu/wrap /run/nhc-gpu-wrap")

		if s.rpm {
			s.mustPackage("-e", compat, program)
		} else {
			s.mustPackage("-r", compat, program)
			s.must("ls /etc/logrotate.d/nhc-gpu /var/lib/nhc-gpu/wrap") // they stay until the purge
			s.mustPackage("-P", compat, program)
		}
		var left []string
		for _, f := range s.files() {
			if _, there := slices.BinarySearch(before, f); !there {
				left = append(left, f)
			}
		}
		// the site's configuration and logs, and the files of this test
		stays := []string{
			"/etc/nhc", "/etc/nhc/nhc.conf", "/etc/nhc/scripts", "/etc/nhc/scripts/site.nhc",
			"/opt/slurm", "/opt/slurm/calls", "/opt/slurm/node", "/usr/bin/scontrol", "/var/log/nhc-active.log", "/var/log/nhc.log",
		}
		if diff := cmp.Diff(stays, left); diff != "" {
			t.Errorf("left on the system (-want +got):\n%s", diff)
		}
	})
}

// sums are the checksums of the site's configuration.
const sums = "cd / && sha256sum etc/nhc/nhc.conf etc/nhc/scripts/*.nhc"

// The main package installs beside LBNL NHC and changes nothing of it. The compat package replaces
// LBNL NHC in one transaction, and all files of /etc/nhc stay.
func TestBesideAndInsteadOfLBNL(t *testing.T) {
	tier.All(t)
	t.Parallel()
	systems(t, func(t *testing.T, s *system, k *kit) {
		s.install(s.lbnl())
		s.must(site)
		before := s.must(sums)

		s.install(s.pkg(k, k.dir, program))
		if got := s.must("nhc; nhc-genconf; nhc-wrapper; nhc-gpu version"); got != "LBNL\nLBNL\nLBNL\nnhc-gpu "+newVersion+" (commit abcdef0123)\n" {
			t.Errorf("beside LBNL NHC the programs print:\n%s", got)
		}
		if diff := cmp.Diff(before, s.must(sums)); diff != "" {
			t.Errorf("files of LBNL NHC (-before +after):\n%s", diff)
		}
		// Debian's root has logrotate
		const rotate = `command -v logrotate >/dev/null || exit 0
echo line >/var/log/nhc.log
if logrotate -f -s /tmp/state /etc/logrotate.conf 2>&1 | grep nhc; then exit 1; fi
ls /var/log/nhc.log*`
		if got := s.must(rotate); got != "" && got != "/var/log/nhc.log\n/var/log/nhc.log.1\n" {
			t.Errorf("the log that both packages rotate: %s", got)
		}

		s.install(s.pkg(k, k.dir, compat))
		names := s.must("readlink /usr/sbin/nhc /usr/sbin/nhc-genconf /usr/sbin/nhc-wrapper /usr/lib*/nhc/node-mark-offline /usr/lib*/nhc/node-mark-online")
		if want := "nhc-gpu\nnhc-gpu\nnhc-gpu\n../../sbin/nhc-gpu\n../../sbin/nhc-gpu\n"; names != want {
			t.Errorf("the names of LBNL NHC lead to %q, want %q", names, want)
		}
		if diff := cmp.Diff(before, s.must(sums)); diff != "" {
			t.Errorf("files of the site (-before +after):\n%s", diff)
		}
		ask := []string{"-s", "lbnl-nhc"}
		if s.rpm {
			ask[0] = "-q"
		}
		if out, err := s.packager(ask...); err == nil && (s.rpm || strings.Contains(out, "ok installed")) {
			t.Errorf("lbnl-nhc is still installed:\n%s", out)
		}
		s.must("touch /opt/faulty; " + health + "nhc; rm /opt/faulty; " + health + "nhc")
		s.wantCalls("by /usr/sbin/nhc", drained, resumed)
	})
}

// former is the last commit before the packages of this list of files: its package had LBNL NHC's
// names in the main package, and owned nhc.conf.
const former = "99ec2a8"

var formerBuild = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "former")
	const script = `mkdir "$1" && git -C "$2" archive ` + former + ` | tar -xC "$1" && cd "$1" &&
make build VERSION=v1.0.0 && make install GO=false DESTDIR="$1/root" HELPERDIR=/usr/lib/nhc`
	return dir, command("sh", "-c", script, "sh", dir, root)
})

func (s *system) formerPackage() string {
	s.t.Helper()
	if exec.Command("git", "-C", root, "cat-file", "-e", former).Run() != nil {
		s.t.Skipf("this copy of the repository has no commit %s", former)
	}
	dir, err := formerBuild()
	if err != nil {
		s.t.Fatal(err)
	}
	if !s.rpm {
		return packDeb(s.t, filepath.Join(dir, "root"), "Package: nhc-gpu\nVersion: 1.0.0-1\nArchitecture: "+runtime.GOARCH+"\nMaintainer: x <x@localhost>\nDescription: former\n")
	}
	top := s.t.TempDir()
	run(s.t, exec.Command("make", "-C", dir, "rpm", "RPM_TOPDIR="+top, "VERSION=v1.0.0", "PREBUILT=bin/nhc-gpu"))
	return one(s.t, filepath.Join(top, "RPMS/*/nhc-gpu-1.0.0-*.rpm"))
}

// An upgrade, also in the middle of a run, and a downgrade keep the configuration and the state: a
// version resumes the node that another one has drained, and two versions can use one state.
func TestUpgradeAndDowngrade(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	systems(t, func(t *testing.T, s *system, k *kit) {
		s.install(s.formerPackage())
		s.must(site + "mkdir /opt/former; cp /usr/sbin/nhc-gpu /opt/former; touch /opt/faulty; " + health + "nhc-gpu; ls /run/nhc-gpu/n1/slurm.json")
		s.wantCalls("by the former build", drained)
		before := s.must(sums)

		s.must("rm /opt/faulty; touch /opt/slow")
		ended := s.installDuring(health+"nhc-gpu LOGFILE=-; echo status $?; rm /opt/slow", s.pkg(k, k.dir, program), s.pkg(k, k.dir, compat))
		if !strings.Contains(ended, "status 0\n") {
			t.Errorf("the run during the upgrade:\n%s", ended)
		}
		s.wantCalls("by the run during the upgrade", resumed)
		if got := s.must("nhc-gpu version; readlink /usr/sbin/nhc"); got != "nhc-gpu "+newVersion+" (commit abcdef0123)\nnhc-gpu\n" {
			t.Errorf("after the upgrade: %s", got)
		}
		if diff := cmp.Diff(before, s.must(sums)); diff != "" {
			t.Errorf("the configuration (-before +after the upgrade):\n%s", diff)
		}
		s.must(health + "nhc-gpu")
		s.wantCalls("by the new version, with the state of the former one")

		said := s.must("touch /opt/faulty; for i in 1 2 3 4 5 6; do for p in /opt/former/nhc-gpu nhc-gpu; do " + health + "$p LOGFILE=- & done; done; wait")
		s.wantCalls("by two versions at the same time", drained)
		if strings.Contains(said, "warning") || strings.Contains(said, "crash") {
			t.Errorf("two versions at the same time:\n%s", said)
		}
		s.stateIsWhole()

		s.install(s.pkg(k, k.old, program), s.pkg(k, k.old, compat))
		s.must("rm /opt/faulty; " + health + "nhc")
		s.wantCalls("after the downgrade", resumed)
		if diff := cmp.Diff(before, s.must(sums)); diff != "" {
			t.Errorf("the configuration (-before +after the downgrade):\n%s", diff)
		}
	})
}

// installDuring installs packages while a script runs in the system, and returns its output.
func (s *system) installDuring(script string, pkgs ...string) string {
	s.t.Helper()
	how := enter + `chroot "$DIR/root" /bin/bash -c "$0" >"$DIR/share/said" 2>&1 &
i=0; while [ ! -e "$DIR/root/opt/started" ]; do i=$((i+1)); [ $i -lt 600 ] || exit 9; sleep 0.05; done
`
	verb := []string{"-i"}
	if s.rpm {
		verb = []string{"-U"}
		how += `rpm --root "$DIR/root" "$@"`
	} else {
		how += `chroot "$DIR/root" dpkg "$@"`
	}
	// the run has to be at work when the packages are there
	how += `
kill -0 $!
wait $!
`
	if out, err := s.command(how, script, append(verb, s.share(pkgs)...)...); err != nil {
		s.t.Fatalf("install %v during a run: %v\n%s", pkgs, err, out)
	}
	said, err := os.ReadFile(filepath.Join(s.dir, "share/said"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(said)
}

// stateIsWhole parses the files of the state.
func (s *system) stateIsWhole() {
	s.t.Helper()
	n := 0
	for _, dir := range []string{"run/nhc-gpu/n1", "var/lib/nhc-gpu/n1"} {
		files, err := filepath.Glob(filepath.Join(s.dir, "upper", dir, "*.json"))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil || !json.Valid(text) {
				s.t.Errorf("%s: %v\n%s", f, err, text)
			}
			n++
		}
	}
	if n == 0 {
		s.t.Error("there is no state")
	}
}
