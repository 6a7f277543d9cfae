package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
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

// A node that enforces, however it says so, goes on to do so although it has a fault. Any other node with a
// fault stays in observe mode.
func TestAnsibleMode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Root(t, "the role sets the owner of a file")
	need.Program(t, "ansible-playbook")
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := built.WriteProgram(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct{ file, event, want string }{
		"plain":    {"MODE=enforce\n", "", "MODE=enforce\n"},
		"quoted":   {"MODE=\"enforce\"\n", "", "MODE=enforce\n"},
		"exported": {"A=1\nexport MODE='enforce' # since May\n", "", "A=1\nMODE=enforce\n"},
		"default":  {"A=1\n", `{"mode": "enforce", "run": 7}`, "A=1\nMODE=enforce\n"},
		"toml":     {"A=1\n", `{"mode": "observe", "run": 7}`, "A=1\nMODE=observe\n"},
		"never":    {"A=1\n", `{"mode": "enforce"}`, "A=1\nMODE=observe\n"},
		"new":      {"A=1\n", "", "A=1\nMODE=observe\n"},
		"stopped":  {"MODE=enforce\nMODE=observe\n", `{"mode": "enforce", "run": 7}`, "MODE=enforce\nMODE=observe\n"},
		"observe":  {"MODE=observe\n", `{"mode": "enforce", "run": 7}`, "MODE=observe\n"},
		"other":    {"MODE=enforced\n", "", "MODE=observe\n"},
	}
	hosts := ""
	for name, c := range tests {
		hosts += name + " dir=" + filepath.Join(dir, name) + "\n"
		write(name+"/etc/default/nhc", c.file)
		write(name+"/event", c.event)
	}
	write("hosts", hosts)
	write("bin/nhc-gpu", "#!/bin/sh\ncase $1 in\nstatus) cat \"$NODE/event\" ;;\n--check) exit 2 ;;\nesac\n")
	for _, tasks := range []string{"settings.yml", "mode.yml"} {
		text, err := os.ReadFile(filepath.Join(root, "conf/ansible/roles/nhc_gpu/tasks", tasks))
		if err != nil {
			t.Fatal(err)
		}
		write(tasks, strings.ReplaceAll(string(text), "/etc/", "{{ dir }}/etc/"))
	}
	write("play.yml", `
- hosts: all
  gather_facts: false
  connection: local
  environment: {PATH: "`+dir+`/bin:/usr/bin:/bin", NODE: "{{ dir }}"}
  vars: {ansible_os_family: Debian, ansible_python_interpreter: /usr/bin/python3, nhc_gpu_mode: enforce, nhc_gpu_gate: true, nhc_gpu_settings: {}}
  tasks:
    - ansible.builtin.import_tasks: settings.yml
    - ansible.builtin.import_tasks: mode.yml
`)
	play := exec.Command("ansible-playbook", "-i", "hosts", "play.yml")
	play.Dir = dir
	play.Env = append(os.Environ(), "HOME="+dir, "ANSIBLE_LOCAL_TEMP="+dir+"/tmp", "LC_ALL=C.UTF-8", "ANSIBLE_NOCOLOR=1")
	out, _ := play.CombinedOutput() // of the nodes that stay
	for name, c := range tests {
		text, err := os.ReadFile(filepath.Join(dir, name, "etc/default/nhc"))
		if err != nil || string(text) != c.want {
			t.Errorf("%s: %v, %q, want %q\n%s", name, err, text, c.want, out)
		}
	}
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
