package packaging_test

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

const newVersion, oldVersion = "2.0.1-3-gabcdef0", "1.9.0"

// kit has the packages that the tests of this file and of roots_test.go share.
type kit struct {
	dir  string // packages of newVersion
	old  string // packages with oldVersion of the same program
	tree string // the unpacked source archive, with the programs in dist/release
}

// packages makes the packages once, offline, from the source archive.
var packages = sync.OnceValues(func() (*kit, error) {
	top := filepath.Join(scratch, "packages")
	if err := os.Mkdir(top, 0o755); err != nil {
		return nil, err
	}
	k := &kit{dir: filepath.Join(top, "new"), old: filepath.Join(top, "old"), tree: filepath.Join(top, "nhc-gpu-"+newVersion)}
	if err := command("make", "-C", root, "source", "VERSION=v"+newVersion, "COMMIT=abcdef0123", "SOURCE_DATE_EPOCH=1700000000", "PACKAGE_DIR="+k.dir); err != nil {
		return nil, err
	}
	if err := command("tar", "-C", top, "-xzf", filepath.Join(k.dir, filepath.Base(k.tree)+".tar.gz")); err != nil {
		return nil, err
	}
	if err := offline(k.tree, "packages", k.dir, "RELEASE_ARCHES="+strings.Join(arches(), " ")); err != nil {
		return nil, err
	}
	return k, offline(k.tree, "pack", k.old, "VERSION=v"+oldVersion, "RELEASE_ARCHES="+runtime.GOARCH)
})

// offline runs make without a network, without the module cache, and without git.
func offline(tree, target, out string, args ...string) error {
	cmd := exec.Command("make", append([]string{"-C", tree, target, "PACKAGE_DIR=" + out}, args...)...)
	if os.Getuid() == 0 {
		cmd.Args = append([]string{"unshare", "-n"}, cmd.Args...)
		cmd.Path, _ = exec.LookPath("unshare")
	}
	cmd.Env = append(os.Environ(), "PACKAGER=builder <builder@example.org>", "GOPROXY=off", "GOFLAGS=-mod=vendor", "GOMODCACHE="+filepath.Join(tree, "none"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, text)
	}
	return nil
}

// arches are the processors that this machine can build for.
func arches() []string {
	list := []string{runtime.GOARCH}
	for arch, gcc := range map[string]string{"arm64": "aarch64-linux-gnu-gcc", "amd64": "x86_64-linux-gnu-gcc"} {
		if _, err := exec.LookPath(gcc); err == nil && arch != runtime.GOARCH {
			list = append(list, arch)
		}
	}
	return list
}

// makePackages skips a test on a machine without the tools or the network.
func makePackages(t *testing.T) *kit {
	t.Helper()
	for _, tool := range []string{"curl", "ar", "xz", "gcc", "make"} {
		need.Program(t, tool)
	}
	k, err := packages()
	if err != nil && strings.Contains(err.Error(), "cannot download") {
		need.Skip(t, "no network: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func command(name string, args ...string) error {
	if text, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, text)
	}
	return nil
}

// deb and rpm return the path of a package.
func (k *kit) deb(t *testing.T, dir, name string) string {
	return one(t, filepath.Join(dir, name+"_*_"+debArch(name)+".deb"))
}

func (k *kit) rpm(t *testing.T, dir, name string) string {
	return one(t, filepath.Join(dir, name+"-[0-9]*."+rpmArch(name, runtime.GOARCH)+".rpm"))
}

func debArch(name string) string {
	if name == compat {
		return "all"
	}
	return runtime.GOARCH
}

func rpmArch(name, arch string) string {
	if name == compat {
		return "noarch"
	}
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
}

// names of the packages
const program, compat = "nhc-gpu", "nhc-gpu-compat"

// The files of the packages are those of rpm/files, with their modes, in every package of both
// packagers. The dependencies are those of the program.
func TestPackages(t *testing.T) {
	tier.All(t)
	t.Parallel()
	k := makePackages(t)
	for _, arch := range arches() {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			deb := one(t, filepath.Join(k.dir, "nhc-gpu_2.0.1+3.gabcdef0-1_"+arch+".deb"))
			rpm := one(t, filepath.Join(k.dir, "nhc-gpu-2.0.1^3.gabcdef0-1."+rpmArch(program, arch)+".rpm"))
			want := listed(t, "/usr/libexec/nhc", "main")
			if diff := cmp.Diff(want, rpmFiles(t, rpm)); diff != "" {
				t.Errorf("rpm (-rpm/files +package):\n%s", diff)
			}
			if diff := cmp.Diff(withoutFlags(want), debFiles(t, deb, want)); diff != "" {
				t.Errorf("deb (-rpm/files +package):\n%s", diff)
			}
			dir := t.TempDir()
			run(t, exec.Command("dpkg-deb", "-x", deb, dir))
			binary := filepath.Join(dir, "usr/sbin/nhc-gpu")
			if named := needsNoNewGLIBC(t, binary, newestGLIBC[arch]); named < 20 {
				t.Errorf("%s names %d symbols of glibc: is it linked with it at all?", binary, named)
			}
			unpackedBelow(t, rpm)
			mustBindLazily(t, binary)
			info, err := buildinfo.ReadFile(binary)
			if err != nil {
				t.Fatal(err)
			}
			sameModules(t, filepath.Join(k.dir, "nhc-gpu-"+newVersion+"-"+arch+".cdx.json"), info)
			licensed(t, filepath.Join(dir, "usr/share/doc/nhc-gpu/copyright"), info)
			if arch == runtime.GOARCH {
				mustStart(t, binary, "nhc-gpu "+newVersion+" (commit abcdef0123)\n")
			}
		})
	}
	t.Run("compat", func(t *testing.T) {
		t.Parallel()
		if diff := cmp.Diff(listed(t, "/usr/libexec/nhc", "compat"), rpmFiles(t, k.rpm(t, k.dir, compat))); diff != "" {
			t.Errorf("rpm (-rpm/files +package):\n%s", diff)
		}
		want := withoutFlags(listed(t, "/usr/lib/nhc", "compat"))
		if diff := cmp.Diff(want, debFiles(t, k.deb(t, k.dir, compat), want)); diff != "" {
			t.Errorf("deb (-rpm/files +package):\n%s", diff)
		}
	})
	t.Run("SHA256SUMS", func(t *testing.T) {
		t.Parallel()
		check := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
		check.Dir = k.dir
		out := run(t, check)
		files, err := os.ReadDir(k.dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Count(out, ": OK"), len(files)-1; got != want {
			t.Errorf("%d files, want %d:\n%s", got, want, out)
		}
	})
	t.Run("Spec", func(t *testing.T) {
		t.Parallel()
		need.Program(t, "rpmbuild")
		top := t.TempDir()
		run(t, exec.Command("make", "-C", root, "rpm", "RPM_TOPDIR="+top, "VERSION=v"+newVersion, "PREBUILT="+filepath.Join(k.tree, "dist/release/linux-"+runtime.GOARCH, program)))
		for _, name := range []string{program, compat} {
			ours, theirs := k.rpm(t, k.dir, name), one(t, filepath.Join(top, "RPMS/*", name+"-[0-9]*.rpm"))
			// Debian's rpmbuild compresses no manual page; nfpm marks no link as a document.
			uncompressed := func(files []string) (list []string) {
				for _, f := range files {
					list = append(list, strings.Replace(strings.Replace(f, ".gz ", " ", 1), " lrwxrwxrwx d", " lrwxrwxrwx ", 1))
				}
				return list
			}
			if diff := cmp.Diff(uncompressed(rpmFiles(t, ours)), uncompressed(rpmFiles(t, theirs))); diff != "" {
				t.Errorf("%s (-make packages +rpm/nhc-gpu.spec):\n%s", name, diff)
			}
			for _, m := range regexp.MustCompile(`GLIBC_([\d.]+)`).FindAllStringSubmatch(run(t, exec.Command("rpm", "-qp", "--requires", theirs)), -1) {
				if newer(m[1], newestGLIBC[runtime.GOARCH]) {
					t.Errorf("%s requires glibc %s, want at most %s", theirs, m[1], newestGLIBC[runtime.GOARCH])
				}
			}
			for _, about := range []string{"--provides", "--conflicts", "--obsoletes", "--scripts"} {
				if diff := cmp.Diff(aboutPackage(t, ours, about), aboutPackage(t, theirs, about)); diff != "" {
					t.Errorf("%s %s (-make packages +rpm/nhc-gpu.spec):\n%s", name, about, diff)
				}
			}
		}
	})
}

// unpackedBelow fails unless "rpm2cpio | cpio -id" writes below the current directory.
func unpackedBelow(t *testing.T, pkg string) {
	t.Helper()
	need.Program(t, "cpio")
	names := run(t, exec.Command("sh", "-c", `rpm2cpio "$1" | cpio --quiet -t`, "sh", pkg))
	for name := range strings.Lines(names) {
		if !strings.HasPrefix(name, "./") {
			t.Fatalf("%s has the name %s", pkg, name)
		}
	}
}

// licensed fails if the copyright file names no licence of a module.
func licensed(t *testing.T, path string, info *buildinfo.BuildInfo) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`/v\d+$`)
	for _, m := range info.Deps {
		if !strings.Contains(string(text), " vendor/"+version.ReplaceAllString(m.Path, "")+"/*") {
			t.Errorf("rpm/copyright does not name %s", m.Path)
		}
	}
}

// aboutPackage returns what rpm says of a package, without what rpmbuild adds by itself.
func aboutPackage(t *testing.T, pkg, about string) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(run(t, exec.Command("rpm", "-qp", "--nosignature", about, pkg))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "config(") && !strings.HasPrefix(line, "nhc-gpu") && !strings.HasPrefix(line, "#!") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// listed returns the files of rpm/files as rpmFiles does.
func listed(t *testing.T, helpers, part string) []string {
	t.Helper()
	list := exec.Command(filepath.Join(root, "rpm/files.sh"), "list", part)
	list.Env = append(os.Environ(), "SBIN=/usr/sbin", "SHARE=/usr/share", "SYSCONF=/etc", "UNITS=/usr/lib/systemd/system", "TMPFILES=/usr/lib/tmpfiles.d", "HELPERS="+helpers,
		"BASHCOMP=/usr/share/bash-completion/completions", "ZSHCOMP=/usr/share/zsh/site-functions", "FISHCOMP=/usr/share/fish/vendor_completions.d")
	var files []string
	for line := range strings.Lines(run(t, list)) {
		w := strings.Fields(line) // package path mode type source
		path, kind, flags := w[1], "-", ""
		switch w[3] {
		case "dir":
			kind = "d"
		case "link":
			kind = "l"
		case "man":
			path += ".gz"
		case "config":
			flags = "cn"
		}
		if kind == "-" && (strings.HasPrefix(path, "/usr/share/doc/") || strings.HasPrefix(path, "/usr/share/man/")) {
			flags = "d"
		}
		files = append(files, fmt.Sprintf("%s %s%s %s", path, kind, mode(t, w[2]), flags))
	}
	slices.Sort(files)
	return files
}

func mode(t *testing.T, octal string) string {
	t.Helper()
	m, ok := map[string]string{"755": "rwxr-xr-x", "644": "rw-r--r--", "777": "rwxrwxrwx"}[octal]
	if !ok {
		t.Fatalf("rpm/files has the mode %s", octal)
	}
	return m
}

func withoutFlags(files []string) []string {
	var list []string
	for _, f := range files {
		w := strings.Fields(f)
		list = append(list, w[0]+" "+w[1])
	}
	return list
}

// rpmFiles returns the path, mode and flags of each file.
func rpmFiles(t *testing.T, pkg string) []string {
	t.Helper()
	need.Program(t, "rpm")
	var files []string
	for line := range strings.Lines(run(t, exec.Command("rpm", "-qp", "--nosignature", "--qf", "[%{FILENAMES} %{FILEMODES:perms} %{FILEFLAGS:fflags} %{FILEUSERNAME}:%{FILEGROUPNAME}\n]", pkg))) {
		owned := strings.TrimSpace(line)
		f, ok := strings.CutSuffix(owned, " root:root")
		if !ok {
			t.Errorf("%s belongs to others than root", owned)
		}
		// Linux knows no mode of a link, and nfpm writes none
		files = append(files, strings.Replace(f, " l---------", " lrwxrwxrwx", 1))
	}
	slices.Sort(files)
	return files
}

// debFiles returns the path and mode of each file. A .deb has also the directories above.
func debFiles(t *testing.T, pkg string, want []string) []string {
	t.Helper()
	need.Program(t, "dpkg-deb")
	var files []string
	for line := range strings.Lines(run(t, exec.Command("dpkg-deb", "-c", pkg))) {
		w := strings.Fields(line)
		path := strings.TrimSuffix(strings.TrimPrefix(w[5], "."), "/")
		if path == "/usr/share/doc/nhc-gpu/changelog.Debian.gz" { // nfpm makes it
			continue
		}
		if w[1] != "root/root" {
			t.Errorf("%s belongs to %s", path, w[1])
		}
		if above := func(f string) bool { return strings.HasPrefix(f, path+"/") }; w[0][0] == 'd' && slices.ContainsFunc(want, above) &&
			!slices.ContainsFunc(want, func(f string) bool { return strings.HasPrefix(f, path+" ") }) {
			continue
		}
		files = append(files, path+" "+w[0])
	}
	slices.Sort(files)
	return files
}

// sameModules compares an SBOM with the modules that the linker recorded in a program.
func sameModules(t *testing.T, path string, info *buildinfo.BuildInfo) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat, SerialNumber string
		Metadata                struct {
			Component struct {
				Name, Version string
				Hashes        []struct{ Content string }
			}
		}
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	want := []string{"std " + strings.TrimPrefix(info.GoVersion, "go")}
	for _, m := range info.Deps {
		want = append(want, m.Path+" "+m.Version)
	}
	got := make([]string, 0, len(bom.Components))
	for _, c := range bom.Components {
		got = append(got, c.Name+" "+c.Version)
		if !strings.HasPrefix(c.Purl, "pkg:golang/"+c.Name+"@") {
			t.Errorf("%s has the purl %s", c.Name, c.Purl)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 10 {
		t.Errorf("modules (-program +SBOM):\n%s", diff)
	}
	about := bom.Metadata.Component
	if bom.BOMFormat != "CycloneDX" || about.Name != info.Main.Path || about.Version != newVersion || len(about.Hashes) != 1 {
		t.Errorf("the SBOM is about %+v", bom)
	}
}

// Two builds of one source archive in different directories make the same bytes.
func TestPackagesAreReproducible(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	k := makePackages(t)
	top := t.TempDir()
	again := filepath.Join(top, "another-and-longer-name", filepath.Base(k.tree))
	if err := os.MkdirAll(again, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(k.dir, filepath.Base(k.tree)+".tar.gz")
	run(t, exec.Command("tar", "-C", filepath.Dir(again), "-xzf", archive))
	run(t, exec.Command("cp", archive, top))
	if err := offline(again, "packages", top, "RELEASE_ARCHES="+strings.Join(arches(), " ")); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(k.dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(filepath.Join(top, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(first), "\n"), strings.Split(string(second), "\n")); diff != "" {
		t.Errorf("(-first +second build):\n%s", diff)
	}
	// for each architecture a rpm, a deb and an SBOM; two packages of links; the archive
	if n := bytes.Count(second, []byte("\n")); n != 3*len(arches())+3 {
		t.Errorf("%d files, want %d:\n%s", n, 3*len(arches())+3, second)
	}
}

// Packages and SHA256SUMS carry the signature of the builder's key.
func TestPackagesAreSigned(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "gpg")
	need.Program(t, "rpmkeys")
	k := makePackages(t)
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	gpg := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("gpg", append([]string{"--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "secret"}, args...)...)
		cmd.Env = append(os.Environ(), "GNUPGHOME="+home)
		return run(t, cmd)
	}
	t.Cleanup(func() {
		kill := exec.Command("gpgconf", "--kill", "gpg-agent")
		kill.Env = append(os.Environ(), "GNUPGHOME="+home)
		_ = kill.Run()
	})
	gpg("--quick-generate-key", "builder <builder@example.org>", "rsa2048", "sign", "never")
	key, public := filepath.Join(dir, "key.asc"), filepath.Join(dir, "public.asc")
	gpg("--armor", "--output", key, "--export-secret-keys")
	gpg("--armor", "--output", public, "--export")
	out := filepath.Join(dir, "out")
	if err := offline(k.tree, "pack", out, "SIGN_KEY="+key, "NFPM_PASSPHRASE=secret", "RELEASE_ARCHES="+runtime.GOARCH); err != nil {
		t.Fatal(err)
	}
	gpg("--verify", filepath.Join(out, "SHA256SUMS.asc"), filepath.Join(out, "SHA256SUMS"))

	db := filepath.Join(dir, "rpmdb")
	run(t, exec.Command("rpmkeys", "--dbpath", db, "--import", public))
	said := run(t, exec.Command("rpmkeys", "--dbpath", db, "--checksig", "-v", k.rpm(t, out, program), k.rpm(t, out, compat)))
	if n := len(regexp.MustCompile(`(?m)Signature, key ID \w+: OK$`).FindAllString(said, -1)); n < 2 {
		t.Errorf("rpmkeys:\n%s", said)
	}
	for _, name := range []string{program, compat} {
		signed := filepath.Join(dir, name)
		unpackDeb := exec.Command("sh", "-c", `mkdir "$1" && cd "$1" && ar x "$2" && cat debian-binary control.tar* data.tar* >all`, "sh", signed, k.deb(t, out, name))
		run(t, unpackDeb)
		gpg("--verify", filepath.Join(signed, "_gpgorigin"), filepath.Join(signed, "all"))
	}
}
