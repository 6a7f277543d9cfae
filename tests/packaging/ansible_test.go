package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

func TestAnsibleLint(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "ansible-lint")
	dir := t.TempDir() // ansible-lint writes beside its files
	run(t, exec.Command("cp", "-r", filepath.Join(root, "conf/ansible"), dir))
	lint := exec.Command("ansible-lint", "--offline", "--strict", "rollout.yml", "inventory.yml")
	lint.Dir = filepath.Join(dir, "ansible")
	lint.Env = append(os.Environ(), "HOME="+dir, "ANSIBLE_LOCAL_TEMP="+dir)
	run(t, lint)
}

// The role installs and configures a Debian. A second run changes nothing; a wrong file stops the
// play before it has its place; a failing node does not change to enforce.
func TestAnsibleRole(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	need.Program(t, "ansible-playbook")
	k := makePackages(t)
	s := newSystem(t, "bookworm", false)
	play := filepath.Join(s.dir, "ansible")
	run(t, exec.Command("cp", "-r", filepath.Join(root, "conf/ansible"), play))
	conf := filepath.Join(play, "files/test/nhc.conf")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const healthy, failing = "* || check_file_test -d /etc\n", "* || check_file_test -d /nonexistent\n"
	write(conf, healthy)
	inventory := func(mode string) {
		t.Helper()
		write(filepath.Join(play, "hosts.yml"), `
gpu:
  hosts:
    `+filepath.Join(s.dir, "root")+`:
  vars:
    ansible_connection: community.general.chroot
    ansible_python_interpreter: /usr/bin/python3
    ansible_become: false
    nhc_gpu_kind: test
    nhc_gpu_packages: ["`+k.deb(t, k.dir, program)+`"]
    nhc_gpu_settings: {NHC_CHECK_ALL: "1"}
    nhc_gpu_units: [nhc-gpu.timer]
    nhc_gpu_job_scripts: true
    nhc_gpu_mode: `+mode+"\n")
	}
	recap := regexp.MustCompile(`changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)`)
	ansible := func() (changed, failed, out string) {
		t.Helper()
		out, _ = s.command(enter+`cd "$0" && LC_ALL=C.UTF-8 ANSIBLE_LOCAL_TEMP="$DIR/tmp" ANSIBLE_NOCOLOR=1 ANSIBLE_PIPELINING=1 exec ansible-playbook -i hosts.yml -e ansible_become=false rollout.yml`, play)
		m := recap.FindStringSubmatch(out)
		if m == nil || m[2] != "0" {
			t.Fatalf("ansible-playbook:\n%s", out)
		}
		return m[1], m[3], out
	}
	state := func() string {
		t.Helper()
		return s.must("grep -h ^MODE= /etc/default/nhc; cat /etc/nhc/nhc.conf")
	}
	want := func(when, mode, conf string) {
		t.Helper()
		if got := state(); got != "MODE="+mode+"\n"+conf {
			t.Errorf("%s the node has:\n%s", when, got)
		}
	}

	inventory("observe")
	if changed, failed, out := ansible(); changed == "0" || failed != "0" {
		t.Fatalf("the first run:\n%s", out)
	}
	want("after the first run", "observe", healthy)
	s.must("nhc-gpu version && grep -x NHC_CHECK_ALL=1 /etc/default/nhc && cmp /etc/slurm/prolog.d/50-nhc-gpu /usr/share/nhc-gpu/slurm/prolog.d/50-nhc-gpu && test -x /etc/slurm/epilog.d/50-nhc-gpu")
	if changed, failed, out := ansible(); changed != "0" || failed != "0" {
		t.Errorf("the second run changes something:\n%s", out)
	}

	write(conf, "* || check_file_test -d /etc --nonsense\n")
	if _, failed, out := ansible(); failed == "0" || !strings.Contains(out, "Check the new files") {
		t.Errorf("a file with an error:\n%s", out)
	}
	want("after a file with an error", "observe", healthy)

	write(conf, failing)
	inventory("enforce")
	if _, failed, out := ansible(); failed == "0" {
		t.Errorf("a failing node:\n%s", out)
	}
	want("a failing node", "observe", failing)

	write(conf, healthy)
	if _, failed, out := ansible(); failed != "0" {
		t.Errorf("the switch:\n%s", out)
	}
	want("after the switch", "enforce", healthy)

	s.must(`echo MODE=observe >>/etc/default/nhc`) // as in an emergency
	write(conf, failing)
	if _, failed, out := ansible(); failed == "0" {
		t.Errorf("a failing node that was stopped:\n%s", out)
	}
	if got := s.must("grep ^MODE= /etc/default/nhc | tail -n 1"); got != "MODE=observe\n" {
		t.Errorf("a failing node that was stopped has %s", got)
	}
}
